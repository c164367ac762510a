"""A region as a list of operators: composites opened, and what is spelled out put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from compiler.engines.onednn.library import Refused
from compiler.engines.onednn.operators import Node
from compiler.ir.expr import Atom, Binding, Call, Function, Var
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.pattern.patterns import Pattern, any_order, constant, is_op, wildcard
from compiler.pattern.search import Found, FunctionScope, match


def flat(f: Function) -> tuple[list[Node], tuple[Atom, ...]]:
    """The operators of a region, in order, and its results.

    Raises:
        Refused: it holds something else.
    """
    known: dict[Var, Atom] = {}
    bindings = list(_opened(f.bindings, known))
    results = tuple(known.get(r, r) if isinstance(r, Var) else r for r in f.results)
    scope = FunctionScope(Function(f.params, tuple(bindings), results))
    gelu = get_op("nn.gelu")
    spelled: dict[Var, Found] = {}
    for b in bindings:
        found = match(GELU, b.var, scope)
        if isinstance(found, Found):
            spelled[b.var] = found
    gone = {b.var for found in spelled.values() for b in found.bindings} - set(spelled)
    nodes = []
    for b in bindings:
        assert isinstance(b.value, Call)
        assert isinstance(b.value.op, OpDef)
        if b.var in spelled:
            nodes.append(Node(b.var, gelu.name, gelu.attrs(), (spelled[b.var]["x"],)))
        elif b.var not in gone:
            nodes.append(Node(b.var, b.value.op.name, b.value.attrs, b.value.args))
    return nodes, results


def _opened(bindings: Iterable[Binding], known: dict[Var, Atom]) -> Iterator[Binding]:
    """Bindings with those of the functions that they call in their place; `known` becomes what
    variables stand for."""

    def atom(a: Atom) -> Atom:
        return known.get(a, a) if isinstance(a, Var) else a

    for b in bindings:
        v = b.value
        if isinstance(v, Call) and isinstance(v.op, Function):
            known.update(zip(v.op.params, map(atom, v.args), strict=True))
            yield from _opened(v.op.bindings, known)
            (result,) = v.op.results
            known[b.var] = atom(result)
        elif isinstance(v, Call) and isinstance(v.op, OpDef):
            yield Binding(b.var, Call(v.op, tuple(map(atom, v.args)), v.attrs), b.origins)
        else:
            raise Refused(f"%{b.var.name} is no call of an operator")


# ---- gelu, spelled out ---------------------------------------------------------------------------
def _near(name: str, number: float) -> Pattern:
    """A constant that is `number`, as float32 has it."""

    def check(found: Found) -> str | None:
        data = found.constant(name).data
        near = data.size == 1 and math.isclose(float(data.ravel()[0]), number, rel_tol=1e-6)
        return None if near else f"is not {number}"

    return constant(name).where(check)


def _gelu() -> Pattern:
    """0.5 * x * (1 + erf(x / sqrt(2))), in any order."""
    x = wildcard("x")
    inner = (
        is_op("divide")(x, _near("root", np.sqrt(2))).once()
        | any_order(is_op("multiply"), x, _near("part", np.sqrt(0.5))).once()
    )
    bend = any_order(is_op("add"), is_op("erf")(inner).once(), _near("one", 1.0)).once()
    half = _near("half", 0.5)
    times = is_op("multiply")
    return (
        any_order(times, any_order(times, x, bend).once(), half)
        | any_order(times, any_order(times, x, half).once(), bend)
        | any_order(times, x, any_order(times, bend, half).once())
    )


GELU = _gelu()
