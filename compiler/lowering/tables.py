"""The table lowering: operations of a datatype of up to 8 bits as look-ups of codes.

The tables are filled by asking the datatype for the result of every operand or pair of operands,
whatever its operations are: a format's rounding, a user's C or Python functions, an approximate
multiplier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.symbolic import Index
from compiler.tensor.expr import BinOp, Buffer, Call, Cast, Expr, Gather, cast
from compiler.types.dtypes import INT64, CustomDType, DType

_made: dict[tuple[CustomDType, str, DType, DType], Buffer] = {}


def table(name: str, data: object) -> Buffer:
    """A constant buffer for look-ups (`Gather(table, position)`) from a one-dimensional array."""
    array = np.ascontiguousarray(data)
    return Buffer(name, (Index.of(array.size),), DType.parse(array.dtype), "constant", data=array)


def forget(name: str) -> None:
    """Drop the tables of the datatype called `name`, whose operations have changed."""
    for key in [k for k in _made if k[0].name == name]:
        del _made[key]


def by_table(kind: CustomDType, node: Expr, operands: Sequence[Expr]) -> Expr | None:
    """One operation as a look-up; None where it is none: a conversion to the datatype, or to an
    integer.

    Args:
        kind: the datatype.
        node: the operation, of dtypes in the form of codes.
        operands: its operands, of which those of the datatype are `Stored`.
    """
    codes = [getattr(x, "bits", x) for x in operands]
    if isinstance(node, BinOp):
        dtype = operands[0].dtype
        at = (cast(codes[0], INT64) << dtype.bits) + cast(codes[1], INT64)
        return _entry(_table(kind, node.op, dtype, node.dtype), at)
    if isinstance(node, Call) and len(codes) == 1:
        return _entry(_table(kind, node.fn, node.dtype, node.dtype), codes[0])
    if isinstance(node, Cast) and operands[0].dtype.is_custom and node.dtype.is_float:
        return _entry(_table(kind, "Cast", operands[0].dtype, node.dtype), codes[0])
    return None


def _entry(entries: Buffer, at: Expr) -> Expr:
    return Gather(entries, cast(at, INT64))


def _table(kind: CustomDType, op: str, dtype: DType, result: DType) -> Buffer:
    """Results of an operation: of `x op y` at position x * 2**bits + y, of functions at x."""
    key = (kind, op, dtype, result)
    if key not in _made:
        codes = np.arange(1 << dtype.bits, dtype=dtype.storage)
        if op == "Cast":
            with np.errstate(all="ignore"):
                entries = kind.decode(codes, dtype).astype(result.storage)
        elif op in _PAIRS:
            entries = kind.apply(op, dtype, codes[:, None], codes[None, :]).reshape(-1)
        else:
            entries = kind.apply(op, dtype, codes)
        _made[key] = table(f"{kind.name}_{op.lower()}", np.asarray(entries, result.storage))
    return _made[key]


_PAIRS = ("Add", "Sub", "Mul", "Div", "Max", "Min", "LT", "LE", "GT", "GE", "EQ", "NE")
