"""Which integers weights may have: restricted, full, and around a zero point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import images, mixed_net, net, noise, plan_of
from reference_checks import check_plan

import compiler
import quantize
from compiler.errors import ConfigError
from quantize import Plan, QConfig
from quantize.calibration.rounding.problem import problem
from quantize.plan.params import ValueParams, weight_params

KINDS = ("restricted", "full", "asymmetric")
DATA = ValueParams(1.0, 0, "uint8")


@given(
    bits=st.integers(2, 15), kind=st.sampled_from(KINDS), seed=st.integers(0, 999),
    offset=st.sampled_from([-3.0, 0.0, 0.4, 3.0]),
    granularity=st.sampled_from(["tensor", "channel"]), calibrate=st.sampled_from(["max", "mse"]),
)  # fmt: skip
def test_weights_are_within_half_a_scale_of_their_integers_in_every_range(
    bits: int, kind: str, seed: int, offset: float, granularity: str, calibrate: str
) -> None:
    weight = np.random.default_rng(seed).normal(offset, 1, (3, 2, 2, 2)).astype(np.float32)
    weight[1] = 0
    config = QConfig(
        weight_bits=bits, weight_range=kind, weight_granularity=granularity,
        weight_calibrate=calibrate,
    )  # fmt: skip
    p = weight_params(weight, None, DATA, config)
    q = p.quantized(weight).astype(np.int64)
    half = 1 << (bits - 1)
    zero = np.asarray(p.zero_points or (0,)).reshape(-1, 1, 1, 1)
    assert (q + zero >= -half + (kind == "restricted")).all()
    assert (q + zero <= half - 1).all()
    assert p.dtype == ("int8" if np.iinfo(np.int8).min <= -half - zero.max()
                       and half - 1 - zero.min() <= np.iinfo(np.int8).max else "int16")  # fmt: skip
    assert bool(p.zero_points) == (kind != "restricted")
    assert (kind == "asymmetric") or not zero.any()
    if calibrate == "max":
        scale = p.spread(weight.shape)
        # Rounding the zero point to an integer moves the ends by up to half a scale.
        slack = 1.01 if kind == "asymmetric" else 0.501
        assert (np.abs(q * scale - weight) <= slack * scale).all()
    assert (q[1] == 0).all()


def test_a_range_that_fits_better_has_less_error() -> None:
    weight = np.random.default_rng(0).normal(0.5, 1, (8, 64)).astype(np.float32)
    weight = np.maximum(weight, -0.4)
    errors = []
    for kind in KINDS:
        config = QConfig(weight_bits=4, weight_range=kind)
        p = weight_params(weight, None, DATA, config)
        errors.append(
            float(np.square(p.quantized(weight) * p.spread(weight.shape) - weight).mean())
        )
    assert errors[2] < 0.6 * errors[0]
    negative = -np.abs(weight)
    full, restricted = (
        weight_params(negative, None, DATA, QConfig(weight_bits=3, weight_range=kind))
        for kind in ("full", "restricted")
    )
    assert full.quantized(negative).min() == -4
    assert max(full.scales) < max(restricted.scales)


@pytest.mark.thorough
@settings(max_examples=4, deadline=None)
@given(
    kind=st.sampled_from(["full", "asymmetric"]),
    bits=st.sampled_from([2, 4, 7, 8, 11]),
    config=st.fixed_dictionaries({
        "weight_granularity": st.sampled_from(["tensor", "channel"]),
        "weight_rounding": st.sampled_from(["nearest", "gptq"]),
        "weight_calibrate": st.sampled_from(["max", "mse"]),
        "requantize": st.sampled_from(["float32", "shift"]),
        "bias_correction": st.sampled_from(["none", "analytic"]),
    }),
)  # fmt: skip
def test_ranges_of_weights_are_the_same_compiled_interpreted_and_in_the_reference(
    kind: str, bits: int, config: Any
) -> None:
    chosen = QConfig(weight_range=kind, weight_bits=bits, skip=("d2", "clipped"), **config)
    plan = quantize.calibrate(mixed_net(), [noise(6)], chosen)
    assert Plan.from_json(plan.to_json()) == plan
    assert check_plan(mixed_net(), plan, noise(3, 5))["integer"] >= 8


@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm"])
def test_the_smallest_byte_is_multiplied_right_on_every_instruction_set(target: str) -> None:
    config = QConfig(weight_range="full", bias_correction="none")
    plan = plan_of("mlp", config)
    weights = [v for v in plan.weights.values() if -128 in v.zero_points or v.zero_points]
    assert weights
    q = quantize.realize(net("mlp"), plan)
    found = [c for b in q.main.bindings for c in getattr(b.value, "args", ()) if hasattr(c, "data")]
    assert min(int(c.data.min()) for c in found if c.data.dtype == np.int8) == -128
    x = images()[1][:20]
    np.testing.assert_array_equal(compiler.build(q, target=target)(x), compiler.evaluate(q, x))


@pytest.mark.parametrize("method", ["gptq", "adaround"])
def test_least_squares_stays_within_the_ends_of_each_channel(method: str) -> None:
    from quantize.calibration.rounding.layers import solved

    rng = np.random.default_rng(0)
    w, x = rng.normal(0.7, 1, (1, 4, 12)), rng.normal(size=(12, 40))
    moment = (x @ x.T)[None] / 40
    low = np.array([-1.0, -7, -3, 0]).reshape(1, 4, 1)
    task = problem(w, moment, moment, np.full((1, 1, 1), 0.4), (low, low + 7), 0.1)
    q = solved(task, QConfig(weight_rounding=method, rounding_steps=100))
    assert ((q >= low) & (q <= low + 7)).all()
    assert (task.loss(q) <= task.loss(task.nearest())).all()


def test_models_with_zero_points_of_weights_run_elsewhere(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    config = QConfig(weight_range="asymmetric", bias_correction="none")
    plan = plan_of("mlp", config)
    quantize.export_onnx(net("mlp"), plan, tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"]
    )
    x = images()[1][:50]
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
    ours = compiler.build(quantize.realize(net("mlp"), plan))(x)
    assert (theirs.argmax(1) == ours.argmax(1)).all()
    assert np.square(theirs - ours).sum() < 1e-3 * np.square(ours).sum()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight_range": "symmetric"}, "did you mean 'asymmetric'"),
        ({"weight_range": "asymmetric", "weight_bits": 16}, "use 15 or fewer"),
    ],
)
def test_ranges_that_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(**values)


@pytest.mark.parametrize(
    ("zeros", "message"),
    [([0], "as many as scales"), ("0", "as many as scales"), ([300] * 10, "from -128 to 127")],
)
def test_zero_points_that_a_plan_cannot_have(zeros: Any, message: str) -> None:
    data = plan_of("mlp").to_dict()
    data["weights"]["logits"]["zero_points"] = zeros
    with pytest.raises(ConfigError, match=message):
        Plan.from_dict(data)
