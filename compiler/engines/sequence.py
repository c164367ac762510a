"""Regions that run composite after composite, as engines of single functions do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.boundary.shapes import bind_dims, sizes
from compiler.engines.engine import Engine, Runner
from compiler.errors import UnsupportedError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    Tuple,
    TupleGetItem,
    atom_type,
)
from compiler.ir.regions import COMPOSITE, composite_of
from compiler.op.opdef import OpDef
from compiler.pattern.search import Found, Mismatch
from compiler.pattern.tables import CompositePattern
from compiler.symbolic import Var as Dim
from compiler.transform.annotate_target import found_in
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, Type

Compute = Callable[[Found, Function], Runner]
"""Makes what computes a composite: of what its pattern's names stand for in it, and its function.
It is called with the arrays of the function's parameters, then those to fill."""


@dataclass(frozen=True)
class Routine:
    """A pattern, and what computes composites of it."""

    pattern: CompositePattern
    compute: Compute


def composite_name(f: Function) -> str:
    """The name of a composite without that of its engine."""
    return str(f.attrs[COMPOSITE]).partition(".")[2]


def parts(f: Function) -> list[Binding]:
    """The bindings of a region that call a composite, in order.

    Raises:
        UnsupportedError: an operator is in no composite; names it.
    """
    out = []
    for b in f.bindings:
        if composite_of(b.value) is not None:
            out.append(b)
        elif not isinstance(b.value, Tuple | TupleGetItem):
            op = b.value.op if isinstance(b.value, Call) else None
            what = op.name if isinstance(op, OpDef) else type(b.value).__name__.lower()
            raise UnsupportedError(f"%{b.var.name} is {what}, and no composite of the engine's")
    return out


def found_of(table: Sequence[CompositePattern], f: Function) -> Found:
    """What the names of a composite's pattern stand for in it.

    Raises:
        UnsupportedError: the table has no pattern of its name, or that does not fit it.
    """
    name = composite_name(f)
    for p in table:
        if p.name == name:
            found = found_in(p, f)
            if not isinstance(found, Mismatch):
                return found
            raise UnsupportedError(f"this is no {name}: {found}")
    known = ", ".join(p.name for p in table) or "none"
    raise UnsupportedError(f"the engine has no {name}; its patterns: {known}")


def routine_engine(
    name: str, routines: Sequence[Routine], missing: Callable[[], str] = str, doc: str = ""
) -> Engine:
    """An engine that runs a routine for every composite (not registered yet)."""
    table = tuple(r.pattern for r in routines)
    computes = {r.pattern.name: r.compute for r in routines}

    def compile_(f: Function, _: str) -> Runner:
        def step(c: Function) -> Runner:
            found = found_of(table, c)
            return computes[composite_name(c)](found, c)

        return in_sequence(f, step)

    return Engine(name, table, compile_, missing, doc)


def in_sequence(f: Function, step: Callable[[Function], Runner]) -> Runner:
    """What runs a region: what `step` makes of its composites, one after the other, on memory that
    each call takes for the values between.

    Raises:
        UnsupportedError: an operator is in no composite.
    """
    runners = {b.var: step(c) for b in parts(f) if (c := composite_of(b.value)) is not None}
    params = [(p, atom_type(p)) for p in f.params]

    def run(*arrays: Array) -> None:
        values: dict[Atom, Any] = dict(zip(f.params, arrays, strict=False))
        dims: dict[Dim, int] = {}
        for p, t in params:
            bind_dims(t, values[p], dims, f"%{p.name}")
        filled = dict(zip(f.results, arrays[len(f.params) :], strict=True))
        for b in f.bindings:
            v = b.value
            if isinstance(v, Tuple):
                values[b.var] = tuple(_array(values, a) for a in v.fields)
            elif isinstance(v, TupleGetItem):
                values[b.var] = values[v.value][v.index]
            else:
                assert isinstance(v, Call)
                values[b.var] = out = _room(filled.get(b.var), atom_type(b.var), dims)
                results = out if isinstance(out, tuple) else (out,)
                runners[b.var](*(_array(values, a) for a in v.args), *results)
        for r, to in zip(f.results, arrays[len(f.params) :], strict=True):
            if (value := _array(values, r)) is not to:  # given as it came, or given twice
                np.copyto(to, value)

    return run


def _array(values: dict[Atom, Any], a: Atom) -> Any:
    return a.data if isinstance(a, Constant) else values[a]


def _room(given: Array | None, t: Type, dims: dict[Dim, int]) -> Any:
    if given is not None:
        return given
    if isinstance(t, TensorType):
        return np.empty(sizes(t, dims), t.dtype.storage)
    fields = (x for x in getattr(t, "fields", ()) if isinstance(x, TensorType))
    return tuple(np.empty(sizes(x, dims), x.dtype.storage) for x in fields)


def constants_of(f: Function) -> list[Constant]:
    """The constants in a composite, in the order in which it reads them, each once."""
    found: dict[int, Constant] = {}
    for b in f.bindings:
        for a in b.value.args if isinstance(b.value, Call) else ():
            if isinstance(a, Constant):
                found.setdefault(id(a), a)
    return list(found.values())
