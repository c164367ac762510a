"""Functions that take functions become functions that do not, where it is known which ones they are
given; generic functions become one for each choice of types.

A closure is lifted to a function of the module, which takes what was captured before its own
parameters; a function that is given it takes what was captured in its place (specialization of
higher-order functions; J. Reynolds, Definitional interpreters for higher-order programming
languages, 1972, of closures whose code is known). `@map(%f, %xs)` becomes `@map_f(captured, %xs)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.errors import UnsupportedError
from compiler.ir.call_graph import globals_of
from compiler.ir.expr import (
    Atom,
    Call,
    Function,
    GlobalVar,
    IRModule,
    Value,
    Var,
    atom_type,
    names_in,
    nested,
)
from compiler.ir.inference import infer_module
from compiler.ir.signature import solve_types
from compiler.ir.substitution import with_nested
from compiler.passes.live import live
from compiler.transform.inline import Inline
from compiler.transform.instantiate import with_types_given
from compiler.types.data import parts, type_variables
from compiler.types.names import unique
from compiler.types.tensor_types import FuncType, Type, TypeVar

MOST_FUNCTIONS = 1000
"""Functions that may be made: a program may give itself a new closure in every call."""


MOST_PARTS = 1000
"""Types in a type: those of a function that calls itself with pairs grow exponentially."""


@dataclass(frozen=True)
class _Closure:
    """A closure whose code is known: a function of the module, and what is before its operands."""

    name: str
    captured: tuple[Var, ...] = ()


_Known = Mapping[Var, _Closure]
_Key = tuple[str, tuple[Type, ...], tuple[str, ...]]
"""Function, types of its type variables, and for each parameter what function it is given."""


def first_order(mod: IRModule) -> IRModule:
    """`mod`, typed, whose `main` calls functions that are not generic and take no functions, as far
    as it is known which ones they take. The same module if that is so already.

    Raises:
        UnsupportedError: that would make too many functions, or a function that is taken elsewhere
            reads one that has become a parameter.
    """
    if not any(_higher(mod[name]) for name in _reached(mod)):
        return mod
    giving = [n for n in _reached(mod) if n != "main" and _function(mod[n].type.result)]
    mod = Inline(giving)(mod) if giving else mod
    work = _Specializer(mod)
    work.made["main"] = work.body(mod.main, {}, "main")
    while work.waiting:
        name, f, known = work.waiting.pop(0)
        work.made[name] = work.body(f, known, name)
        if lost := [c for c in work.made[name].captures if c in known]:
            raise UnsupportedError(
                f"@{name}: %{lost[0].name} is a function that is put into a value, or chosen when "
                "the program runs; only functions that are called, or given to others, are followed"
            )
    others = {n: f for n, f in mod.functions.items() if not isinstance(f, Function)}
    whole = replace(mod, functions={**mod.functions, **work.made})
    kept = {n: whole.functions[n] for n in _reached(whole)}
    return infer_module(replace(mod, functions={**others, **kept}))


def _reached(mod: IRModule) -> list[str]:
    """The names of `main` and of the functions that it calls, directly or not."""
    seen: dict[str, None] = {"main": None}
    ahead = ["main"]
    while ahead:
        for name in sorted(globals_of(mod[ahead.pop()])):
            if name not in seen and isinstance(mod.functions.get(name), Function):
                seen[name] = None
                ahead.append(name)
    return list(seen)


def _function(t: Type) -> bool:
    """Whether there is a function in a value of a type."""
    return isinstance(t, FuncType) or any(map(_function, parts(t)))


def _higher(f: Function) -> bool:
    """Whether a function is generic, or takes functions."""
    return bool(type_variables(f.type)) or any(isinstance(p, FuncType) for p in f.type.params)


def _parts(t: Type) -> int:
    """How many types there are in a type."""
    return 1 + sum(map(_parts, parts(t)))


def _endless(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"@{name}: a function calls itself with new functions or types, without end; give it the "
        "same ones in each call"
    )


class _Specializer:
    def __init__(self, mod: IRModule):
        self.mod = mod
        self.names = set(mod.functions)
        self.made: dict[str, Function] = {}
        self.waiting: list[tuple[str, Function, _Known]] = []
        self.lifts: dict[str, tuple[Function, _Known]] = {}
        self.known: dict[_Key, GlobalVar] = {}

    def body(self, f: Function, known: _Known, stem: str) -> Function:
        """`f`, or a function in it, where `known` are the closures that it reads."""
        inside = dict(known)
        bindings = []
        for b in f.bindings:
            v = b.value
            if isinstance(v, Function):
                inside[b.var] = self.lifted(v, inside, f"{stem}_{b.var.name}")
            elif isinstance(v, GlobalVar):
                inside[b.var] = _Closure(v.name)
            elif isinstance(v, Var) and v in inside:
                inside[b.var] = inside[v]
            elif isinstance(v, Call):
                b = replace(b, value=self.call(v, inside))
            else:
                b = replace(b, value=self.within(v, inside, f"{stem}_{b.var.name}"))
            bindings.append(b)
        return live(f.with_body(bindings, f.results))

    def within(self, v: Value, known: _Known, stem: str) -> Value:
        return with_nested(v, [self.body(g, known, stem) for g in nested(v)])

    def call(self, v: Call, known: _Known) -> Call:
        if isinstance(v.op, Var) and v.op in known:
            closure = known[v.op]
            v = Call(GlobalVar(closure.name), (*closure.captured, *v.args))
        if not isinstance(v.op, GlobalVar):
            return v
        return self.special(v.op.name, v.args, known)

    def special(self, name: str, args: tuple[Atom, ...], known: _Known) -> Call:
        """The call of a function, of the module or lifted, that is made for its operands."""
        f, inside = self.lifts.get(name) or (self.mod[name], {})
        types: dict[TypeVar, Type] = {}
        for p, a in zip(f.params, args, strict=True):
            solve_types(atom_type(p), atom_type(a), types)
        given = [known.get(a) if isinstance(a, Var) else None for a in args]
        told = tuple(types[v] for v in type_variables(f.type) if v in types)
        if sum(map(_parts, told)) > MOST_PARTS:
            raise _endless(name)
        key = name, told, tuple("" if c is None else c.name for c in given)
        if key not in self.known:
            f = with_types_given(f, types) if types else f
            self.known[key] = self.specialized(f, inside, key, given)
        flat: list[Atom] = []
        for a, c in zip(args, given, strict=True):
            flat += [a] if c is None else c.captured
        return Call(self.known[key], tuple(flat))

    def specialized(
        self, f: Function, known: _Known, key: _Key, given: Sequence[_Closure | None]
    ) -> GlobalVar:
        """`f` for these closures; its body is still to be made."""
        name, types, closures = key
        if types or any(closures):
            name = unique("_".join([name, *filter(None, closures)][:2]), self.names)
        params, inside = list[Var](), dict(known)
        taken = names_in(f)
        for p, c in zip(f.params, given, strict=True):
            if c is None:
                params.append(p)
                continue
            new = tuple(Var(unique(p.name, taken), atom_type(v)) for v in c.captured)
            params += new
            inside[p] = _Closure(c.name, new)
        if len(self.waiting) + len(self.made) >= MOST_FUNCTIONS:
            raise _endless(name)
        self.waiting.append((name, replace(f, params=tuple(params)), inside))
        return GlobalVar(name, FuncType(tuple(map(atom_type, params)), f.type.result))

    def lifted(self, f: Function, known: _Known, stem: str) -> _Closure:
        """A closure as a function of the module, which is made when it is called."""
        captured: list[Var] = []
        params: list[Var] = []
        inside: dict[Var, _Closure] = {}
        taken = names_in(f)
        for c in f.captures:
            if c not in known:
                captured.append(c)
                params.append(c)
                continue
            new = tuple(Var(unique(c.name, taken), v.type) for v in known[c].captured)
            captured += known[c].captured
            params += new
            inside[c] = _Closure(known[c].name, new)
        name = unique(stem, self.names)
        self.lifts[name] = replace(f, params=(*params, *f.params)), inside
        return _Closure(name, tuple(captured))
