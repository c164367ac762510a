"""More than 8 bits: int16 weights and activations, sums of 32 or 64 bits; restricted ranges."""

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
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.types.dtypes import Array, DType
from quantize import Plan, QConfig
from quantize.plan.params import ValueParams, WeightParams, value_params


def decibels(x: Array, reference: Array) -> float:
    """Signal-to-quantization-noise ratio."""
    error = np.square(np.asarray(x, np.float64) - reference).sum()
    return float(10 * np.log10(np.square(reference, dtype=np.float64).sum() / error))


def sums(mod: IRModule) -> dict[str, str]:
    """Result -> dtype, of the integer operators that sum products."""
    calls = {b.var.name: b.value for b in mod.main.bindings if isinstance(b.value, Call)}
    return {k: c.attrs.out_dtype for k, c in calls.items() if hasattr(c.attrs, "input_zero_point")
            and str(c.op) in ("nn.conv2d", "nn.dense", "nn.matmul")}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mlp", "resnet8", pytest.param("dwsep", marks=pytest.mark.slow)])
def test_16_bits_are_compiled_to_the_interpreters_bits_and_lose_almost_nothing(name: str) -> None:
    config = QConfig(activation_bits=16, weight_bits=16, bias_correction="none")
    plan = plan_of(name, config)
    assert all(n.decision != "float" for n in plan.nodes.values())
    q = quantize.realize(net(name), plan)
    assert "int64" in sums(q).values()
    x = images()[1][:5]
    got = compiler.build(q)(x)
    np.testing.assert_array_equal(got, compiler.evaluate(q, x))
    assert decibels(got, compiler.build(net(name))(x)) > 70
    assert Plan.from_json(plan.to_json()) == plan


def test_each_bit_of_weights_and_activations_gains_accuracy() -> None:
    """About 6 decibels a bit, where no value is clipped."""
    x = images()[1][:50]
    reference = compiler.build(net("mlp"))(x)
    found = []
    for bits in (4, 6, 8, 10, 12, 14):
        config = QConfig(
            activation_bits=bits, weight_bits=bits, calibrate="minmax", bias_correction="none"
        )
        q = quantize.realize(net("mlp"), quantize.calibrate(net("mlp"), x, config))
        found.append(decibels(compiler.build(q)(x), reference))
    assert np.diff(found).min() > 8, found
    assert found[-1] > 65, found


@pytest.mark.thorough
@settings(max_examples=4, deadline=None)
@given(
    overrides=st.dictionaries(
        st.sampled_from(["c1", "c2", "c3", "d1", "d3"]),
        st.fixed_dictionaries({"weight_bits": st.integers(2, 16)}), max_size=3,
    ),
    values=st.dictionaries(
        st.sampled_from(["image", "r1", "c2", "r2", "c3", "both", "a"]),
        st.fixed_dictionaries({"activation_bits": st.integers(2, 16)}), max_size=4,
    ),
    config=st.fixed_dictionaries({
        "activation_bits": st.sampled_from([8, 16]),
        "activation_dtype": st.sampled_from(["int8", "uint8"]),
        "activation_symmetric": st.booleans(),
        "activation_range": st.sampled_from(["full", "restricted"]),
        "weight_granularity": st.sampled_from(["tensor", "channel"]),
        "requantize": st.sampled_from(["float32", "float64", "shift"]),
    }),
)  # fmt: skip
def test_mixed_bits_are_the_same_compiled_interpreted_and_in_the_reference(
    overrides: Any, values: Any, config: Any
) -> None:
    chosen = {k: {**overrides.get(k, {}), **values.get(k, {})} for k in {*overrides, *values}}
    skip = ("d2", "clipped")
    plan = quantize.calibrate(
        mixed_net(), [noise(6)],
        QConfig(**config, overrides=chosen, skip=skip, bias_correction="none"),
    )  # fmt: skip
    assert check_plan(mixed_net(), plan, noise(3, 5))["integer"] >= 8


def attention(depth: int) -> IRModule:
    b = FunctionBuilder()
    q, k = b.param("q", (2, 5, depth)), b.param("k", (2, 6, depth))
    scores = b.call("nn.matmul", q, b.call("transpose", k, axes=(0, 2, 1)), name="scores")
    return IRModule({"main": b.finish(scores)})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("bits", "depth", "dtype"),
    [({"q": 16, "k": 8}, 4, "int32"), ({"q": 16, "k": 16}, 4, "int64"), ({}, 4, "int32"),
     ({"q": 10, "k": 10}, 33, "int32"), ({"q": 16, "k": 8}, 300, "int64")],
)  # fmt: skip
def test_products_of_activations_have_sums_that_hold_them(
    bits: dict[str, int], depth: int, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    x = [rng.uniform(0, 1, (2, n, depth)).astype(np.float32) for n in (5, 6)]
    overrides = {name: {"activation_bits": n} for name, n in bits.items()}
    mod = attention(depth)
    plan = quantize.calibrate(mod, [{"q": x[0], "k": x[1]}], QConfig(overrides=overrides))
    q = quantize.realize(mod, plan)
    assert list(sums(q).values()) == [dtype]
    got = compiler.build(q)(*x)
    np.testing.assert_array_equal(got, compiler.evaluate(q, *x))
    assert decibels(got, compiler.evaluate(mod, *x)) > 30


@given(
    weight_bits=st.integers(2, 16), bits=st.integers(2, 16), inner=st.integers(1, 40),
    seed=st.integers(0, 1000), full=st.booleans(),
)  # fmt: skip
def test_sums_have_32_bits_only_where_no_data_can_pass_them(
    weight_bits: int, bits: int, inner: int, seed: int, full: bool
) -> None:
    rng = np.random.default_rng(seed)
    dtype = "uint8" if bits <= 8 else "int16"
    data = value_params(-rng.uniform(0, 1), rng.uniform(0, 1), QConfig(activation_bits=bits))
    assert data.dtype == dtype
    params = WeightParams((1.0,), weight_bits)
    most = (1 << (weight_bits - 1)) - 1
    w = np.full((2, inner), most) if full else rng.integers(-most, most + 1, (2, inner))
    bias = rng.integers(-(2**20), 2**20, 2)
    ends = np.array([data.qmin, data.qmax], object) - data.zero_point
    largest = max(
        abs(sum(max(int(v) * e for e in ends) for v in row) + int(c))
        for sign in (1, -1) for row, c in zip(sign * w, sign * bias, strict=True)
    )  # fmt: skip
    if params.sums_dtype(w, bias, data) == "int32":
        assert largest < 2**31
    elif full:
        assert 4 * largest >= 2**31


def test_16_bits_have_limits_that_are_told() -> None:
    with pytest.raises(ConfigError, match="weight_bits must be an integer from 2 to 16"):
        QConfig(weight_bits=17)
    config = QConfig(
        activation_bits=16, weight_bits=16, requantize="fixed_upward", bias_correction="none"
    )
    with pytest.raises(ConfigError, match=r"sums of 64 bits.*use float32, float64 or shift"):
        quantize.realize(net("resnet8"), plan_of("resnet8", config))
    config = QConfig(weight_bits=12, accumulate="int24_wrap", bias_correction="none")
    with pytest.raises(ConfigError, match="no accumulator 'int24_wrap': leave out"):
        quantize.realize(net("mlp"), plan_of("mlp", config))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "target", ["llvm -mcpu=haswell", pytest.param("llvm -mcpu=x86-64", marks=pytest.mark.slow)]
)
def test_other_instruction_sets_give_the_same_bits(target: str) -> None:
    config = QConfig(activation_bits=12, weight_bits=10, bias_correction="none")
    q = quantize.realize(mixed_net(), quantize.calibrate(mixed_net(), [noise(4)], config))
    x = noise(2, 3)
    for got, want in zip(compiler.build(q, target=target)(x), compiler.build(q)(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
def test_averages_of_more_int16_than_an_int32_sums() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 2, 300, 300), DType.parse("int16"))
    grid = {"ratio": 0.5, "input_zero_point": -32768, "output_zero_point": -300,
            "out_dtype": "int16", "qmin": -32768, "qmax": 32767}  # fmt: skip
    mean = b.call("qnn.mean", x, axis=(2, 3), **grid)
    pool = b.call("qnn.avg_pool2d", x, pool_size=(290, 290), strides=(4, 4), **grid)
    mod = IRModule({"main": b.finish(mean, pool)})
    q = np.random.default_rng(0).integers(20_000, 32768, (1, 2, 300, 300)).astype(np.int16)
    wanted = np.rint((q.mean((2, 3)) + 32768) / 2) - 300
    for results in (compiler.build(mod)(q), compiler.evaluate(mod, q)):
        np.testing.assert_allclose(results[0], wanted, atol=1)
    for got, want in zip(compiler.build(mod)(q), compiler.evaluate(mod, q), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- restricted ranges ---------------------------------------------------------------------------
@given(
    ends=st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2),
    dtype=st.sampled_from(["int8", "uint8"]),
    bits=st.integers(2, 16),
    symmetric=st.booleans(),
)
def test_restricted_ranges_leave_out_the_smallest_integer(
    ends: tuple[float, float], dtype: str, bits: int, symmetric: bool
) -> None:
    config = QConfig(
        activation_dtype=dtype, activation_bits=bits, activation_symmetric=symmetric,
        activation_range="restricted",
    )  # fmt: skip
    p = value_params(*sorted(ends), config)
    assert p.qmax - p.qmin == 2**bits - 2
    assert p.qmax - p.middle == p.middle - p.qmin
    assert p.qmin <= p.zero_point <= p.qmax
    if symmetric:
        assert p.zero_point == p.middle
    reach = [(q - p.zero_point) * p.scale for q in (p.qmin, p.qmax)]
    assert reach[0] <= min(*ends, 0) + 0.5001 * p.scale
    assert reach[1] >= max(*ends, 0) - 0.5001 * p.scale


@pytest.mark.thorough
def test_restricted_ranges_reach_the_integers_and_the_plan() -> None:
    config = QConfig(
        activation_range="restricted", activation_dtype="int8", activation_symmetric=True,
        bias_correction="none",
    )  # fmt: skip
    plan = plan_of("resnet8", config)
    assert all(v == ValueParams(v.scale, 0, "int8", 8, True) for v in plan.values.values())
    assert Plan.from_json(plan.to_json()) == plan
    q = quantize.realize(net("resnet8"), plan)
    x = images()[1][:20]
    lowest = min(int(v.min()) for b, v in trace(q, x) if getattr(v, "dtype", None) == np.int8)
    assert lowest == -127
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


@pytest.mark.thorough
def test_exported_models_of_16_bits_run_elsewhere(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    config = QConfig(activation_bits=16, weight_bits=12, bias_correction="none")
    plan = plan_of("resnet8", config)
    path = tmp_path / "q.onnx"
    quantize.export_onnx(net("resnet8"), plan, path)
    x = images()[1][:50]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
    ours = compiler.build(quantize.realize(net("resnet8"), plan))(x)
    assert decibels(theirs, ours) > 55
