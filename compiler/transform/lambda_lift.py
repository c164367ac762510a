"""LambdaLift: closures' bodies become functions of the module."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import (
    Binding,
    Call,
    Function,
    GlobalVar,
    IRModule,
    Var,
    atom_type,
    names_in,
    nested,
    operands,
)
from compiler.passes.live import live
from compiler.passes.manager import ModulePass, PassContext
from compiler.passes.nested import through_nested
from compiler.transform.instantiate import brings_sizes
from compiler.types.data import type_variables
from compiler.types.names import unique
from compiler.types.tensor_types import TypeVar


class LambdaLift(ModulePass):
    """Every closure becomes a function of the module that takes what the closure captured before
    its own parameters.

    Where it is known which closure is called, the function is called instead. Where the closure is
    a value, nothing is left of it but a call of the function; without captures, it is the function,
    unless that is generic. Closures whose values have sizes or types that their operands do not
    tell stay.
    """

    name = "LambdaLift"
    opt_level = 1
    required = ("InferType",)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module with its closures lifted."""
        functions, names = dict(mod.functions), set(mod.functions)
        for name, f in mod.functions.items():
            if isinstance(f, Function):
                lifter = _Lifter(name, names)
                functions[name] = through_nested(f, lifter.function)
                functions |= lifter.lifted
        return mod.with_functions(functions)


class _Lifter:
    def __init__(self, name: str, names: set[str]):
        self.name, self.names = name, names
        self.lifted: dict[str, Function] = {}

    def function(self, f: Function) -> Function:
        """`f`, in whose closures there are none left."""
        known: dict[Var, tuple[GlobalVar, tuple[Var, ...]]] = {}
        changed = False
        bindings = []
        for b in f.bindings:
            v = b.value
            if isinstance(v, Function) and not _stays(v):
                captures = v.captures
                whole = self.lift(v, captures, b.var.name)
                known[b.var] = whole, captures
                direct = not captures and not type_variables(v.type)
                b = replace(b, value=whole if direct else _calling(v, whole, captures))
                changed = True
            elif isinstance(v, Call) and isinstance(v.op, Var) and v.op in known:
                whole, captures = known[v.op]
                b = replace(b, value=Call(whole, (*captures, *v.args)))
            bindings.append(b)
        return live(f.with_body(bindings, f.results)) if changed else f

    def lift(self, f: Function, captures: tuple[Var, ...], stem: str) -> GlobalVar:
        """The module's function for a closure."""
        name = unique(f"{self.name}_{stem}", self.names)
        made = self.lifted[name] = replace(f, params=(*captures, *f.params))
        return GlobalVar(name, made.type)


def _stays(f: Function) -> bool:
    """Whether `f` is already no more than a call of a function, or must know sizes."""
    only = len(f.bindings) == 1 and list(f.results) == [f.bindings[0].var]
    v = f.bindings[0].value if only else None
    if isinstance(v, Call) and isinstance(v.op, GlobalVar) and set(operands(v)) >= {*f.params}:
        return True
    whole = replace(f, params=(*f.captures, *f.params))
    told = type_variables(*map(atom_type, whole.params))
    return not _variables(f) <= told.keys() or brings_sizes(whole)


def _variables(f: Function) -> set[TypeVar]:
    """The type variables of the values in `f`, and in functions in it."""
    own = type_variables(*map(atom_type, (*f.params, *(b.var for b in f.bindings))))
    inside = (_variables(g) for b in f.bindings for g in nested(b.value))
    return {*own}.union(*inside)


def _calling(f: Function, whole: GlobalVar, captures: tuple[Var, ...]) -> Function:
    """A closure that calls the lifted function."""
    params = tuple(Var(p.name, p.type) for p in f.params)
    taken = names_in(f)
    out = Var(unique("lifted", taken), f.type.result)
    call = Call(whole, (*captures, *params))
    return Function(params, (Binding(out, call),), (out,), f.attrs)
