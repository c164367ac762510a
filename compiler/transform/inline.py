"""Inline: calls of functions become their bodies."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import (
    Binding,
    Call,
    Function,
    GlobalVar,
    IRModule,
    Var,
    names_in,
    nested,
)
from compiler.transform.dead_code import live
from compiler.transform.instantiate import brings_sizes, instantiated
from compiler.transform.nested import through_nested
from compiler.transform.passes import ModulePass, PassContext


class Inline(ModulePass):
    """Puts the bodies of functions where these are called: functions of the module that are marked
    `inline` or named here, closures where it is known which one is called, and functions that are
    called where they are written, but for kernels (`primitive`).

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
        graph = {name: f for name, f in mod.functions.items() if isinstance(f, Function)}
        calls = {name: _globals(f) for name, f in graph.items()}
        self.mod, self.graph = mod, graph
        self.bodies: dict[str, Function] = {}
        self.chosen = {
            name
            for name, f in graph.items()
            if (name in named or f.attrs.get("inline")) and not _reaches(calls, name)
        }

    def run(self) -> IRModule:
        new = self.mod.with_functions({name: self.body(name) for name in self.graph})
        if new is self.mod:
            return new
        used = set().union(
            *(_globals(f) for f in new.functions.values() if isinstance(f, Function))
        )
        marked = {name for name in self.chosen if self.graph[name].attrs.get("inline")}
        gone = marked - used - {"main"}
        kept = {name: f for name, f in new.functions.items() if name not in gone}
        return IRModule(kept, new.attrs)

    def body(self, name: str) -> Function:
        """The function with what it calls inlined; what is inlined into it comes first."""
        if name not in self.bodies:
            self.bodies[name] = through_nested(self.graph[name], self.function)
        return self.bodies[name]

    def function(self, f: Function) -> Function:
        known: dict[Var, Function] = {}
        taken: set[str] = set()
        bindings: list[Binding] = []
        for b in f.bindings:
            if isinstance(b.value, Function):
                known[b.var] = b.value
            callee = self.callee(b, known)
            if callee is None or brings_sizes(callee):
                bindings.append(b)
                continue
            taken = taken or names_in(f)
            assert isinstance(b.value, Call)
            bindings += instantiated(callee, b.value.args, b, taken)
        return live(f.with_body(bindings, f.results)) if taken else f

    def callee(self, b: Binding, known: dict[Var, Function]) -> Function | None:
        op = b.value.op if isinstance(b.value, Call) else None
        if isinstance(op, GlobalVar):
            return self.body(op.name) if op.name in self.chosen else None
        if isinstance(op, Function):
            return None if op.attrs.get("primitive") else op
        return known.get(op) if isinstance(op, Var) else None


def _globals(f: Function) -> set[str]:
    """Names of the module's functions that `f` reads."""
    out: set[str] = set()
    for b in f.bindings:
        v = b.value
        op = v.op if isinstance(v, Call) else v
        if isinstance(op, GlobalVar):
            out.add(op.name)
        inside = (op,) if isinstance(op, Function) else nested(v)
        out = out.union(*map(_globals, inside))
    return out


def _reaches(calls: dict[str, set[str]], start: str) -> bool:
    """Whether a function may call itself."""
    ahead, seen = set(calls[start]), set[str]()
    while ahead:
        name = ahead.pop()
        if name == start:
            return True
        if name not in seen:
            seen.add(name)
            ahead |= calls.get(name, set())
    return False
