"""Scales of rows found at run time, integers on their grids, and products of groups: numpy, loops
and compiled code say the same."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from format_emulation import assert_same, shared_exponent
from hypothesis import given, settings
from hypothesis import strategies as st
from test_format_ops import checked

import compiler
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array

TINY = np.finfo(np.float32).tiny
E4M3 = {
    "scale_dtype": "custom[float8_e4m3fn]8", "scale_low": 2.0**-9, "scale_high": 448.0,
    "unit": 0.001,
}  # fmt: skip
POWERS = {"scale_dtype": "custom[float8_e8m0fnu]8"}


def data(seed: int, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 10.0 ** rng.uniform(-20, 20, (*shape[:-1], 1))
    x[rng.random(shape) < 0.2] = 0
    return x.astype(np.float32)


@pytest.mark.thorough
@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([(3, 5), (2, 1, 7), (4, 1), (2, 3, 17)]))
def test_scales_of_rows_are_exactly_those_of_numpy(seed: int, shape: tuple[int, ...]) -> None:
    x = data(seed, shape)
    x.reshape(-1, shape[-1])[0] = 0
    x.reshape(-1, shape[-1])[1] *= np.float32(1e-24)  # subnormal numbers
    largest = np.abs(x).max(axis=-1, keepdims=True)
    got = checked("qnn.row_scales", x, axis=-1, top=127.0)
    assert_same(got, np.maximum(largest / np.float32(127), TINY))
    for rounding in ("floor", "ceil", "rceil"):
        want = [shared_exponent(float(m), "float8_e5m2", rounding) for m in largest.ravel()]
        got = checked("qnn.row_scales", x, axis=-1, top=57344.0, scale_rounding=rounding, **POWERS)
        assert_same(got, np.ldexp(np.float32(1), want).astype(np.float32).reshape(largest.shape))
    ratio = np.clip(largest / np.float32(7 * 0.001), 2.0**-9, 448.0).astype(np.float32)
    want = ratio.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(0.001)
    assert_same(checked("qnn.row_scales", x, axis=-1, top=7.0, **E4M3), want)


@settings(max_examples=8)
@given(
    st.integers(0, 10**6), st.sampled_from([(3, 5), (2, 1, 7), (4, 1), (2, 3, 17)]),
    st.sampled_from([3, 15, 255]), st.floats(-3, 3),
)  # fmt: skip
def test_rows_with_zero_points_are_those_of_numpy(
    seed: int, shape: tuple[int, ...], levels: int, centre: float
) -> None:
    x = np.random.default_rng(seed).normal(centre, 1, shape).astype(np.float32)
    x.reshape(-1, shape[-1])[0] = 0
    high = np.maximum(x.max(axis=-1, keepdims=True), 0)
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    scale = np.maximum((high - low) / np.float32(levels), TINY)
    assert_same(checked("qnn.row_scales", x, axis=-1, levels=levels), scale)
    zero = np.clip(np.rint(-low / scale), 0, levels).astype(np.int32)
    got = compiled("qnn.row_zeros", x, scale, levels=levels)
    np.testing.assert_array_equal(got, zero)
    q = np.clip(np.rint(x / scale) + zero, 0, levels).astype(np.uint8)
    got = compiled("qnn.quantize_rows", x, scale, zero, levels=levels)
    np.testing.assert_array_equal(got, q)
    real = (q.astype(np.int32) - zero).astype(np.float32) * scale
    assert_same(compiled("qnn.dequantize_rows", q, scale, zero), real)


def compiled(op: str, *arrays: Array, **attrs: Any) -> Array:
    """What a call gives compiled, which must be what it gives interpreted."""
    b = FunctionBuilder()
    args = [b.param(f"x{k}", a.shape, str(a.dtype)) for k, a in enumerate(arrays)]
    mod = IRModule({"main": b.finish(b.call(op, *args, **attrs))})
    want, got = compiler.evaluate(mod, *arrays), compiler.build(mod)(*arrays)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    return np.asarray(got)


def test_rows_of_numbers_that_are_not_finite() -> None:
    x = np.float32([[1, np.nan], [np.inf, 0], [-np.inf, np.inf], [1, 2]])
    for levels in (0, 255):
        got = checked("qnn.row_scales", x, axis=-1, levels=levels)
        assert np.isnan(got[:3]).all()
        assert got[3] == np.float32(2) / np.float32(levels or 127)
    scale = np.float32([[np.nan]] * 3 + [[1]])
    zero = compiled("qnn.row_zeros", x, scale)
    assert not zero.any()
    assert compiled("qnn.quantize_rows", x, scale, zero).tolist() == [[0, 0]] * 3 + [[1, 2]]


def test_rows_may_be_of_open_length_and_run_along_any_axis() -> None:
    b, n = FunctionBuilder(), Var("n")
    x = b.param("x", (2, n, 3))
    scale = b.call("qnn.row_scales", x, axis=1, top=7.0)
    zero = b.call("qnn.row_zeros", x, scale, axis=1)
    q = b.call("qnn.quantize_rows", x, scale, zero, axis=1)
    mod = IRModule({"main": b.finish(scale, q)})
    exe = compiler.build(mod)
    for size in (1, 4, 9):
        given = data(size, (2, size, 3))
        for got, want in zip(exe(given), compiler.evaluate(mod, given), strict=True):
            np.testing.assert_array_equal(got, want)


@settings(max_examples=8)
@given(
    st.integers(0, 10**6), st.sampled_from([(3,), (2, 5)]), st.integers(1, 70), st.integers(1, 40),
    st.sampled_from(["int8", "uint8"]), st.booleans(),
)  # fmt: skip
def test_grouped_products_are_sums_of_integers_scaled_group_by_group(
    seed: int, lead: tuple[int, ...], inputs: int, group: int, dtype: str, rows: bool
) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (*lead, inputs)).astype(dtype)
    w = rng.integers(-127, 128, (9, inputs)).astype(np.int8)
    scales = rng.uniform(0.001, 1, (9, -(-inputs // group))).astype(np.float32)
    zero = rng.integers(info.min, info.max + 1, (*lead, 1)).astype(np.int32)
    fixed = int(rng.integers(info.min, info.max + 1))
    got = compiled(
        "qnn.grouped_dense", x, w, scales, *([zero] if rows else []), group=group,
        input_zero_point=0 if rows else fixed,
    )  # fmt: skip
    centred = x.astype(np.int64) - (zero if rows else fixed)
    want = np.zeros((*lead, 9), np.float32)
    for g, start in enumerate(range(0, inputs, group)):
        part = slice(start, start + group)
        sums = np.einsum("...k,nk->...n", centred[..., part], w[:, part].astype(np.int64))
        want = want + sums.astype(np.float32) * scales[:, g]
    np.testing.assert_array_equal(got, want)


def test_products_that_do_not_fit_are_refused() -> None:
    def call(x: tuple[int, ...], w: tuple[int, ...], s: tuple[int, ...], group: int) -> None:
        b = FunctionBuilder()
        b.call(
            "qnn.grouped_dense", b.param("x", x, "int8"), b.param("w", w, "int8"),
            b.param("s", s), group=group,
        )  # fmt: skip

    for shapes, message in [
        (((2, 8), (3, 9), (3, 1), 9), "does not fit weight"),
        (((2, 8), (3, 8), (3, 1), 3), "scales must be"),
        (((2, 8), (3, 8), (3, 8), 0), "a group of 0 inputs"),
        (((2, 70000), (3, 70000), (3, 1), 70000), "overflow an int32"),
    ]:
        with pytest.raises(TypeInferenceError, match=message):
            call(*shapes)


@pytest.mark.parametrize(
    ("dtype", "zero", "most"), [("int8", 0, 65793), ("uint8", 128, 65793), ("uint8", 0, 33025)]
)
def test_groups_are_as_long_as_int32_holds_their_sums(dtype: str, zero: int, most: int) -> None:
    """How far weights are from their zero point counts: 128, or 255."""
    for inputs in (most, most + 1):
        b = FunctionBuilder()
        operands = b.param("x", (1, inputs), "uint8"), b.param("w", (1, inputs), dtype)
        attrs = {"group": inputs, "weight_zero_point": zero}
        with (
            nullcontext()
            if inputs == most
            else pytest.raises(TypeInferenceError, match="overflow an int32")
        ):
            b.call("qnn.grouped_dense", *operands, b.param("s", (1, 1)), **attrs)
