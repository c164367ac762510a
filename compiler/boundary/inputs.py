"""Checks what a caller passes against a function's parameters, and finds the symbolic
dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.boundary.elements import stored
from compiler.boundary.packed import strings_packed
from compiler.errors import InputError, unknown
from compiler.ir.expr import Function
from compiler.symbolic import Index, Quasi, Var
from compiler.types.dtypes import UINT8, Array
from compiler.types.names import identifier
from compiler.types.tensor_types import TensorType, TupleType, shape_text


def named_inputs(
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optional: Sequence[str] = (),
) -> dict[str, Any]:
    """Input name -> what is given for it, in the model's order: the one rule about names.

    An input is called what the model calls it, whatever is in that name; it can also be given by
    position, or by the name with everything that a Python keyword cannot have as `_` (`input_0`
    for `input:0`), unless two inputs are alike then. A single mapping as the only positional
    argument is taken as inputs by name. Those of `optional` may be left out, and come last by
    position.

    Raises:
        InputError: an input is missing, unknown or given twice.
    """
    positional: Sequence[Any] = args
    if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
        positional, kwargs = [], args[0]
    if len(positional) > len(names):
        raise InputError(
            f"{len(positional)} inputs given, but the model has {len(names)}: {list(names)}"
        )
    needed = [n for n in names if n not in optional] if optional else names
    order = [*needed, *(n for n in names if n in optional)] if optional else names
    given = dict(zip(order, positional, strict=False))
    if len(given) == len(names) and not kwargs:  # calls of compiled code: every microsecond counts
        return given
    for key, value in kwargs.items():
        name = input_called(key, names)
        if name in given:
            raise InputError(f"input {name!r} is given twice")
        given[name] = value
    missing = [n for n in needed if n not in given]
    if missing:
        raise InputError(
            f"missing input {', '.join(map(repr, missing))}; the model has {list(names)}"
        )
    return {n: given[n] for n in names if n in given}


def input_called(key: str, names: Sequence[str]) -> str:
    """The input that `key` means; see `named_inputs`.

    Raises:
        InputError: there is none; names the nearest.
    """
    if key in names:
        return key
    alike = [n for n in names if identifier(n) == key]
    if len(alike) != 1:
        raise InputError(unknown("input", str(key), names))
    return alike[0]


def bind_inputs(
    params: Sequence[tuple[str, TensorType]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Array], dict[Var, int]]:
    """Arrays in parameter order, and the value of every symbolic dimension.

    Inputs are named as `named_inputs` says. Arrays of str are taken as the bytes that hold them
    (see `compiler.boundary.packed`), integers of another width are taken where all of them
    are numbers of the model's integers too; arrays of ml_dtypes as `elements.stored` says.

    Raises:
        InputError: an input is missing, unknown, given twice, or of the wrong rank, shape or dtype.
    """
    given = named_inputs([name for name, _ in params], args, kwargs)
    arrays: list[Array] = []
    for name, t in params:
        a = np.asarray(given[name])
        if a.dtype.kind in "UTSO" and t.dtype == UINT8 and a.ndim == t.rank - 1:
            a = strings_packed(a, f"input {name!r}")
        if a.dtype != t.dtype.storage:
            a = _converted(name, t, a)
        if a.ndim != t.rank:
            raise InputError(
                f"input {name!r} must have rank {t.rank}, shape {shape_text(t.shape)}, "
                f"not {shape_text(a.shape)}"
            )
        arrays.append(np.asarray(a, order="C"))  # ascontiguousarray makes scalars vectors
    return arrays, dimensions(params, [a.shape for a in arrays])


def _converted(name: str, t: TensorType, a: Array) -> Array:
    """Integers as integers of another width, if nothing is lost; what is no integer has to be
    converted by the caller, who knows what that loses."""
    want, a = t.dtype.storage, stored(a, t.dtype)
    if a.dtype == want:
        return a
    if not t.dtype.is_custom and want.kind in "iu" and a.dtype.kind in "iu":
        limits = np.iinfo(want)
        low, high = (int(a.min()), int(a.max())) if a.size else (0, 0)
        if limits.min <= low and high <= limits.max:
            return a.astype(want)
        outside = low if low < limits.min else high
        raise InputError(
            f"input {name!r} must be {t.dtype}, which has no {outside}, the "
            f"{'smallest' if outside == low else 'largest'} of the {a.dtype} given"
        )
    if a.dtype.kind == "O" and not a.ndim:  # something that numpy makes no array of
        x = a.item()
        there = hasattr(x, "__dlpack_device__")
        hint = ": on_device of an executable takes what is on a device" if there else ""
        raise InputError(
            f"input {name!r} must be an array of {t.dtype}, not {type(x).__name__}{hint}"
        )
    how = f".astype({want.name!r})"
    if t.dtype.is_custom:
        how = f"datatypes.encode({t.dtype.name!r}, x), or give an array of ml_dtypes' type"
    raise InputError(f"input {name!r} must be {t.dtype}, not {a.dtype}: convert it with {how}")


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
        nothing = clamped(size) or any(dims[v] == 0 for v in size.vars())
        if value is None or value < (0 if nothing else 1):
            given = ", ".join(f"{v} = {dims[v]}" for v in sorted(size.vars(), key=str))
            found = "not determined" if value is None else f"{value}"
            raise InputError(
                f"{given} is too small: the model has a tensor of dimension {size}, which is "
                f"{found} then"
            )
        none |= value == 0
    return none


def clamped(size: Index) -> bool:
    """Whether a size is max(0, ...), of which 0 is as good as any: how much a slice takes."""
    zero = Index()
    mins = [a for a in size.terms if isinstance(a, Quasi) and a.op == "min"]
    return not size.const and len(mins) == len(size.terms) and all(zero in (a.a, a.b) for a in mins)


def dimensions(
    params: Sequence[tuple[str, TensorType]], shapes: Sequence[tuple[int, ...]]
) -> dict[Var, int]:
    """The value of every symbolic dimension, of inputs of the right ranks, checked wherever it
    occurs.

    Raises:
        InputError: a dimension is not what it must be.
    """
    dims: dict[Var, int] = {}
    source: dict[Var, str] = {}
    later: list[tuple[str, Index, int]] = []
    for (name, t), shape in zip(params, shapes, strict=True):
        for axis, (want, got) in enumerate(zip(t.shape, shape, strict=True)):
            if isinstance(want, int):
                if want != got:
                    raise InputError(
                        f"input {name!r} has shape {shape_text(shape)}, but the model needs "
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
