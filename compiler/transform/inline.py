"""Inline: calls of functions become their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.errors import ConfigError, unknown
from compiler.ir.call_graph import callees_first, globals_of
from compiler.ir.expr import Binding, Call, Function, GlobalVar, IRModule, Var, names_in
from compiler.ir.regions import COMPOSITE
from compiler.passes.live import live
from compiler.passes.manager import ModulePass, PassContext
from compiler.passes.nested import through_nested
from compiler.transform.instantiate import brings_sizes, instantiated

MOST_BINDINGS = 10_000
"""A function that has become longer than this by what was inlined into it stays."""


class Inline(ModulePass):
    """Puts the bodies of functions where these are called: functions of the module that are marked
    `inline` or named here, closures where it is known which one is called, and functions that are
    called where they are written, but for kernels (`primitive`) and what an engine computes as one
    (`composite`).

    A function stays where it may call itself, or where sizes of its values are known at run time
    only. Marked functions that nobody calls any more go.

    Args:
        functions: names of functions to inline, marked or not.
    """

    name = "Inline"
    opt_level = 1
    required = ("InferType",)

    def __init__(self, functions: Sequence[str] = ()):
        self.functions = tuple(functions)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module without the calls.

        Raises:
            ConfigError: there is no such function.
        """
        for name in self.functions:
            if not isinstance(mod.functions.get(name), Function):
                raise ConfigError(unknown("function", name, mod.functions))
        return _Inliner(mod, self.functions).run()


class _Inliner:
    def __init__(self, mod: IRModule, named: Sequence[str]):
        self.mod = mod
        self.bodies: dict[str, Function] = {}  # of what is inlined
        self.named = set(named)

    def run(self) -> IRModule:
        new, marked = {}, set()
        for names in callees_first(self.mod):
            for name in names:
                f = self.mod[name]
                new[name] = through_nested(f, self.function)
                alone = len(names) == 1 and name not in globals_of(f)
                if alone and (name in self.named or f.attrs.get("inline")):
                    self.bodies[name] = new[name]
                    if f.attrs.get("inline"):
                        marked.add(name)
        mod = self.mod.with_functions(new)
        gone = marked - set().union(*map(globals_of, new.values())) - {"main"}
        if mod is self.mod or not gone:
            return mod
        return replace(mod, functions={n: f for n, f in mod.functions.items() if n not in gone})

    def function(self, f: Function) -> Function:
        known: dict[Var, Function] = {}
        taken: set[str] = set()
        bindings: list[Binding] = []
        for b in f.bindings:
            if isinstance(b.value, Function):
                known[b.var] = b.value
            callee = self.callee(b, known)
            if callee is None or len(callee.bindings) > MOST_BINDINGS or brings_sizes(callee):
                bindings.append(b)
                continue
            taken = taken or names_in(f)
            assert isinstance(b.value, Call)
            bindings += instantiated(callee, b.value.args, b, taken)
        return live(f.with_body(bindings, f.results)) if taken else f

    def callee(self, b: Binding, known: dict[Var, Function]) -> Function | None:
        op = b.value.op if isinstance(b.value, Call) else None
        if isinstance(op, GlobalVar):
            return self.bodies.get(op.name)
        if isinstance(op, Function):
            return None if op.attrs.get("primitive") or COMPOSITE in op.attrs else op
        return known.get(op) if isinstance(op, Var) else None
