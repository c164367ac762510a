"""Dead code: the bindings of a function that its results need. Calls that have effects stay, and so
does what the program takes for granted of sizes."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.boundary.assumptions import Assumed, assumed
from compiler.ir.effects import effectful
from compiler.ir.expr import Binding, Call, Function, Var, operands
from compiler.op.assume import ASSUME


def live(f: Function) -> Function:
    """`f` without the bindings whose values are not needed (the same object if all are)."""
    kept = _needed(f, ())
    if len(kept) < len(f.bindings) and (said := _only_said(f, kept)):
        kept = _needed(f, said)
    if len(kept) == len(f.bindings):
        return f
    return f.with_body(kept, f.results)


def _needed(f: Function, more: Sequence[Var]) -> list[Binding]:
    """The bindings that the results need, or one of `more`."""
    needed = {r for r in f.results if isinstance(r, Var)} | {*more}
    kept: list[Binding] = []
    for b in reversed(f.bindings):
        if b.var in needed or effectful(b.value):
            kept.append(b)
            needed.update(a for a in operands(b.value) if isinstance(a, Var))
    return kept[::-1]


def _only_said(f: Function, kept: Sequence[Binding]) -> list[Var]:
    """What is not needed, but says of sizes what nothing in `kept` does: the shape of a value may
    matter where the value does not."""
    left = {b.var for b in f.bindings} - {b.var for b in kept}
    dead = [b for b in f.bindings if b.var in left and _assumes(b)]
    if not dead:
        return []
    known, said = Assumed(), []
    for b in kept:
        for a in assumed(b):
            known.add(a)
    for b in dead:
        if any(known.add(a) for a in assumed(b)):
            said.append(b.var)
    return said


def _assumes(b: Binding) -> bool:
    return isinstance(b.value, Call) and b.value.op is ASSUME
