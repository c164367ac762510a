"""Integer weights with float activations: groups of scales, and activation-aware factors."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule, operands
from compiler.transform.analysis import cost
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import Plan, QConfig

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import mixed_net, noise

ONLY = QConfig(
    weight_bits=4, weight_calibrate="mse", weight_granularity="group", weight_group_size=16,
    activation_dtype="float32", bias_correction="none",
)  # fmt: skip


def by_hand(weight: Array, group: int, bits: int) -> Array:
    """Weights rounded in groups with scales of their largest, one group at a time."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    out = np.empty_like(rows)
    qmax = 2 ** (bits - 1) - 1
    for o, row in enumerate(rows):
        for k in range(0, len(row), group):
            part = row[k : k + group]
            scale = np.float32(np.abs(part).max() / qmax) if part.any() else np.float32(1)
            q = np.clip(np.rint(part / np.float64(scale)), -qmax, qmax)
            out[o, k : k + group] = q.astype(np.float32) * scale
    return out.reshape(weight.shape).astype(np.float32)


@pytest.mark.thorough
@settings(max_examples=20)
@given(
    st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 40),
    st.sampled_from([(5, 12), (4, 6, 3, 3), (6, 1, 3, 3)]),
)  # fmt: skip
def test_groups_of_any_size_are_rounded_as_by_hand_in_every_path(
    seed: int, bits: int, group: int, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=shape).astype(np.float32)
    w[0] = 0
    bias = rng.normal(size=shape[0]).astype(np.float32)

    def layer(weight: Array) -> IRModule:
        b = FunctionBuilder()
        dense = len(shape) == 2
        groups = 6 if shape[1] == 1 else 1
        x = b.param("x", (3, shape[1]) if dense else (2, shape[1] * groups, 5, 4))
        attrs = {} if dense else {"groups": groups}
        op = "nn.dense" if dense else "nn.conv2d"
        return IRModule({"main": b.finish(b.call(op, x, b.const(weight), b.const(bias), **attrs))})

    mod = layer(w)
    config = replace(ONLY, weight_bits=bits, weight_group_size=group, weight_calibrate="max")
    x = rng.normal(size=(3, 12) if len(shape) == 2 else (2, 6, 5, 4)).astype(np.float32)
    plan = quantize.calibrate(mod, x, config)
    qmod = quantize.realize(mod, plan)
    expected = compiler.evaluate(layer(by_hand(w, group, bits)), x)
    np.testing.assert_array_equal(compiler.evaluate(qmod, x), expected)
    np.testing.assert_allclose(compiler.build(qmod)(x), expected, atol=1e-4)
    np.testing.assert_array_equal(compiler.evaluate(quantize.simulate(mod, plan), x), expected)
    traced = quantize.trace_plan(mod, plan, x)
    np.testing.assert_array_equal(list(traced.values())[-1].values, expected)


def test_only_the_weights_are_integers_and_the_plan_says_so() -> None:
    plan = quantize.calibrate(mixed_net(), [noise(10)], ONLY)
    assert not plan.values
    assert plan.coverage == 0
    decisions = {name: n.decision for name, n in plan.nodes.items()}
    assert {name for name, d in decisions.items() if d == "weights"} == set(plan.weights)
    assert set(decisions.values()) == {"weights", "float"}
    assert "only the weights" in plan.nodes["r1"].reason
    read = Plan.from_json(plan.to_json())
    assert read == plan
    assert json.loads(plan.to_json())["weights"]["c1"]["group"] == 16


def test_the_realized_module_holds_bytes_and_a_scale_for_every_group() -> None:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    b.call("nn.dense", b.param("x", (2, 64)), b.const(rng.normal(size=(32, 64)).astype("float32")))
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    qmod = quantize.quantize(mod, np.ones((2, 64), np.float32), ONLY)
    kept = [a for b in qmod.main.bindings for a in operands(b.value) if isinstance(a, Constant)]
    assert {(str(c.dtype), c.data.size) for c in kept} == {("int8", 32 * 64), ("float32", 32 * 4)}
    assert max(np.abs(c.data).max() for c in kept if str(c.dtype) == "int8") == 7
    assert cost(qmod).parameter_bytes == 32 * 64 + 4 * 32 * 4


def outliers(seed: int) -> tuple[IRModule, list[Array]]:
    """A function, dense, relu, dense; some inputs are much larger than others."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()

    def weights(*shape: int) -> Any:
        return b.const(rng.normal(size=shape).astype(np.float32))

    h = b.call("nn.relu", b.call("nn.dense", b.param("x", (40, 32)), weights(64, 32), name="d1"))
    mod = IRModule({"main": b.finish(b.call("nn.dense", h, weights(16, 64), name="d2"))})
    sizes = np.where(np.arange(32) % 11 == 0, 12.0, 1.0)
    mix = np.eye(32) + rng.normal(0, 0.1, (32, 32))
    return mod, [((rng.normal(size=(40, 32)) @ mix) * sizes).astype(np.float32) for _ in range(5)]


def decibels(mod: IRModule, batches: list[Array], config: QConfig) -> float:
    qmod = quantize.quantize(mod, batches[:4], config)
    return metrics.sqnr_db(compiler.build(qmod)(batches[4]), compiler.build(mod)(batches[4]))


def mean_decibels(*configs: QConfig) -> list[float]:
    """Of several networks, for each configuration."""
    nets = [outliers(seed) for seed in range(3, 7)]
    return [float(np.mean([decibels(mod, x, config) for mod, x in nets])) for config in configs]


@pytest.mark.thorough
def test_each_method_gains_and_they_compose() -> None:
    coarse = replace(ONLY, weight_granularity="channel", weight_bits=3)
    grouped = replace(coarse, weight_granularity="group", weight_group_size=8)
    aware = replace(grouped, activation_aware=True)
    gptq = replace(grouped, weight_rounding="gptq")
    both = replace(aware, weight_rounding="gptq")
    found = mean_decibels(coarse, grouped, aware, gptq, both)
    assert found[1] > found[0] + 1, found
    assert found[2] > found[1] + 1, found
    assert found[3] > found[1] + 3, found
    assert found[4] > found[3], found


def test_activation_aware_factors_keep_the_function_and_give_large_inputs_finer_weights() -> None:
    mod, batches = outliers(4)
    plan = quantize.calibrate(mod, batches, replace(ONLY, activation_aware=True, weight_bits=3))
    divisors = np.array(plan.factors["x"].divisors)
    large = np.arange(32) % 11 == 0
    assert divisors[large].min() > divisors[~large].max()
    fine = replace(plan.config, weight_bits=8, weight_granularity="channel")
    assert decibels(mod, batches, fine) > 38


@pytest.mark.thorough
def test_aware_factors_help_integer_activations_too() -> None:
    config = QConfig(weight_bits=4, weight_calibrate="mse", bias_correction="none")
    found = mean_decibels(config, replace(config, activation_aware=True))
    assert found[1] > found[0] + 0.5, found


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_granularity": "groups"}, "did you mean 'group'"),
        ({"activation_dtype": "float32", "accumulate": "int16_wrap"}, "multiplied in float32"),
        ({"activation_dtype": "float32", "weight_bits": 12}, "weights have 2 to 8"),
        ({"overrides": {"c1": {"activation_dtype": "float32"}}}, "whole network"),
        ({"smoothing": 0.5, "activation_aware": True}, "give one"),
        ({"activation_dtype": "float32", "weight_group_size": 0}, "weight_group_size"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(**fields)


def test_scales_of_groups_do_not_make_an_integer_layer() -> None:
    plan = quantize.calibrate(mixed_net(), [noise(10)], ONLY)
    wrong = replace(plan.weights["c1"], scales=plan.weights["c1"].scales[:-1])
    with pytest.raises(ConfigError, match="scales"):
        quantize.realize(mixed_net(), replace(plan, weights={**plan.weights, "c1": wrong}))
    integer = quantize.calibrate(mixed_net(), [noise(10)])
    given = {**integer.weights, "c1": plan.weights["c1"]}
    with pytest.raises(ConfigError, match="cannot be those of groups"):
        quantize.realize(mixed_net(), replace(integer, weights=given))


@pytest.mark.parametrize("kind", ["full", "asymmetric"])
@pytest.mark.parametrize("method", ["nearest", "gptq", "adaround"])
def test_groups_have_zero_points_of_their_own(kind: str, method: str) -> None:
    rng = np.random.default_rng(1)
    w = (rng.normal(size=(6, 20)) + np.repeat([3, -2, 0, 1, 5], 4)).astype(np.float32)
    b = FunctionBuilder()
    b.call("nn.dense", b.param("x", (30, 20)), b.const(w))
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    x = rng.normal(size=(30, 20)).astype(np.float32)
    config = replace(ONLY, weight_group_size=4, weight_rounding=method, rounding_steps=200)
    plan = quantize.calibrate(mod, x, replace(config, weight_range=kind))
    (params,) = plan.weights.values()
    q, zero = params.quantized(w).astype(int), np.array(params.zero_points).reshape(6, 5)
    assert zero.any() == (kind == "asymmetric")
    stored = q + zero.repeat(4, axis=1)
    assert stored.min() == -8
    assert stored.max() <= 7
    reference = compiler.evaluate(mod, x)

    def error(p: Plan) -> float:
        return float(np.square(compiler.evaluate(quantize.realize(mod, p), x) - reference).sum())

    symmetric = error(quantize.calibrate(mod, x, config))
    assert error(plan) < (1.3 if kind == "full" else 0.5) * symmetric


def test_an_exported_model_holds_the_groups_and_computes_the_same(tmp_path: Path) -> None:
    plan = quantize.calibrate(mixed_net(), [noise(10)], ONLY)
    quantize.export_onnx(mixed_net(), plan, tmp_path / "q.onnx")
    x = noise(4, 7)
    ours = compiler.evaluate(quantize.realize(mixed_net(), plan), x)
    read = compiler.evaluate(compiler.from_onnx(tmp_path / "q.onnx"), x)
    for a, b in zip(ours, read, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    peer = pytest.importorskip("onnxruntime")
    session = peer.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    for a, b in zip(ours, session.run(None, {"image": x}), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
