"""Between codes and lanes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.lowering.tables import table
from compiler.tensor.expr import Expr, Gather, cast
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import FLOAT64, INT64
from datatypes.builtin import decoding, through_float64
from datatypes.formats import Format, decode, value_table
from datatypes.vector.choice import chosen

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
