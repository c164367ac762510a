"""Why a model cannot be imported for sizes that the caller gives: what it takes for granted of open
sizes is not true of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.boundary.assumptions import assumptions, check_assumptions
from compiler.errors import DtypelabError, InputError
from compiler.frontend.graph_import import GraphImport
from compiler.frontend.limits import Budget
from compiler.frontend.signature import input_types
from compiler.ir.expr import tensor_type
from compiler.symbolic import Index, Var

Shapes = Mapping[str, Sequence[int | str | None]]


def broken_assumption(
    graph: Any, folder: Path | None, opset: int, budget: Budget, shapes: Shapes, constants: Any
) -> str:
    """The assumption that known sizes in `shapes` break, as a call of the open model would say it;
    empty if there is none, or the model cannot be imported with open sizes either.

    Args:
        graph, folder, opset, budget: as for `GraphImport`.
        shapes, constants: as for `from_onnx`.
    """
    if not shapes:
        return ""
    weights = {t.name for t in graph.initializer}
    entries = [e for e in graph.input if e.name not in weights and e.name not in constants]
    try:
        given = input_types(entries, shapes)
        names = [[d if isinstance(d, str | Index) else None for d in s] for s in shapes.values()]
        f = GraphImport(graph, folder, opset, budget).run(
            dict(zip(shapes, names, strict=True)), constants
        )
    except DtypelabError:
        return ""
    inputs = [(p.name, tensor_type(p)) for p in f.params]
    sizes: dict[Var, int] = {}
    for (_, t), known in zip(inputs, given.values(), strict=True):
        pairs = zip(t.shape, known.shape, strict=True)
        sizes.update((d, n) for d, n in pairs if isinstance(d, Var) and isinstance(n, int))
    try:
        check_assumptions(assumptions(f), inputs, sizes)
    except InputError as error:
        return str(error)
    return ""
