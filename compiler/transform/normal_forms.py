"""ToGraphNormalForm and ToANormalForm: how a program is shared and printed; as data it is in
A-normal form always."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import (
    Atom,
    Binding,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    names_in,
    operands,
)
from compiler.ir.graph_form import MARK, inside, marked, nestable, nested_name, printed_inside
from compiler.ir.substitution import substitute, with_operands
from compiler.passes.manager import ModulePass, PassContext
from compiler.passes.nested import through_nested
from compiler.passes.rewrite import Rewriter
from compiler.transform.eliminate_common import ConstantKeys
from compiler.types.names import unique


class ToGraphNormalForm(ModulePass):
    """Everything is reached directly: second names for values go, fields of tuples that are made
    here are read without them, equal constants are one. Values that are read once print inside what
    reads them."""

    name = "ToGraphNormalForm"
    opt_level = 1
    required = ("InferType",)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module in graph normal form."""
        graph = {name: f for name, f in mod.functions.items() if isinstance(f, Function)}
        return mod.with_functions({name: _graph(f) for name, f in graph.items()})


class ToANormalForm(ModulePass):
    """Every value prints in a line of its own, with a name of its own."""

    name = "ToANormalForm"
    opt_level = 1

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module in A-normal form."""
        graph = {name: f for name, f in mod.functions.items() if isinstance(f, Function)}
        return mod.with_functions({n: _plain(f) for n, f in graph.items() if marked(f)})


def _graph(f: Function) -> Function:
    new = through_nested(f, lambda g: _nested(_shared(g)))
    return new if marked(new) else replace(new, attrs={**new.attrs, **MARK})


def _plain(f: Function) -> Function:
    taken = names_in(f)
    new = through_nested(f, lambda g: _named(g, taken))
    return replace(new, attrs={k: v for k, v in new.attrs.items() if k not in MARK})


def _named(f: Function, taken: set[str]) -> Function:
    """`f` with names of their own for the values that print inside of others."""
    printed = printed_inside(f)
    mapping: dict[Var, Atom] = {}
    bindings = []
    for b in f.bindings:
        var = b.var
        if var in printed:
            mapping[var] = var = Var(unique(var.name.replace("/", "_"), taken), var.type)
        bindings.append(Binding(var, substitute(b.value, mapping), b.origins))
    return f.with_body(bindings, f.results) if mapping else f


def _shared(f: Function) -> Function:
    r, keys = Rewriter(f), ConstantKeys()
    first: dict[object, Constant] = {}

    def shared(a: Atom) -> Atom:
        return first.setdefault(keys.key(a), a) if isinstance(a, Constant) else a

    for b in map(r.read, f.bindings):
        v = with_operands(b.value, map(shared, operands(b.value)))
        if isinstance(v, TupleGetItem):
            made = r.producer(v.value)
            if made is not None and isinstance(made.value, Tuple):
                v = made.value.fields[v.index]
        if isinstance(v, Var) and r.alias(b, v):
            continue
        if isinstance(v, Constant) and r.constant(b, v):
            continue
        if v is b.value:
            r.keep(b)
        else:
            r.emit(replace(b, value=v))
    return r.finish()


def _nested(f: Function) -> Function:
    """`f` with its nested values where the text puts them, and called as reading it calls them."""
    found = nestable(f)
    roots = {b: inside(b, found) for b in f.bindings if b.var not in found}
    given = {nested_name(b.var.name, k) for b, within in roots.items() for k in range(len(within))}
    fixed = {v.name for v in (*f.params, *f.captures, *f.results) if isinstance(v, Var)}
    taken = names_in(f) | given
    mapping: dict[Var, Atom] = {}
    bindings: list[Binding] = []
    for b, within in roots.items():
        var = b.var
        if var.name in given - fixed:
            mapping[var] = var = Var(unique(var.name.replace("/", "_"), taken), var.type)
        names = [nested_name(var.name, k) for k in range(len(within))]
        free = fixed.isdisjoint(names)  # else they stay in lines of their own
        for x, name in zip(within, names, strict=True):
            new = Var(name, x.var.type) if free else x.var
            bindings.append(Binding(new, substitute(x.value, mapping), x.origins))
            mapping[x.var] = new
        bindings.append(Binding(var, substitute(b.value, mapping), b.origins))
    same = [b.var.name for b in f.bindings] == [b.var.name for b in bindings]
    return f if same else f.with_body(bindings, f.results)
