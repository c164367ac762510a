"""InferType: gives every binding's variable the type of its value."""

from __future__ import annotations

from compiler.ir.expr import IRModule
from compiler.ir.inference import infer_module
from compiler.passes.manager import ModulePass, PassContext


class InferType(ModulePass):
    """Infers the type of every binding."""

    name = "InferType"

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """See infer_module."""
        return infer_module(mod)
