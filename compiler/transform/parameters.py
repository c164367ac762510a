"""Constants of a module by name, and constants that become parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.errors import InputError, unknown
from compiler.ir.expr import Atom, Binding, Call, Constant, Function, IRModule, Var, nested
from compiler.ir.substitution import substitute
from compiler.passes.functor import ExprMutator
from compiler.transform.gradient_step import differentiable
from compiler.types.dtypes import Array
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType


def parameters(mod: IRModule) -> dict[str, Array]:
    """The constants of `main` that can be learned, by name: those of floats and custom datatypes
    (storage integers) that operators read, in the order in which they are first read.

    A constant has the name that the model has for it (of an initializer of ONNX, of a parameter of
    a torch module); one that has none, or whose name another one has, is called after the first
    binding that reads it and the number of the operand: `conv2d_1.1`. Numbers without a name (what
    an operator was written with) are left out.
    """
    return {name: c.data for name, c in named_constants(mod.main).items()}


def as_parameters(mod: IRModule, names: Sequence[str]) -> IRModule:
    """`mod` whose `main` has the constants of these names as parameters, behind its own, in this
    order; names of parameters stay what they are.

    Raises:
        InputError: there is nothing of such a name; it is asked for twice, or is not of floats.
    """
    f = mod.main
    given = {p.name: p for p in f.params}
    found = named_constants(f)
    new: dict[Constant, Var] = {}
    for k, name in enumerate(names):
        if name in names[:k]:
            raise InputError(f"{name!r} is asked for twice")
        if name in given:
            t = given[name].type
            if isinstance(t, TensorType | None) and not (t and differentiable(t.dtype)):
                raise InputError(f"%{name} has no gradient: it is {t}")
        elif name in found:
            new[found[name]] = Var(name, found[name].type)
        else:
            raise InputError(unknown("parameter or constant", name, [*given, *found]))
    return mod.with_function("main", _with_parameters(f, new)) if new else mod


def named_constants(f: Function) -> dict[str, Constant]:
    """See `parameters`."""
    out: dict[str, Constant] = {}
    seen = {p.name for p in f.params}
    known: set[Constant] = set()

    def look(g: Function) -> None:
        for b in g.bindings:
            for inner in nested(b.value):
                look(inner)
            for k, a in enumerate(b.value.args if isinstance(b.value, Call) else ()):
                if not isinstance(a, Constant) or a in known or not differentiable(a.dtype):
                    continue
                if not a.name and not a.data.ndim:
                    continue
                known.add(a)
                name = f"{b.var.name}.{k}" if not a.name or a.name in seen else a.name
                seen.add(name)
                out[name] = a

    look(f)
    return out


class _Lifted(ExprMutator):
    """Constants become variables."""

    def __init__(self, new: Mapping[Constant, Var]):
        super().__init__()
        self.new = new

    def visit_constant(self, value: Constant) -> Constant | Var:
        """The variable that takes its place, if any does."""
        return self.new.get(value, value)


def _with_parameters(f: Function, new: Mapping[Constant, Var]) -> Function:
    """`f` with further parameters; values of their names get others."""
    f = _renamed(f, {v.name for v in new.values()})
    made = _Lifted(new).visit_function(f)
    return replace(made, params=(*f.params, *new.values()))


def _renamed(f: Function, names: set[str]) -> Function:
    taken = {*names, *(p.name for p in f.params), *(b.var.name for b in f.bindings)}
    mapping: dict[Var, Atom] = {
        b.var: Var(unique(b.var.name, taken), b.var.type) for b in f.bindings if b.var.name in names
    }
    if not mapping:
        return f

    def new(a: Atom) -> Atom:
        return mapping.get(a, a) if isinstance(a, Var) else a

    bindings = []
    for b in f.bindings:
        var = new(b.var)
        assert isinstance(var, Var)
        bindings.append(Binding(var, substitute(b.value, mapping), b.origins))
    return f.with_body(bindings, map(new, f.results))
