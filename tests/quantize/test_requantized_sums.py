"""Sums and averages of integers by every arithmetic of requantize: what rational numbers say, the
same by every path."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qnn_checks import RANGES, check, limits, reference
from quantize_nets import mixed_net, noise
from reference_checks import check_plan

import quantize
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.op.qnn.requantize import ROUNDINGS
from quantize import QConfig

ONCE = [r for r in ROUNDINGS if r != "gemmlowp"]
"""Those that round once; for the other see `test_gemmlowp`."""
EXACT = ("fixed_upward", "fixed_tonearest_even", "shift")


def rounded(value: Fraction, rounding: str) -> int:
    """The integer nearest to an exact value; halves up, or (to_even) to even."""
    return (
        round(value) if rounding == "fixed_tonearest_even" else math.floor(value + Fraction(1, 2))
    )


def bits_behind(scale: float) -> int:
    """Of a multiplier of 31 bits."""
    return 31 - math.frexp(scale)[1]


def held(scale: float, bits: int) -> Fraction:
    """A scale to so many bits behind the point, halves away from zero."""
    units = math.floor(abs(Fraction(scale)) * 2**bits + Fraction(1, 2))
    return Fraction(int(math.copysign(units, scale)), 2**bits)


HALVES = [-7, -5, -3, -1, 1, 3, 5, 7]


@pytest.mark.parametrize("rounding", ONCE)
def test_sums_of_halves(rounding: str) -> None:
    up, even = [-3, -2, -1, 0, 1, 2, 3, 4], [-4, -2, -2, 0, 0, 2, 2, 4]
    x, zero = np.array(HALVES, np.int8), np.zeros(8, np.int8)
    want = up if rounding in ("fixed_upward", "shift") else even
    for a, b in ((x, zero), (zero, x)):
        attrs = {"a_scale": 0.5, "b_scale": 0.5, "rounding": rounding, **limits("int8")}
        assert check("qnn.add", a, b, **attrs).tolist() == want


scales = st.floats(2.0**-40, 2.0**8)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(-128, 127)), min_size=1, max_size=30),
    st.tuples(scales, scales, st.sampled_from([1.0, -1.0])),
    st.tuples(st.integers(0, 255), st.integers(-128, 127)),
    st.sampled_from(ONCE),
    st.booleans(),
)
def test_sums_are_what_rational_arithmetic_says(
    pairs: list[tuple[int, int]], given: tuple[float, float, float], zeros: tuple[int, int],
    rounding: str, powers: bool,
) -> None:  # fmt: skip
    by = [2.0 ** round(math.log2(s)) if powers or rounding == "shift" else s for s in given[:2]]
    if rounding == "float32":
        by = [float(np.float32(s)) for s in by]
    by[1] *= given[2]
    a, b = (np.array(v, t) for v, t in zip(zip(*pairs, strict=True), ("u1", "i1"), strict=True))
    got = check(
        "qnn.add", a, b, a_scale=by[0], b_scale=by[1], a_zero_point=zeros[0],
        b_zero_point=zeros[1], output_zero_point=7, rounding=rounding, **limits("uint8"),
    )  # fmt: skip
    for (x, y), z in zip(pairs, got, strict=True):
        if rounding in EXACT:
            bits = bits_behind(max(map(abs, by)))
            left, right = (held(s, bits) for s in by)
            value = rounded((x - zeros[0]) * left + (y - zeros[1]) * right, rounding)
        else:
            t = np.dtype(rounding).type
            value = int(np.rint(t(x - zeros[0]) * t(by[0]) + t(y - zeros[1]) * t(by[1])))
        assert z == min(max(value + 7, 0), 255)


@pytest.mark.parametrize("rounding", EXACT)
def test_the_largest_summands_do_not_overflow(rounding: str) -> None:
    most = (1 << 30) - 1
    a = np.array([most, -most, most, 1], np.int32)
    b = np.array([most, -most, -most, 2], np.int32)
    for scale in (2.0**-23, 2.0**-24 * 1.25 if rounding != "shift" else 2.0**-24):
        got = check(
            "qnn.add", a, b, a_scale=scale, b_scale=scale, rounding=rounding, **limits("int8")
        )
        exact = [
            rounded(Fraction(scale) * (int(x) + int(y)), rounding)
            for x, y in zip(a, b, strict=True)
        ]
        assert got.tolist() == [min(max(v, -128), 127) for v in exact]


def test_scales_far_below_a_unit_give_nothing() -> None:
    x = np.full(4, 100, np.int8)
    for rounding in ROUNDINGS:
        attrs = {"a_scale": 2.0**-60, "b_scale": 2.0**-50, "rounding": rounding}
        assert not check("qnn.add", x, x, **attrs, **limits("int8")).any()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3),
    st.sampled_from(["uint8", "int8", "int16"]),
    scales,
    st.sampled_from(ONCE),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_means_are_what_rational_arithmetic_says(
    shape: list[int], dtype: str, ratio: float, rounding: str, power: bool, seed: int
) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    x = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    zero = int(rng.integers(info.min, info.max, endpoint=True))
    ratio = min(2.0 ** round(math.log2(ratio)) if power else ratio, 2.0**30 / 2.0**17)
    ratio = float(np.float32(ratio)) if rounding == "float32" else ratio
    got = check(
        "qnn.mean", x, axis=(-1,), ratio=ratio, input_zero_point=zero, output_zero_point=3,
        rounding=rounding, **limits("int8"),
    )  # fmt: skip
    totals = (x.astype(int) - zero).sum(-1)
    for total, q in zip(totals.flat, got.flat, strict=True):
        if rounding in EXACT:
            scale = ratio / shape[-1]
            value = rounded(int(total) * held(scale, bits_behind(scale)), rounding)
        else:
            t = np.dtype(rounding).type
            value = int(np.rint(t(total) * (t(ratio) / t(shape[-1]))))
        assert q == min(max(value + 3, -128), 127)


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(ROUNDINGS), st.booleans(), st.sampled_from(["uint8", "int8"]),
    st.integers(0, 2**16), st.integers(1, 3), st.floats(0.01, 3.0),
)  # fmt: skip
def test_pools_are_means_of_their_windows(
    rounding: str, include: bool, dtype: str, seed: int, size: int, ratio: float
) -> None:
    rng = np.random.default_rng(seed)
    low, high = RANGES[dtype]
    x = rng.integers(low, high, (1, 2, 4, 5), endpoint=True).astype(dtype)
    zero = int(rng.integers(low, high, endpoint=True))
    ratio = float(np.float32(ratio))
    how = {"ratio": ratio, "input_zero_point": zero, "rounding": rounding, **limits("int8")}
    got = check(
        "qnn.avg_pool2d", x, pool_size=(size, size), padding=(1, 0, 0, 1) if size > 1 else (0,) * 4,
        count_include_pad=include, **how,
    )  # fmt: skip
    inside = got[:, :, 1:, :-1] if size > 1 else got
    for i, j in np.ndindex(*inside.shape[2:]):
        window = x[:, :, i : i + size, j : j + size]
        alone = reference("qnn.mean", window, axis=(2, 3), **how)
        assert (inside[:, :, i, j] == alone).all()
    if not include and size > 1:
        corner = reference("qnn.mean", x[:, :, : size - 1, :size], axis=(2, 3), **how)
        assert (got[:, :, 0, 0] == corner).all()


@pytest.mark.thorough
def test_what_fixed_point_cannot_hold_is_refused() -> None:
    x = np.zeros((1, 1 << 15), np.int16)
    for rounding in EXACT:
        with pytest.raises(TypeInferenceError, match="less than 32768 elements of 16 bits"):
            check("qnn.mean", x, axis=(1,), rounding=rounding, **limits("int8"))
    check("qnn.mean", x, axis=(1,), rounding="float64", **limits("int8"))
    calls = [
        ("qnn.mean", [x], {}), ("qnn.add", [x, x], {}),
        ("qnn.avg_pool2d", [x[None, None]], {"pool_size": (1, 1)}),
    ]  # fmt: skip
    for op, args, attrs in calls:
        with pytest.raises(TypeInferenceError, match="rounding must be one of"):
            check(op, *args, rounding="down", **attrs, **limits("int8"))


def averages() -> IRModule:
    """conv, average pool, conv, mean of everything, dense."""
    b, w = FunctionBuilder(), np.random.default_rng(0)
    kernels = [b.const(w.normal(0, 0.3, (3, 3, 2, 2)).astype(np.float32)) for _ in range(2)]
    y = b.call("nn.conv2d", b.param("x", (1, 3, 9, 9)), kernels[0])
    y = b.call("nn.conv2d", b.call("nn.avg_pool2d", y, pool_size=(3, 3)), kernels[1])
    y = b.call("nn.batch_flatten", b.call("nn.global_avg_pool2d", y))
    last = b.const(w.normal(0, 1, (4, 3)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.dense", y, last))})


@pytest.mark.thorough
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_all_that_scales_integers_is_in_the_arithmetic_of_the_configuration(rounding: str) -> None:
    x = np.random.default_rng(1).normal(size=(1, 3, 9, 9)).astype(np.float32)
    scaling = set()
    for mod, data in ((mixed_net(), [noise(8)]), (averages(), x)):
        plan = quantize.calibrate(mod, data, QConfig(requantize=rounding))
        q = quantize.realize(mod, plan)
        calls = [b.value for b in q.main.bindings if isinstance(b.value, Call)]
        scaled = {str(c.op) for c in calls if hasattr(c.attrs, "rounding")}
        assert {c.attrs.rounding for c in calls if str(c.op) in scaled} == {rounding}
        others = {str(c.op) for c in calls if str(c.op).startswith("qnn.")} - scaled
        # Exact products, tables, and what is made of real numbers or turned into them.
        assert others <= {"qnn.multiply", "qnn.lookup", "qnn.quantize", "qnn.dequantize"}
        scaling |= scaled
    assert scaling == {"qnn.requantize", "qnn.add", "qnn.mean", "qnn.avg_pool2d"}
    check_plan(averages(), plan, x)
