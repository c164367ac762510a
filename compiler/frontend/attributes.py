"""Attributes of ONNX nodes as Python values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compiler.errors import ModelError, UnsupportedError
from compiler.frontend.limits import Budget
from compiler.frontend.model_file import constant


def attribute_value(a: Any, where: str, folder: Path | None, budget: Budget) -> Any:
    """The value of an AttributeProto: a number, text, a tuple of these, a Constant or a GraphProto.

    Raises:
        ModelError: it refers to an attribute of a function, or its tensor is not valid.
        UnsupportedError: it is sparse, or several graphs.
    """
    from onnx import AttributeProto, helper

    if a.ref_attr_name:
        raise ModelError(f"{where}: its attribute {a.name!r} refers to one of no function")
    if a.type == AttributeProto.TENSOR:
        return constant(a.t, folder, f"{where}: attribute {a.name!r}", budget)
    if a.type == AttributeProto.GRAPH:
        return a.g
    if a.type in (AttributeProto.GRAPHS, AttributeProto.SPARSE_TENSOR):
        raise UnsupportedError(f"{where} is not supported with its attribute {a.name!r}")
    v = helper.get_attribute_value(a)
    if isinstance(v, bytes):
        return v.decode(errors="replace")
    if isinstance(v, str) or not isinstance(v, Sequence):
        return v
    return tuple(x.decode(errors="replace") if isinstance(x, bytes) else x for x in v)
