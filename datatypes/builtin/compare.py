"""Order: comparisons, Max and Min."""

from __future__ import annotations

from compiler.tensor.expr import COMPARISONS, BinOp, Expr, binary, cast
from compiler.types.dtypes import DType
from datatypes.builtin import through_float64
from datatypes.builtin.common import storage
from datatypes.builtin.decoding import decode
from datatypes.formats import Format


def lower(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """LT LE GT GE EQ NE (to bool), Max and Min on storage integers."""
    if fmt.negation == "complement":
        return _as_integers(fmt, op, a, b)
    x, y = decode(fmt, a), decode(fmt, b)
    if x is None or y is None:
        return None
    if op in COMPARISONS:
        return binary(op, x, y)
    return through_float64.encode(fmt, BinOp(op, x, y, x.dtype))


def _as_integers(fmt: Format, op: str, a: Expr, b: Expr) -> Expr:
    """Codes in two's complement, moved to the top of their storage, are signed integers.

    In these NaR is the smallest. Max takes it for the largest, by counting down from it.
    """
    unused = fmt.storage.itemsize * 8 - fmt.nbits
    signed = DType("int", fmt.storage.itemsize * 8)
    first = 1 << unused if op == "Max" and fmt.has_nan else 0

    def top(code: Expr) -> Expr:
        shifted = code << unused if unused else code
        return cast(shifted - first if first else shifted, signed)

    result = binary(op, top(a), top(b))
    if op in COMPARISONS:
        return result
    back = cast(result, storage(fmt))
    back = back + first if first else back
    return back >> unused if unused else back
