"""The smallest sizes that a program with open dimensions takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from compiler.boundary.assumptions import Assumption, assumptions
from compiler.boundary.inputs import clamped, symbolic_sizes
from compiler.ir.expr import Function, tensor_type
from compiler.symbolic import Index, Var
from compiler.types.dtypes import Array

_MOST = 4096
"""How far sizes that fit are looked for."""


def smallest_sizes(f: Function) -> dict[Var, int]:
    """For each open dimension of a function's inputs, the smallest size for which its tensors have
    elements and all holds that it takes for granted: of each dimension alone, and where some depend
    on each other, of one size for all of these. 1 where none is found up to some thousands.
    """
    given = {
        v: 1
        for p in f.params
        for d in tensor_type(p).shape
        if isinstance(d, Index)
        for v in sorted(d.vars(), key=str)
    }
    needs: list[tuple[Assumption | Index, set[Var]]] = []
    needs += [(a, _vars(a)) for a in assumptions(f)]
    needs += [(s, s.vars()) for s in symbolic_sizes(f) if not clamped(s)]
    at = np.arange(1, _MOST, dtype=np.int64)
    for v in given:
        given[v] = _first(at, _fit((x for x, of in needs if of == {v}), {v: at}, at))
    for _, several in needs:
        if len(several) < 2 or not several <= given.keys():
            continue
        alike = [x for x, of in needs if of & several and of <= given.keys()]
        if not _fit(alike, given, at[:1]).all():
            changed: dict[Var, Any] = {**given, **dict.fromkeys(several, at)}
            fit = _fit(alike, changed, at)
            given |= dict.fromkeys(several, _first(at, fit)) if fit.any() else {}
    return given


def _vars(a: Assumption) -> set[Var]:
    return Index.of(a.size).vars() | Index.of(a.equal).vars()


def _first(at: Array, fit: Array) -> int:
    return int(at[fit.argmax()])


def _fit(needs: Iterable[Assumption | Index], dims: Mapping[Var, Any], at: Array) -> Array:
    """For which of `at` all that is needed is true."""
    fit = np.ones(len(at), bool)
    with np.errstate(divide="ignore"):  # a divisor of 0 gives a size of 0, which does not fit
        for x in needs:
            if isinstance(x, Assumption):
                size, equal = (Index.of(side).value(dims) for side in (x.size, x.equal))
                fit &= (size != equal) if x.differs else (size == equal)
            else:
                fit &= x.value(dims) >= 1
    return fit
