"""Calls of functions that are values become what the functions compute: of closures that are known,
also in the branches and loops that read them, and of closures that a branch chooses.

What is called is asked once more at each call: a call of `if (c) {f} else {g}` becomes a branch in
which `f` or `g` is called. What a branch computes before it gives a function is computed again
there, of which nothing is left that is not needed. Functions of the module that are given functions
are called where their callers are (J. Reynolds, Definitional interpreters for higher-order
programming languages, 1972, has the other way, which needs a type for every place).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.ir.call_graph import callees_first, globals_of
from compiler.ir.expr import (
    Binding,
    Call,
    Function,
    GlobalVar,
    If,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    atom_type,
    names_in,
    nested,
)
from compiler.ir.inference import infer_module
from compiler.ir.substitution import with_nested
from compiler.passes.live import live
from compiler.transform.instantiate import brings_sizes, instantiated
from compiler.types.names import unique
from compiler.types.tensor_types import FuncType

MOST_BINDINGS = 10_000
"""A program in which so many have been put in place of calls keeps the others."""


@dataclass(frozen=True)
class _Choice:
    """One of the results of a branch."""

    branch: If
    result: int


_Known = Function | GlobalVar | Tuple | _Choice
"""What a variable is known to hold."""


def without_called_functions(mod: IRModule) -> IRModule:
    """`mod`, typed, without the calls (the same object if it has none). Calls stay of functions
    that call themselves, that a loop hands on, or whose values have sizes that only they know."""
    again = {n for group in callees_first(mod) for n in group if _calls_itself(mod, n, group)}
    new = {}
    for name, f in mod.functions.items():
        if isinstance(f, Function):
            caller = _Caller(mod, again, names_in(f))
            new[name] = caller.function(f, {})
    if all(new[name] is mod.functions[name] for name in new):
        return mod
    return infer_module(mod.with_functions(new))


def _calls_itself(mod: IRModule, name: str, group: tuple[str, ...]) -> bool:
    return len(group) > 1 or name in globals_of(mod[name])


class _Caller:
    def __init__(self, mod: IRModule, recursive: set[str], taken: set[str]):
        self.mod, self.recursive, self.taken = mod, recursive, taken
        self.made = 0

    def function(self, f: Function, outside: Mapping[Var, _Known]) -> Function:
        """`f`, where it is known what some variables outside of it hold."""
        known = dict(outside)
        done: list[Binding] = []
        left = [*reversed(f.bindings)]
        changed = False
        while left:
            b = left.pop()
            called = self.called(b, known)
            if called is not None:
                changed = True
                self.made += len(called)
                left += reversed(called)
                continue
            inside = nested(b.value)
            new = [self.function(g, known) for g in inside]
            if any(g is not old for g, old in zip(new, inside, strict=True)):
                changed = True
                b = replace(b, value=with_nested(b.value, new))
            if (held := _held(b, known)) is not None:
                known[b.var] = held
            done.append(b)
        return live(f.with_body(done, f.results)) if changed else f

    def called(self, b: Binding, known: Mapping[Var, _Known]) -> list[Binding] | None:
        """What a call becomes; None: it is none of these."""
        v = b.value
        if not isinstance(v, Call) or self.made > MOST_BINDINGS:
            return None
        callee = known.get(v.op) if isinstance(v.op, Var) else None
        if isinstance(v.op, GlobalVar) and any(isinstance(atom_type(a), FuncType) for a in v.args):
            callee = v.op
        if isinstance(callee, _Choice):
            branch = callee.branch
            then, otherwise = (
                self._with_call(g, callee.result, b, v) for g in (branch.then, branch.otherwise)
            )
            return [replace(b, value=If(branch.condition, then, otherwise))]
        if isinstance(callee, GlobalVar):
            if callee.name in self.recursive:
                return None if v.op is callee else [replace(b, value=replace(v, op=callee))]
            callee = self.mod[callee.name]
        if isinstance(callee, Function) and not brings_sizes(callee):
            return instantiated(callee, v.args, b, self.taken)
        return None

    def _with_call(self, g: Function, result: int, b: Binding, call: Call) -> Function:
        """A branch that calls the function that it gave, as `b` does."""
        function = Var(unique("chosen", self.taken), atom_type(g.results[result]))
        one = replace(g, results=(g.results[result],))
        made = instantiated(one, (), Binding(function, g.results[result]), self.taken)
        value = Var(unique(b.var.name, self.taken), b.var.type)
        last = Binding(value, replace(call, op=function), b.origins)
        return replace(g, bindings=(*made, last), results=(value,))


def _held(b: Binding, known: Mapping[Var, _Known]) -> _Known | None:
    """What the variable of a binding holds, if that is or has a function."""
    v = b.value
    if isinstance(v, Function | GlobalVar | Tuple):
        return v
    if isinstance(v, Var):
        return known.get(v)
    if isinstance(v, If):
        return _Choice(v, 0)
    if not isinstance(v, TupleGetItem):
        return None
    whole = known.get(v.value) if isinstance(v.value, Var) else None
    if isinstance(whole, _Choice):
        return _Choice(whole.branch, v.index)
    field = whole.fields[v.index] if isinstance(whole, Tuple) else None
    return known.get(field) if isinstance(field, Var) else None
