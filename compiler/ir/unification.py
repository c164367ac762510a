"""The types of constructors where their fields do not tell: `Nil` is a list of what is put before
it later; and those of generic functions that are values, which become closures of the types that
are meant. Found by unification (R. Milner, A theory of type polymorphism in programming, 1978) over
one function, of which all else is known forwards.

What cannot be found, and what does not fit, is left as it is: type inference tells. Only types that
would hold themselves are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.errors import DtypelabError, TypeInferenceError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    If,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    names_in,
    nested,
)
from compiler.ir.signature import solve, with_dims
from compiler.ir.substitution import with_nested
from compiler.symbolic import IntLike
from compiler.symbolic import Var as Dim
from compiler.types.data import Anything, Named, Pattern, Several, parts, type_variables, with_types
from compiler.types.names import unique
from compiler.types.tensor_types import DataType, FuncType, TensorType, TupleType, Type, TypeVar


class Offence(Exception):
    """A type error, and the variable whose value it is in."""

    def __init__(self, var: Var, message: str):
        self.var, self.message = var, message


def open_types(f: Function) -> bool:
    """Whether a constructor in `f`, or in a function in it, is used at types that are not told, or
    a function of the module is a value, which may be generic."""
    values = [b.value for b in f.bindings]
    ops = [v.op for v in values if isinstance(v, Call) and isinstance(v.op, Function)]
    return any(
        isinstance(v, GlobalVar) or (isinstance(v, Construct) and v.types is None) for v in values
    ) or any(map(open_types, [*ops, *(g for v in values for g in nested(v))]))


def unified(
    f: Function, result: Type | None, signatures: Callable[[GlobalVar], GlobalVar] | None = None
) -> Function:
    """`f` with the types of its constructors, as far as they are found.

    Args:
        f: what it calls is typed, or says its type.
        result: type of what it returns, if that is known.
        signatures: gives functions of the module their types.

    Raises:
        Offence: a type would hold itself.
    """
    return _Unifier(signatures).run(f, result)


class _Unifier:
    def __init__(self, signatures: Callable[[GlobalVar], GlobalVar] | None = None):
        self.signatures = signatures
        self.types: dict[Var, Type] = {}
        self.found: dict[TypeVar, Type] = {}
        self.made: dict[Construct, DataType] = {}
        self.meant: dict[GlobalVar, Type] = {}
        self.names: set[str] = set()
        self.count = 0

    def run(self, f: Function, result: Type | None) -> Function:
        """See unified."""
        self.names |= names_in(f)
        t = self.function(f, [])
        if result is not None:
            try:
                self.unify(result, t.result)
            except TypeInferenceError as e:
                last = f.bindings[-1].var if f.bindings else f.params[0]
                raise Offence(last, str(e)) from None
        return self.filled(f)

    # ---- unification -----------------------------------------------------------------------------
    def hole(self) -> TypeVar:
        """A type that is to be found."""
        self.count += 1
        return TypeVar(f"?{self.count}")

    def known(self, t: Type) -> Type:
        """`t` with what has been found so far."""
        while any(v in self.found for v in type_variables(t)):
            t = with_types(t, self.found)
        return t

    def unify(self, a: Type, b: Type) -> None:
        """Let two types be one, as far as they may be.

        Raises:
            TypeInferenceError: a type would hold itself.
        """
        a, b = self.known(a), self.known(b)
        if a == b:
            return
        for x, y in ((a, b), (b, a)):
            if isinstance(x, TypeVar) and x in type_variables(y):
                letters = zip(filter(_is_hole, type_variables(x, y)), "tuvwxyz", strict=False)
                shown: dict[TypeVar, Type] = {h: TypeVar(c) for h, c in letters}
                x, y = with_types(x, shown), with_types(y, shown)
                raise TypeInferenceError(f"an infinite type: {x} would be {y}")
        for x, y in ((a, b), (b, a)):
            if _is_hole(x):
                assert isinstance(x, TypeVar)
                self.found[x] = y
                return
        if type(a) is type(b) and getattr(a, "name", "") == getattr(b, "name", ""):
            for x, y in zip(parts(a), parts(b), strict=False):
                self.unify(x, y)

    # ---- types of values -------------------------------------------------------------------------
    def atom(self, a: Atom) -> Type:
        return a.type if isinstance(a, Constant) else self.types.get(a) or self.hole()

    def function(self, f: Function, given: Sequence[Type]) -> FuncType:
        """Type of a function; `given`: of parameters that do not say theirs."""
        for k, p in enumerate(f.params):
            self.types[p] = p.type or (given[k] if k < len(given) else self.hole())
        for b in f.bindings:
            try:
                self.types[b.var] = self.value(b.value)
            except TypeInferenceError as e:
                raise Offence(b.var, str(e)) from None
        results = tuple(self.known(self.atom(r)) for r in f.results)
        result = results[0] if len(results) == 1 else TupleType(results)
        return FuncType(tuple(self.types[p] for p in f.params), result)

    def value(self, v: Value) -> Type:
        if isinstance(v, Construct):
            return self.construct(v)
        if isinstance(v, Cases):
            return self.cases(v)
        if isinstance(v, If):
            first, other = (self.function(f, []).result for f in (v.then, v.otherwise))
            self.unify(first, other)
            return first
        if isinstance(v, Loop):
            return self.loop(v)
        if isinstance(v, Call):
            return self.call(v)
        if isinstance(v, Tuple):
            return TupleType(tuple(map(self.atom, v.fields)))
        if isinstance(v, TupleGetItem):
            t = self.known(self.atom(v.value))
            fits = isinstance(t, TupleType) and 0 <= v.index < len(t.fields)
            return t.fields[v.index] if fits and isinstance(t, TupleType) else self.hole()
        if isinstance(v, Match):
            return v.type
        if isinstance(v, Function):
            return self.function(v, [])
        return self.function_value(v) if isinstance(v, GlobalVar) else self.atom(v)

    def function_value(self, g: GlobalVar) -> Type:
        """A function of the module as a value, whose type variables are to be found."""
        t = self.signature(g)
        if isinstance(t, FuncType) and type_variables(t):
            t = self.meant[g] = self.instance(t, [])
        return t

    def construct(self, v: Construct) -> Type:
        d = v.definition
        args = tuple(self.hole() for _ in d.params) if v.types is None else v.types
        out = DataType(d.name, args)
        if len(args) == len(d.params):
            for wanted, a in zip(d.fields(v.constructor, args), v.fields, strict=False):
                self.unify(wanted, self.atom(a))
        self.made[v] = out
        return out

    def cases(self, v: Cases) -> Type:
        out: Type = self.hole()
        for pattern, body in zip(v.patterns, v.bodies, strict=True):
            variables = self.pattern(pattern, self.atom(v.value))
            self.unify(out, self.function(body, variables).result)
        return self.known(out)

    def pattern(self, pattern: Pattern, t: Type) -> list[Type]:
        """Types of the variables of a pattern of values of type `t`."""
        if isinstance(pattern, Anything):
            return []
        if isinstance(pattern, Named):
            return [t]
        fields: tuple[Type, ...] = tuple(self.hole() for _ in pattern.fields)
        if isinstance(pattern, Several):
            self.unify(TupleType(fields), t)
        else:
            d = pattern.definition
            args = tuple(self.hole() for _ in d.params)
            self.unify(DataType(d.name, args), t)
            for x, wanted in zip(fields, d.fields(pattern.constructor, args), strict=False):
                self.unify(x, wanted)
        both = zip(pattern.fields, fields, strict=True)
        return [found for p, x in both for found in self.pattern(p, x)]

    def loop(self, v: Loop) -> Type:
        state = [p.type or self.hole() for p in v.body.params]
        for t, a in zip(state, v.init, strict=False):
            self.unify(t, self.atom(a))
        results = self.function(v.body, state).result
        again = results.fields[1:] if isinstance(results, TupleType) else ()
        for t, x in zip(state, again, strict=False):
            self.unify(t, x)
        rows = again[len(state) :]
        stacks = (
            TensorType((Dim(v.count), *x.shape), x.dtype)
            if isinstance(x, TensorType)
            else self.hole()
            for x in rows
        )
        return TupleType((*state, *stacks))

    def call(self, v: Call) -> Type:
        args = [self.known(self.atom(a)) for a in v.args]
        if isinstance(v.op, Function):
            return self.function(v.op, args).result
        if isinstance(v.op, GlobalVar | Var):
            t = self.signature(v.op) if isinstance(v.op, GlobalVar) else self.known(self.atom(v.op))
            if not isinstance(t, FuncType):
                return self.hole()
            if isinstance(v.op, GlobalVar):
                t = self.instance(t, args)
            for wanted, a in zip(t.params, args, strict=False):
                self.unify(wanted, a)
            return t.result
        try:
            return v.op.infer_type(v.attrs, args)
        except DtypelabError:  # found again by type inference, unless more is known then
            return self.hole()

    def instance(self, f: FuncType, args: Sequence[Type]) -> FuncType:
        """A function's type for a call: dimensions as given, type variables to be found."""
        sizes: dict[Dim, IntLike] = {}
        for p, a in zip(f.params, args, strict=False):
            solve(p, a, sizes)
        fresh: dict[TypeVar, Type] = {v: self.hole() for v in type_variables(f)}
        out = with_types(with_dims(f, sizes), fresh)
        assert isinstance(out, FuncType)
        return out

    def signature(self, g: GlobalVar) -> Type:
        typed = g if self.signatures is None else self.signatures(g)
        return typed.type or self.hole()

    # ---- the function with what was found --------------------------------------------------------
    def filled(self, f: Function) -> Function:
        """`f` with the types of its constructors (the same object if all were known)."""
        values = [self.told(b) for b in f.bindings]
        if all(v is b.value for v, b in zip(values, f.bindings, strict=True)):
            return f
        both = zip(f.bindings, values, strict=True)
        return f.with_body([replace(b, value=v) for b, v in both], f.results)

    def told(self, b: Binding) -> Value:
        v = b.value
        if isinstance(v, Construct):
            args = tuple(self.known(t) for t in self.made[v].args)
            open_ = any(_is_hole(x) for x in type_variables(*args))
            return v if open_ or args == v.types else replace(v, types=args)
        if isinstance(v, GlobalVar) and v in self.meant:
            t = self.known(self.meant[v])
            assert isinstance(t, FuncType)
            return v if any(map(_is_hole, type_variables(t))) else self.closure(v, t, b.var.name)
        if isinstance(v, Call) and isinstance(v.op, Function):
            op = self.filled(v.op)
            return v if op is v.op else replace(v, op=op)
        return with_nested(v, [self.filled(g) for g in nested(v)])

    def closure(self, g: GlobalVar, t: FuncType, name: str) -> Function:
        """A closure of type `t` that calls a generic function."""
        params = tuple(Var(unique(f"{name}_{k}", self.names), p) for k, p in enumerate(t.params))
        out = Var(unique(f"{name}_result", self.names))
        return Function(params, (Binding(out, Call(g, params)),), (out,))


def _is_hole(t: Type) -> bool:
    """Whether a type is still to be found."""
    return isinstance(t, TypeVar) and t.name.startswith("?")
