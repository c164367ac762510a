"""What the built-in lowerings share."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compiler.lowering.tables import table
from compiler.tensor.expr import Buffer, Expr, Gather, cast, const
from compiler.types.dtypes import INT32, INT64, DType
from datatypes.arithmetic import oracle
from datatypes.formats import Format, value_table


def storage(fmt: Format) -> DType:
    """The unsigned dtype that holds a code."""
    return DType.parse(fmt.storage)


def code(fmt: Format, bits: int) -> Expr:
    """A code as a constant."""
    return const(bits, storage(fmt))


def look_up(entries: Buffer, at: Expr) -> Expr:
    """Entry number `at` (any integer dtype) of a table."""
    return Gather(entries, cast(at, INT64))


@lru_cache(maxsize=256)
def values(fmt: Format) -> Buffer:
    """The float value of every code of a format of up to 16 bits; float32 where that is exact."""
    exact = value_table(fmt)
    with np.errstate(over="ignore"):
        short = exact.astype(np.float32)
    equal = np.array_equal(short.astype(np.float64), exact, equal_nan=True)
    return table(f"{fmt.name}_values", short if equal else exact)


PAIR_BITS = 8
"""Of formats for which there are tables of all pairs of codes."""


def look_up_pair(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """Add, Sub, Mul, Div on storage integers, and what the format has a table for."""
    if op not in oracle.ARITHMETIC and fmt.table(op) is None:
        return None
    return look_up(pair_results(fmt, op), cast(a, INT32) << fmt.nbits | cast(b, INT32))


@lru_cache(maxsize=128)
def pair_results(fmt: Format, op: str) -> Buffer:
    """uint8[2**(2 * nbits)]: the code of `a op b` at position a * 2**nbits + b."""
    codes = np.arange(fmt.mask + 1)
    entries = oracle.apply(fmt, op, codes[:, None], codes[None, :])
    return table(f"{fmt.name}_{op.lower()}", entries.reshape(-1))
