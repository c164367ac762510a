"""Reverse-mode differentiation: a function becomes one that gives its results and gradients.

The bindings of the function are followed, from the last to the first, by what flows back through
them, by the rules of the operators (`OpDef.gradient`). Where several values read one, what flows
back from them is added in the order in which it comes: from the last reader to the first, and of
one reader from its first operand to its last. That order decides the bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import InputError, UnsupportedError, nearest
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Function,
    IRModule,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    names_in,
    operands,
    tensor_type,
)
from compiler.ir.expression import Operand, call
from compiler.op.library import all_ops
from compiler.op.opdef import OpDef
from compiler.passes.infer_type import InferType
from compiler.passes.live import live
from compiler.transform.gradient_step import (
    BACKWARD,
    Bindings,
    CallStep,
    constant,
    differentiable,
    full,
)
from compiler.transform.inline import Inline
from compiler.transform.parameters import as_parameters
from compiler.types.tensor_types import TensorType, TupleType, Type

Flows = Atom | dict[int, "Flows"]
"""What flows back into a value: of a tuple, by field, where anything does."""


def gradient(
    mod: IRModule, wrt: Sequence[str], cotangent: str | Sequence[str] | None = None
) -> IRModule:
    """The module whose `main` gives the results of `mod`'s, and behind them gradients.

    Its parameters are those of `mod`'s `main`, then the constants that are asked for, in the order
    asked, then the cotangents. Its results are those of `mod`'s `main`, then one gradient for each
    name, of the type of what has that name. Values that flow back have the origins of the values
    whose gradients they are, with "/gradient" behind them.

    Args:
        mod: a module, as imported or transformed, before it is built.
        wrt: names of parameters of `main`, or of constants (see `compiler.parameters`), which
            become parameters.
        cotangent: names of extra parameters, one for each result, of its type: what flows back into
            them; one name, of one result. None: the first result is a scalar, and its gradient is
            taken; results behind it only come along.

    Raises:
        InputError: a name is unknown, is asked for twice, or is not of floats; or there is no
            cotangent for results that are no scalar.
        UnsupportedError: an operator on the way from a name to the result has no gradient.
    """
    mod = Inline()(InferType()(mod))
    mod = as_parameters(mod, wrt)
    f = mod.main
    params = {p.name: p for p in f.params}
    asked = [params[name] for name in wrt]
    extra, seeds = _seeds(f, cotangent)
    bindings = Bindings(names_in(f) | {p.name for p in extra}, f.bindings)
    backward = _Backward(f, asked, bindings)
    for result, flows in seeds:
        backward.flow(result, flows, ())
    backward.run()
    gradients = [backward.of(p) for p in asked]
    made = Function(
        (*f.params, *extra), tuple(bindings.done), (*f.results, *gradients), dict(f.attrs)
    )
    return InferType()(mod.with_function("main", live(made)))


def _seeds(
    f: Function, cotangent: str | Sequence[str] | None
) -> tuple[list[Var], list[tuple[Atom, Atom]]]:
    """Extra parameters, and what flows back into which result."""
    results = [atom_type(r) for r in f.results]
    if cotangent is None:
        first = results[0]
        if not isinstance(first, TensorType) or first.shape or not differentiable(first.dtype):
            raise InputError(
                f"the first result is no scalar of floats, but {first}: give names of cotangents, "
                "or add a loss"
            )
        return [], [(f.results[0], constant(1, first.dtype))]
    names = [cotangent] if isinstance(cotangent, str) else list(cotangent)
    if len(names) != len(results):
        raise InputError(f"there are {len(results)} results, and {len(names)} names of cotangents")
    taken = {p.name for p in f.params}
    extra = []
    for name, t in zip(names, results, strict=True):
        if not isinstance(t, TensorType) or not differentiable(t.dtype):
            raise InputError(f"nothing flows back into a result of type {t}")
        if name in taken:
            raise InputError(f"there is a parameter %{name} already: give the cotangent another")
        taken.add(name)
        extra.append(Var(name, t))
    return extra, list(zip(f.results, extra, strict=True))


def _has_gradient(t: Type) -> bool:
    if isinstance(t, TupleType):
        return any(map(_has_gradient, t.fields))
    return isinstance(t, TensorType) and differentiable(t.dtype)


class _Backward:
    """What flows back through the bindings of a function."""

    def __init__(self, f: Function, wrt: Sequence[Var], bindings: Bindings):
        self.f, self.bindings = f, bindings
        self.active = {*wrt}
        for b in f.bindings:
            if any(a in self.active for a in operands(b.value)) and _has_gradient(atom_type(b.var)):
                self.active.add(b.var)
        self.flows: dict[Var, Flows] = {}

    def run(self) -> None:
        """From the last binding to the first."""
        for b in reversed(self.f.bindings):
            flows = self.flows.get(b.var)
            if flows is not None:
                self._back(b, flows)

    def of(self, p: Var) -> Atom:
        """The gradient of a parameter; zeros where nothing flows back."""
        flows = self.flows.get(p)
        if flows is None:
            return self.bindings.atom(full(0, tensor_type(p)), f"d_{p.name}")
        assert not isinstance(flows, dict)
        return flows

    def flow(
        self, into: Atom, x: Operand, origins: Sequence[str], field: int | None = None
    ) -> None:
        """`x` flows back into a value, or into a field of it, beside what does already."""
        if into not in self.active or not isinstance(into, Var):
            return
        name = f"d_{into.name}" if field is None else f"d_{into.name}_{field}"
        x = self._fitting(into, x, field)
        if field is None:
            before = self.flows.get(into)
            assert not isinstance(before, dict)
            self.flows[into] = self._sum(before, x, name, origins)
            return
        fields = self.flows.setdefault(into, {})
        assert isinstance(fields, dict)
        have = fields.get(field)
        assert not isinstance(have, dict)
        fields[field] = self._sum(have, x, name, origins)

    def _fitting(self, into: Var, x: Operand, field: int | None) -> Operand:
        """`x` in the dtype of what it flows into."""
        t = atom_type(into)
        if field is not None and isinstance(t, TupleType):
            t = t.fields[field]
        have = x.type
        if isinstance(t, TensorType) and isinstance(have, TensorType) and t.dtype != have.dtype:
            return call("cast", x, dtype=str(t.dtype))
        return x

    def _sum(self, before: Atom | None, x: Operand, name: str, origins: Sequence[str]) -> Atom:
        x = self.bindings.atom(x, name, origins)
        return x if before is None else self.bindings.atom(call("add", before, x), name, origins)

    def _back(self, b: Binding, flows: Flows) -> None:
        v = b.value
        origins = tuple(f"{o}{BACKWARD}" for o in b.origins)
        if isinstance(v, Call) and isinstance(v.op, OpDef):
            self._call(b, v, v.op, flows, origins)
        elif isinstance(v, Tuple) and isinstance(flows, dict):
            for k, x in flows.items():
                assert not isinstance(x, dict)
                self.flow(v.fields[k], x, origins)
        elif isinstance(v, TupleGetItem) and not isinstance(flows, dict):
            self.flow(v.value, flows, origins, v.index)
        elif isinstance(v, Var | Match) and not isinstance(flows, dict):
            self.flow(v.value if isinstance(v, Match) else v, flows, origins)
        else:
            raise UnsupportedError(f"node {b.var} has no gradient: {_kind(v)}")

    def _call(self, b: Binding, v: Call, op: OpDef, flows: Flows, origins: Sequence[str]) -> None:
        where = f"node {b.var} ({op.name})"
        if isinstance(op.gradient, str):
            raise UnsupportedError(f"{where} has no gradient: {_reason(op)}")
        t = atom_type(b.var)
        count = len(t.fields) if isinstance(t, TupleType) else 1
        given = [flows.get(k) for k in range(count)] if isinstance(flows, dict) else [flows]
        back: list[Operand | None] = [None if isinstance(x, dict) else x for x in given]
        wants = [a in self.active for a in v.args]
        step = CallStep(where, v.attrs, v.args, b.var, back, wants)
        for a, x in zip(v.args, op.gradient(step), strict=True):
            if x is not None and a in self.active:
                self.flow(a, x, origins)


def _kind(v: Value) -> str:
    return f"{type(v).__name__} is not differentiated"


def _reason(op: OpDef) -> str:
    """Why there is no gradient, and what is nearest."""
    known = [name for name, o in all_ops().items() if callable(o.gradient)]
    why = op.gradient or "its operator has none"
    close = nearest(op.name, known)
    return f"{why}; the nearest operator that has one is {close[0]}" if close else str(why)
