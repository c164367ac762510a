"""Branches and loops whose course is found while the program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.dtypes import BOOL, INT64
from compiler.errors import UnequalSizes
from compiler.frontend.node import Node
from compiler.frontend.run_time import number, positions
from compiler.frontend.values import Imported, Symbolic
from compiler.ir.expr import Atom, Constant, If, Loop, Match, TupleGetItem, Value, Var, tensor_type
from compiler.ir.types import TensorType, TupleType
from compiler.symbolic import Dim
from compiler.symbolic import Var as Dimension

_TRUE = Constant.of(np.asarray(True), BOOL)
_ZERO, _ONE = (Constant.of(np.int64(k), INT64) for k in (0, 1))


def branch(n: Node) -> list[Imported]:
    """Both branches of an If. Where they give tensors of different types, and the first runs if two
    sizes are equal (as exporters write what drops an axis that may be 1 long), they are assumed to
    be."""

    def emitted(name: str) -> list[Atom]:
        return [_atom(n, v) for v in n.graph.inline(n.need(name), ())]

    if (equal := n.graph.compared.get(n.atom(0))) is not None and n.graph.is_equal(*equal):
        return _assumed(n, n.graph.inline(n.need("then_branch"), ()), *equal)
    condition = _scalar(n, n.atom(0))
    then = n.graph.nested((), partial(emitted, "then_branch"))
    other = n.graph.nested((), partial(emitted, "else_branch"))
    for k, (a, b) in enumerate(zip(then.results, other.results, strict=False)):
        if tensor_type(a) != tensor_type(b):
            if (pair := n.graph.compared.get(n.atom(0))) is not None:
                raise UnequalSizes(f"the branch for {pair[0]} = {pair[1]} is needed", [pair])
            raise n.unsupported(
                f"branches whose output {k} is {tensor_type(a)} and {tensor_type(b)}"
            )
    return list(_fields(n, If(condition, then, other), len(then.results)))


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


def counted(n: Node, count: Atom, row: Callable[[Atom], Atom]) -> Atom:
    """row(0), row(1) ... row(count - 1), stacked: as many as the data says."""

    def step(number: Atom, _: Sequence[Atom]) -> list[Imported]:
        after = n.step("add", number, _ONE)
        return [n.step("less", after, count), after, row(number)]

    return _loop(n, n.step("less", _ZERO, count), (), step, 1, None)[0]


def repeated(
    n: Node,
    count: int,
    init: Sequence[Atom],
    make: Callable[[Atom, Sequence[Atom]], list[Imported]],
) -> list[Atom]:
    """The state after `count` steps: `make` gives the next one of a number and a state."""
    limit = Constant.of(np.int64(count), INT64)

    def step(number: Atom, state: Sequence[Atom]) -> list[Imported]:
        after = n.step("add", number, _ONE)
        return [n.step("less", after, limit), after, *make(number, state)]

    return _loop(n, n.step("less", _ZERO, limit), init, step, 0, count)


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
    state = [Var(n.graph.intermediate("i"), TensorType((), INT64))]
    state += [Var(n.graph.intermediate("carried"), tensor_type(a)) for a in init]
    body = n.graph.nested(state, lambda: [_atom(n, v) for v in step(state[0], state[1:])])
    for p, r in zip(state, body.results[1:], strict=False):
        if tensor_type(p) != tensor_type(r):
            raise n.unsupported(
                f"what it carries changing from {tensor_type(p)} to {tensor_type(r)}"
            )
    count = n.graph.intermediate("count") if stacks else ""
    value = Loop(going, (_ZERO, *init), body, count)
    results = _fields(n, value, len(state) + stacks, tupled=True)
    if stacks:
        n.graph.counts[Dimension(count)] = results[0]
    if rows is not None:
        for k in range(len(state), len(results)):
            t = tensor_type(results[k])
            known = Match(results[k], TensorType((rows, *t.shape[1:]), t.dtype))
            results[k] = n.graph.bind(known, n.graph.intermediate("rows"), n.origin)
    return results[1:]


def _fields(n: Node, value: Value, count: int, tupled: bool = False) -> list[Atom]:
    """The values of a branch or loop."""
    stem = n.graph.printable(next(o for o in n.outputs if o))
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
