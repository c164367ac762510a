"""What every operation of a described format means: exact, on arrays of codes, rounded once.

Operands become float64. Where 53 bits are at least twice the format's significant bits plus two, a
float64 operation followed by rounding to the format equals one rounding (S. Figueroa, "When is
double rounding innocuous?", 1995). For the others the float64 result is rounded to odd, which makes
the second rounding harmless (S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded
sums", 2008); its error comes from Knuth's two-sum and Dekker's two-product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.arithmetic.fused_multiply_add import product_error, to_odd
from compiler.arithmetic.scalar_functions import UNARY
from compiler.arithmetic.stochastic import PLACED
from compiler.errors import UnsupportedError
from compiler.tensor.expr import COMPARISONS
from datatypes.arithmetic import logarithms, mathfun
from datatypes.formats import Format, decode, encode
from datatypes.formats.fixed import FixedCode

Array = npt.NDArray[Any]

ARITHMETIC = ("Add", "Sub", "Mul", "Div")
ROUNDINGS = {f.name: f.numpy for f in UNARY.values() if f.integral}
"""Functions to an integral value, which need not be in the format."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip
_FLOAT64: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
}  # fmt: skip
_RANGE = Fraction(2) ** 450
"""Products and quotients of values within 1/_RANGE .. _RANGE, and their errors, are normal."""


def apply(fmt: Format, op: str, *codes: Array, random: Array | None = None) -> Array:
    """`op` on arrays of codes, which broadcast.

    Args:
        fmt: the format.
        op: Add Sub Mul Div Max Min, LT LE GT GE EQ NE, fma, or a function's name.
        codes: one, two or (fma: a * b + c) three integer arrays.
        random: for stochastic rounding of Add, Sub, Mul, Div and fma, uint32 of the shape that
            `codes` broadcast to (`datatypes.formats.randomness`).

    Returns:
        Array of `fmt.storage`; bool for comparisons. A result that is not a number is
        `fmt.nan_code`. Max and Min of a NaN (NaR) are NaN; +0 is above -0. Formats in two's
        complement compare as integers, so that NaR equals itself and is below every number.

    Raises:
        UnsupportedError: no such operation, or one that is not defined for so wide a format, or
            the format only stores values; or random bits are missing.
    """
    table = fmt.table(op)
    if fmt.storage_only:
        raise UnsupportedError(f"{fmt.name} only stores values; compute in another format")
    if op in COMPARISONS:
        a, b = (_comparable(fmt, c) for c in codes)
        return np.asarray(_COMPARE[op](a, b))
    if table is not None:
        return table.results(*codes).astype(fmt.storage)
    if op in PLACED and fmt.rounding == "stochastic" and random is None:
        raise UnsupportedError(f"{op} of {fmt.name} rounds stochastically; give it random bits")
    if fmt.logarithmic and op in ARITHMETIC:
        return logarithms.apply(fmt, op, *codes)
    if op in ARITHMETIC:
        values = [decode(fmt, c) for c in codes]
        with np.errstate(all="ignore"):
            return encode(fmt, arithmetic(fmt, op, *values), random)
    if op == "fma":
        return encode(fmt, multiply_add(fmt, *(decode(fmt, c) for c in codes)), random)
    if op in ("Max", "Min"):
        a, b = (np.asarray(c, fmt.storage) for c in codes)
        return _extreme(fmt, op, a, b)
    fmt = functions_format(fmt)
    if op in ROUNDINGS:
        return encode(fmt, ROUNDINGS[op](decode(fmt, codes[0])))
    if fmt.nbits > 16:
        raise UnsupportedError(f"{op} of {fmt.name} has no definition on arrays of codes")
    return mathfun.table(fmt, op)[codes[0]]


@lru_cache(maxsize=256)
def functions_format(fmt: Format) -> Format:
    """The format that functions of one operand and constants round to: to the nearest value where
    `fmt` rounds stochastically.

    Only sums, differences, products, quotients and conversions round stochastically.
    """
    return replace(fmt, rounding="nearest") if fmt.rounding == "stochastic" else fmt


def arithmetic(fmt: Format, op: str, a: Array, b: Array) -> Array:
    """float64 numbers that round to the format as the exact results of `a op b` do."""
    if not float64_range(fmt):
        raise UnsupportedError(
            f"arithmetic of {fmt.name} is limited to formats within 2**-450 .. 2**450"
        )
    result = np.asarray(_FLOAT64[op](a, b))
    return result if double_rounding_is_innocuous(fmt) else _round_to_odd(op, a, b, result)


def multiply_add(fmt: Format, a: Array, b: Array, c: Array) -> Array:
    """float64 numbers that round to the format as a * b + c does."""
    require_fused(fmt)
    return to_odd(a, b, c)


def require_fused(fmt: Format) -> None:
    """Check that sums of products, rounded once, have a meaning that is computed here.

    Raises:
        UnsupportedError: they have none, and why.
    """
    if fmt.logarithmic:
        why = "its values are no sums of powers of two"
    elif fmt.tables:
        why = "its operations are tables"
    elif not float64_range(fmt):
        why = "its products leave the range of float64"
    else:
        return
    raise UnsupportedError(f"{fmt.name} has only sequential accumulation, because {why}")


def float64_range(fmt: Format) -> bool:
    """Whether products and quotients stay far from float64's overflow and underflow."""
    return fmt.maxpos <= _RANGE and fmt.minpos >= 1 / _RANGE


@lru_cache(maxsize=256)
def double_rounding_is_innocuous(fmt: Format) -> bool:
    """Whether the nearest is sought and 53 >= 2 * p + 2, for the most significant bits p.

    Neighbours around 1 (or maxpos, in formats that do not reach 1) are as close as any relative to
    their size in floats, posits and takums. In fixed point a product within the range is an integer
    of nbits - 1 + fraction bits, hence exact, and a quotient differs from a tie by more than
    2**-(nbits + fraction) of its size, or not at all.
    """
    if not fmt.rounding.startswith("nearest") or fmt.negation == "none":
        return False
    if fmt.nbits <= 16:
        return True
    family: object = fmt.decoder
    if isinstance(family, FixedCode):
        return fmt.nbits + family.fraction <= 52
    at_most = max(significant_bits(fmt, Fraction(1)), significant_bits(fmt, fmt.maxpos))
    return 2 * at_most + 2 <= 53


def significant_bits(fmt: Format, near: Fraction) -> int:
    """Bits of the significands of the values just below and above `near`."""
    middle = min(max(fmt.nearest(near), 2), fmt.highest - 1)
    values = [fmt.value(middle + step) for step in (-1, 0, 1)]
    return max(_bits(value) for value in values)


def _bits(value: Fraction) -> int:
    """Length of the odd part of a dyadic number."""
    odd = value.numerator // (value.numerator & -value.numerator)
    return odd.bit_length()


def integers_to_float64(values: Array) -> Array:
    """float64 of integers; beyond 2**53 rounded to odd, so that they can be rounded again."""
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    exact = np.abs(values.astype(np.float64)) < 2.0**53
    sticky = (values & 0x7FF) != 0
    odd = (values >> 11 | sticky).astype(np.float64) * 2048.0
    return np.where(exact, values.astype(np.float64), odd)


def _comparable(fmt: Format, codes: Array) -> Array:
    """Numbers that compare as the codes do."""
    if fmt.negation != "complement":
        return decode(fmt, codes)
    signed = np.asarray(codes).astype(np.int64)
    return np.where(signed >= fmt.sign_bit, signed - fmt.mask - 1, signed)


def _extreme(fmt: Format, op: str, a: Array, b: Array) -> Array:
    x, y = _comparable(fmt, a), _comparable(fmt, b)
    if fmt.negation != "complement":
        below = (x < y) | ((x == y) & np.signbit(x) & ~np.signbit(y))
    else:
        below = x < y
    chosen = np.where(below, b, a) if op == "Max" else np.where(below, a, b)
    if fmt.has_nan:
        nan = np.isnan(decode(fmt, a)) | np.isnan(decode(fmt, b))
        chosen = np.where(nan, fmt.nan_code, chosen)
    return chosen.astype(fmt.storage)


def _round_to_odd(op: str, a: Array, b: Array, result: Array) -> Array:
    """`result`, which is a op b to nearest, rounded to odd instead."""
    if op == "Sub":
        return _round_to_odd("Add", a, -b, result)
    if op == "Add":
        part = result - a
        error = (a - (result - part)) + (b - part)
    elif op == "Mul":
        error = product_error(a, b, result)
    else:
        product = result * b
        rest = (a - product) - product_error(result, b, product)
        error = np.where(b < 0, -rest, rest)
    even = (result.view(np.int64) & 1) == 0
    change = np.isfinite(result) & np.isfinite(error) & (error != 0) & even
    return np.where(change, np.nextafter(result, np.where(error > 0, np.inf, -np.inf)), result)
