"""The arithmetic `gemmlowp` of requantize, bit for bit that of TensorFlow Lite by every path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gemmlowp_oracle import added, rounding_divide_by_pot, scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from qnn_checks import check, check_compiled, limits, reference
from quantize_nets import images, mixed_net, net, noise, plan_of
from reference_checks import check_plan
from test_requantize import borders, targets

import compiler
import quantize
from compiler.errors import ConfigError, TypeInferenceError
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.qnn.requantize import normalized_point
from compiler.types.dtypes import Array
from quantize import Plan, QConfig
from quantize.reference.integers import scaled as traced
from quantize.reference.integers import summed_twice

SCALES = [
    *(2.0**k for k in (29, 8, 1, 0, -1, -2, -8, -16, -30, -31, -32, -33, -60)),
    *(1 - 2.0**-53, 0.5 - 2.0**-40, 2.0**-8 - 2.0**-45, 2.0**-31 - 2.0**-70),  # carry at 31 bits
    *(1.5, 3.7, 100.3, 0.75, 0.3, 1e-3, 0.0072474273418460, 1.1e-9, 2.4e-10),
]


def extremes(scale: float) -> list[int]:
    """The ends of int32, powers of two, accumulators around halves, and random ones."""
    return sorted({int(v) for v in borders(scale, 3)} | {-(2**31), 2**31 - 1, 0, 1, -1})


def test_what_the_two_roundings_do() -> None:
    """1 / 4 gives 1: the first rounding makes a half of it up to 1, the second a half of that."""
    x = np.array([-7, -5, -3, -1, 1, 3, 5, 7], np.int32)
    attrs = {"rounding": "gemmlowp", **limits("int8")}
    assert check("qnn.requantize", x, np.float64(0.25), **attrs).tolist() == [
        -2, -1, -1, 0, 1, 1, 2, 2,
    ]  # fmt: skip
    assert [rounding_divide_by_pot(v, 1) for v in (-3, -1, 1, 3)] == [-2, -1, 1, 2]
    assert scaled(-3, 0.5) == -1  # by the first rounding: halves up
    many, once = np.arange(-4000, 4000, dtype=np.int32), {**attrs, "rounding": "fixed_upward"}
    twice, up = (reference("qnn.requantize", many, np.float64(0.03), **a) for a in (attrs, once))
    assert 0 < (twice != up).mean() < 0.2
    assert np.abs(twice.astype(int) - up).max() == 1


@pytest.mark.parametrize("scale", SCALES)
def test_extremes_by_reference_and_by_the_trace(scale: float) -> None:
    x = extremes(scale)
    want = [scaled(v, scale) for v in x]
    low, high = np.iinfo(np.int16).min, np.iinfo(np.int16).max
    attrs = {"rounding": "gemmlowp", "out_dtype": "int16", "qmin": low, "qmax": high}
    got = reference("qnn.requantize", np.array(x, np.int32), np.float64(scale), **attrs)
    assert got.tolist() == [min(max(v, low), high) for v in want]
    trace = traced(np.array(x, np.float64), np.asarray(scale), 1.0, "gemmlowp")
    assert trace.tolist() == want


def test_extremes_on_every_instruction_set() -> None:
    columns = [extremes(s) for s in SCALES]
    rows = min(map(len, columns))
    x = np.array([c[:rows] for c in columns], np.int32).T
    attrs: dict[str, Any] = {"rounding": "gemmlowp", "axis": 1, "output_zero_point": -5}
    for more in ({"out_dtype": "int16", "qmin": -32768, "qmax": 32767}, limits("int8")):
        given = {**attrs, **more}
        want = reference("qnn.requantize", x, np.array(SCALES), **given)
        check_compiled("qnn.requantize", [x, np.array(SCALES)], want, targets(), **given)


@settings(max_examples=200, deadline=None)
@given(
    x=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    scale=st.floats(2.0**-40, 2.0**20),
    zero=st.integers(0, 255),
    narrow=st.booleans(),
)
def test_any_product_is_tensorflow_lites(
    x: list[int], scale: float, zero: int, narrow: bool
) -> None:
    held = np.float32(scale) if narrow else np.float64(scale)
    attrs = {"output_zero_point": zero, "rounding": "gemmlowp", **limits("uint8")}
    got = reference("qnn.requantize", np.array(x, np.int32), held, **attrs)
    assert got.tolist() == [min(max(scaled(v, float(held)) + zero, 0), 255) for v in x]


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32), source=st.sampled_from(["int32", "uint8", "int8"]),
    dtype=st.sampled_from(["int8", "uint8"]), channels=st.sampled_from([None, 1, -1]),
)  # fmt: skip
def test_every_path_agrees(seed: int, source: str, dtype: str, channels: int | None) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(source)
    x = rng.integers(info.min, info.max, (2, 3, 2, 5), endpoint=True).astype(source)
    size = () if channels is None else (x.shape[channels],)
    zero = 0 if source == "int32" else int(rng.integers(info.min, info.max, endpoint=True))
    check(
        "qnn.requantize", x, np.exp2(rng.uniform(-36, 4, size)), axis=channels or 0,
        input_zero_point=zero, rounding="gemmlowp", **limits(dtype),
    )  # fmt: skip


def test_multipliers_have_31_bits() -> None:
    m, exponent = normalized_point(np.array(SCALES))
    assert ((m == 0) | ((m >= 1 << 30) & (m < 1 << 31))).all()
    held = m / 2.0**31 * np.exp2(exponent.astype(np.float64))
    kept = m > 0
    np.testing.assert_allclose(held[kept], np.array(SCALES)[kept], rtol=2.0**-31)
    assert (np.array(SCALES)[~kept] < 2.0**-32).all()


# ---- sums ----------------------------------------------------------------------------------------
sum_scales = st.floats(2.0**-20, 2.0**8)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.integers(-128, 127), st.integers(-128, 127)), min_size=1, max_size=30
    ),
    by=st.tuples(sum_scales, sum_scales, st.sampled_from([1.0, -1.0])),
    zeros=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
    dtype=st.sampled_from(["int8", "int16"]),
)
def test_sums_are_tensorflow_lites(
    pairs: list[tuple[int, int]], by: tuple[float, float, float], zeros: tuple[int, int], dtype: str
) -> None:
    a, b = (np.array(v, dtype) for v in zip(*pairs, strict=True))
    scales = (by[0], by[1] * by[2])
    got = check(
        "qnn.add", a, b, a_scale=scales[0], b_scale=scales[1], a_zero_point=zeros[0],
        b_zero_point=zeros[1], output_zero_point=7, rounding="gemmlowp", **limits("uint8"),
    )  # fmt: skip
    left = 20 if dtype == "int8" else 15
    sums = [added(x - zeros[0], y - zeros[1], *scales, left) for x, y in pairs]
    assert got.tolist() == [min(max(v + 7, 0), 255) for v in sums]
    terms = tuple(np.array([p[k] - zeros[k] for p in pairs], np.float64) for k in (0, 1))
    assert summed_twice(terms, scales, left).tolist() == sums


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=3), ratio=sum_scales,
    dtype=st.sampled_from(["uint8", "int8", "int16"]), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_averages_scale_their_sums(shape: list[int], ratio: float, dtype: str, seed: int) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    x = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    zero = int(rng.integers(info.min, info.max, endpoint=True))
    got = check(
        "qnn.mean", x, axis=(-1,), ratio=ratio, input_zero_point=zero, output_zero_point=3,
        rounding="gemmlowp", **limits("int8"),
    )  # fmt: skip
    totals = (x.astype(int) - zero).sum(-1)
    want = [scaled(int(t), ratio / x.shape[-1]) + 3 for t in totals.flat]
    assert got.ravel().tolist() == [min(max(v, -128), 127) for v in want]


@pytest.mark.thorough
def test_sums_and_averages_on_every_instruction_set() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-128, 128, (2, 16, 5, 7), dtype=np.int8), np.int8([[[[3]]]])
    for scale in (0.37, -1.9):
        given = {"a_scale": 0.61, "b_scale": scale, "rounding": "gemmlowp", **limits("int8")}
        want = reference("qnn.add", a, b, **given)
        check_compiled("qnn.add", [a, b], want, targets(), **given)
    pool = {"pool_size": (3, 2), "padding": (1, 0, 1, 1), "strides": (1, 2), "ratio": 0.83}
    given = {**pool, "input_zero_point": 9, "rounding": "gemmlowp", **limits("int8")}
    want = reference("qnn.avg_pool2d", a, **given)
    check_compiled("qnn.avg_pool2d", [a], want, targets(), **given)


# ---- networks ------------------------------------------------------------------------------------
@pytest.mark.thorough
def test_a_fused_layer_is_tensorflow_lites() -> None:
    """A dense layer with bias and relu: sums, then the oracle, clipped where the relu cuts off."""
    rng = np.random.default_rng(2)
    b = FunctionBuilder()
    w, bias = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((6, 20), 6))
    y = b.call("nn.dense", b.param("x", (5, 20)), b.const(w), b.const(bias))
    y = b.call("nn.relu", y, name="relu")
    last = b.call("nn.dense", y, b.const(rng.normal(0, 1, (3, 6)).astype(np.float32)))
    mod = IRModule({"main": b.finish(last)})
    x = rng.normal(0, 1, (5, 20)).astype(np.float32)
    plan = quantize.calibrate(mod, [x], QConfig(requantize="gemmlowp", bias_correction="none"))
    q = quantize.realize(mod, plan)
    data, out, weights = plan.values["x"], plan.values["relu"], next(iter(plan.weights.values()))
    codes = np.clip(np.rint(x / np.float32(data.scale)) + data.zero_point, data.qmin, data.qmax)
    units = weights.accumulator_scale(data)
    sums = (codes - data.zero_point) @ weights.quantized(w).T.astype(np.float64)
    sums += np.rint(bias / units)
    want = [
        [scaled(int(v), float(s / out.scale)) for v, s in zip(row, units, strict=True)]
        for row in sums
    ]
    found = {b.var.name: v for b, v in trace(q, x)}
    np.testing.assert_array_equal(found["relu_q"], np.clip(want, 0, out.qmax - out.zero_point)
                                  + out.zero_point)  # fmt: skip
    for target in targets():
        got = compiler.build(q, target=target)(x)
        np.testing.assert_array_equal(got, compiler.evaluate(q, x))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_network_of_every_form_is_what_its_plan_says(dtype: str) -> None:
    config = QConfig(requantize="gemmlowp", activation_dtype=dtype)
    mod = mixed_net()
    plan = quantize.calibrate(mod, [noise(8)], config)
    check_plan(mod, plan, noise(3))
    q = quantize.realize(mod, Plan.from_dict(plan.to_dict()))
    for got, want in zip(compiler.build(q)(noise(4)), compiler.evaluate(q, noise(4)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)  # softmax is a float operator


@pytest.mark.slow
def test_residual_networks_keep_their_accuracy() -> None:
    x, run = images()[1][:40], {}
    for rounding in ("fixed_upward", "gemmlowp"):
        q = quantize.realize(net("resnet8"), plan_of("resnet8", QConfig(requantize=rounding)))
        run[rounding] = compiler.build(q)(x)
        np.testing.assert_array_equal(run[rounding][:3], compiler.evaluate(q, x[:3]))
    real = compiler.build(net("resnet8"))(x)

    def noise_of(y: Array) -> float:
        return float(((y.astype(np.float64) - real) ** 2).sum())

    assert (run["gemmlowp"] != run["fixed_upward"]).any()
    assert noise_of(run["gemmlowp"]) < 1.3 * noise_of(run["fixed_upward"])


def test_sums_of_64_bits_are_refused() -> None:
    config = QConfig(weight_bits=12, activation_bits=16, requantize="gemmlowp")
    with pytest.raises(ConfigError, match="which requantize='gemmlowp' does not scale"):
        quantize.realize(net("mlp"), plan_of("mlp", config))
    with pytest.raises(TypeInferenceError, match="is for int32"):
        check("qnn.requantize", np.zeros(3, np.int64), np.float64(0.5), rounding="gemmlowp")
