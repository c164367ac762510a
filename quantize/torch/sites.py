"""Where a graph of torch has what a plan speaks of: the nodes that compute its values, and those
that read its weights and biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compiler.errors import UnsupportedError
from compiler.ir.expr import Call
from quantize.plan.call_facts import Form, form
from quantize.torch.session import Session

if TYPE_CHECKING:
    from torch.fx import Node

CONFIG = "dtypelab_config"
"""Where a graph keeps the configuration that it was annotated by."""
_STRAIGHT, _TURNED = ("weight",), ("mat2", "other")
"""Names that operators of torch give weights: with the output channel first, and last."""
_DEPTH = 4
"""Nodes between a product and its result at most: batch norms, and what they are made of."""


@dataclass(frozen=True)
class ValueSite:
    """A value that is quantized where it is made.

    Attributes:
        name: the value whose parameters it has.
    """

    name: str
    node: Node


@dataclass(frozen=True)
class WeightSite:
    """The weights and the bias of a node.

    Attributes:
        name: the node.
        node: the product that reads them.
        weight, bias: the attributes of the module; no bias: None.
        turned: the output channel is the last axis of the weights, not the first.
    """

    name: str
    node: Node
    weight: Node
    bias: Node | None
    turned: bool


@dataclass(frozen=True)
class Sites:
    """All of a graph."""

    values: tuple[ValueSite, ...]
    weights: tuple[WeightSite, ...]
    inputs: Mapping[str, Node]


def sites_of(session: Session, nodes: Mapping[str, Node]) -> Sites:
    """The sites of a graph.

    Args:
        session: what is decided.
        nodes: name of a value -> the node that computes it.

    Raises:
        UnsupportedError: some are not there; all are named.
    """
    wanted = {**{name: name for name in session.values}, **session.clipped()}
    values = [ValueSite(of, nodes[name]) for name, of in wanted.items() if name in nodes]
    found = {name: weight_site(name, nodes.get(name)) for name in session.weighted()}
    missing = [name for name in wanted if name not in nodes]
    missing += [f"weights of {name}" for name, site in found.items() if site is None]
    for name, site in found.items():
        shape = session.constants(name)[0].shape
        if site is not None and not fits(site, shape):
            missing.append(f"weights of {name}, which the program has in another layout")
    if missing:
        raise UnsupportedError(
            f"the exported graph has no nodes of their own for {'; '.join(missing)}: skip these "
            "nodes, or export operators apart with program.run_decompositions()"
        )
    inputs = {name: nodes[name] for name in session.inputs if name in nodes}
    return Sites(tuple(values), tuple(s for s in found.values() if s is not None), inputs)


def float_readers(session: Session, nodes: Mapping[str, Node]) -> dict[str, frozenset[str]]:
    """Value -> the nodes that read it as a float although integer operators quantize it: what
    computes with a float in float32 reads that, not what the integers stand for."""
    graph, found = session.graph, {}
    for name in session.values:
        p = graph.producer(graph.named[name])
        if p is not None and session.nodes[p.var.name].decision != "float":
            continue
        readers = [r for r in graph.readers(graph.named[name]) if r is not None]
        found[name] = frozenset(
            nodes[r.var.name].name
            for r in readers
            if isinstance(r.value, Call)
            and session.nodes[r.var.name].decision == "float"
            and form(r.value) != Form.MOVE
            and r.var.name in nodes
        )
    return found


def tensor(node: Node) -> Any:
    """The tensor that an attribute of the module is."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner


def fits(site: WeightSite, shape: tuple[int, ...]) -> bool:
    """Whether the weights of a site are those of a program, but for axes of one element."""
    there = [d for d in tensor(site.weight).shape if d != 1]
    here = [d for d in (shape[::-1] if site.turned else shape) if d != 1]
    return there == here


def argument(node: Node, name: str) -> Any:
    """An argument by the name that the operator's schema gives it."""
    k = position(node, name)
    if k is None:
        return None
    return node.args[k] if k < len(node.args) else node.kwargs.get(name)


def position(node: Node, name: str) -> int | None:
    """Where an argument is in the operator's schema; None if there is none of this name."""
    schema = getattr(node.target, "_schema", None)
    names = [] if schema is None else [a.name for a in schema.arguments]
    return names.index(name) if name in names else None


def weight_site(name: str, node: Node | None) -> WeightSite | None:
    """The product that a value is the result of, perhaps through a batch norm."""
    for _ in range(_DEPTH):
        if node is None or node.op != "call_function":
            return None
        if position(node, "running_var") is None:  # whose weights are no factors of a product
            for given in (*_STRAIGHT, *_TURNED):
                weight = argument(node, given)
                if getattr(weight, "op", "") == "get_attr":
                    bias = argument(node, "bias")
                    return WeightSite(name, node, weight, bias, given in _TURNED)
        first = node.args[0] if node.args else None
        node = first if hasattr(first, "target") else None
    return None
