"""bfloat16 in float32 arithmetic.

A float32 operation on bfloat16 operands followed by rounding to 8 significant bits equals one
rounding, because 24 >= 2 * 8 + 2 (Figueroa 1995); bfloat16 has float32's exponents, and its
subnormal results are rounded once too, which the tests show for every pair of significands.
"""

from __future__ import annotations

from compiler.tensor.expr import COMPARISONS, BinOp, Expr, call, cast, const, let, select
from compiler.tensor.expr import binary as operation
from compiler.types.dtypes import FLOAT32, DType

NAME = "bfloat16"
_UINT16, _UINT32 = DType("uint", 16), DType("uint", 32)
_NAN = 0x7FC0


def decode(a: Expr) -> Expr:
    """float32 of a storage integer."""
    return call("bits", cast(a, _UINT32) << 16, dtype=FLOAT32)


def encode(x: Expr) -> Expr:
    """Storage integer nearest to a float32: half of the last place is added, a bit less on ties."""

    def rounded(x: Expr) -> Expr:
        bits = call("bits", x, dtype=_UINT32)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return select(operation("NE", x, x), const(_NAN, _UINT16), cast(nearest, _UINT16))

    return let(x, rounded)


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """Any binary operation on storage integers."""
    x, y = decode(a), decode(b)
    if op in COMPARISONS:
        return operation(op, x, y)
    return encode(BinOp(op, x, y, FLOAT32))
