"""What a program takes for granted of sizes, checked when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.errors import InputError
from compiler.ir.expr import Binding, Call, Function, IRModule
from compiler.op.accumulate import MOST_OPEN
from compiler.op.assume import ASSUME
from compiler.op.opdef import OpDef
from compiler.op.shapes import RESHAPE
from compiler.symbolic import Dim, Facts, Index, Var, dim
from compiler.symbolic.facts import period
from compiler.symbolic.index import without_shared
from compiler.symbolic.quasi import Quasi
from compiler.types.tensor_types import TensorType

_NEAR = 4096
"""How far sizes that fit are looked for."""


@dataclass(frozen=True)
class Assumption:
    """`size` = `equal`, or the contrary (`differs`), which `node` (of the imported model, or of the
    program) needs."""

    size: Dim
    equal: Dim
    node: str
    differs: bool = False

    def __str__(self) -> str:
        if self.differs:
            return f"{self.node} needs {self.size} other than {self.equal}"
        if most := _at_most(self):
            return f"{self.node} needs {most[0]} of at most {most[1]}"
        text = f"{self.node} needs {self.size} = {self.equal}"
        found = _dims(self)
        if len(found) != 1:
            return text
        every = period(self.size, self.equal)
        (v,) = found
        if every > 1 and len(_fitting([self], v, range(every, 9 * every, every))) == 8:
            return f"{text}, which holds for multiples of {every}"
        fit = _fitting([self], v, range(1, _NEAR))
        if len(fit) > 1 and fit[-1] - fit[0] == len(fit) - 1 and fit[-1] < _NEAR - 1:
            return f"{text}, which holds for {fit[0]} to {fit[-1]}"
        return text

    def holds(self, dims: Mapping[Var, int]) -> bool:
        """Whether it is true where the variables have these values."""
        size, equal = _value(self.size, dims), _value(self.equal, dims)
        if self.differs:
            return None not in (size, equal) and size != equal
        return size == equal


def assumptions(program: IRModule | Function) -> tuple[Assumption, ...]:
    """What a function (of a module: its `main`) takes for granted: what `assume` says, that
    nothing is left over where the size of an axis is what remains in a reshape, and that exact
    sums over open axes have no more than MOST_OPEN terms; not what follows from those before.
    Branches and loops are left out: they check their own when they run."""
    f = program.main if isinstance(program, IRModule) else program
    known = Assumed()
    return tuple(a for b in f.bindings for a in assumed(b) if known.add(a))


def only_size(assumed: Iterable[Assumption], name: str) -> int | None:
    """The size of the dimension called `name` for which all holds that is assumed of it alone, if
    there is exactly one (of those up to some thousands)."""
    alike = [a for a in assumed if [v.name for v in _dims(a)] == [name]]
    if not alike:
        return None
    (v,) = _dims(alike[0])
    fit = _fitting(alike, v, range(1, _NEAR))
    return fit[0] if len(fit) == 1 else None


class Assumed:
    """Assumptions so far, which others follow from."""

    def __init__(self) -> None:
        self._facts = Facts()
        self._alike: set[tuple[Dim, Dim]] = set()
        self._apart: set[tuple[Dim, Dim]] = set()

    def add(self, a: Assumption) -> bool:
        """Assume `a`: whether it does not follow from those before."""
        if a.differs:
            known = (a.size, a.equal) in self._apart
            self._apart.add((a.size, a.equal))
        else:
            known = (a.size, a.equal) in self._alike or self._facts.equal(a.size, a.equal)
            if not known:
                self._alike.add((a.size, a.equal))
                self._facts.add(a.size, a.equal)
        return not known


def assumed(b: Binding) -> tuple[Assumption, ...]:
    """What a binding, or a fused function that it calls, takes for granted."""
    v = b.value
    if not isinstance(v, Call):
        return ()
    if isinstance(v.op, Function):
        return assumptions(v.op)
    if v.op is ASSUME:
        a = v.attrs
        if a.differs:
            known = isinstance(a.size, int) and isinstance(a.equal, int)
            return () if known else (Assumption(a.size, a.equal, a.node or _name(b), True),)
        return _assumption(a.size, a.equal, a.node or _name(b))
    if isinstance(v.op, OpDef) and getattr(v.attrs, "accumulate", "") == "exact" and v.op.terms:
        terms = dim(v.op.terms(v.attrs, [t for a in v.args if isinstance(t := a.type, TensorType)]))
        if not isinstance(terms, int):
            return _assumption(dim(Index.of(terms) // (MOST_OPEN + 1)), 0, _name(b))
    if v.op is RESHAPE:
        old, new = v.args[0].type, b.var.type
        if isinstance(old, TensorType) and isinstance(new, TensorType) and old.size != new.size:
            return _assumption(old.size, new.size, _name(b))
    return ()


def _assumption(a: Dim, b: Dim, node: str) -> tuple[Assumption, ...]:
    sides: tuple[Index, ...] = (Index.of(a), Index.of(b))
    if all(s != 0 for s in sides):  # of 0, all is a factor
        sides = without_shared(*sides)
    size, equal = map(dim, sides)
    return () if size == equal else (Assumption(size, equal, node),)


def _name(b: Binding) -> str:
    return f"node {b.origins[0]!r}" if b.origins else f"%{b.var.name}"


def check_assumptions(
    assumed: Iterable[Assumption],
    inputs: Sequence[tuple[str, TensorType]],
    dims: Mapping[Var, int],
) -> None:
    """Check what a program takes for granted. What is not known yet is checked later.

    Raises:
        InputError: something does not hold; names the input, its size and the node.
    """
    for a in assumed:
        found = _dims(a)
        if not found <= dims.keys() or a.holds(dims):
            continue
        sizes = (_value(side, dims) for side in (a.size, a.equal))
        plain = a.differs or _at_most(a)
        here = ", ".join("none" if s is None else str(s) for s in sizes)
        shown = "; ".join(_shown(v, inputs, dims) for v in sorted(found, key=str))
        shown = f"{shown} does not fit: {a}{'' if plain else f' (here {here})'}"
        raise InputError(f"{shown}{_nearest(a, assumed, dims)}")


def _at_most(a: Assumption) -> tuple[Index, int] | None:
    """x and n of an assumption that x // (n + 1) is 0."""
    if a.equal != 0 or not isinstance(a.size, Index) or a.size.const:
        return None
    ((atom, times), *more) = a.size.terms.items()
    if more or times != 1 or not isinstance(atom, Quasi) or atom.op != "//":
        return None
    below = atom.b.constant()
    return None if below is None else (atom.a, below - 1)


def _shown(v: Var, inputs: Sequence[tuple[str, TensorType]], dims: Mapping[Var, int]) -> str:
    for name, t in inputs:
        if v in t.shape:
            return f"{v} = {dims[v]} (axis {t.shape.index(v)} of input {name!r})"
    return f"{v} = {dims[v]}"


def _nearest(a: Assumption, assumed: Iterable[Assumption], dims: Mapping[Var, int]) -> str:
    """The nearest smaller and larger sizes for which all that is assumed of them holds."""
    if len(found := _dims(a)) != 1:
        return ""
    (v,) = found
    alike = [x for x in assumed if _dims(x) == found]
    at = dims[v]
    below = _fitting(alike, v, range(max(1, at - _NEAR), at))[-1:]
    fit = [*below, *_fitting(alike, v, range(at + 1, at + _NEAR))[:1]]
    return f"; the nearest that fit: {', '.join(map(str, fit))}" if fit else ""


def _fitting(assumed: Iterable[Assumption], v: Var, sizes: range) -> list[int]:
    """The sizes of a variable for which everything holds that is assumed of it alone."""
    at = np.asarray(sizes, dtype=np.int64)
    fit = np.ones(len(at), bool)
    with np.errstate(divide="ignore"):  # a size of 0 is refused when it comes
        for a in assumed:
            size, equal = (Index.of(side).value({v: at}) for side in (a.size, a.equal))
            fit &= (size != equal) if a.differs else (size == equal)
    return [int(k) for k in at[fit]]


def _dims(a: Assumption) -> set[Var]:
    return Index.of(a.size).vars() | Index.of(a.equal).vars()


def _value(d: Dim, dims: Mapping[Var, int]) -> int | None:
    try:
        return int(Index.of(d).value(dims))
    except ZeroDivisionError:
        return None
