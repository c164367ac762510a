"""oneDNN as an engine: what it is handed, and what compiles that.

A composite is an operator that is a primitive with the elementwise operators that follow it, or an
elementwise operator or a move alone. Whether oneDNN can do one is found out by planning it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from compiler.engines.engine import Engine, register_engine
from compiler.engines.onednn.anchors import ANCHORS, VIEWS
from compiler.engines.onednn.library import missing
from compiler.engines.onednn.operators import POSTS
from compiler.engines.onednn.rewriting import GELU
from compiler.engines.onednn.runner import Runner, runner
from compiler.engines.onednn.translate import planned
from compiler.errors import UnsupportedError
from compiler.ir.expr import Atom, Binding, Call, Function, Var, operands
from compiler.op.opdef import OpDef
from compiler.pattern.search import Found, Mismatch, Scope, match
from compiler.pattern.tables import CompositePattern

MOST = 16
"""Operators that follow a primitive in a composite, at most."""


def operator(b: Binding | None) -> str:
    """The name of the operator that a binding calls; '' if it does something else."""
    v = b.value if b else None
    return v.op.name if isinstance(v, Call) and isinstance(v.op, OpDef) else ""


@dataclass(frozen=True)
class Layer:
    """A primitive's operator, and elementwise operators after it, each of which alone reads the one
    before it."""

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        """See `compiler.pattern.search.Matchable`."""
        bindings = _back(a, scope, MOST)
        if bindings is None:
            return found.mismatch(a, "does not end a primitive and what is done with its result")
        for b in bindings:
            found = found.through(b)
        return found


def _back(a: Atom, scope: Scope, most: int) -> tuple[Binding, ...] | None:
    """The bindings from `a` back to a primitive's operator; None if there is none."""
    b = scope.producer(a)
    if b is None or most == 0:
        return None
    name = operator(b)
    if name in ANCHORS:
        return (b,)
    spelled = match(GELU, a, scope)
    if isinstance(spelled, Found):
        x = spelled["x"]
        inside = sum(operands(s.value).count(x) for s in spelled.bindings)
        if isinstance(x, Var) and scope.use_count(x) == inside:
            before = _back(x, scope, most - 1)
            return None if before is None else (*spelled.bindings, *before)
    if name not in POSTS:
        return None
    for x in operands(b.value):
        if isinstance(x, Var) and scope.use_count(x) == 1:
            before = _back(x, scope, most - 1)
            if before is not None:
                return (b, *before)
    return None


@dataclass(frozen=True)
class Alone:
    """An operator that is in a table."""

    table: str

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        """See `compiler.pattern.search.Matchable`."""
        spelled = match(GELU, a, scope)
        if self.table == "elementwise" and isinstance(spelled, Found):
            for inner in spelled.bindings:
                found = found.through(inner)
            return found
        b = scope.producer(a)
        if b is None or operator(b) not in _TABLES[self.table]:
            return found.mismatch(a, f"is no {self.table} operator")
        return found.through(b)


_TABLES: dict[str, Container[str]] = {"elementwise": POSTS, "view": VIEWS}


def refusal(found: Found) -> str | None:
    """Why oneDNN does not compute what was found; None: it does."""
    inside = {b.var for b in found.bindings}
    params: dict[Var, None] = {}
    ordered = _in_order(found)
    for b in ordered:
        params.update(
            (a, None) for a in operands(b.value) if isinstance(a, Var) and a not in inside
        )
    f = Function(tuple(params), ordered, (found.bindings[0].var,))
    try:
        planned(f)
    except UnsupportedError as error:
        return str(error)
    return None


def _in_order(found: Found) -> tuple[Binding, ...]:
    """The bindings of what was found, each after what it reads."""
    left = {b.var: b for b in found.bindings}
    out: list[Binding] = []

    def add(b: Binding) -> None:
        for a in operands(b.value):
            if isinstance(a, Var) and a in left:
                add(left.pop(a))
        out.append(b)

    while left:
        add(left.pop(next(iter(left))))
    return tuple(out)


def compiled(f: Function, name: str) -> Runner:
    """What runs a region."""
    return runner(f, int(f.attrs.get("threads", 1)))


ENGINE = register_engine(
    Engine(
        "onednn",
        (
            CompositePattern("layer", Layer(), refusal),
            CompositePattern("elementwise", Alone("elementwise"), refusal),
            CompositePattern("view", Alone("view"), refusal),
        ),
        compiled,
        missing,
        "Intel's oneDNN: convolutions, matrix products, pooling, softmax and layer norm, float32 "
        "and int8, on CPUs",
        on_caller=True,
    )
)
