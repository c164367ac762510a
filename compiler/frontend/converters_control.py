"""Converters of control flow whose course is known during import: it is written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.dtypes import BOOL, INT64, Array
from compiler.frontend.node import Imported, Node, Symbolic, converts, numbers
from compiler.ir.expr import Atom, Constant, tensor_type

MOST_ITERATIONS = 1024
"""Loops of more are refused: the written-out program would be too large."""


def _known(n: Node, value: Imported, what: str) -> Array:
    if not isinstance(value, Constant):
        raise n.unsupported(f"{what} computed at run time")
    return numbers(value).reshape(-1)


def _atom(n: Node, value: Imported) -> Atom:
    if isinstance(value, Symbolic):
        raise n.unsupported("symbolic dimensions as results of its body; use shapes=...")
    return value


def _too_many(n: Node, count: int) -> None:
    if count > MOST_ITERATIONS:
        raise n.unsupported(f"{count} iterations; at most {MOST_ITERATIONS} are written out")


def _operands(n: Node, first: int) -> list[Imported]:
    return [n.value(i) for i in range(first, len(n.inputs))]


@converts("If")
def if_(n: Node) -> Sequence[Imported]:
    """The branch that a known condition chooses."""
    condition = bool(n.known(0, "a condition").reshape(-1)[0])
    return n.graph.inline(n.need("then_branch" if condition else "else_branch"), ())


@converts("Loop")
def loop(n: Node) -> Sequence[Imported]:
    """As many copies of the body as there are iterations; trip count and conditions are known."""
    body = n.need("body")
    carried = _operands(n, 2)
    most = int(n.known(0, "a trip count").reshape(-1)[0]) if n.has(0) else None
    going = bool(n.known(1, "a condition").reshape(-1)[0]) if n.has(1) else True
    stays = _stays_true(body)
    if most is not None and stays:
        _too_many(n, most)
    if most is None and stays:
        raise n.unsupported("no trip count and a condition that stays true: it never ends")
    scanned: list[list[Atom]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while going and (most is None or step < most):
        _too_many(n, step + 1)
        counter = Constant.of(np.int64(step), INT64)
        flag: Imported = Constant.of(np.asarray(True), BOOL)
        again, *results = n.graph.inline(body, [counter, flag, *carried])
        carried = results[: len(carried)]
        for row, value in zip(scanned, results[len(carried) :], strict=True):
            row.append(_atom(n, value))
        going = stays or bool(_known(n, again, "a condition")[0])
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
    """As many copies of the body as the scanned axis has elements."""
    if n.opset < 9:
        raise n.unsupported("the batch axis of opset 8: export the model with opset 9 or newer")
    body, count = n.need("body"), int(n.need("num_scan_inputs"))
    states = len(n.inputs) - count
    given = [n.atom(i) for i in range(len(n.inputs))]
    carried: list[Imported] = list(given[:states])
    rows = given[states:]
    outputs = len(body.output) - states
    axes = [
        n.front(a, tensor_type(r).rank)
        for a, r in zip(_ints(n, "scan_input_axes", count), rows, strict=True)
    ]
    lengths = {tensor_type(r).shape[a] for a, r in zip(axes, rows, strict=True)}
    length = lengths.pop() if len(lengths) == 1 else None
    if not isinstance(length, int):
        raise n.unsupported("a length that is symbolic or differs between inputs; use shapes=...")
    _too_many(n, length)
    backward = _ints(n, "scan_input_directions", count)
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
            out.append(n.result(first + k, "concatenate", *wide, axis=at))
    return out
