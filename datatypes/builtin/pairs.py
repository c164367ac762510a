"""Tables of all pairs of operands, for formats of up to 8 bits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compiler.lowering.tables import table
from compiler.tensor.expr import Expr, cast
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import INT32
from datatypes.arithmetic import oracle
from datatypes.builtin.common import look_up
from datatypes.formats import Format

BITS = 8


def binary(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """Add, Sub, Mul, Div on storage integers, and what the format has a table for."""
    if op not in oracle.ARITHMETIC and fmt.table(op) is None:
        return None
    return look_up(results(fmt, op), cast(a, INT32) << fmt.nbits | cast(b, INT32))


@lru_cache(maxsize=128)
def results(fmt: Format, op: str) -> Buffer:
    """uint8[2**(2 * nbits)]: the code of `a op b` at position a * 2**nbits + b."""
    codes = np.arange(fmt.mask + 1)
    entries = oracle.apply(fmt, op, codes[:, None], codes[None, :])
    return table(f"{fmt.name}_{op.lower()}", entries.reshape(-1))
