"""The array codec compiled, for arrays that are worth it: over 200 million values a second.

It gives what `datatypes.formats` gives, which does all else: small arrays, formats without lanes,
other dtypes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.tensor.expr import Expr, cast
from compiler.types.dtypes import FLOAT64, DType
from datatypes import formats, kernels
from datatypes.builtin import through_float64
from datatypes.formats import Format
from datatypes.vector.choice import Lanes, lanes
from datatypes.vector.operations import from_bits

Array = npt.NDArray[Any]

SMALLEST = 1 << 15
"""Elements from which on compiling takes less time than it saves."""

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def encode(fmt: Format, array: npt.ArrayLike) -> Array:
    """See `datatypes.formats.encode`."""
    values = np.asarray(array)
    if values.dtype not in _FLOATS or not _worth_it(fmt, values):
        return formats.encode(fmt, array)
    return _encoder(fmt, values.dtype)(values)


def decode(fmt: Format, bits: npt.ArrayLike, dtype: npt.DTypeLike = np.float64) -> Array:
    """See `datatypes.formats.decode`."""
    codes, wanted = np.asarray(bits), np.dtype(dtype)
    if codes.dtype != fmt.storage or wanted not in _FLOATS or not _worth_it(fmt, codes):
        return formats.decode(fmt, bits, dtype)
    if fmt.nbits < 8 * codes.itemsize and int(codes.max()) > fmt.mask:
        return formats.decode(fmt, bits, dtype)  # says what is wrong
    return _decoder(fmt, wanted)(codes)


def _worth_it(fmt: Format, array: Array) -> bool:
    return array.size >= SMALLEST and isinstance(lanes(fmt), Lanes)


@lru_cache(maxsize=256)
def _encoder(fmt: Format, source: np.dtype[Any]) -> kernels.Elementwise:
    def body(x: Expr) -> Expr:
        return through_float64.by_expression(fmt, cast(x, FLOAT64))

    stored = DType.parse(fmt.storage)
    return kernels.compile_elementwise("encode", [DType.parse(source)], stored, body)


@lru_cache(maxsize=256)
def _decoder(fmt: Format, dest: np.dtype[Any]) -> kernels.Elementwise:
    def body(bits: Expr) -> Expr:
        return cast(from_bits(fmt, bits), DType.parse(dest))

    stored = DType.parse(fmt.storage)
    return kernels.compile_elementwise("decode", [stored], DType.parse(dest), body)
