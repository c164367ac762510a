"""What flows back through the bindings of a function, from the last to the first, by the rules of
the operators (`OpDef.gradient`).

Where several values read one, what flows back from them is added in the order in which it comes:
from the last reader to the first, and of one reader from its first operand to its last. That order
decides the bits.

Branches, loops and functions of the module give, behind what they gave, a closure: from what flows
back into their results it computes what flows back into what they have read. The values that it
needs are those that it captures: closures are the tape (Pearlmutter and Siskind, Reverse-mode AD in
a functional framework: Lambda the ultimate backpropagator, 2008; Wang et al., Demystifying
differentiable programming, 2019). What a loop's body has captured gets the sum over its turns, from
the first to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.errors import UnsupportedError, nearest
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Function,
    GlobalVar,
    If,
    IRModule,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    captured_operands,
    names_in,
    operands,
    tensor_type,
)
from compiler.ir.expression import Operand, call
from compiler.op.library import all_ops
from compiler.op.opdef import OpDef
from compiler.transform.gradient_step import BACKWARD, Bindings, CallStep, differentiable, full
from compiler.types.names import unique
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type

Flows = Atom | dict[int, Atom]
"""What flows back into a value: of a tuple, by field, where anything does."""


@dataclass(frozen=True)
class Tape:
    """A closure that takes what flows back through a value, to where it goes on.

    Attributes:
        back: the closure.
        fields: of which fields of the value it takes what flows back.
        into: what gets its results, in their order.
        whole: the value is its only field.
    """

    back: Var
    fields: tuple[int, ...]
    into: tuple[Atom, ...]
    whole: bool


class Functions:
    """The functions of a module that give closures behind their results, made when asked for."""

    def __init__(self, mod: IRModule):
        self.mod = mod
        self.made: dict[str, Function] = {}
        self._known: dict[str, GlobalVar] = {}
        self._names = set(mod.functions)

    def of(self, name: str) -> GlobalVar:
        """The one for the function called `name`, which may call itself."""
        if name not in self._known:
            f = self.mod[name]
            results = tuple(map(atom_type, f.results))
            flows = tuple(t for t in results if _tensor(t))
            into = [atom_type(p) for p in f.params if _tensor(atom_type(p))]
            back = FuncType(flows, _together(into))
            made = unique(f"{name}_gradient", self._names)
            whole = FuncType(tuple(map(atom_type, f.params)), TupleType((*results, back)))
            self._known[name] = GlobalVar(made, whole)
            asked = [p for p in f.params if _tensor(atom_type(p))]
            self.made[made] = with_tape(f, asked, names_in(f), self)
        return self._known[name]


def with_tape(f: Function, wrt: Sequence[Var], names: set[str], functions: Functions) -> Function:
    """`f` that gives, behind its results, the closure of what flows back into `wrt`."""
    inner = Backward(f, wrt, names, functions)
    params = inner.results_flow(f.results)
    inner.run()
    gradients = tuple(inner.of(v) for v in wrt)
    closure = Function(params, tuple(inner.bindings.done), gradients)
    back = inner.forward.bind(closure, "back")
    return f.with_body(inner.forward.done, (*f.results, back))


class Backward:
    """A function whose values may be asked for what flows back into them.

    Attributes:
        forward: its bindings, where tapes are kept of what has functions in it.
        bindings: what flows back, once `run` is done.
    """

    def __init__(self, f: Function, wrt: Sequence[Var], names: set[str], functions: Functions):
        self.f, self.names, self.functions = f, names, functions
        self.forward, self.bindings = Bindings(names), Bindings(names)
        self.active = {*wrt}
        self.flows: dict[Var, Flows] = {}
        self.tapes: dict[Var, Tape] = {}
        for b in f.bindings:
            if any(a in self.active for a in operands(b.value)) and _flows(atom_type(b.var)):
                self.active.add(b.var)
                if self._taped(b):
                    continue
            self.forward.done.append(b)

    def results_flow(self, results: Sequence[Atom]) -> tuple[Var, ...]:
        """New parameters: what flows back into those of some results that are tensors of floats."""
        params = []
        for r in results:
            if _tensor(t := atom_type(r)):
                params.append(Var(self.bindings.fresh(f"d_{getattr(r, 'name', 'result')}"), t))
                self.flow(r, params[-1], ())
        return tuple(params)

    def run(self) -> None:
        """From the last binding to the first."""
        for b in reversed(self.f.bindings):
            flows = self.flows.get(b.var)
            if flows is not None:
                self._back(b, flows)

    def of(self, p: Var) -> Atom:
        """The gradient of a value; zeros where nothing flows back."""
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
        x = _fitting(into, x, field)
        flows = self.flows.get(into)
        if field is None:
            assert not isinstance(flows, dict)
            self.flows[into] = self._sum(flows, x, name, origins)
            return
        fields = {} if flows is None else flows
        assert isinstance(fields, dict)
        self.flows[into] = {**fields, field: self._sum(fields.get(field), x, name, origins)}

    def _sum(self, before: Atom | None, x: Operand, name: str, origins: Sequence[str]) -> Atom:
        x = self.bindings.atom(x, name, origins)
        return x if before is None else self.bindings.atom(call("add", before, x), name, origins)

    # ---- values that hold functions, or call them --------------------------------------------
    def _taped(self, b: Binding) -> bool:
        """Binds what `b` binds, with a tape; False: it needs none."""
        v = b.value
        if isinstance(v, If):
            into = tuple(c for c in captured_operands(v) if c in self.active)
            then, otherwise = (self._inner(b, g, into) for g in (v.then, v.otherwise))
            self._keep(b, If(v.condition, then, otherwise), v.then.results, into)
        elif isinstance(v, Call) and isinstance(v.op, GlobalVar):
            f = self.functions.mod[v.op.name]
            _checked(b, f.results)
            both = zip(f.params, v.args, strict=True)
            given = tuple(a for p, a in both if _tensor(atom_type(p)))
            self._keep(b, replace(v, op=self.functions.of(v.op.name)), f.results, given)
        elif isinstance(v, Loop):
            self._loop(b, v)
        else:
            return False
        return True

    def _inner(self, b: Binding, f: Function, wrt: Sequence[Var]) -> Function:
        _checked(b, f.results)
        return with_tape(f, wrt, self.names, self.functions)

    def _keep(
        self, b: Binding, value: Value, results: Sequence[Atom], into: tuple[Atom, ...]
    ) -> None:
        """`value` gives `results`, and a closure behind them."""
        both = self.forward.bind(value, f"{b.var.name}_taped", b.origins)
        fields = [TupleGetItem(both, k) for k in range(len(results))]
        back = self.forward.bind(TupleGetItem(both, len(fields)), f"{b.var.name}_back", b.origins)
        whole = len(fields) == 1
        self._define(b, fields, whole)
        takes = tuple(k for k, r in enumerate(results) if _tensor(atom_type(r)))
        self.tapes[b.var] = Tape(back, takes, into, whole)

    def _define(self, b: Binding, fields: Sequence[Value], whole: bool) -> None:
        """The variable of `b` is its one field, or the tuple of them."""
        if whole:
            self.forward.done.append(replace(b, value=fields[0]))
            return
        parts = [self.forward.bind(v, f"{b.var.name}_field", b.origins) for v in fields]
        self.forward.done.append(replace(b, value=Tuple(tuple(parts))))

    def _loop(self, b: Binding, v: Loop) -> None:
        """The tape is one more part of the state: that of the turns so far, which each turn puts
        its own before."""
        body, state = v.body, v.body.params
        floats = [k for k, p in enumerate(state) if _tensor(atom_type(p))]
        _checked(b, [p for k, p in enumerate(state) if k not in floats])
        captured = tuple(c for c in captured_operands(v) if c in self.active)
        states = [state[k] for k in floats]
        carried = [atom_type(state[k]) for k in floats]
        kind = FuncType(tuple(carried), _together([*carried, *(atom_type(c) for c in captured)]))
        tape = Var(self.forward.fresh(f"{b.var.name}_tape"), kind)
        inner = Backward(body, [*states, *captured], self.names, self.functions)
        again, following = body.results[0], body.results[1 : 1 + len(state)]
        params = inner.results_flow([following[k] for k in floats])
        inner.run()
        before = inner.call(tape, list(map(inner.of, states)), len(floats) + len(captured))
        totals = [
            inner.bindings.atom(call("add", x, inner.of(c)), f"d_{c.name}")
            for x, c in zip(before[len(floats) :], captured, strict=True)
        ]
        closure = Function(params, tuple(inner.bindings.done), (*before[: len(floats)], *totals))
        new = inner.forward.bind(closure, f"{b.var.name}_tape")
        rows = body.results[1 + len(state) :]
        taped = replace(
            body,
            params=(*state, tape),
            bindings=tuple(inner.forward.done),
            results=(again, *following, new, *rows),
        )
        first = self._first_tape(carried, captured)
        out = self.forward.bind(
            replace(v, init=(*v.init, first), body=taped), f"{b.var.name}_taped", b.origins
        )
        at = len(state)
        fields = [*range(at), *range(at + 1, at + 1 + len(rows))]
        self._define(b, [TupleGetItem(out, k) for k in fields], False)
        back = self.forward.bind(TupleGetItem(out, at), f"{b.var.name}_back", b.origins)
        into = (*(v.init[k] for k in floats), *captured)
        self.tapes[b.var] = Tape(back, tuple(floats), into, False)

    def _first_tape(self, carried: Sequence[Type], captured: Sequence[Var]) -> Var:
        """That of no turns: what flows back is what flows into the first state, and nothing flows
        into what the body captures."""
        inside = Bindings(self.names)
        params = tuple(Var(self.forward.fresh("d_state"), t) for t in carried)
        zeros = [inside.atom(full(0, tensor_type(c)), f"d_{c.name}") for c in captured]
        return self.forward.bind(Function(params, tuple(inside.done), (*params, *zeros)), "tape")

    def call(self, closure: Var, args: Sequence[Atom], count: int, name: str = "d") -> list[Atom]:
        """The results of a closure that gives `count`."""
        made = self.bindings.bind(Call(closure, tuple(args)), name)
        if count == 1:
            return [made]
        return [self.bindings.bind(TupleGetItem(made, k), name) for k in range(count)]

    def _through(self, b: Binding, tape: Tape, flows: Flows, origins: Sequence[str]) -> None:
        given = flows if isinstance(flows, dict) else {0: flows}
        if missing := [k for k in given if k not in tape.fields]:
            raise UnsupportedError(
                f"node {b.var} has no gradient: what a loop stacks (its result {missing[0]}) is "
                "not followed back; keep the last state only"
            )
        t = atom_type(b.var)
        parts = (t,) if tape.whole or not isinstance(t, TupleType) else t.fields
        args = []
        for k in tape.fields:
            kind = parts[k]
            assert isinstance(kind, TensorType)
            zero = given[k] if k in given else self.bindings.atom(full(0, kind), "d_none", origins)
            args.append(zero)
        back = self.call(tape.back, args, len(tape.into), f"d_{b.var.name}_back")
        for a, x in zip(tape.into, back, strict=True):
            self.flow(a, x, origins)

    # ---- values ------------------------------------------------------------------------------
    def _back(self, b: Binding, flows: Flows) -> None:
        v = b.value
        origins = tuple(f"{o}{BACKWARD}" for o in b.origins)
        if b.var in self.tapes:
            self._through(b, self.tapes[b.var], flows, origins)
        elif isinstance(v, Call) and isinstance(v.op, OpDef):
            self._call(b, v, v.op, flows, origins)
        elif isinstance(v, Tuple) and isinstance(flows, dict):
            for k, x in flows.items():
                self.flow(v.fields[k], x, origins)
        elif isinstance(v, TupleGetItem) and not isinstance(flows, dict):
            self.flow(v.value, flows, origins, v.index)
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


def _tensor(t: Type) -> bool:
    return isinstance(t, TensorType) and differentiable(t.dtype)


def _flows(t: Type) -> bool:
    """Whether anything may flow back into a value of a type."""
    return (
        any(map(_flows, t.fields))
        if isinstance(t, TupleType)
        else not isinstance(t, TensorType) or differentiable(t.dtype)
    )


def _together(types: Sequence[Type]) -> Type:
    """What a function gives whose results have these types."""
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def _checked(b: Binding, results: Sequence[Atom]) -> None:
    for r in results:
        if not isinstance(t := atom_type(r), TensorType):
            raise UnsupportedError(
                f"node {b.var} has no gradient: branches, functions and loops are followed back "
                f"where they give tensors, and this gives {t}"
            )


def _fitting(into: Var, x: Operand, field: int | None) -> Operand:
    """`x` in the dtype of what it flows into."""
    t, have = atom_type(into), x.type
    if field is not None and isinstance(t, TupleType):
        t = t.fields[field]
    if isinstance(t, TensorType) and isinstance(have, TensorType) and t.dtype != have.dtype:
        return call("cast", x, dtype=str(t.dtype))
    return x


def _kind(v: Value) -> str:
    if isinstance(v, Call):
        return "which function it calls is known only when it runs"
    return f"what flows back through {type(v).__name__.lower()} is not known"


def _reason(op: OpDef) -> str:
    """Why there is no gradient, and what is nearest."""
    known = [name for name, o in all_ops().items() if callable(o.gradient)]
    why = op.gradient or "its operator has none"
    close = nearest(op.name, known)
    return f"{why}; the nearest operator that has one is {close[0]}" if close else str(why)
