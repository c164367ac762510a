"""Formats through float64: decode, operate, round once to the format.

Rounding is `datatypes.formats.binades` as an expression.
"""

from __future__ import annotations

from functools import lru_cache, partial

from compiler.lowering.tables import table
from compiler.tensor.expr import BinOp, Buffer, Expr, call, cast, const, let, select
from compiler.tensor.expr import binary as operation
from compiler.types.dtypes import BOOL, FLOAT64, INT64, DType
from datatypes.arithmetic import oracle
from datatypes.builtin import round_to_odd, softposit
from datatypes.builtin.common import PAIR_BITS, code, look_up, storage
from datatypes.builtin.decoding import TABLE_BITS, decode
from datatypes.formats import Binades, Format, binades, interval_starts, sorted_codes
from datatypes.formats.rules import Rounding


def binary(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """Add, Sub, Mul, Div on storage integers, where float64 has the range."""
    result = arithmetic(fmt, op, a, b)
    return None if result is None else encode(fmt, result)


def arithmetic(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """float64 that rounds to the format as the exact result does (`oracle.arithmetic`)."""
    if op not in oracle.ARITHMETIC or not oracle.float64_range(fmt):
        return None
    x, y = decode(fmt, a), decode(fmt, b)
    if x is None or y is None:
        return None
    if oracle.double_rounding_is_innocuous(fmt):
        return BinOp(op, x, y, FLOAT64)
    return let(x, lambda x: let(y, lambda y: round_to_odd.operation(op, x, y)))


def multiply_add(fmt: Format, *codes: Expr) -> Expr | None:
    """a * b + c of storage integers, rounded once."""
    result = multiplied_and_added(fmt, *codes)
    return None if result is None else encode(fmt, result)


def multiplied_and_added(fmt: Format, *codes: Expr) -> Expr | None:
    """float64 that rounds to the format as the exact a * b + c of storage integers does."""
    oracle.require_fused(fmt)
    values = [decode(fmt, x) for x in codes]
    if any(v is None for v in values):
        return None
    a, b, c = (v for v in values if v is not None)
    return fused(fmt, a, b, c)


def fused(fmt: Format, a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c of float64 expressions that are values of the format, rounded to odd."""

    def result(a: Expr, b: Expr, c: Expr) -> Expr:
        if fmt.nbits > TABLE_BITS:
            return round_to_odd.multiply_add(a, b, c)
        # A product of two values has at most 53 bits.
        return let(a * b, lambda p: round_to_odd.operation("Add", p, c))

    return let(a, lambda x: let(b, lambda y: let(c, lambda z: result(x, y, z))))


# ---- conversions ---------------------------------------------------------------------------------
def encode_any(fmt: Format, x: Expr) -> Expr | None:
    """Storage integer nearest to a value of any dtype."""
    return encode(fmt, to_float64(x))


def to_float64(x: Expr) -> Expr:
    """float64 that rounds to a format as the value does."""
    if x.dtype.is_integer and x.dtype.bits == 64:
        return integer_to_float64(x)
    return cast(x, FLOAT64)


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
    """Storage integer of a float64; None where a wide format is spaced too irregularly."""
    if fmt.name in softposit.PREFIXES and fmt.nbits > PAIR_BITS:
        # Shorter ones are looked up in tables also where there is no library.
        return softposit.from_float64(fmt, x)
    if fmt.rounding == "stochastic" or (binades(fmt) is None and fmt.nbits > TABLE_BITS):
        return None
    return by_expression(fmt, x)


def by_expression(fmt: Format, x: Expr) -> Expr:
    """Storage integer of a float64, in expressions alone."""
    return let(x, lambda value: special_or(fmt, value, _regular(fmt, value)))


def _regular(fmt: Format, x: Expr) -> Expr:
    """Storage integer of a finite, nonzero number."""
    bits = call("bits", x, dtype=INT64)
    negative, magnitude = bits < 0, call("abs", x)
    rounding = binades(fmt)
    if rounding is not None:
        order = _order(fmt, rounding, bits, magnitude)
        return let(order, lambda order: _code(fmt, order, negative))
    starts = _starts(fmt)
    found = searched(starts, len(interval_starts(fmt)), x)
    return let(found, lambda entry: _listed(fmt, entry, negative))


def special_or(fmt: Format, x: Expr, regular: Expr) -> Expr:
    """`regular`, but the codes of zeros, infinities and NaN where x is one of them."""
    negative, magnitude = call("bits", x, dtype=INT64) < 0, call("abs", x)
    nan, infinity = code(fmt, fmt.nan_code), float("inf")
    beyond = _signed(fmt, negative, fmt.beyond(fmt.infinity, True), fmt.beyond(fmt.infinity, False))
    special = select(magnitude.equal(infinity), beyond, nan)
    result = select(magnitude < infinity, regular, special)
    zero = _signed(fmt, negative, fmt.zero(True), fmt.zero(False))
    return select(x.equal(0.0), zero, result)


def _order(fmt: Format, rounding: Binades, bits: Expr, magnitude: Expr) -> Expr:
    """int64 order of a magnitude (`Binades.orders`)."""
    scale, shift, base = tables(fmt)
    last = len(rounding.base) - 1
    exponent = (bits >> 52 & 0x7FF) - (1023 + rounding.first)

    def rounded(entry: Expr) -> Expr:
        steps = magnitude * look_up(scale, entry) - look_up(shift, entry)
        return _to_integer(rounding.rounding, steps, bits < 0) + look_up(base, entry)

    clipped = operation("Min", operation("Max", exponent, 0), last)
    order = operation("Max", cast(let(clipped, rounded, "entry"), INT64), rounding.least)
    if rounding.rounding in ("zero", "up", "down"):
        # Beyond the range only what is rounded away from zero.
        most = _signed_order(bits < 0, -fmt.lowest, fmt.highest)
        inner = operation("Min", order, most)
        outward = {"zero": None, "up": bits >= 0, "down": bits < 0}[rounding.rounding]
        order = inner if outward is None else select(outward, order, inner)
    return order


def _to_integer(rounding: Rounding, steps: Expr, negative: Expr) -> Expr:
    """A magnitude, counted in steps, rounded to an integer."""
    if rounding == "nearest":
        return call("round", steps)
    if rounding == "nearest_away":

        def away(steps: Expr) -> Expr:
            whole = call("floor", steps)
            return whole + select(steps - whole >= 0.5, const(1.0, FLOAT64), 0.0)

        return let(steps, away)
    if rounding == "zero":
        return call("floor", steps)
    up, down = call("ceil", steps), call("floor", steps)
    return select(negative, down, up) if rounding == "up" else select(negative, up, down)


def searched(starts: Buffer, count: int, x: Expr) -> Expr:
    """int64: how many of the first `count` entries are at or below x, by bisection."""
    found = const(0, INT64)
    step = 1 << (count.bit_length() - 1)
    while step:
        found = let(found, partial(_next, starts, count, step, x), "found")
        step //= 2
    return found


def _next(starts: Buffer, count: int, step: int, x: Expr, found: Expr) -> Expr:
    """One more bit of the count: set if the entry there exists and is at or below x."""
    start = look_up(starts, operation("Min", found + (step - 1), count - 1))
    return select((start <= x) & (found + step <= count), found + step, found)


def _listed(fmt: Format, entry: Expr, negative: Expr) -> Expr:
    """Code of the value number lowest - 1 + entry; beyond the range by the rule of the format."""
    codes = _codes(fmt)
    kept = look_up(
        codes, operation("Min", operation("Max", entry - 1, 0), fmt.highest - fmt.lowest)
    )
    if fmt.signed_zero:
        zero = entry.equal(1 - fmt.lowest) & negative
        kept = select(zero, code(fmt, fmt.sign_bit), kept)
    below, above = fmt.beyond(fmt.overflow, True), fmt.beyond(fmt.overflow, False)
    outside = (entry < 1) | (entry > fmt.highest - fmt.lowest + 1)
    return select(outside, _signed(fmt, negative, below, above), kept)


@lru_cache(maxsize=64)
def _starts(fmt: Format) -> Buffer:
    return table(f"{fmt.name}_starts", interval_starts(fmt))


@lru_cache(maxsize=64)
def _codes(fmt: Format) -> Buffer:
    return table(f"{fmt.name}_codes", sorted_codes(fmt).astype(fmt.storage))


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
