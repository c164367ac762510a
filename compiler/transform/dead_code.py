"""DeadCodeElimination: drops bindings that no result needs, but for calls that have effects, and
for what the program takes for granted of sizes."""

from __future__ import annotations

from compiler.ir.expr import Function, IRModule
from compiler.passes.live import live
from compiler.passes.manager import FunctionPass, PassContext


class DeadCodeElimination(FunctionPass):
    """Drops bindings that no result needs."""

    name = "DeadCodeElimination"
    opt_level = 2

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See live."""
        return live(f)
