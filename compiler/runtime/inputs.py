"""Checks what a caller passes against a function's parameters, and finds the symbolic
dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.dtypes import Array
from compiler.errors import InputError, unknown
from compiler.ir.signature import name_of
from compiler.ir.types import TensorType, shape_text
from compiler.symbolic import Index, Var


def bind_inputs(
    params: Sequence[tuple[str, TensorType]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Array], dict[Var, int]]:
    """Arrays in parameter order, and the value of every symbolic dimension.

    A single mapping as the only positional argument is taken as inputs by name.

    Raises:
        InputError: an input is missing, unknown, given twice, or of the wrong rank, shape or dtype.
    """
    positional: Sequence[Any] = args
    if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
        positional, kwargs = [], args[0]
    names = [name for name, _ in params]
    if len(positional) > len(params):
        raise InputError(
            f"{len(positional)} inputs given, but the model has {len(params)}: {names}"
        )
    given = dict(zip(names, positional, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise InputError(unknown("input", name, names))
        if name in given:
            raise InputError(f"input {name!r} is given twice")
        given[name] = value
    missing = [n for n in names if n not in given]
    if missing:
        raise InputError(f"missing input {', '.join(map(repr, missing))}; the model has {names}")
    arrays: list[Array] = []
    dims: dict[Var, int] = {}
    for name, t in params:
        a = np.asarray(given[name])
        if a.dtype != t.dtype.storage:
            raise InputError(
                f"input {name!r} must be {t.dtype}, not {a.dtype}: convert it with "
                f".astype({t.dtype.storage.name!r})"
            )
        if a.ndim != t.rank:
            raise InputError(
                f"input {name!r} must have rank {t.rank}, shape {shape_text(t.shape)}, "
                f"not {shape_text(a.shape)}"
            )
        for want, got in zip(t.shape, a.shape, strict=True):
            _bind(name, t, a, want, got, dims)
        arrays.append(np.asarray(a, order="C"))  # ascontiguousarray makes scalars vectors
    for (name, t), a in zip(params, arrays, strict=True):
        for want, got in zip(t.shape, a.shape, strict=True):
            if isinstance(want, int):
                continue
            variable = name_of(want)
            if variable is not None and dims[variable] == got:
                continue
            if want.vars() <= dims.keys() and want.value(dims) != got:
                values = ", ".join(f"{v} = {k}" for v, k in dims.items())
                raise InputError(
                    f"input {name!r} has shape {shape_text(a.shape)}, but "
                    f"{shape_text(t.shape)} with {values} is needed"
                )
    return arrays, dims


def _bind(
    name: str, t: TensorType, a: Array, want: int | Index, got: int, dims: dict[Var, int]
) -> None:
    if isinstance(want, int):
        if want != got:
            raise InputError(
                f"input {name!r} has shape {shape_text(a.shape)}, but the model needs "
                f"{shape_text(t.shape)}"
            )
        return
    if got < 1:
        raise InputError(f"input {name!r} is empty: dimension {want} must be at least 1")
    variable = name_of(want)
    if variable is not None:
        dims.setdefault(variable, got)
