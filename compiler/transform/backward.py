"""What flows back through the bindings of a function, from the last to the first, by the rules of
the operators (`OpDef.gradient`).

Where several values read one, what flows back from them is added in the order in which it comes:
from the last reader to the first, and of one reader from its first operand to its last. That order
decides the bits. What flows back through branches, loops and functions is in `tapes`.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import UnsupportedError, nearest
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Construct,
    Function,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
)
from compiler.ir.expression import Operand, call
from compiler.op.library import all_ops
from compiler.op.opdef import OpDef
from compiler.transform.data_flows import DataFlows
from compiler.transform.gradient_step import BACKWARD, Bindings, CallStep, full
from compiler.types.tensor_types import DataType, TensorType, TupleType, Type

Flows = Atom | dict[int, Atom]
"""What flows back into a value: of a tuple, by field, where anything does."""


class Backward:
    """A function whose values may be asked for what flows back into them.

    Attributes:
        active: the values that may be asked.
        bindings: what flows back, once `run` is done.
    """

    def __init__(self, f: Function, wrt: Sequence[Var], names: set[str], data: DataFlows):
        self.f, self.names, self.data = f, names, data
        self.bindings = Bindings(names)
        self.active = {*wrt}
        self.flows: dict[Var, Flows] = {}

    def run(self) -> None:
        """From the last binding to the first."""
        for b in reversed(self.f.bindings):
            flows = self.flows.get(b.var)
            if flows is not None:
                self.back(b, flows)

    def of(self, p: Var) -> Atom:
        """The gradient of a value; zeros, or nothing in data, where nothing flows back."""
        flows = self.flows.get(p)
        if flows is None:
            return self.nothing(atom_type(p), f"d_{p.name}")
        held = self.held(p) if isinstance(flows, dict) else flows
        assert held is not None
        return held

    def filled(self, p: Var) -> Atom:
        """The gradient of a value, of its own type: of data with zeros where nothing flows back,
        and with what is no float as it is."""
        t = atom_type(p)
        if isinstance(t, TensorType):
            return self.of(p)
        return self.data.filled(p, self.of(p), t, self.bindings, f"d_{p.name}")

    def held(self, p: Var) -> Atom | None:
        """The same as what flows into data that hold the value; None: nothing does."""
        flows, t, name = self.flows.get(p), atom_type(p), f"d_{p.name}"
        if not isinstance(flows, dict):
            return None if flows is None else self.data.lazy(flows, t, self.bindings, name)
        assert isinstance(t, TupleType)
        parts = [
            self.data.lazy(flows[k], kind, self.bindings, name)
            if k in flows
            else self.data.none(kind, self.bindings)
            for k, kind in enumerate(t.fields)
            if self.data.any(kind)
        ]
        return parts[0] if len(parts) == 1 else self.bindings.bind(Tuple(tuple(parts)), name)

    def nothing(self, t: Type, name: str, origins: Sequence[str] = ()) -> Atom:
        """What flows back into something of type `t` if nothing does."""
        if isinstance(t, TensorType):
            return self.bindings.atom(full(0, t), name, origins)
        return self.data.none(t, self.bindings, name)

    def flow(
        self, into: Atom, x: Operand, origins: Sequence[str], field: int | None = None
    ) -> None:
        """`x` flows back into a value, or into a field of it, beside what does already."""
        if into not in self.active or not isinstance(into, Var):
            return
        t, flows = atom_type(into), self.flows.get(into)
        if field is None and isinstance(t, TupleType):
            self._apart(into, t, self.bindings.atom(x, f"d_{into.name}", origins), origins)
        elif field is None:
            assert not isinstance(flows, dict)
            self.flows[into] = self.total(flows, x, t, f"d_{into.name}", origins)
        else:
            fields = {} if flows is None else flows
            assert isinstance(fields, dict)
            assert isinstance(t, TupleType)
            name = f"d_{into.name}_{field}"
            x = self.total(fields.get(field), x, t.fields[field], name, origins)
            self.flows[into] = {**fields, field: x}

    def _apart(self, into: Var, t: TupleType, x: Atom, origins: Sequence[str]) -> None:
        """What flows back into a tuple, as it is in data, flows into its fields."""
        flowing = [k for k, kind in enumerate(t.fields) if self.data.any(kind)]
        for i, k in enumerate(flowing):
            name = f"d_{into.name}_{k}"
            part = x if len(flowing) == 1 else self.bindings.bind(TupleGetItem(x, i), name)
            self.flow(into, self.data.strict(part, t.fields[k], self.bindings, name), origins, k)

    def total(
        self, before: Atom | None, x: Operand, t: Type, name: str, origins: Sequence[str]
    ) -> Atom:
        """The sum of what flows back into something of type `t`, before (if anything) and now."""
        if not isinstance(t, TensorType):
            x = self.bindings.atom(x, name, origins)
            return x if before is None else self.data.total(before, x, t, self.bindings, name)
        x = self.bindings.atom(_fitting(t, x), name, origins)
        return x if before is None else self.bindings.atom(call("add", before, x), name, origins)

    # ---- values ------------------------------------------------------------------------------
    def back(self, b: Binding, flows: Flows) -> None:
        """What flows back through a value."""
        v = b.value
        origins = tuple(f"{o}{BACKWARD}" for o in b.origins)
        if isinstance(v, Call) and isinstance(v.op, OpDef):
            self._call(b, v, v.op, flows, origins)
        elif isinstance(v, Tuple) and isinstance(flows, dict):
            for k, x in flows.items():
                self.flow(v.fields[k], x, origins)
        elif isinstance(v, TupleGetItem):
            self.flow(v.value, self.of(b.var), origins, v.index)
        elif isinstance(v, Construct):
            t, name = atom_type(b.var), f"d_{b.var.name}"
            assert isinstance(t, DataType)
            assert not isinstance(flows, dict)
            fields = self.data.fields(flows, t, v.constructor, self.bindings, name)
            for k, x in fields.items():
                a = v.fields[k]
                if a in self.active:
                    self.flow(a, self.data.strict(x, atom_type(a), self.bindings, name), origins)
        elif isinstance(v, Var) and isinstance(flows, dict):
            for k, x in flows.items():
                self.flow(v, x, origins, k)
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
        wants = [a in self.active for a in v.args]
        step = CallStep(where, v.attrs, v.args, b.var, given, wants)
        for a, x in zip(v.args, op.gradient(step), strict=True):
            if x is not None and a in self.active:
                self.flow(a, x, origins)


def _fitting(t: TensorType, x: Operand) -> Operand:
    """`x` in the dtype of what it flows into, which has type `t`."""
    have = x.type
    fits = not isinstance(have, TensorType) or t.dtype == have.dtype
    return x if fits else call("cast", x, dtype=str(t.dtype))


def _kind(v: Value) -> str:
    if isinstance(v, Call):
        return "which function it calls is known only when it runs"
    return f"what flows back through {type(v).__name__.lower()} is not known"


def _reason(op: OpDef) -> str:
    """Why there is no gradient, and what is nearest."""
    known = [name for name, o in all_ops().items() if callable(o.gradient)]
    why = op.gradient or (
        "its operator states none; OpDef(..., gradient=rule) gives it one (compiler/README.md)"
    )
    close = nearest(op.name, known)
    return f"{why}; the nearest operator that has one is {close[0]}" if close else str(why)
