"""What flows back through branches, loops and functions of the module.

They give, behind what they gave, a closure: from what flows back into their results it computes
what flows back into what they have read. The values that it needs are those that it captures:
closures are the tape (Pearlmutter and Siskind, Reverse-mode AD in a functional framework: Lambda
the ultimate backpropagator, 2008; Wang et al., Demystifying differentiable programming, 2019). What
a loop's body has captured gets the sum over its turns, from the first to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.errors import UnsupportedError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Constant,
    Function,
    GlobalVar,
    If,
    IRModule,
    Loop,
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
from compiler.ir.expression import call
from compiler.symbolic import Var as Dim
from compiler.transform.backward import Backward, Flows
from compiler.transform.data_flows import DataFlows
from compiler.transform.gradient_step import BACKWARD, Bindings
from compiler.types.data import Pattern
from compiler.types.dtypes import INT64
from compiler.types.names import unique
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type


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
        self._made: dict[str, Function] = {}
        self._known: dict[str, GlobalVar] = {}
        self._names = set(mod.functions)
        self.data = DataFlows(mod.types, self._names)

    def of(self, name: str) -> GlobalVar:
        """The one for the function called `name`, which may call itself."""
        if name not in self._known:
            f = self.mod[name]
            results = tuple(map(atom_type, f.results))
            flows = tuple(self.data.whole(t) for t in results if self.follows(t))
            asked = [p for p in f.params if self.follows(atom_type(p))]
            into = [self.data.whole(atom_type(p)) for p in asked]
            back = FuncType(flows, _together(into))
            made = unique(f"{name}_gradient", self._names)
            whole = FuncType(tuple(map(atom_type, f.params)), TupleType((*results, back)))
            self._known[name] = GlobalVar(made, whole)
            self._made[made] = with_tape(f, asked, names_in(f), self)
        return self._known[name]

    def follows(self, t: Type) -> bool:
        """Whether what flows back into values of a type is followed: into functions it is not."""
        return not isinstance(t, FuncType) and self.data.any(t)

    def added(self, mod: IRModule) -> IRModule:
        """`mod` with what was made."""
        types = {**mod.types, **self.data.types}
        return replace(mod.with_functions({**self._made, **self.data.functions}), types=types)


def with_tape(f: Function, wrt: Sequence[Var], names: set[str], functions: Functions) -> Function:
    """`f` that gives, behind its results, the closure of what flows back into `wrt`."""
    inner = Taped(f, wrt, names, functions)
    params = inner.results_flow(f.results)
    inner.run()
    return inner.with_back(params, [inner.of(v) for v in wrt])


class Taped(Backward):
    """A function with tapes.

    Attributes:
        forward: its bindings, where tapes are kept of what has functions in it.
        tapes: those tapes, by what they are of.
    """

    def __init__(self, f: Function, wrt: Sequence[Var], names: set[str], functions: Functions):
        super().__init__(f, wrt, names, functions.data)
        self.functions, self.follows = functions, functions.follows
        self.forward = Bindings(names)
        self.tapes: dict[Var, Tape] = {}
        for b in f.bindings:
            if any(a in self.active for a in operands(b.value)) and self.data.any(atom_type(b.var)):
                self.active.add(b.var)
                if self._taped(b):
                    continue
            self.forward.done.append(b)

    def results_flow(self, results: Sequence[Atom]) -> tuple[Var, ...]:
        """New parameters: what flows back into those of some results into which anything does."""
        params = []
        for r in results:
            if self.follows(t := atom_type(r)):
                name = self.bindings.fresh(f"d_{getattr(r, 'name', 'result')}")
                params.append(Var(name, self.data.whole(t)))
                self.flow(r, params[-1], ())
        return tuple(params)

    def with_back(self, params: tuple[Var, ...], gradients: Sequence[Atom]) -> Function:
        """The function that gives, behind its results, the closure of some gradients."""
        closure = Function(params, tuple(self.bindings.done), tuple(gradients))
        back = self.forward.bind(closure, "back")
        return self.f.with_body(self.forward.done, (*self.f.results, back))

    def back(self, b: Binding, flows: Flows) -> None:
        """What flows back through a value, by its tape if it has one."""
        if b.var not in self.tapes:
            super().back(b, flows)
            return
        self._through(b, self.tapes[b.var], flows, tuple(f"{o}{BACKWARD}" for o in b.origins))

    def _taped(self, b: Binding) -> bool:
        """Binds what `b` binds, with a tape; False: it needs none."""
        v = b.value
        if isinstance(v, If):
            into = self._captured(b)
            then, otherwise = (self._inner(b, g, into) for g in (v.then, v.otherwise))
            self._keep(b, If(v.condition, then, otherwise), v.then.results, into)
        elif isinstance(v, Call) and isinstance(v.op, GlobalVar):
            f = self.functions.mod[v.op.name]
            _checked(b, f.results)
            both = zip(f.params, v.args, strict=True)
            given = tuple(a for p, a in both if self.follows(atom_type(p)))
            self._refuse_functions(b, v.args)
            self._keep(b, replace(v, op=self.functions.of(v.op.name)), f.results, given)
        elif isinstance(v, Loop):
            self._loop(b, v)
        elif isinstance(v, Cases):
            self._cases(b, v)
        else:
            return False
        return True

    def _captured(self, b: Binding) -> tuple[Var, ...]:
        """What the functions in a value read that gradients are asked of: what flows back into
        them goes on there."""
        self._refuse_functions(b, captured_operands(b.value))
        both = [c for c in captured_operands(b.value) if c in self.active]
        return tuple(c for c in both if self.follows(atom_type(c)))

    def _refuse_functions(self, b: Binding, given: Sequence[Atom]) -> None:
        """Nothing flows back into functions: those that are left here are not known."""
        for a in given:
            if a in self.active and isinstance(atom_type(a), FuncType):
                raise UnsupportedError(
                    f"node {b.var} has no gradient: it is given the function {a}, and which one "
                    "that is, is known only when it runs; functions that branches choose, and "
                    "that are given to functions that do not call themselves, have one"
                )

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
        takes = tuple(k for k, r in enumerate(results) if self.follows(atom_type(r)))
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
        its own before. Behind what flows back into the state it takes what flows back into the
        stacks, of which each turn reads its own row; for that, turns are numbered."""
        body, state = v.body, v.body.params
        following = body.results[1 : 1 + len(state)]
        rows = body.results[1 + len(state) :]
        floats = [k for k, p in enumerate(state) if self.follows(atom_type(p))]
        _checked(b, state)
        captured = self._captured(b)
        states = [state[k] for k in floats]
        carried = [self.data.whole(atom_type(p)) for p in states]
        stacked = [k for k, r in enumerate(rows) if self.follows(atom_type(r))]
        given = [_stack(rows[k], v.count) for k in stacked]
        into = [*carried, *(self.data.whole(atom_type(c)) for c in captured)]
        kind = FuncType((*carried, *given), _together(into))
        tape = Var(self.forward.fresh(f"{b.var.name}_tape"), kind)
        turn = Var(self.forward.fresh(f"{b.var.name}_turn"), TensorType((), INT64))
        inner = Taped(body, [*states, *captured], self.names, self.functions)
        params = inner.results_flow([following[k] for k in floats])
        stacks = [Var(inner.bindings.fresh("d_stack"), t) for t in given]
        for k, whole in zip(stacked, stacks, strict=True):
            inner.flow(rows[k], call("take", whole, turn), ())
        inner.run()
        before = inner.call(tape, [*map(inner.of, states), *stacks], len(into))
        totals = [
            inner.total(x, inner.of(c), atom_type(c), f"d_{c.name}", ())
            for x, c in zip(before[len(floats) :], captured, strict=True)
        ]
        closure = Function(
            (*params, *stacks), tuple(inner.bindings.done), (*before[: len(floats)], *totals)
        )
        new = inner.forward.bind(closure, f"{b.var.name}_tape")
        one = call("add", turn, Constant.of(1, INT64))
        counted = inner.forward.atom(one, f"{b.var.name}_turn")
        taped = replace(
            body,
            params=(*state, turn, tape),
            bindings=tuple(inner.forward.done),
            results=(body.results[0], *following, counted, new, *rows),
        )
        init = (*v.init, Constant.of(0, INT64), self._first_tape(carried, given, captured))
        out = self.forward.bind(replace(v, init=init, body=taped), f"{b.var.name}_taped", b.origins)
        at = len(state)
        fields = [*range(at), *range(at + 2, at + 2 + len(rows))]
        self._define(b, [TupleGetItem(out, k) for k in fields], False)
        back = self.forward.bind(TupleGetItem(out, at + 1), f"{b.var.name}_back", b.origins)
        takes = (*floats, *(at + k for k in stacked))
        self.tapes[b.var] = Tape(back, takes, (*(v.init[k] for k in floats), *captured), False)

    def _first_tape(
        self, carried: Sequence[Type], given: Sequence[Type], captured: Sequence[Var]
    ) -> Var:
        """That of no turns: what flows back is what flows into the first state, and nothing flows
        into what the body captures. `given`: the types of stacks."""
        inner = Taped(Function((), (), ()), (), self.names, self.functions)
        params = tuple(Var(self.forward.fresh("d_state"), t) for t in carried)
        stacks = tuple(Var(self.forward.fresh("d_stack"), t) for t in given)
        zeros = [inner.of(c) for c in captured]
        made = Function((*params, *stacks), tuple(inner.bindings.done), (*params, *zeros))
        return self.forward.bind(made, "tape")

    def _cases(self, b: Binding, v: Cases) -> None:
        """Each case gives what flows back into the value, in whose form it was found, and then what
        flows into what the case has captured."""
        captured, t = self._captured(b), atom_type(v.value)
        into = (*((v.value,) if v.value in self.active else ()), *captured)
        bodies = []
        for pattern, f in zip(v.patterns, v.bodies, strict=True):
            _checked(b, f.results)
            variables = [p for p in f.params if self.follows(atom_type(p))]
            inner = Taped(f, [*variables, *captured], self.names, self.functions)
            params = inner.results_flow(f.results)
            inner.run()
            gradients = [inner.of(c) for c in captured]
            if len(into) > len(captured):
                gradients = [inner.of_data(pattern, t, f.params), *gradients]
            bodies.append(inner.with_back(params, gradients))
        self._keep(b, replace(v, bodies=tuple(bodies)), v.bodies[0].results, into)

    def of_data(self, pattern: Pattern, t: Type, variables: Sequence[Var]) -> Atom:
        """What flows back into a value of type `t`, of what flows into the variables of its
        pattern."""
        left = iter(variables)
        found = self.data.of_pattern(pattern, t, lambda: self.held(next(left)), self.bindings)
        if found is None:
            return self.nothing(t, "d_none")
        return self.data.strict(found, t, self.bindings)

    def call(self, closure: Var, args: Sequence[Atom], count: int, name: str = "d") -> list[Atom]:
        """The results of a closure that gives `count`."""
        made = self.bindings.bind(Call(closure, tuple(args)), name)
        if count == 1:
            return [made]
        return [self.bindings.bind(TupleGetItem(made, k), name) for k in range(count)]

    def _through(self, b: Binding, tape: Tape, flows: Flows, origins: Sequence[str]) -> None:
        args = [self.of(b.var)] if tape.whole else []
        if not tape.whole:
            t = atom_type(b.var)
            assert isinstance(flows, dict)
            assert isinstance(t, TupleType)
            for k in tape.fields:
                none = k not in flows
                args.append(self.nothing(t.fields[k], "d_none", origins) if none else flows[k])
        back = self.call(tape.back, args, len(tape.into), f"d_{b.var.name}_back")
        for a, x in zip(tape.into, back, strict=True):
            self.flow(a, x, origins)


def _stack(row: Atom, count: str) -> TensorType:
    """The type of rows of a loop that runs as often as the dimension `count` says."""
    t = tensor_type(row)
    return TensorType((Dim(count), *t.shape), t.dtype)


def _together(types: Sequence[Type]) -> Type:
    """What a function gives whose results have these types."""
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def _checked(b: Binding, results: Sequence[Atom]) -> None:
    for r in results:
        if isinstance(t := atom_type(r), FuncType):
            raise UnsupportedError(
                f"node {b.var} has no gradient: branches, functions and loops are followed back "
                f"where they give tensors and data, and this gives {t}"
            )
