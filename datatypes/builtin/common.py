"""What the built-in lowerings share."""

from __future__ import annotations

from functools import lru_cache

from compiler.lowering.tables import table
from compiler.tensor.expr import Expr, Gather, cast, const
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import INT64, DType
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
    import numpy as np

    exact = value_table(fmt)
    with np.errstate(over="ignore"):
        short = exact.astype(np.float32)
    equal = np.array_equal(short.astype(np.float64), exact, equal_nan=True)
    return table(f"{fmt.name}_values", short if equal else exact)
