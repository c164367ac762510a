"""Makes a failing graph small, and saves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from random_graphs.comparing import Difference, cut_model, stored
from random_graphs.drawing import Graph
from random_graphs.whole import WholeDifference, check_whole, whole_model

TRIES = 60
"""Builds that making one graph small may take."""


def smallest(g: Graph, fails: Callable[[Graph], bool]) -> Graph:
    """The graph without nodes that it fails without: halves first, then one by one. What a node
    that is gone gave is an input with the same numbers."""
    tries, size = TRIES, max(len(g.nodes) // 2, 1)
    while True:
        start, changed = 0, False
        while start < len(g.nodes) and tries > 0:
            fewer = g.of(g.nodes[:start] + g.nodes[start + size :])
            tries -= 1
            if fewer.nodes and fails(fewer):
                g, changed = fewer, True
            else:
                start += size
        if tries <= 0 or (size == 1 and not changed):
            return g
        size = max(size // 2, 1)


def smaller(d: WholeDifference) -> WholeDifference:
    """The difference on as few nodes as it takes."""

    def found(g: Graph) -> WholeDifference | None:
        return next(check_whole([g], d.setting, g.ends), None)

    def fails(g: Graph) -> bool:
        other = found(g)
        return other is not None and type(other.error) is type(d.error)

    if not fails(d.graph):
        return d
    return found(smallest(d.graph, fails)) or d


def save(d: Difference | WholeDifference, folder: Path) -> Path:
    """Writes NAME.onnx and NAME.npz (its inputs); the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(d, Difference):
        proto, name = cut_model(d.graph, [d.node]), f"{d.node.op}_{d.graph.seed}_{d.node.gives[0]}"
    else:
        proto, name = whole_model(d.graph, d.graph.ends), f"whole_{d.graph.seed}"
    arrays = {i.name: d.graph.arrays[i.name.removesuffix("_read")] for i in proto.graph.input}
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    np.savez(path.with_suffix(".npz"), **{n: stored(a) for n, a in arrays.items()})
    return path
