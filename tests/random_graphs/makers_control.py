"""Draws control flow: branches, loops and scans with small bodies."""

from __future__ import annotations

import numpy as np
from onnx import helper

from random_graphs.drawing import Drawing, draws
from random_graphs.makers_elementwise import FLOAT32
from random_graphs.oracle import Array, code_of

UNARY = ("Neg", "Abs", "Floor", "Identity", "Ceil")
"""Of float32, in every opset, and exact."""


def typed(name: str, a: Array) -> object:
    """The declaration of a value of a subgraph."""
    return helper.make_tensor_value_info(name, code_of(a), a.shape)


@draws("If")
def branch(g: Drawing, op: str) -> None:
    x = g.value(FLOAT32)
    y = g.given(g.of(x).shape, FLOAT32)
    inner = [g.name("b") for _ in range(2)]
    then = helper.make_node(g.any(UNARY), [x], [inner[0]])
    other = helper.make_node(g.any(["Add", "Sub", "Mul"]), [x, y], [inner[1]])
    graphs = [
        helper.make_graph([n], f"branch{k}", [], [typed(o, g.of(x))])
        for k, (n, o) in enumerate(zip((then, other), inner, strict=True))
    ]
    flag = (g.stored if g.chance(0.3) else g.input)(np.asarray(g.chance()))
    g.node(op, [flag], captured=[x, y], then_branch=graphs[0], else_branch=graphs[1])


@draws("Loop")
def loop(g: Drawing, op: str) -> None:
    """Carries a value for a few steps, and stacks another one."""
    x = g.value(FLOAT32, (0, 1, 2, 3))
    step = g.given(g.of(x).shape, FLOAT32)
    i, go, a, again, b, c = (g.name("b") for _ in range(6))
    nodes = [
        helper.make_node(g.any(["Add", "Sub", "Max"]), [a, step], [b]),
        helper.make_node("Identity", [go], [again]),
        helper.make_node(g.any(UNARY), [b], [c]),
    ]
    ints, flags = np.asarray(0, np.int64), np.asarray(True)
    body = helper.make_graph(
        nodes, "step", [typed(i, ints), typed(go, flags), typed(a, g.of(x))],
        [typed(again, flags), typed(b, g.of(x)), typed(c, g.of(x))],
    )  # fmt: skip
    trips = (g.stored if g.chance(0.6) else g.input)(np.asarray(g.int(1, 4), np.int64))
    g.node(op, [trips, "", x], 2, captured=[step], body=body)


@draws("Scan")
def scan(g: Drawing, op: str) -> None:
    """Runs over the rows of a value."""
    x = g.value(FLOAT32, (1, 2, 3))
    row = g.of(x)[:1].reshape(g.of(x).shape[1:]) if g.of(x).size else g.of(x).sum(0)
    start = g.given(row.shape, FLOAT32)
    h, v, h2, o = (g.name("b") for _ in range(4))
    nodes = [
        helper.make_node(g.any(["Add", "Sub", "Max"]), [h, v], [h2]),
        helper.make_node(g.any(UNARY), [h2], [o]),
    ]
    body = helper.make_graph(
        nodes, "row", [typed(h, row), typed(v, row)], [typed(h2, row), typed(o, row)]
    )
    g.node(op, [start, x], 2, num_scan_inputs=1, body=body,
           scan_input_directions=g.any([None, [0], [1]]))  # fmt: skip
