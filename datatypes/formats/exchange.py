"""Arrays in the dtypes of the package ml_dtypes, which has some formats as numpy dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from datatypes.formats.catalogue import get
from datatypes.formats.description import Format

Array = npt.NDArray[Any]


def ml_dtype(dtype: np.dtype[Any]) -> str:
    """Name of a dtype of ml_dtypes, which is that of our format; empty for any other dtype."""
    return dtype.name if dtype.type.__module__ == "ml_dtypes" and "float" in dtype.name else ""


def to_ml_dtypes(fmt: Format | str, bits: npt.ArrayLike) -> Array:
    """The same values as an array in the dtype of ml_dtypes (float16: numpy's) for the format.

    Args:
        fmt: a format that ml_dtypes has, or its name.
        bits: its codes, as `encode` gives them. They are not copied.

    Raises:
        DtypelabError: ml_dtypes is not installed, or has no such format.
    """
    fmt = get(fmt)
    codes = np.asarray(bits, fmt.storage)
    if fmt.name == "float16":
        return codes.view(np.float16)
    try:
        import ml_dtypes
    except ImportError:
        raise DtypelabError(
            "this needs ml_dtypes; install dtypelab with its extra ml_dtypes"
        ) from None
    scalar = getattr(ml_dtypes, fmt.name, None)
    if scalar is None:
        raise DtypelabError(f"ml_dtypes has no {fmt.name}; decode it to float32 instead")
    return codes.view(np.dtype(scalar))
