"""torch's tensors as arrays and back, in the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.types.dtypes import DType

Array = NDArray[Any]


def array_of(tensor: Any, dtype: DType) -> Array:
    """A tensor's memory, through DLPack; what is not contiguous is copied once. Elements that numpy
    does not have are their codes."""
    import torch

    plain = tensor.detach()
    plain = plain if plain.is_contiguous() else plain.contiguous()
    if dtype.is_custom or tensor.dtype == torch.bool:
        codes = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
        found: Array = np.from_dlpack(plain.view(codes))
        return found.view(dtype.storage)
    return np.from_dlpack(plain)


def tensor_of(array: Any, dtype: Any) -> Any:
    """An array's memory as a tensor of torch's `dtype`."""
    import torch

    a = np.asarray(array)
    if a.dtype.kind == "V" or a.dtype.kind not in "fiub":  # of ml_dtypes
        return torch.from_numpy(a.view({1: np.uint8, 2: np.int16}[a.itemsize])).view(dtype)
    return torch.from_numpy(a)
