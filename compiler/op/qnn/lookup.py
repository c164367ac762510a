"""qnn.lookup: any function of one 8-bit integer, as a table of its 256 results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import require
from compiler.op.gradient import INTEGERS
from compiler.op.opdef import Fusion, NoAttrs, OpDef, register_op
from compiler.symbolic import IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, Gather, cast
from compiler.types.dtypes import INT64, UINT8, Array
from compiler.types.tensor_types import TensorType

ENTRIES = 256


def _infer(_: Any, types: Sequence[TensorType]) -> TensorType:
    x, table = types
    require(
        str(x.dtype) in ("int8", "uint8"), f"qnn.lookup takes int8 or uint8 data, not {x.dtype}"
    )
    require(
        table.shape == (ENTRIES,), f"qnn.lookup takes a table of {ENTRIES} entries, not {table}"
    )
    return x.with_dtype(table.dtype)


def _reference(_: Arithmetic, __: Any, x: Array, table: Array) -> Array:
    return np.asarray(table[x.view(np.uint8)])


def entry(table: Buffer, x: Expr) -> Expr:
    """The entry that the bits of an 8-bit integer, read as unsigned, are the position of."""
    return Gather(table, cast(cast(x, UINT8), INT64))


def _lower(b: PrimBuilder, _: Any, x: Buffer, table: Buffer) -> Buffer:
    def element(*i: IntLike) -> Expr:
        return entry(table, x[i])

    return b.compute("looked_up", x.shape, table.dtype, element)


LOOKUP = register_op(
    OpDef(
        "qnn.lookup", _infer, _reference, _lower, NoAttrs, (2, 2), Fusion.ELEMENTWISE, tables=(1,),
        gradient=INTEGERS,
        doc="data (int8 or uint8), table [256]: the entry at the position that the bits of an "
        "element, read as unsigned, give",
    )
)  # fmt: skip
