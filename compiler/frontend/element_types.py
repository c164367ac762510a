"""ONNX's element types: those that are dtypes, and integers of 4 and 2 bits, held in bytes.

The 8-bit floats and bfloat16 are the formats of that name; they are known when the package that
describes formats is imported. A value of a narrow integer type is an int8 or uint8 of the program
within that type's bounds; the importer remembers which values are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from compiler.errors import DtypelabError, UnsupportedError
from compiler.types.dtypes import INT8, UINT8, Array, DType, custom

_BUILTIN = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip
_FORMATS = {
    16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2",
    20: "float8_e5m2fnuz", 23: "float4_e2m1fn", 24: "float8_e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True)
class Narrow:
    """An integer type of fewer bits than its dtype has."""

    bits: int
    dtype: DType

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        if self.dtype == INT8:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1


NARROW: Mapping[int, Narrow] = MappingProxyType(
    {21: Narrow(4, UINT8), 22: Narrow(4, INT8), 25: Narrow(2, UINT8), 26: Narrow(2, INT8)}
)
"""ONNX code -> type of the integers that are held in bytes."""


def element_dtype(code: int, what: str) -> DType:
    """DType of an ONNX `TensorProto.DataType` code.

    Raises:
        UnsupportedError: we have no such dtype.
    """
    if code in NARROW:
        return NARROW[code].dtype
    if code in _BUILTIN:
        return DType.parse(_BUILTIN[code])
    if code in _FORMATS:
        try:
            return DType.parse(_FORMATS[code])
        except DtypelabError:
            raise UnsupportedError(
                f"{what} has element type {_FORMATS[code]}, which no package describes"
            ) from None
    import onnx

    known = onnx.TensorProto.DataType.keys()
    name = onnx.TensorProto.DataType.Name(code) if 0 <= code < len(known) else str(code)
    all_types = [*_BUILTIN.values(), *_FORMATS.values(), "int4", "uint4", "int2", "uint2"]
    raise UnsupportedError(f"{what} has element type {name}; supported: {', '.join(all_types)}")


def element_code(dtype: DType) -> int:
    """The ONNX code of a dtype; 0 if it has none."""
    return _CODES.get(dtype.name or str(dtype), 0)


def exotic_name(code: int) -> str:
    """Name of the element type of an ONNX code that numpy does not have; empty for others."""
    return _NARROW_NAMES.get(code, "") or _FORMATS.get(code, "")


_NARROW_NAMES = {21: "uint4", 22: "int4", 25: "uint2", 26: "int2"}
_CODES = {name: code for code, name in (_BUILTIN | _FORMATS).items()}


def stored(data: Any, dtype: DType) -> Array:
    """What onnx made of a tensor's data, as storage elements of `dtype`."""
    if dtype.is_custom:
        return np.ascontiguousarray(data).view(dtype.storage).reshape(np.shape(data))
    return np.array(data, dtype.storage, order="C")


def bounds(dtype: DType) -> tuple[float, float]:
    """The smallest and the largest finite value of a float or of a format of up to 16 bits."""
    if not dtype.is_custom:
        info = np.finfo(dtype.storage)
        return float(info.min), float(info.max)
    codes = np.arange(1 << dtype.bits, dtype=dtype.storage)
    values = custom(dtype.name).decode(codes, dtype)
    finite = values[np.isfinite(values)]
    return float(finite.min()), float(finite.max())
