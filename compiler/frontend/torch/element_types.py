"""torch's element types as dtypes, and tensors as constants that share their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.boundary.elements import FORMATS
from compiler.errors import DtypelabError, UnsupportedError
from compiler.ir.expr import Constant
from compiler.types.dtypes import DType

if TYPE_CHECKING:
    import torch

_BUILTIN = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64", "bool",
)  # fmt: skip


def dtype_of(dtype: torch.dtype) -> DType:
    """The dtype of torch's elements.

    Raises:
        UnsupportedError: we have no such dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _BUILTIN + FORMATS:
        listed = ", ".join(_BUILTIN + FORMATS)
        raise UnsupportedError(f"the element type torch.{name} is not one of {listed}")
    try:
        return DType.parse(name)
    except DtypelabError:
        raise UnsupportedError(
            f"the element type torch.{name} is described by no package"
        ) from None


def constant_of_tensor(tensor: torch.Tensor, what: str) -> Constant:
    """A tensor as a constant: a view of its memory, where its elements lie one after the other.

    Raises:
        UnsupportedError: its elements are none of ours, or it is not dense and on the CPU.
    """
    import torch

    dtype = dtype_of(tensor.dtype)
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise UnsupportedError(
            f"{what} is a tensor of layout {tensor.layout} on {tensor.device}: move it to the CPU, "
            "as a dense one"
        )
    plain: Any = tensor.detach()
    if dtype.is_custom:
        plain = plain.contiguous().view({8: torch.uint8, 16: torch.int16}[dtype.bits])
    data = np.ascontiguousarray(plain.numpy()).reshape(tuple(tensor.shape))
    return Constant(data.view(dtype.storage), dtype)
