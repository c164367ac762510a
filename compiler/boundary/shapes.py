"""Sizes of dimensions that are found while a program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.ir.signature import name_of
from compiler.symbolic import Index, IntLike, Var
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType, Type, shape_text


def sizes(t: TensorType, dims: Mapping[Var, int]) -> tuple[int, ...]:
    """The shape of a tensor where its dimensions are known."""
    return tuple(int(d.value(dims)) if isinstance(d, Index) else d for d in t.shape)


def bind_dims(t: Type, value: Any, dims: dict[Var, int], what: str) -> None:
    """Add to `dims` the sizes of dimensions that the arrays in `value` are the first to show.

    Raises:
        InputError: a size is not what the type and `dims` say; names `what` and the dimension.
    """
    if isinstance(t, TupleType):
        for k, (field, part) in enumerate(zip(t.fields, value, strict=True)):
            bind_dims(field, part, dims, f"{what}.{k}")
    if not isinstance(t, TensorType):
        return
    for d, size in zip(t.shape, value.shape, strict=True):
        variable = name_of(d)
        if variable is not None:
            dims.setdefault(variable, size)
    for d, size in zip(t.shape, value.shape, strict=True):
        if isinstance(d, Index) and not d.vars() <= dims.keys():
            continue  # nothing shows it yet
        wanted = d.value(dims) if isinstance(d, Index) else d
        if wanted != size:
            is_ = "" if isinstance(d, int) else f" = {wanted}"
            raise InputError(
                f"{what} has shape {shape_text(value.shape)}, but {shape_text(t.shape)} with "
                f"{d}{is_} is needed"
            )


def match_shape(
    shape: Sequence[IntLike], numbers: Array, dims: dict[Var, int], what: str, claim: str = ""
) -> None:
    """Add to `dims` the sizes that `numbers` gives to dimensions that are new. `claim` is what the
    error says where one is known and another; without it, that names `what`.

    Raises:
        InputError: a number is negative, or not what `shape` and `dims` say.
    """
    for d, number in zip(shape, map(int, numbers), strict=True):
        variable = name_of(d)
        if number < 0:
            raise InputError(f"{what} has a size of {number}: sizes cannot be negative")
        known = number if variable is None else dims.setdefault(variable, number)
        if isinstance(d, Index) and d.vars() <= dims.keys():
            known = d.value(dims)
        elif isinstance(d, int):
            known = d
        if known != number:
            plain = f"{what} has a size of {number}, but {d} = {known} is needed"
            raise InputError(claim or plain)


def stack_rows(rows: Sequence[Array], t: TensorType, dims: Mapping[Var, int]) -> Array:
    """The rows of type `t` along a new first axis, of which there may be none."""
    if rows:
        return np.stack(rows)
    return np.empty((0, *sizes(t, dims)), t.dtype.storage)
