"""encode and decode for formats and registered datatypes alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.types.dtypes import DType, custom
from datatypes.formats import Format, get
from datatypes.vector import large_arrays

Array = npt.NDArray[Any]


def encode(dtype: Format | DType | str, array: npt.ArrayLike) -> Array:
    """Storage integers nearest to the numbers of `array`, each rounded once.

    Args:
        dtype: a format or its name, or a datatype written `custom[NAME]BITS`.
        array: any shape; floats, or integers (for a format, those that float64 holds).

    Raises:
        InputError: numbers of another dtype, or integers too large.
        LoweringError: a registered datatype has no Cast from the array's dtype.
        DtypelabError: no such format or datatype.
    """
    named = _custom(dtype)
    if named is None:
        assert not isinstance(dtype, DType)
        return large_arrays.encode(get(dtype), array)
    return custom(named.name).encode(np.asarray(array), named)


def decode(
    dtype: Format | DType | str, bits: npt.ArrayLike, into: npt.DTypeLike = np.float64
) -> Array:
    """Values of storage integers, as float64 or in the float dtype `into`.

    Args:
        dtype: a format or its name, or a datatype written `custom[NAME]BITS`.
        bits: integer array of any shape.
        into: float64 or float32, rounding to nearest where it is not exact.

    Raises:
        InputError: `bits` are not codes of the format.
        LoweringError: a registered datatype has no Cast to float.
        DtypelabError: no such format or datatype.
    """
    named = _custom(dtype)
    if named is None:
        assert not isinstance(dtype, DType)
        return large_arrays.decode(get(dtype), bits, into)
    values = custom(named.name).decode(np.asarray(bits), named)
    with np.errstate(over="ignore"):
        return np.asarray(values, into)


def _custom(dtype: Format | DType | str) -> DType | None:
    """The datatype that `custom[NAME]BITS` stands for; None for a format or its name."""
    if isinstance(dtype, DType) or (isinstance(dtype, str) and dtype.startswith("custom[")):
        return DType.parse(dtype)
    return None
