"""What helps integers helps formats and blocks: rescaled channels, corrected biases, mixed
precision; and HQQ's zero points, which are for integers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import Plan, QConfig
from quantize.plan.half_quadratic import POWER, half_quadratic
from quantize.plan.scales import largest, zeros
from quantize.search.costs import mean_weight_bits, plan_cost

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import mixed_net, noise

OUTLIERS = [3, 40]


def outlier_net(seed: int = 0, factor: float = 40.0) -> tuple[IRModule, Any]:
    """Two layers; some channels of what the first reads are larger than the others by `factor`."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()
    x = b.param("x", (Var("n"), 64))
    read = rng.normal(0, 0.2, (48, 64)).astype(np.float32)
    read[:, OUTLIERS] /= factor  # so that the others matter as much
    first = b.const(read)
    bias = b.const(rng.normal(0, 0.5, 48).astype(np.float32))
    y = b.call("nn.relu", b.call("nn.dense", x, first, bias, name="d0"), name="r0")
    y = b.call("nn.dense", y, b.const(rng.normal(0, 0.2, (10, 48)).astype(np.float32)), name="d1")
    sizes = np.ones(64)
    sizes[OUTLIERS] = factor
    return IRModule({"main": b.finish(y)}), lambda n: (rng.normal(size=(n, 64)) * sizes).astype(
        np.float32
    )


def decibels(mod: IRModule, fit: Array, x: Array, config: QConfig) -> float:
    plan = quantize.calibrate(mod, [fit], config)
    assert plan == Plan.from_json(plan.to_json())
    y = compiler.build(quantize.realize(mod, plan))(x)
    return metrics.sqnr_db(y, compiler.build(mod)(x))


WEIGHTS = {"activation_dtype": "float32"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("scheme", "method"),
    [
        ({"weight_dtype": "nvfp4", **WEIGHTS}, {"activation_aware": True}),
        ({"weight_dtype": "mxfp4_e2m1", **WEIGHTS}, {"activation_aware": True}),
        (
            {"weight_dtype": "nf4", "weight_granularity": "group", **WEIGHTS},
            {"activation_aware": True},
        ),
        ({"weight_dtype": "fixed8_4", "activation_dtype": "fixed8_4"}, {"smoothing": 0.5}),
        ({"weight_dtype": "nvint4", "activation_dtype": "nvint4"}, {"smoothing": 0.5}),
    ],
    ids=str,
)
def test_rescaled_channels_gain_decibels_where_inputs_have_outliers(
    scheme: dict[str, Any], method: dict[str, Any]
) -> None:
    mod, data = outlier_net()
    fit, x = data(200), data(100)
    plain, rescaled = (decibels(mod, fit, x, QConfig(**scheme, **m)) for m in ({}, method))
    assert rescaled > plain + 1, (plain, rescaled)


@pytest.mark.parametrize("method", ["analytic", "empirical"])
@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "nvfp4"])
def test_corrected_biases_take_the_mean_error_of_layers_in_formats_away(
    dtype: str, method: str
) -> None:
    rng = np.random.default_rng(3)
    b = FunctionBuilder()
    weight = b.const(rng.normal(0.3, 1, (6, 32)).astype(np.float32))
    b.call("nn.dense", b.param("x", (20, 32)), weight, name="y")
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    x = rng.normal(1, 1, (20, 32)).astype(np.float32)
    config = QConfig(weight_dtype=dtype, activation_dtype="float32", format_bias_correction=method)
    plan = quantize.calibrate(mod, [x], config)
    assert len(plan.shifts["y"]) == 6
    assert plan == Plan.from_json(plan.to_json())
    y = compiler.build(quantize.realize(mod, plan))(x)
    np.testing.assert_allclose(y.mean(axis=0), compiler.evaluate(mod, x).mean(axis=0), atol=1e-4)
    with pytest.raises(ConfigError, match="no 2 biases that could be shifted"):
        quantize.realize(mod, replace(plan, shifts={"y": (0.0, 1.0)}))


def test_formats_keep_their_biases_unless_asked() -> None:
    config = QConfig(weight_dtype="nvfp4", activation_dtype="float32")
    assert not quantize.calibrate(mixed_net(), [noise(20)], config).shifts


@pytest.mark.thorough
def test_computing_in_a_format_adds_the_shift_too() -> None:
    config = QConfig(
        weight_dtype="posit8_es1", activation_dtype="posit8_es1", compute="native",
        format_bias_correction="analytic",
    )  # fmt: skip
    mod, data = outlier_net()
    plan = quantize.calibrate(mod, [data(60)], config)
    moved = replace(plan, shifts={"d1": tuple(float(k) for k in range(10))})
    x = data(5)
    plain, shifted = (
        compiler.build(quantize.realize(mod, p))(x) for p in (replace(plan, shifts={}), moved)
    )
    np.testing.assert_allclose(shifted - plain, np.tile(np.arange(10), (5, 1)), atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("tokens", ["tensor", "token"])
def test_products_on_integer_kernels_have_chosen_weights_and_shifted_biases(tokens: str) -> None:
    mod, data = outlier_net(factor=1)
    fit, x = data(300), data(100)
    plain = QConfig(weight_dtype="int4", activation_dtype="int8", activation_granularity=tokens)
    both = replace(plain, weight_rounding="gptq", format_bias_correction="empirical")
    plan = quantize.calibrate(mod, [fit], both)
    assert set(plan.shifts) == {"d0", "d1"}
    assert all(f[1].chosen for f in plan.formats.values())
    realized = quantize.realize(mod, plan)
    y = compiler.build(realized)(x)
    np.testing.assert_allclose(y, compiler.evaluate(realized, x), rtol=1e-4, atol=1e-4)
    simulated = compiler.evaluate(quantize.simulate(mod, plan), x)
    np.testing.assert_allclose(y, simulated, rtol=1e-3, atol=1e-3)
    assert decibels(mod, fit, x, both) > decibels(mod, fit, x, plain)


# ---- mixed precision -----------------------------------------------------------------------------
def sensitive_net() -> tuple[IRModule, Array]:
    """Three layers of like size, of which the second decides the results."""
    rng = np.random.default_rng(5)
    b = FunctionBuilder()
    x = b.param("x", (40, 32))
    parts = []
    for k, size in enumerate((0.02, 1.0, 0.02)):
        w = b.const((size * rng.normal(0, 0.3, (32, 32))).astype(np.float32))
        parts.append(b.call("nn.dense", x, w, name=f"d{k}", origins=[f"Gemm_{k}"]))
    y = b.call("add", b.call("add", parts[0], parts[1]), parts[2])
    return IRModule({"main": b.finish(y)}), rng.normal(size=(40, 32)).astype(np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "scheme",
    [
        {"weight_dtype": "mxfp4_e2m1", "wide_weight_dtype": "mxfp8_e4m3", "mean_weight_bits": 6.0},
        {"weight_dtype": "nvfp4", "wide_weight_dtype": "float8_e4m3fn", "mean_weight_bits": 6.0},
        {"weight_bits": 4, "mean_weight_bits": 6.0},
    ],
    ids=str,
)
def test_the_weights_that_decide_get_the_wide_format(scheme: dict[str, Any]) -> None:
    mod, x = sensitive_net()
    config = QConfig(activation_dtype="float32", bias_correction="none", **scheme)
    plan = quantize.calibrate(mod, [x], config)
    if config.in_formats:
        given_to = {k: f[1].format for k, f in plan.formats.items()}
        assert given_to == dict.fromkeys(("d0", "d2"), config.weight_dtype) | {
            "d1": config.wide_weight_dtype
        }
    else:
        assert {k: w.bits for k, w in plan.weights.items()} == {"d0": 4, "d1": 8, "d2": 4}
    assert mean_weight_bits(mod, plan) <= 6
    assert plan.steps[0].startswith("d1: weights of ")
    assert plan == Plan.from_json(plan.to_json())


def test_formats_leave_sensitive_nodes_in_float_until_a_target_is_reached() -> None:
    mod, x = sensitive_net()
    config = QConfig(
        weight_dtype="mxfp4_e2m1", activation_dtype="mxfp4_e2m1", float_macs=0.4, target=30.0,
        target_metric="sqnr",
    )  # fmt: skip
    plan = quantize.calibrate(mod, [x], config)
    assert [k for k, n in plan.nodes.items() if n.op == "nn.dense" and n.decision == "float"] == [
        "d1"
    ]


# ---- HQQ -----------------------------------------------------------------------------------------
@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_no_group_gets_a_larger_error_than_with_integer_zero_points(seed: int, bits: int) -> None:
    rows = np.random.default_rng(seed).standard_t(3, size=(5, 40)) + 0.7
    half = 1 << (bits - 1)
    scale, zero = largest(rows, bits, "asymmetric"), zeros(rows, bits, "asymmetric")
    found = half_quadratic(rows, scale, zero, -half, half - 1)

    def error(z: Array) -> Array:
        w = rows / scale[:, None]
        q = np.clip(np.rint(w + z[:, None]), -half, half - 1)
        return (np.abs(w - q + z[:, None]) ** POWER).sum(axis=1)

    assert (error(found) <= error(zero) + 1e-9).all()
    assert ((found >= -half) & (found <= half - 1)).all()


HQQ = QConfig(
    weight_bits=3, activation_dtype="float32", weight_range="asymmetric",
    weight_granularity="group", weight_group_size=24, bias_correction="none",
)  # fmt: skip


def test_real_zero_points_gain_decibels_in_every_path_of_a_network(tmp_path: Path) -> None:
    mod, data = outlier_net(4, factor=1)
    fit, x = data(100), data(50)
    reference = compiler.build(mod)(x)
    found = []
    for config in (HQQ, replace(HQQ, weight_rounding="hqq")):
        plan = quantize.calibrate(mod, [fit], config)
        assert plan == Plan.from_json(plan.to_json())
        realized = quantize.realize(mod, plan)
        y = compiler.build(realized)(x)
        np.testing.assert_allclose(y, compiler.evaluate(realized, x), rtol=1e-4, atol=1e-3)
        values = {b.var.name: v for b, v in trace(quantize.simulate(mod, plan), x)}
        np.testing.assert_allclose(y, values["d1"], rtol=1e-4, atol=1e-3)
        found.append((metrics.sqnr_db(y, reference), plan))
    (plain, _), (better, plan) = found
    assert better > plain + 0.3, (plain, better)
    offsets = plan.weights["d0"].offsets
    assert len(offsets) == len(plan.weights["d0"].scales) == 48 * 3
    more, less = (plan_cost(mod, p).parameter_bytes for p in (plan, found[0][1]))
    assert more - less == 4 * (48 * 3 + 10 * 2)
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx")
    (theirs,) = session.run(None, {"x": x})
    np.testing.assert_allclose(theirs, y, rtol=1e-3, atol=1e-3)


def test_offsets_are_for_weights_alone() -> None:
    mod, data = outlier_net()
    plan = quantize.calibrate(mod, [data(50)])
    w = plan.weights["d1"]
    wrong = replace(plan, weights={**plan.weights, "d1": replace(w, offsets=(0.0,) * 10)})
    with pytest.raises(ConfigError, match="cannot have offsets"):
        quantize.realize(mod, wrong)
