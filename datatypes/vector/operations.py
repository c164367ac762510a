"""Scalar operations on lanes, each rounded to the format as the exact result would be."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.lowering.tables import table
from compiler.tensor.expr import (
    COMPARISONS,
    BinOp,
    Buffer,
    Expr,
    Gather,
    binary,
    call,
    cast,
    const,
    let,
    select,
)
from compiler.types.dtypes import BOOL, FLOAT32, FLOAT64, INT64, DType
from datatypes.arithmetic import oracle
from datatypes.builtin import decoding, functions, through_float64
from datatypes.formats import Format, as_float, decode, value_table
from datatypes.vector import deferred
from datatypes.vector.carrier import is_nan, narrowed_to_odd, rounded_to_odd
from datatypes.vector.choice import chosen, is_short_single
from datatypes.vector.rounding import products_in_single, rounded, rounds_in_single

Array = npt.NDArray[Any]


def from_bits(fmt: Format, bits: Expr) -> Expr:
    """The lane of a storage integer."""
    lane = chosen(fmt).lane.dtype
    if fmt.nbits <= decoding.TABLE_BITS:
        return Gather(values(fmt), cast(bits, INT64))
    value = decoding.by_family(fmt, bits)
    assert value is not None  # or the format has no lanes
    return cast(value, lane)


def to_bits(fmt: Format, lane: Expr) -> Expr:
    """The storage integer of a lane."""
    return through_float64.by_expression(fmt, cast(lane, FLOAT64))


def lane_array(fmt: Format, codes: Array) -> Array:
    """Lanes of an array of codes."""
    return decode(fmt, codes, chosen(fmt).lane.dtype.storage)


@lru_cache(maxsize=256)
def values(fmt: Format) -> Buffer:
    """The lane of every code of a format of at most 16 bits."""
    lane = chosen(fmt).lane.dtype
    return table(f"{fmt.name}_lanes", value_table(fmt).astype(lane.storage))


@lru_cache(maxsize=512)
def results(fmt: Format, fn: str) -> Buffer:
    """The lane of fn(x) for every code x of a format of at most 16 bits."""
    from datatypes.arithmetic import oracle

    codes = oracle.apply(fmt, fn, np.arange(fmt.mask + 1))
    return table(f"{fmt.name}_{fn}_lanes", lane_array(fmt, codes))


def operate(
    fmt: Format, op: str, a: Expr, b: Expr, unsure: bool = False, keeps_nan: bool = True
) -> Expr | None:
    """Add Sub Mul Div Max Min, LT LE GT GE EQ NE of two lanes.

    `unsure`: Add and Mul may give NaN instead, where the format has a cheaper way (`deferred`);
    `keeps_nan`: see VectorDType.
    """
    if unsure and op in deferred.OPERATIONS and fmt.rounding == "nearest":
        found = deferred.OPERATIONS[op](fmt, a, b, keeps_nan)
        if found is not None:
            return found
    if op in COMPARISONS:
        return _compare(fmt, op, a, b)
    if op in ("Max", "Min"):  # of NaN and a number NaN, and +0 is above -0: what formats say too
        return BinOp(op, a, b, a.dtype)
    if op == "Div" and not fmt.signed_zero:
        b = b + 0.0  # there is one zero: -0 would give the other infinity
    choice = chosen(fmt)
    wide = choice.arithmetic.dtype
    a, b = cast(a, wide), cast(b, wide)
    if op not in oracle.ARITHMETIC:
        return None
    result = to_odd(op, a, b, fmt.has_inf) if choice.odd else BinOp(op, a, b, wide)
    if rounds_in_single(fmt):
        result = narrowed_to_odd(result, anywhere=op == "Div" or not products_in_single(fmt))
    outside = op == "Div" or (is_short_single(fmt) and not keeps_nan)  # NaN must stay so
    return cast(rounded(fmt, result, outside), choice.lane.dtype)


def multiply_add(fmt: Format, a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c of three lanes, rounded once."""
    oracle.require_fused(fmt)
    result = through_float64.fused(fmt, *(cast(x, FLOAT64) for x in (a, b, c)))
    return cast(rounded(fmt, result, outside=True), chosen(fmt).lane.dtype)


def to_odd(op: str, a: Expr, b: Expr, infinite: bool) -> Expr:
    """a op b rounded to odd, with the error of the operation by Knuth's two-sum (Sub: of a and -b),
    and by fma. `infinite`: whether the result may be infinite."""

    def of(a: Expr, b: Expr) -> Expr:
        if op == "Sub":
            return let(b * -1.0, lambda b: to_odd("Add", a, b, infinite), "b")
        nearest = BinOp(op, a, b, a.dtype)
        return let(nearest, lambda r: rounded_to_odd(r, error(r, a, b)), "r")

    def error(r: Expr, a: Expr, b: Expr) -> Expr:
        found = _error(op, a, b, r)
        return _finite(found) if infinite else found

    return let(a, lambda a: let(b, lambda b: of(a, b), "b"), "a")


def _error(op: str, a: Expr, b: Expr, r: Expr) -> Expr:
    """What `r`, a op b to nearest, lacks: exactly, or (Div) a number of the same sign."""
    if op == "Add":
        return let(r - a, lambda part: (a - (r - part)) + (b - part), "part")
    if op == "Mul":
        return call("fma", a, b, r * -1.0)
    rest = let(call("fma", r * -1.0, b, a), lambda rest: select(b < 0.0, rest * -1.0, rest), "rest")
    number = call("abs", r) < float("inf")  # the quotient by zero has no error
    return select(number, rest, 0.0)


def _compare(fmt: Format, op: str, a: Expr, b: Expr) -> Expr:
    """Formats in two's complement compare as integers: NaR is equal to itself and below all."""
    if fmt.negation == "complement" and fmt.has_nan:
        a, b = (let(x, lambda x: select(is_nan(x), const(_LOW, x.dtype), x)) for x in (a, b))
    return binary(op, a, b)


_LOW = float("-inf")


def function(fmt: Format, fn: str, x: Expr) -> Expr | None:
    """`fn` of a lane; None if there is no such function.

    Correctly rounded up to 16 bits. Wider formats take the float64 function that their library
    lowering takes (see `datatypes.builtin.functions`), and round its result once.
    """
    f = FUNCTIONS.get(fn)
    if f is None or not f.in_formats:
        return None
    if f.integral:
        return _rounded_once(fmt, call(fn, cast(x, chosen(fmt).arithmetic.dtype)))
    if fn == "sqrt":
        return _rounded_once(fmt, _sqrt(fmt, cast(x, chosen(fmt).arithmetic.dtype)))
    if fmt.nbits <= decoding.TABLE_BITS:
        return Gather(results(fmt, fn), cast(to_bits(fmt, x), INT64))
    return _rounded_once(fmt, functions.in_float64(f, cast(x, FLOAT64)))


def _finite(error: Expr) -> Expr:
    """What a result lacks; nothing if that is infinite or has an infinite operand."""
    return let(error, lambda e: select(call("abs", e) < float("inf"), e, 0.0), "error")


def _sqrt(fmt: Format, x: Expr) -> Expr:
    root = call("sqrt", x)
    if not chosen(fmt).odd:
        return root

    def odd(x: Expr, root: Expr) -> Expr:
        rest = call("fma", root * -1.0, root, x)
        return rounded_to_odd(root, _finite(select(root > 0.0, rest, 0.0)))

    return let(x, lambda x: let(call("sqrt", x), lambda r: odd(x, r), "root"), "x")


def _rounded_once(fmt: Format, x: Expr) -> Expr:
    """A float of either carrier, if the arithmetic's is no wider, as a lane."""
    if x.dtype == FLOAT64 and rounds_in_single(fmt):
        x = narrowed_to_odd(x)
    return cast(rounded(fmt, x, outside=True), chosen(fmt).lane.dtype)


def constant(fmt: Format, value: float) -> Expr:
    """The lane nearest to a number."""
    code = fmt.encode_exact(value)
    nearest = as_float(fmt.decode_exact(code))
    lane = chosen(fmt).lane
    return lane.number(-0.0 if code == fmt.zero(True) and code else nearest)


def from_number(fmt: Format, x: Expr) -> Expr:
    """The lane nearest to a value of a built-in dtype."""
    if x.dtype.is_integer and x.dtype.bits == 64:
        return _rounded_once(fmt, through_float64.integer_to_float64(x))
    widest = FLOAT32 if rounds_in_single(fmt) else chosen(fmt).arithmetic.dtype
    short = x.dtype.is_float and x.dtype.bits <= widest.bits
    return _rounded_once(fmt, cast(x, widest if short else FLOAT64))


def to_number(fmt: Format, x: Expr, dtype: DType) -> Expr:
    """A lane's value in a built-in dtype (nearest; integers: toward zero)."""
    if dtype == BOOL:
        return binary("NE", x, 0.0)
    if not fmt.signed_zero:
        x = x + 0.0  # there is one zero
    return cast(x, dtype)
