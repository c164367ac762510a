"""A function's body inside another function: parameters, dimensions, type variables and names
replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Construct,
    Function,
    IRModule,
    Loop,
    Match,
    Tuple,
    Value,
    Var,
    atom_type,
    nested,
)
from compiler.ir.signature import solve, solve_types, with_dims
from compiler.ir.substitution import substitute, with_nested
from compiler.symbolic import Index, IntLike, dim
from compiler.symbolic import Var as Dim
from compiler.types.data import parts, with_types
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType, TupleType, Type, TypeVar

Sizes = Mapping[Dim, IntLike]


@dataclass(frozen=True)
class _Known:
    """What dimensions and type variables are."""

    sizes: Sizes
    types: Mapping[TypeVar, Type]

    def type(self, t: Type) -> Type:
        return with_types(with_dims(t, self.sizes), self.types)


def instantiated(
    f: Function, args: Sequence[Atom], result: Binding, taken: set[str]
) -> list[Binding]:
    """The bindings that compute `f(args)`, the last of which defines `result.var`.

    Args:
        f: a typed function; it may read what is in scope where it is called.
        args: one for each parameter.
        result: the binding of the call; its origins go to all bindings that have none.
        taken: names in use; those of the new variables are added.
    """
    sizes: dict[Dim, IntLike] = {}
    types: dict[TypeVar, Type] = {}
    for p, a in zip(f.params, args, strict=True):
        solve(atom_type(p), atom_type(a), sizes)
        solve_types(atom_type(p), atom_type(a), types)
    known = _Known(
        {d: size for d, size in sizes.items() if size != d},
        {v: t for v, t in types.items() if t != v},
    )
    mapping: dict[Var, Atom] = dict(zip(f.params, args, strict=True))
    made: list[Binding] = []
    for b in f.bindings:
        t = known.type(atom_type(b.var))
        mapping[b.var] = var = Var(unique(b.var.name, taken), t)
        value = _sized(substitute(b.value, mapping), known)
        made.append(Binding(var, value, b.origins or result.origins))
    outs = tuple(mapping.get(r, r) if isinstance(r, Var) else r for r in f.results)
    if len(outs) == 1 and made and outs[0] is made[-1].var:
        made[-1] = replace(made[-1], var=result.var)  # the value keeps the name of the call
    else:
        value = outs[0] if len(outs) == 1 else Tuple(outs)
        made.append(Binding(result.var, value, result.origins))
    return made


def with_sizes(mod: IRModule, sizes: Sizes) -> IRModule:
    """`mod`, typed, with these dimensions of `main` known."""
    return mod.with_function("main", _sized_function(mod.main, _Known(sizes, {})))


def with_types_given(f: Function, types: Mapping[TypeVar, Type]) -> Function:
    """`f`, typed, with types in place of its type variables. Its own dimensions that are called as
    some of theirs get other names."""
    own = sizes_in(f)
    taken = {str(d) for d in own}
    both = sorted(own & _dims(types.values()), key=str)
    return _sized_function(f, _Known({d: Dim(unique(str(d), taken)) for d in both}, types))


def with_numbered_dims(f: Function) -> tuple[Function, dict[Dim, Dim]]:
    """`f`, typed, with its dimensions called d0, d1 ... in the order in which they come up, and
    these names -> its own. Functions that differ in nothing but such names become the same."""
    types = [atom_type(v) for v in (*f.params, *(b.var for b in f.bindings))]
    attrs = [b.value.attrs for b in f.bindings if isinstance(b.value, Call)]
    sets = [_dims([TensorType((d,), t.dtype)]) for x in types for t in _tensors(x) for d in t.shape]
    sets += [_attr_dims(getattr(a, x.name)) for a in attrs if is_dataclass(a) for x in fields(a)]
    order = dict.fromkeys(v for s in sets for v in sorted(s, key=str))
    sizes: dict[Dim, IntLike] = {v: Dim(f"d{k}") for k, v in enumerate(order)}
    return _sized_function(f, _Known(sizes, {})), {Dim(f"d{k}"): v for k, v in enumerate(order)}


def _tensors(t: Type) -> list[TensorType]:
    if isinstance(t, TensorType):
        return [t]
    return [x for field in t.fields for x in _tensors(field)] if isinstance(t, TupleType) else []


def brings_sizes(f: Function) -> bool:
    """Whether values of `f` have dimensions that its parameters, and what it captures, do not
    determine: such a body cannot stand in another function twice."""
    known: dict[Dim, IntLike] = {}
    for v in (*f.params, *f.captures):
        solve(atom_type(v), atom_type(v), known)
    return not _dims_of(f) <= known.keys()


def sizes_in(f: Function) -> set[Dim]:
    """The dimensions that its parameters, values and attributes have."""
    return _dims_of(f) | _dims(p.type for p in f.params)


def _dims_of(f: Function) -> set[Dim]:
    out = _dims(b.var.type for b in f.bindings)
    for b in f.bindings:
        v = b.value
        if isinstance(v, Match):
            out |= _dims([v.type])
        if isinstance(v, Call) and v.attrs is not None:
            out |= set().union(*(_attr_dims(getattr(v.attrs, x.name)) for x in fields(v.attrs)))
        for g in nested(v):
            out |= _dims_of(g) | _dims(p.type for p in g.params)
        if isinstance(v, Loop) and v.count:
            out.add(Dim(v.count))
    return out


def _dims(types: Iterable[Type | None]) -> set[Dim]:
    out: set[Dim] = set()
    for t in types:
        if isinstance(t, TensorType):
            out |= set().union(*(d.vars() for d in t.shape if isinstance(d, Index)))
        elif t is not None:
            out |= _dims(parts(t))
    return out


def _attr_dims(value: Any) -> set[Dim]:
    if isinstance(value, Index):
        return value.vars()
    if isinstance(value, tuple):
        return set().union(*map(_attr_dims, value))
    return _dims([value]) if isinstance(value, Type) else set()


def _sized(value: Value, known: _Known) -> Value:
    """`value` with dimensions and type variables replaced."""
    if not known.sizes and not known.types:
        return value
    if isinstance(value, Call):
        op = _sized_function(value.op, known) if isinstance(value.op, Function) else value.op
        return replace(value, op=op, attrs=_sized_attrs(value.attrs, known))
    if isinstance(value, Construct):
        types = None if value.types is None else tuple(map(known.type, value.types))
        return replace(value, types=types)
    return with_nested(value, [_sized_function(g, known) for g in nested(value)])


def _sized_function(f: Function, known: _Known) -> Function:
    mapping = {
        v: Var(v.name, known.type(atom_type(v))) for v in (*f.params, *(b.var for b in f.bindings))
    }
    bindings = [
        Binding(mapping[b.var], _sized(substitute(b.value, mapping), known), b.origins)
        for b in f.bindings
    ]
    results = [mapping.get(r, r) if isinstance(r, Var) else r for r in f.results]
    return Function(tuple(mapping[p] for p in f.params), tuple(bindings), tuple(results), f.attrs)


def _sized_attrs(attrs: Any, known: _Known) -> Any:
    if not is_dataclass(attrs) or isinstance(attrs, type):
        return attrs

    def sized(value: Any) -> Any:
        if isinstance(value, Index):
            return dim(value.subst(known.sizes))
        if isinstance(value, tuple):
            return tuple(map(sized, value))
        return known.type(value) if isinstance(value, Type) else value

    return replace(attrs, **{f.name: sized(getattr(attrs, f.name)) for f in fields(attrs)})
