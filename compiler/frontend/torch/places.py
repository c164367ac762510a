"""A graph that torch exported, as a program, and where in the graph its values are made.

The graph is not changed: a copy of it is imported, that shares its tensors. What trains in it is as
it is in evaluation: batch norms and dropout, and running statistics stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compiler.errors import ModelError
from compiler.frontend.limits import MEMORY, Budget
from compiler.frontend.torch.exporting import exported
from compiler.frontend.torch.graph import TorchImport
from compiler.frontend.torch.importer import of_import
from compiler.frontend.torch.signature import user_inputs
from compiler.frontend.torch.traced import of_program
from compiler.ir.expr import IRModule, Var

if TYPE_CHECKING:
    import torch

_TAG = "dtypelab_node"
"""Where torch's passes carry the name of the node that others were made of."""
_TRAINS = ("training", "train")
"""Arguments that say whether an operator is in training."""


@dataclass(frozen=True)
class Placed:
    """A program, and where its values are.

    Attributes:
        module: the program, not prepared.
        nodes: name of a value -> the node of the graph that computes it, of several that do (one
            changes nothing of what it is given) the first; values that are computed inside of a
            node have none.
    """

    module: IRModule
    nodes: Mapping[str, torch.fx.Node]


def placed(graph: torch.fx.GraphModule) -> Placed:
    """Import what `torch.export.export(...).module()` gave, or a pass on it.

    Raises:
        ModelError: it is no such graph, or torch.export refuses it.
        UnsupportedError: see `from_torch`.
    """
    nodes = getattr(getattr(graph, "graph", None), "nodes", None)
    if nodes is None or not any("val" in n.meta for n in nodes if n.op == "placeholder"):
        raise ModelError(
            "this takes the GraphModule of an exported program, "
            f"torch.export.export(module, args).module(), not {_said(graph)}"
        )
    evaluated = _evaluated(graph)
    args, kwargs, shapes = _examples(evaluated)
    program = exported(evaluated, args, kwargs, shapes)
    traced = of_program(program, None)
    importer = TorchImport(traced, Budget(MEMORY))
    module = of_import(importer)
    last = {_tag(n): n for n in traced.nodes if _tag(n)}
    of = {n.name: n for n in nodes}
    given = [n for n in nodes if n.op == "placeholder"]
    found: dict[str, torch.fx.Node] = {}
    of_inputs = {n.name: x for n, x in zip(user_inputs(program), given, strict=True)}
    tensors = [of_inputs[n.name] for n in user_inputs(program) if hasattr(n.meta["val"], "shape")]
    found.update(zip((p.name for p in module.main.params), tensors, strict=True))
    for n in traced.nodes:  # where sizes have bounds, the program goes on with other names
        value = importer.made(n) if n.name in of_inputs else None
        if isinstance(value, Var):
            found[value.name] = of_inputs[n.name]
    for n in traced.nodes:
        value, tag = importer.made(n), _tag(n)
        if isinstance(value, Var) and tag in of and importer.made(last[tag]) is value:
            found.setdefault(value.name, of[tag])
    return Placed(module, found)


def _said(graph: Any) -> str:
    kind = type(graph).__name__
    return f"a {kind} without types of its inputs" if hasattr(graph, "graph") else kind


def _tag(n: Any) -> str:
    return str((n.meta.get("custom") or {}).get(_TAG, ""))


def _evaluated(graph: Any) -> Any:
    """A copy of a graph with the same tensors, whose nodes carry their names, in evaluation."""
    import torch

    copied = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for n in list(copied.graph.nodes):
        n.meta["custom"] = {**(n.meta.get("custom") or {}), _TAG: n.name}
        schema = getattr(n.target, "_schema", None)
        if schema is None:
            continue
        if schema.is_mutable and not n.users:
            copied.graph.erase_node(n)
            continue
        for k, declared in enumerate(schema.arguments):
            if declared.name in _TRAINS and k < len(n.args):
                n.args = (*n.args[:k], False, *n.args[k + 1 :])
    copied.recompile()
    return copied


def _examples(graph: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Inputs of the sizes and element types with which a graph was exported, by position and by
    name, and which of the sizes are open."""
    import torch

    shapes: Any = torch.export.ShapesCollection()
    leaves = []
    for n in graph.graph.nodes:
        if n.op != "placeholder":
            continue
        value = n.meta.get("val")
        if not hasattr(value, "shape"):
            leaves.append(value)
            continue
        sizes = [getattr(getattr(d, "node", None), "hint", d) for d in value.shape]
        leaves.append(torch.zeros(sizes, dtype=value.dtype))
        open_sizes = [k for k, d in enumerate(value.shape) if not isinstance(d, int)]
        if open_sizes:
            shapes[leaves[-1]] = dict.fromkeys(open_sizes, torch.export.Dim.DYNAMIC)
    pytree: Any = torch.utils._pytree
    spec = getattr(graph, "_in_spec", None)
    args, kwargs = pytree.tree_unflatten(leaves, spec) if spec is not None else (leaves, {})
    return tuple(args), dict(kwargs), shapes if shapes._shapes else None
