"""DeadCodeElimination: drops bindings that no result needs, but for calls that have effects."""

from __future__ import annotations

from compiler.ir.effects import effectful
from compiler.ir.expr import Binding, Function, IRModule, Var, operands
from compiler.transform.passes import FunctionPass, PassContext


def live(f: Function) -> Function:
    """`f` without the bindings whose values are not needed (the same object if all are)."""
    needed = {r for r in f.results if isinstance(r, Var)}
    kept: list[Binding] = []
    for b in reversed(f.bindings):
        if b.var in needed or effectful(b.value):
            kept.append(b)
            needed.update(a for a in operands(b.value) if isinstance(a, Var))
    if len(kept) == len(f.bindings):
        return f
    return f.with_body(reversed(kept), f.results)


class DeadCodeElimination(FunctionPass):
    """Drops bindings that no result needs."""

    name = "DeadCodeElimination"
    opt_level = 2

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See live."""
        return live(f)
