"""Scaled and block formats in numpy and ml_dtypes, written from their definitions alone."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

from compiler.types.dtypes import Array


def cast(x: Array, name: str) -> Array:
    """float32 values nearest to `x` in a dtype of ml_dtypes, saturating."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    most = np.float32(ml_dtypes.finfo(dtype).max)
    return np.asarray(np.clip(x, -most, most).astype(dtype).astype(np.float32))


def scaled(x: Array, scale: Array | float, name: str) -> Array:
    """`x` rounded to multiples of a scale (that broadcasts) by the numbers of a format."""
    s = np.asarray(scale, np.float32)
    with np.errstate(all="ignore"):
        return np.asarray(cast(x / s, name) * s)


def shared_exponent(largest: float, name: str, rounding: str = "floor") -> int:
    """The exponent of the scale of a block with this largest magnitude, by rational arithmetic.

    `floor` is section 6.3 of the MX specification, the others are torchao's ScaleCalculationMode.
    """
    info = ml_dtypes.finfo(getattr(ml_dtypes, name))
    m, most = Fraction(largest), Fraction(float(info.max))

    def floor_log2(x: Fraction) -> int:
        k = x.numerator.bit_length() - x.denominator.bit_length()
        return k if x >= Fraction(2) ** k else k - 1

    if not m:
        return -127
    below, top = floor_log2(m), floor_log2(most)
    if rounding == "rceil":  # the least power of two that is not below m / most
        found = floor_log2(m / most)
        found += Fraction(2) ** found < m / most
    elif rounding == "ceil":
        found = below + (Fraction(2) ** below < m) - top
    elif rounding == "even":  # m to the bits of the element's fraction, halves up
        unit = Fraction(2) ** (below - info.nmant)
        found = floor_log2(math.floor(m / unit + Fraction(1, 2)) * unit) - top
    else:
        found = below - top
    return min(max(found, -127), 127)


def mx_block(block: Array, name: str, rounding: str = "floor") -> Array:
    """One block of a Microscaling format, as section 6.3 of the specification has it.

    X is the largest power of two that is not above the largest |V_i|, divided by the largest power
    of two of the element type; P_i is V_i / X in the element type, where numbers beyond the largest
    normal one become that. X is kept within float8_e8m0fnu; it is NaN for a block that holds none
    but numbers that are not finite.
    """
    if not np.isfinite(block).all():
        return np.full_like(block, np.nan)
    # Exact in float64, as are the quotients.
    x = 2.0 ** shared_exponent(float(np.abs(block).max()), name, rounding)
    return np.asarray(cast((block.astype(np.float64) / x).astype(np.float32), name) * np.float32(x))


def mx(x: Array, name: str, axis: int, size: int = 32, rounding: str = "floor") -> Array:
    """`x` in blocks of a Microscaling format along an axis; the last block may be shorter."""
    moved = np.moveaxis(x, axis, -1)
    out = np.empty_like(moved)
    for row in np.ndindex(*moved.shape[:-1]):
        for start in range(0, moved.shape[-1], size):
            block = moved[row][start : start + size]
            out[row][start : start + size] = mx_block(block, name, rounding)
    return np.moveaxis(out, -1, axis)


def nvfp4(x: Array, unit: float, size: int = 16) -> Array:
    """`x` along its last axis in blocks of float4_e2m1fn with scales in float8_e4m3fn."""
    out = np.empty_like(x)
    u = np.float32(unit)
    least = np.float32(2.0**-9)
    for row in np.ndindex(*x.shape[:-1]):
        for start in range(0, x.shape[-1], size):
            block = x[row][start : start + size]
            ratio = np.abs(block).max() / np.float32(6.0 * float(u))
            scale = cast(np.maximum(ratio, least), "float8_e4m3fn") * u
            out[row][start : start + size] = scaled(block, scale, "float4_e2m1fn")
    return out


def assert_same(got: Array, want: Array) -> None:
    """Equal bits, all NaNs being alike."""
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    bits = [np.where(np.isnan(a), np.float32(np.nan), a).view(np.int32) for a in (got, want)]
    np.testing.assert_array_equal(*bits)
