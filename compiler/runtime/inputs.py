"""Checks what a caller passes against a function's parameters, and finds the symbolic
dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.dtypes import Array
from compiler.errors import InputError, unknown
from compiler.ir.expr import Function
from compiler.ir.types import TensorType, TupleType, shape_text
from compiler.symbolic import Index, Quasi, Var


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
        arrays.append(np.asarray(a, order="C"))  # ascontiguousarray makes scalars vectors
    return arrays, _dimensions(params, arrays)


def symbolic_sizes(f: Function) -> tuple[Index, ...]:
    """The distinct symbolic dimensions of a function's tensors, but for plain variables."""
    found: dict[Index, None] = {}
    for b in f.bindings:
        t = b.var.type
        for x in t.fields if isinstance(t, TupleType) else (t,):
            if isinstance(x, TensorType):
                found.update((d, None) for d in x.shape if isinstance(d, Index))
    return tuple(d for d in found if not isinstance(d, Var))


def check_sizes(sizes: Iterable[Index], dims: Mapping[Var, int]) -> bool:
    """Check that a program's tensors have elements, unless it was given none.

    Args:
        sizes: the symbolic dimensions of its tensors.
        dims: the values of the inputs' variables; what is found later is not checked.

    Returns:
        Whether one of them is 0.

    Raises:
        InputError: one would be negative, or 0 although no dimension is (and it is no slice's);
            names the dimensions that make it so.
    """
    none = False
    for size in sizes:
        if not size.vars() <= dims.keys():
            continue
        try:
            value = size.value(dims)
        except ZeroDivisionError:
            value = None
        nothing = _clamped(size) or any(dims[v] == 0 for v in size.vars())
        if value is None or value < (0 if nothing else 1):
            given = ", ".join(f"{v} = {dims[v]}" for v in sorted(size.vars(), key=str))
            found = "not determined" if value is None else f"{value}"
            raise InputError(
                f"{given} is too small: the model has a tensor of dimension {size}, which is "
                f"{found} then"
            )
        none |= value == 0
    return none


def _clamped(size: Index) -> bool:
    """Whether a size is max(0, ...), of which 0 is as good as any: how much a slice takes."""
    zero = Index()
    mins = [a for a in size.terms if isinstance(a, Quasi) and a.op == "min"]
    return not size.const and len(mins) == len(size.terms) and all(zero in (a.a, a.b) for a in mins)


def _dimensions(
    params: Sequence[tuple[str, TensorType]], arrays: Sequence[Array]
) -> dict[Var, int]:
    """The value of every symbolic dimension, checked wherever it occurs."""
    dims: dict[Var, int] = {}
    source: dict[Var, str] = {}
    later: list[tuple[str, Index, int]] = []
    for (name, t), a in zip(params, arrays, strict=True):
        for axis, (want, got) in enumerate(zip(t.shape, a.shape, strict=True)):
            if isinstance(want, int):
                if want != got:
                    raise InputError(
                        f"input {name!r} has shape {shape_text(a.shape)}, but the model needs "
                        f"{shape_text(t.shape)}: axis {axis} must be {want}, not {got}"
                    )
                continue
            solved = _solved(name, want, got)
            if solved is not None and solved[0] not in dims:
                dims[solved[0]], source[solved[0]] = solved[1], name
            later.append((name, want, got))
    for name, want, got in later:
        unknown_dims = sorted(str(v) for v in want.vars() - dims.keys())
        if unknown_dims:
            raise InputError(
                f"dimension {want} of input {name!r} does not tell {', '.join(unknown_dims)}: "
                "give the model an input that has that dimension alone"
            )
        value = want.value(dims)
        if value != got:
            known = sorted(want.vars(), key=str)
            given = ", ".join(f"{v} = {dims[v]} in input {source[v]!r}" for v in known)
            raise InputError(f"dimension {want} of input {name!r} is {got}, but {value} by {given}")
    return dims


def _solved(name: str, want: Index, got: int) -> tuple[Var, int] | None:
    """The variable of a dimension `c * v + k` and its value; None for other dimensions."""
    if len(want.terms) != 1:
        return None
    ((atom, factor),) = want.terms.items()
    if not isinstance(atom, Var):
        return None
    value, rest = divmod(got - want.const, factor)
    if rest or value < 0:
        raise InputError(f"dimension {want} of input {name!r} cannot be {got}")
    return atom, value
