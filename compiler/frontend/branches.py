"""Branches and loops whose course is found while the program runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.errors import DtypelabError, UnequalSizes
from compiler.frontend.node import Node
from compiler.frontend.run_time import number, positions
from compiler.frontend.values import Imported, Symbolic
from compiler.ir.expr import (
    Atom,
    Binding,
    Constant,
    Function,
    If,
    Loop,
    Match,
    TupleGetItem,
    Value,
    Var,
    tensor_type,
)
from compiler.ir.signature import matched
from compiler.symbolic import Dim
from compiler.symbolic import Var as Dimension
from compiler.types.dtypes import BOOL, INT64
from compiler.types.tensor_types import TensorType, TupleType

_TRUE = Constant.of(np.asarray(True), BOOL)
_ZERO, _ONE = (Constant.of(np.int64(k), INT64) for k in (0, 1))
_MOST_WIDENED = 8
"""How often the type of what a loop carries may turn out to be wider than it was taken to be."""


def branch(n: Node) -> list[Imported]:
    """Both branches of an If, whose results may differ in their sizes. Where they differ in more,
    and the first branch runs if two sizes are equal (as exporters write what drops an axis that may
    be 1 long), they are assumed to be.

    Raises:
        UnequalSizes: that is to be assumed.
        UnsupportedError: the branches differ in more than sizes.
    """

    def emitted(name: str) -> list[Atom]:
        return [_atom(n, v) for v in n.graph.inline(n.need(name), ())]

    if (equal := n.graph.compared.get(n.atom(0))) is not None and n.graph.is_equal(*equal):
        return _assumed(n, n.graph.inline(n.need("then_branch"), ()), *equal)
    condition = _scalar(n, n.atom(0))
    made = [n.graph.nested((), partial(emitted, f"{k}_branch")) for k in ("then", "else")]
    kinds = [[(tensor_type(r).dtype, tensor_type(r).rank) for r in f.results] for f in made]
    if kinds[0] != kinds[1] and (pair := n.graph.compared.get(n.atom(0))) is not None:
        raise UnequalSizes(f"the branch for {pair[0]} = {pair[1]} is needed", [pair])
    return list(_chosen(n, [condition], made))


def one_of(n: Node, which: Atom, cases: Mapping[int, Function]) -> list[Imported]:
    """The results of the case of the number that `which` is; the last one is for all others."""
    numbers = [Constant.of(np.int64(k), INT64) for k in cases]
    conditions = [n.step("equal", which, k) for k in numbers[:-1]]
    return list(_chosen(n, conditions, list(cases.values())))


def _chosen(n: Node, conditions: Sequence[Atom], cases: Sequence[Function]) -> list[Atom]:
    """The results of the first case whose condition holds, or of the last. Sizes in which they
    differ become dimensions that the program finds."""
    types = [[tensor_type(r) for r in f.results] for f in cases]
    common = [_common(n, f"output {k}", of) for k, of in enumerate(zip(*types, strict=False))]
    cases = [_matched(n, f, common) for f in cases]

    def chain(k: int) -> list[Atom]:
        if k + 1 == len(conditions):
            rest = cases[-1]
        else:
            rest = n.graph.nested((), partial(chain, k + 1))
        return _fields(n, If(conditions[k], cases[k], rest), len(common), inner=k > 0)

    results = chain(0)
    _show(n, results, types[0])
    return results


def _common(n: Node, what: str, types: Sequence[TensorType]) -> TensorType:
    """The type that tensors of these types have: where sizes differ, it has a new dimension."""
    first = types[0]
    for t in types[1:]:
        if (t.dtype, t.rank) != (first.dtype, first.rank):
            raise n.unsupported(f"branches whose {what} is {first} and {t}")
    sizes = zip(*(t.shape for t in types), strict=True)
    shape = [d[0] if len(set(d)) == 1 else _new_dimension(n) for d in sizes]
    return TensorType(tuple(shape), first.dtype)


def _new_dimension(n: Node) -> Dimension:
    return Dimension(n.graph.intermediate("size"))


def _matched(n: Node, f: Function, types: Sequence[TensorType]) -> Function:
    """`f` with results of these types."""
    bindings, results = list(f.bindings), []
    for r, t in zip(f.results, types, strict=False):
        if tensor_type(r) != t:
            var = Var(n.graph.intermediate("matched"), t)
            bindings.append(Binding(var, Match(r, t), (n.origin,)))
            r = var
        results.append(r)
    return f.with_body(bindings, results)


def _show(n: Node, results: Sequence[Atom], before: Sequence[TensorType]) -> None:
    """Say where the sizes of new dimensions are seen: those that `before` does not have."""
    for r, old in zip(results, before, strict=False):
        for axis, (d, other) in enumerate(zip(tensor_type(r).shape, old.shape, strict=True)):
            if d != other and isinstance(d, Dimension):
                n.graph.counts.setdefault(d, (r, axis))


def _assumed(n: Node, results: Sequence[Imported], size: Dim, equal: Dim) -> list[Imported]:
    """The results, of which the first that the program computes says what is assumed."""
    out = list(results)
    k = next((k for k, r in enumerate(out) if isinstance(r, Var)), None)
    if k is None:
        raise n.unsupported("sizes that choose among constants; use shapes=...")
    given = out[k]
    assert isinstance(given, Var)
    out[k] = n.step("assume", given, size=size, equal=equal, node=n.where)
    return out


def looped(n: Node, body: Any, rows: int | None) -> list[Imported]:
    """A Loop node as a loop: its state is the number of the iteration and what is carried.

    `rows`: how often it runs, if that is known.
    """
    init = [n.atom(i) for i in range(2, len(n.inputs))]
    limit = _scalar(n, n.atom(0)) if n.has(0) else None
    going = _scalar(n, n.atom(1)) if n.has(1) else _TRUE
    if limit is not None:
        going = n.step("logical_and", going, n.step("less", _ZERO, limit))

    def step(number: Atom, carried: Sequence[Atom]) -> list[Imported]:
        again, *results = n.graph.inline(body, [number, _TRUE, *carried])
        going = _scalar(n, _atom(n, again))
        after = n.step("add", number, _ONE)
        if limit is not None:
            going = n.step("logical_and", going, n.step("less", after, limit))
        return [going, after, *results]

    return list(_loop(n, going, init, step, len(body.output) - 1 - len(init), rows))


def scanned_loop(
    n: Node,
    body: Any,
    carried: Sequence[Imported],
    rows: Sequence[tuple[Atom, int, int]],
    length: Dim,
) -> list[Atom]:
    """A Scan node as a loop. `rows`: what is scanned, along which axis, and whether backward."""
    limit = _length(n, rows[0][0], rows[0][1], length)
    init = [_atom(n, v) for v in carried]

    def step(number: Atom, state: Sequence[Atom]) -> list[Imported]:
        after = n.step("add", number, _ONE)
        parts = []
        for row, axis, back in rows:
            at = n.step("subtract", limit, after) if back else number
            parts.append(n.step("take", row, at, axis=axis))
        results = n.graph.inline(body, [*state, *parts])
        return [n.step("less", after, limit), after, *results]

    going = n.step("less", _ZERO, limit)
    return _loop(n, going, init, step, len(body.output) - len(init), length)


def _length(n: Node, row: Atom, axis: int, length: Dim) -> Atom:
    if isinstance(length, int):
        return Constant.of(np.int64(length), INT64)
    at = Constant.of(np.int64(axis), INT64)
    return n.step("take", n.step("shape_of", row), at, axis=0)


def over_steps(
    n: Node,
    length: Dim,
    init: Sequence[Atom],
    make: Callable[[Atom, Sequence[Atom]], list[Imported]],
    back: bool = False,
) -> list[Atom]:
    """The state after as many steps as an axis is long, and [length, ...]: a row for each place of
    it. `make` gives the next state and the row, of a place and a state; `back`: from the end."""
    limit = number(n, length)

    def step(count: Atom, state: Sequence[Atom]) -> list[Imported]:
        after = n.step("add", count, _ONE)
        at = n.step("subtract", limit, after) if back else count
        return [n.step("less", after, limit), after, *make(at, state)]

    *last, rows = _loop(n, n.step("less", _ZERO, limit), init, step, 1, length)
    if back:
        order = n.step("subtract", n.step("subtract", limit, _ONE), positions(n, length))
        rows = n.step("take", rows, order, axis=0)
    return [*last, rows]


def _loop(
    n: Node,
    going: Atom,
    init: Sequence[Atom],
    step: Callable[[Atom, Sequence[Atom]], list[Imported]],
    stacks: int,
    rows: Dim | None,
) -> list[Atom]:
    """A loop over the number of the iteration and a state; `step` gives whether to go on, the next
    number, the next state, and what is stacked (in `rows` rows, if that is known)."""
    given = [tensor_type(a) for a in init]
    try:
        state, body = _widened_body(n, given, step)
    except DtypelabError as error:  # what it carries may have the same sizes in each step after all
        state, body = _body(n, given, step)
        after = [tensor_type(r) for r in body.results]
        try:
            kept = [matched(a, t) for a, t in zip(after[2:], given, strict=False)]
        except DtypelabError:
            raise error from None
        body = _matched(n, body, [*after[:2], *kept, *after[2 + len(given) :]])
    count = n.graph.intermediate("count") if stacks else ""
    value = Loop(going, (_ZERO, *init), body, count)
    results = _fields(n, value, len(state) + stacks, tupled=True)
    if stacks:
        n.graph.counts[Dimension(count)] = results[0]
    _show(n, results[1 : len(state)], given)
    if rows is not None:
        for k in range(len(state), len(results)):
            t = tensor_type(results[k])
            known = Match(results[k], TensorType((rows, *t.shape[1:]), t.dtype))
            results[k] = n.graph.bind(known, n.graph.intermediate("rows"), n.origin)
    return results[1:]


_State = tuple[list[Var], Function]


def _body(
    n: Node, types: Sequence[TensorType], step: Callable[[Atom, Sequence[Atom]], list[Imported]]
) -> _State:
    """The variables and the function of one step of a loop that carries values of `types`."""
    state = [Var(n.graph.intermediate("i"), TensorType((), INT64))]
    state += [Var(n.graph.intermediate("carried"), t) for t in types]
    return state, n.graph.nested(state, lambda: [_atom(n, v) for v in step(state[0], state[1:])])


def _widened_body(
    n: Node, types: Sequence[TensorType], step: Callable[[Atom, Sequence[Atom]], list[Imported]]
) -> _State:
    """The same where sizes of what is carried may change: then they are dimensions, which the
    program finds."""
    own: set[Dim] = set()
    with n.graph.assuming.apart():
        for _ in range(_MOST_WIDENED):
            state, body = _body(n, types, step)
            after = [tensor_type(r) for r in body.results[2 : 1 + len(state)]]
            wider = [_widened(n, a, b, own) for a, b in zip(types, after, strict=True)]
            if wider == list(types):
                return state, body
            types = wider
    raise n.unsupported("sizes of what it carries that go on changing")


def _widened(n: Node, t: TensorType, after: TensorType, own: set[Dim]) -> TensorType:
    """The type of what a loop carries that is of type `t` before and `after` in the end of a step.
    `own`: dimensions that stand for whatever size there is, to which new ones are added.

    Raises:
        UnsupportedError: it changes more than its sizes.
    """
    if (t.dtype, t.rank) != (after.dtype, after.rank):
        raise n.unsupported(f"what it carries changing from {t} to {after}")
    sizes = zip(t.shape, after.shape, strict=True)
    shape = tuple(a if a == b or a in own else _new_dimension(n) for a, b in sizes)
    own |= set(shape) - set(t.shape)
    return TensorType(shape, t.dtype)


def _fields(
    n: Node, value: Value, count: int, tupled: bool = False, inner: bool = False
) -> list[Atom]:
    """The values of a branch or loop; `inner`: of one inside another, which has the node's name."""
    stem = n.graph.printable(next(o for o in n.outputs if o))
    stem = n.graph.intermediate(stem) if inner else stem
    if count == 1 and not tupled:
        return [n.graph.bind(value, stem, n.origin)]
    whole = n.graph.bind(value, n.graph.intermediate(f"{stem}_all"), n.origin)
    assert isinstance(whole.type, TupleType)
    return [
        n.graph.bind(TupleGetItem(whole, k), n.graph.intermediate(f"{stem}_{k}"), n.origin)
        for k in range(count)
    ]


def _scalar(n: Node, a: Atom) -> Atom:
    """A tensor of one element as a scalar."""
    return n.step("reshape", a, newshape=()) if tensor_type(a).rank else a


def _atom(n: Node, v: Imported) -> Atom:
    if isinstance(v, Symbolic):
        raise n.unsupported("symbolic dimensions as results of its body; use shapes=...")
    return v
