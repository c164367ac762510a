"""Compares what onnxruntime, the interpreter and compiled code give for the nodes of a graph.

Every node is judged on the reference's own operands: the graph is cut between its nodes, so that
the rounding of one is no excuse for the next. The graph is imported whole as well; there compiled
code is compared with the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

import compiler
import datatypes  # noqa: F401  (the formats that bfloat16 is one of)
from compiler.errors import DtypelabError, InputError, ModelError, UnsupportedError
from compiler.transform.portability import unportable
from random_graphs import oracle
from random_graphs.drawing import Drawn, Graph
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import BFLOAT16, Array
from random_graphs.tolerances import within


@dataclass(frozen=True, eq=False)
class Difference:
    """What differs where.

    Attributes:
        stage: "import", "interpreted" (from onnxruntime), "compiled" (from interpreted).
        node: whose result differs, on the operands in `graph`.
        output: which of its results; -1 if there is none.
        wrong: the elements that differ, of the result's shape.
        error: what was raised instead of a result.
    """

    stage: str
    graph: Graph
    node: Drawn
    output: int = -1
    got: Any = None
    want: Any = None
    wrong: Any = None
    error: BaseException | None = None

    def __str__(self) -> str:
        n = self.node
        what = f"{self.stage} {n.op} seed={self.graph.seed} opset={self.graph.opset} {n.gives}"
        types = [f"{self.graph.arrays[r].dtype}{list(self.graph.arrays[r].shape)}" for r in n.reads]
        text = f"{what} of {', '.join(types)}"
        if self.error is not None:
            return f"{text}: {type(self.error).__name__}: {self.error}"[:600]
        if self.wrong is None:
            return f"{text}: {self.got} instead of {self.want}"
        at = np.argwhere(self.wrong)[:3]
        some = [(tuple(map(int, k)), self.got[tuple(k)], self.want[tuple(k)]) for k in at]
        return f"{text}: {int(self.wrong.sum())} of {self.wrong.size} differ, such as {some}"


def cut_model(g: Graph, nodes: Sequence[Drawn]) -> ModelProto:
    """The nodes, each reading inputs of its own instead of what the others give."""
    read = {r for n in nodes for r in n.reads}
    names = {r: f"{r}_read" for r in read - g.weights}
    protos = [renamed(n.proto, names) for n in nodes]
    inputs = {new: g.arrays[old] for old, new in names.items()}
    weights = {r: g.arrays[r] for r in read & g.weights}
    outputs = [o for n in nodes for o in n.gives]
    return oracle.model(protos, inputs, outputs, weights, g.opset)


def sized(proto: ModelProto) -> Any:
    """The model as a module of the sizes that it declares; a size of 0 in a file alone would say
    that it is not known."""
    shapes = {
        i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
        for i in proto.graph.input
    }
    return compiler.from_onnx(proto, shapes=shapes)


def renamed(proto: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A node that reads other values; its subgraphs too."""
    made = NodeProto()
    made.CopyFrom(proto)
    todo = [made]
    while todo:
        n = todo.pop()
        read = [names.get(i, i) for i in n.input]
        del n.input[:]
        n.input.extend(read)
        for a in n.attribute:
            todo += a.g.node
    return made


def fed(g: Graph, mod: Any) -> dict[str, Array]:
    """Inputs of a cut module, in the storage of their dtypes."""
    found = {}
    for p in mod.main.params:
        name = p.name.removesuffix("_read")
        found[p.name] = stored(g.arrays[name])
    return found


def stored(a: Array) -> Array:
    """bfloat16 as its codes."""
    return a.view(np.uint16) if a.dtype == BFLOAT16 else a


def numbers(a: Array, like: Array) -> Array:
    """Codes of bfloat16 as numbers, where `like` are."""
    return a.view(BFLOAT16) if like.dtype == BFLOAT16 and a.dtype == np.uint16 else a


def importable(g: Graph, refused: dict[str, list[str]]) -> Iterator[Drawn | Difference]:
    """The nodes that are imported each on its own; errors that are no clear refusal. What is
    refused is added to `refused`, by operator."""
    for n in g.nodes:
        try:
            sized(cut_model(g, [n]))
        except (UnsupportedError, ModelError) as e:
            refused.setdefault(n.op, []).append(str(e))
        except Exception as e:
            yield Difference("import", g, n, error=e)
        else:
            yield n


def check_nodes(
    g: Graph, runs: Sequence[Graph], refused: dict[str, list[str]], build: bool = True
) -> Iterator[Difference]:
    """Every node, interpreted and compiled, on the operands of every run.

    Args:
        g: the graph.
        runs: it with the values of one run or more.
        refused: receives what the importer refuses.
        build: whether to compile as well.
    """
    nodes = list(g.nodes)
    try:
        mod = sized(cut_model(g, nodes))
    except Exception:
        found = list(importable(g, refused))
        yield from (f for f in found if isinstance(f, Difference))
        nodes = [f for f in found if isinstance(f, Drawn)]
        if not nodes:
            return
        mod = sized(cut_model(g, nodes))
    yield from _check_module(mod, nodes, runs, build)


def _check_module(
    mod: Any, nodes: Sequence[Drawn], runs: Sequence[Graph], build: bool
) -> Iterator[Difference]:
    places = [(n, k) for n in nodes for k in range(len(n.gives))]
    try:
        exe = compiler.build(mod) if build else None
    except Exception as e:
        yield from apart("build", e, nodes, runs, build)
        return
    for run in runs:
        feeds = fed(run, mod)
        try:
            with np.errstate(all="ignore"):
                want = listed(compiler.evaluate(mod, feeds))
        except Exception as e:
            yield from apart("interpreted", e, nodes, [run], build)
            continue
        for (n, k), w in zip(places, want, strict=True):
            yield from judged("interpreted", run, n, k, w, run.arrays[n.gives[k]])
        if exe is None:
            continue
        try:
            got = listed(exe(**feeds))
        except Exception as e:
            yield from apart("compiled", e, nodes, [run], build)
            continue
        for (n, k), a, w in zip(places, got, want, strict=True):
            like = run.arrays[n.gives[k]]
            yield from judged("compiled", run, n, k, a, numbers(w, like))


def apart(
    stage: str, e: Exception, nodes: Sequence[Drawn], runs: Sequence[Graph], build: bool
) -> Iterator[Difference]:
    """Nodes one by one, after all of them together failed."""
    if len(nodes) == 1:
        yield Difference(stage, runs[0], nodes[0], error=e)
        return
    for n in nodes:
        mod = sized(cut_model(runs[0], [n]))
        yield from _check_module(mod, [n], runs, build)


def order_is_free(g: Graph, n: Drawn) -> bool:
    """Whether compiled code may form sums of the node in another order than the interpreter."""
    return bool(unportable(sized(cut_model(g, [n]))))


def identical(a: Array, b: Array) -> Array:
    """Where two arrays hold the same bits; any NaN is any other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.zeros(b.shape, bool)
    if not is_float(a.dtype):
        return np.asarray(a == b)
    bits = f"u{a.dtype.itemsize}"
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return np.asarray(same.reshape(a.shape) | (np.isnan(a) & np.isnan(b)))


def listed(value: Any) -> list[Array]:
    """Results as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def judged(
    stage: str, g: Graph, n: Drawn, output: int, got: Array, want: Array
) -> Iterator[Difference]:
    """The difference of one result, if there is one."""
    got = numbers(got, want)
    if got.shape != want.shape or got.dtype != want.dtype:
        yield Difference(
            stage, g, n, output, f"{got.dtype}{got.shape}", f"{want.dtype}{want.shape}"
        )
        return
    wrong = ~within(n, g, got, want, output)
    if stage == "compiled":
        apart = ~identical(got, want)
        wrong = apart & wrong if not apart.any() or order_is_free(g, n) else apart
    if wrong.any():
        yield Difference(stage, g, n, output, got, want, wrong)


__all__ = ["Difference", "DtypelabError", "InputError", "check_nodes"]
