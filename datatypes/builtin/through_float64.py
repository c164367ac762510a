"""Formats through float64: decode, operate, round once to the format.

Rounding is `datatypes.formats.binades` as an expression.
"""

from __future__ import annotations

from functools import lru_cache

from compiler.dtypes import BOOL, FLOAT64, INT64, DType
from compiler.tensor.expr import BinOp, Expr, call, cast, const, let, select
from compiler.tensor.expr import binary as operation
from compiler.tensor.lower_custom import table
from compiler.tensor.stmt import Buffer
from datatypes import oracle
from datatypes.builtin import softposit
from datatypes.builtin.common import code, look_up, storage
from datatypes.builtin.decoding import decode
from datatypes.formats import Binades, Format, binades


def binary(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """Add, Sub, Mul, Div on storage integers, where float64 is wide enough."""
    if op not in oracle.ARITHMETIC or not oracle.float64_range(fmt):
        return None
    if not oracle.double_rounding_is_innocuous(fmt):
        return None
    x, y = decode(fmt, a), decode(fmt, b)
    return None if x is None or y is None else encode(fmt, BinOp(op, x, y, FLOAT64))


# ---- conversions ---------------------------------------------------------------------------------
def encode_any(fmt: Format, x: Expr) -> Expr | None:
    """Storage integer nearest to a value of any dtype."""
    if x.dtype.is_integer and x.dtype.bits == 64:
        return encode(fmt, integer_to_float64(x))
    return encode(fmt, cast(x, FLOAT64))


def decode_any(fmt: Format, a: Expr, dtype: DType) -> Expr | None:
    """A storage integer's value in a built-in dtype (nearest; integers: toward zero)."""
    value = decode(fmt, a)
    if value is None:
        return None
    return operation("NE", value, 0.0) if dtype == BOOL else cast(value, dtype)


def integer_to_float64(x: Expr) -> Expr:
    """float64 of a 64-bit integer, rounded to odd beyond 2**53 (`oracle.integers_to_float64`)."""

    def convert(x: Expr) -> Expr:
        sticky = cast(operation("NE", x & 0x7FF, 0), x.dtype)
        odd = cast(x >> 11 | sticky, FLOAT64) * 2048.0
        plain = cast(x, FLOAT64)
        return select(operation("LT", call("abs", plain), 2.0**53), plain, odd)

    return let(x, convert)


# ---- encode --------------------------------------------------------------------------------------
def encode(fmt: Format, x: Expr) -> Expr | None:
    """Storage integer nearest to a float64; None where the format is spaced too irregularly."""
    if fmt.name in softposit.PREFIXES:
        return softposit.from_float64(fmt, x)
    rounding = binades(fmt)
    return None if rounding is None else by_binades(fmt, rounding, x)


def by_binades(fmt: Format, rounding: Binades, x: Expr) -> Expr:
    """Storage integer nearest to a float64, in expressions alone."""
    return let(x, lambda value: _encode(fmt, rounding, value))


def _encode(fmt: Format, rounding: Binades, x: Expr) -> Expr:
    bits = call("bits", x, dtype=INT64)
    negative, magnitude = bits < 0, call("abs", x)
    regular = let(_order(fmt, rounding, bits, magnitude), lambda order: _code(fmt, order, negative))
    nan, infinity = code(fmt, fmt.nan_code), float("inf")
    beyond = _signed(fmt, negative, fmt.beyond(fmt.infinity, True), fmt.beyond(fmt.infinity, False))
    special = select(magnitude.equal(infinity), beyond, nan)
    result = select(magnitude < infinity, regular, special)
    zero = _signed(fmt, negative, fmt.zero(True), 0)
    return select(x.equal(0.0), zero, result)


def _order(fmt: Format, rounding: Binades, bits: Expr, magnitude: Expr) -> Expr:
    """int64 order of a magnitude (`Binades.orders`)."""
    scale, shift, base = tables(fmt)
    last = len(rounding.base) - 1
    exponent = (bits >> 52 & 0x7FF) - (1023 + rounding.first)

    def rounded(entry: Expr) -> Expr:
        steps = magnitude * look_up(scale, entry) - look_up(shift, entry)
        return call("round", steps) + look_up(base, entry)

    clipped = operation("Min", operation("Max", exponent, 0), last)
    return operation("Max", cast(let(clipped, rounded, "entry"), INT64), rounding.least)


def _code(fmt: Format, order: Expr, negative: Expr) -> Expr:
    """Code of a magnitude's order and a sign; beyond the range by the rule of the format."""
    most = _signed_order(negative, -fmt.lowest, fmt.highest)
    kept = order
    if fmt.overflow == "saturate":
        kept = operation("Min", order, most)
    elif fmt.overflow == "inf":
        kept = operation("Min", order, most + 1)
    if fmt.negation == "complement":
        signed = select(negative, 0 - kept, kept) & fmt.mask
    else:
        sign = select(negative, const(fmt.sign_bit, INT64), 0)
        if not fmt.signed_zero:
            sign = select(kept.equal(0), const(0, INT64), sign)
        signed = kept | sign
    result = cast(signed, storage(fmt))
    return (
        select(order > most, code(fmt, fmt.nan_code), result) if fmt.overflow == "nan" else result
    )


def _signed_order(negative: Expr, below: int, above: int) -> Expr:
    highest = const(above, INT64)
    return highest if below == above else select(negative, const(below, INT64), highest)


def _signed(fmt: Format, negative: Expr, below: int, above: int) -> Expr:
    return (
        code(fmt, above) if below == above else select(negative, code(fmt, below), code(fmt, above))
    )


@lru_cache(maxsize=128)
def tables(fmt: Format) -> tuple[Buffer, Buffer, Buffer]:
    """Scale, shift and base of every binade."""
    rounding = binades(fmt)
    assert rounding is not None
    columns = {"scale": rounding.scale, "shift": rounding.shift, "base": rounding.base}
    scale, shift, base = (table(f"{fmt.name}_{name}", c) for name, c in columns.items())
    return scale, shift, base
