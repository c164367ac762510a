"""Whole graphs, compiled and interpreted, in every format and setting: the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import compiler
from compiler.errors import DtypelabError
from random_graphs import oracle
from random_graphs.comparing import cut_model, identical, listed, sized, stored
from random_graphs.drawing import Drawn, Graph
from random_graphs.settings import Setting


@dataclass(frozen=True, eq=False)
class WholeDifference:
    """What differs between compiled code and the interpreter.

    Attributes:
        graph: the graph, with the values it ran on.
        setting: how it was computed.
        output: the value that differs; empty if something was raised.
        outputs: all values that were compared.
    """

    graph: Graph
    setting: Any
    output: str = ""
    got: Any = None
    want: Any = None
    outputs: Sequence[str] = ()
    error: BaseException | None = None

    def __str__(self) -> str:
        maker = [n.op for n in self.graph.nodes if self.output in n.gives]
        text = f"seed={self.graph.seed} {self.setting} {self.output} of {maker}"
        if self.error is not None:
            ops = [n.op for n in self.graph.nodes]
            return f"{type(self.error).__name__}: {self.error}"[:400] + f" {ops} {text}"
        wrong = ~identical(self.got, self.want)
        at = np.argwhere(wrong)[:3]
        some = [(tuple(map(int, k)), self.got[tuple(k)], self.want[tuple(k)]) for k in at]
        return f"{text}: {int(wrong.sum())} of {wrong.size} differ, such as {some}"


def whole_model(g: Graph, outputs: Sequence[str]) -> Any:
    """The graph as one model with these outputs."""
    weights = {w: g.arrays[w] for w in g.weights if any(w in n.reads for n in g.nodes)}
    inputs = {i: g.arrays[i] for i in g.inputs}
    return oracle.model([n.proto for n in g.nodes], inputs, outputs, weights, g.opset)


def computable(g: Graph, setting: Setting, refused: dict[str, int]) -> Graph:
    """The graph of those nodes that are imported, and that the setting's format has."""
    kept: list[Drawn] = []
    for n in g.nodes:
        try:
            setting.changed(sized(cut_model(g, [n])))
        except DtypelabError:
            refused[n.op] = refused.get(n.op, 0) + 1
        else:
            kept.append(n)
    return g.of(kept)


def imported(g: Graph, outputs: Sequence[str]) -> Any:
    """The graph as a module; None where its nodes do not go together, as sizes found at run time
    do not with most."""
    try:
        return sized(whole_model(g, outputs))
    except DtypelabError:
        return None


def check_whole(
    runs: Sequence[Graph], setting: Setting, outputs: Sequence[str]
) -> Iterator[WholeDifference]:
    """Differences of compiled code from the interpreter on each run."""
    g = runs[0]
    mod = imported(g, outputs)
    if mod is None:
        return
    try:
        mod = setting.changed(mod)
        exe = setting.build(mod)
    except Exception as e:
        yield WholeDifference(g, setting, error=e)
        return
    for run in runs:
        yield from compared(run, setting, mod, exe, outputs)


def compared(
    run: Graph, setting: Any, mod: Any, exe: Any, outputs: Sequence[str]
) -> Iterator[WholeDifference]:
    """The first difference of one run: those after it follow from it."""
    feeds = {p.name: stored(run.arrays[p.name]) for p in mod.main.params}
    try:
        with np.errstate(all="ignore"):
            want = listed(compiler.evaluate(mod, feeds))
        got = listed(exe(**feeds))
    except Exception as e:
        yield WholeDifference(run, setting, error=e)
        return
    for name, a, b in zip(outputs, got, want, strict=True):
        if not identical(a, b).all():
            yield WholeDifference(run, setting, name, a, b, outputs)
            return


def connected(g: Graph) -> Graph:
    """Without nodes that have nothing to do."""
    return replace(g, nodes=tuple(n for n in g.nodes if n.gives))


__all__ = ["Mapping", "check_whole", "computable", "connected", "imported"]
