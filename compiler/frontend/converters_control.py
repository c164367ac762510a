"""Converters of control flow. What is known during import is written out, if it is short; the rest
becomes branches and loops of the program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.frontend.branches import branch, looped, scanned_loop
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, Symbolic, numbers
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import BOOL, INT64

MOST_WRITTEN = 64
"""Iterations of a loop that is written out; longer ones are loops of the program."""


class _RunTimeCondition(Exception):
    """Whether a loop goes on is computed by the program."""


def _atom(n: Node, value: Imported) -> Atom:
    if isinstance(value, Symbolic):
        raise n.unsupported("symbolic dimensions as results of its body; use shapes=...")
    return value


def _operands(n: Node, first: int) -> list[Imported]:
    return [n.value(i) for i in range(first, len(n.inputs))]


@converts("If")
def if_(n: Node) -> Sequence[Imported]:
    """The branch that a known condition chooses, or both."""
    condition = n.constant(0)
    if condition is None:
        try:
            return branch(n)
        except UnsupportedError as error:
            raise _advised(n, error, "the branch chosen", [0]) from None
    known = bool(condition.reshape(-1)[0])
    return n.graph.inline(n.need("then_branch" if known else "else_branch"), ())


@converts("Loop")
def loop(n: Node) -> Sequence[Imported]:
    """Copies of the body, one for each of a few known iterations; or else a loop."""
    body = n.need("body")
    count = n.constant(0) if n.has(0) else np.asarray(MOST_WRITTEN + 1)
    first = n.constant(1) if n.has(1) else np.asarray(True)
    stays = _stays_true(body)
    if stays and not n.has(0):
        raise n.unsupported("no trip count and a condition that stays true: it never ends")
    if count is None or first is None or (stays and count.reshape(-1)[0] > MOST_WRITTEN):
        known = int(count.reshape(-1)[0]) if stays and count is not None else None
        return _looped(n, body, known)
    back = n.graph.rewind()
    try:
        return _written(n, body, int(count.reshape(-1)[0]), bool(first.reshape(-1)[0]), stays)
    except _RunTimeCondition:
        back()
        return _looped(n, body, None)


def _looped(n: Node, body: Any, rows: int | None) -> Sequence[Imported]:
    """A loop; where that cannot be, the advice to make its course known, if that helps."""
    try:
        return looped(n, body, rows)
    except UnsupportedError as error:
        unknown = [i for i in (0, 1) if n.has(i) and n.constant(i) is None]
        raise _advised(n, error, "the loop written out", unknown) from None


def _advised(
    n: Node, error: UnsupportedError, what: str, unknown: Sequence[int]
) -> UnsupportedError:
    """`error` with the advice to give the inputs that the operands `unknown` are computed from."""
    sources = dict.fromkeys(s for i in unknown for s in n.graph.sources(n.inputs[i]))
    if not sources or "constants=" in str(error):
        return error
    given = ", ".join(f"{name!r}: ..." for name in sources)
    return UnsupportedError(f"{error}; or have {what}, with constants={{{given}}}")


def _written(n: Node, body: Any, count: int, going: bool, stays: bool) -> Sequence[Imported]:
    """The iterations one after the other.

    Raises:
        _RunTimeCondition: that is not possible.
    """
    carried = _operands(n, 2)
    scanned: list[list[Atom]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while going and step < count:
        if step >= MOST_WRITTEN:
            raise _RunTimeCondition
        counter = Constant.of(np.int64(step), INT64)
        flag: Imported = Constant.of(np.asarray(True), BOOL)
        again, *results = n.graph.inline(body, [counter, flag, *carried])
        carried = results[: len(carried)]
        for row, value in zip(scanned, results[len(carried) :], strict=True):
            row.append(_atom(n, value))
        if not stays:
            if not isinstance(again, Constant):
                raise _RunTimeCondition
            going = bool(numbers(again).reshape(-1)[0])
        step += 1
    return [*carried, *_gathered(n, scanned, len(carried), [0] * len(scanned))]


def _stays_true(body: Any) -> bool:
    """Whether the body hands on the condition it is given, which is true inside it."""
    name = body.output[0].name
    makers = {o: m for m in body.node for o in m.output}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    return len(body.input) > 1 and bool(name == body.input[1].name)


@converts("Scan")
def scan(n: Node) -> Sequence[Imported]:
    """The body over the slices of the scanned inputs; in opset 8 for each member of a batch."""
    if n.opset < 9:
        return _batched_scan(n)
    return _scan(n, [n.atom(i) for i in range(len(n.inputs))])


def _batched_scan(n: Node) -> list[Imported]:
    """Scan of opset 8: the first axis of every operand is a batch, and the second is scanned."""
    if n.has(0):
        raise n.unsupported("sequence_lens: export the model with opset 9 or newer")
    given = [n.atom(i) for i in range(1, len(n.inputs))]
    sizes = {tensor_type(a).shape[0] for a in given}
    size = sizes.pop() if len(sizes) == 1 else None
    if not isinstance(size, int) or not 0 < size <= MOST_WRITTEN:
        raise n.unsupported("batches that are large, unknown or differ: export it with opset 9")
    members = []
    for k in range(size):
        at = Constant.of(np.int64(k), INT64)
        found = _scan(n, [n.step("take", a, at, axis=0) for a in given])
        members.append([n.step("expand_dims", _atom(n, v), axes=(0,)) for v in found])
    return [n.step("concatenate", *parts, axis=0) for parts in zip(*members, strict=True)]


def _scan(n: Node, given: Sequence[Atom]) -> list[Imported]:
    """As many copies of the body as the scanned axis has elements, or a loop."""
    body, count = n.need("body"), int(n.need("num_scan_inputs"))
    states = len(given) - count
    carried: list[Imported] = list(given[:states])
    rows = given[states:]
    outputs = len(body.output) - states
    axes = [
        n.front(a, tensor_type(r).rank)
        for a, r in zip(_ints(n, "scan_input_axes", count), rows, strict=True)
    ]
    lengths = {tensor_type(r).shape[a] for a, r in zip(axes, rows, strict=True)}
    length = lengths.pop() if len(lengths) == 1 else None
    if length is None:
        raise n.unsupported("inputs of different lengths; use shapes=...")
    backward = _ints(n, "directions" if n.opset < 9 else "scan_input_directions", count)
    if not isinstance(length, int) or length > MOST_WRITTEN:
        stacks = scanned_loop(
            n, body, carried, list(zip(rows, axes, backward, strict=True)), length
        )
        return _arranged(n, stacks, states)
    scanned: list[list[Atom]] = [[] for _ in range(outputs)]
    for step in range(length):
        parts = []
        for r, axis, back in zip(rows, axes, backward, strict=True):
            at = length - 1 - step if back else step
            cut = n.step("strided_slice", r, begin=(at,), end=(at + 1,), axes=(axis,))
            parts.append(n.step("squeeze", cut, axis=(axis,)))
        results = n.graph.inline(body, [*carried, *parts])
        carried = list(results[:states])
        for row, value in zip(scanned, results[states:], strict=True):
            row.append(_atom(n, value))
    for row, back in zip(scanned, _ints(n, "scan_output_directions", outputs), strict=True):
        if back:
            row.reverse()
    return [*carried, *_gathered(n, scanned, states, _ints(n, "scan_output_axes", outputs))]


def _arranged(n: Node, results: Sequence[Atom], states: int) -> list[Imported]:
    """The results of a loop, whose stacks lie along the axes and in the order that are wanted."""
    out: list[Imported] = list(results[:states])
    outputs = len(results) - states
    backward = _ints(n, "scan_output_directions", outputs)
    axes = _ints(n, "scan_output_axes", outputs)
    for stack, back, axis in zip(results[states:], backward, axes, strict=True):
        t = tensor_type(stack)
        if back:
            if not isinstance(t.shape[0], int):
                raise n.unsupported("scan_output_directions=1 of a symbolic length; use shapes=...")
            n.reserve(t.shape[0])
            order = Constant.of(np.arange(t.shape[0])[::-1].copy(), INT64)
            stack = n.step("take", stack, order, axis=0)
        at = n.front(axis, t.rank)
        rest = list(range(1, t.rank))
        order_of = (*rest[:at], 0, *rest[at:])
        out.append(n.step("transpose", stack, axes=order_of) if at else stack)
    return out


def _ints(n: Node, name: str, count: int) -> list[int]:
    values = [int(v) for v in n.attr(name, (0,) * count)]
    if len(values) != count:
        raise n.unsupported(f"{name}={tuple(values)}: {count} are needed")
    return values


def _gathered(
    n: Node, scanned: Sequence[Sequence[Atom]], first: int, axes: Sequence[int]
) -> list[Imported]:
    """What the iterations gave, stacked: the outputs from `first` on."""
    out: list[Imported] = []
    for k, (row, axis) in enumerate(zip(scanned, axes, strict=True)):
        if not row:
            raise n.unsupported("no iteration, which leaves an empty result")
        at = n.front(axis, tensor_type(row[0]).rank + 1)
        wide = [n.step("expand_dims", v, axes=(at,)) for v in row]
        used = n.wants(first + k)
        if len(wide) == 1 or not used:
            out.append(wide[0])
        else:
            batched = n.op == "Scan" and n.opset < 9  # one member's result is not the node's
            emit = n.step if batched else partial(n.result, first + k)
            out.append(emit("concatenate", *wide, axis=at))
    return out


@converts("OptionalHasElement")
def has_element(n: Node) -> Imported:
    """Whether there is a value: a tensor always is one."""
    return Constant.of(np.asarray(n.has(0)), BOOL)


@converts("OptionalGetElement")
def get_element(n: Node) -> Imported:
    """The value."""
    return n.value(0)
