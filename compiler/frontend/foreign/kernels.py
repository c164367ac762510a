"""What onnxruntime has kernels for, without showing it a model: errors say so where it helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from compiler.frontend.foreign.border import Border
from compiler.frontend.foreign.kinds import declared_kinds, kind_text
from compiler.frontend.foreign.session import ENGINE, missing
from compiler.frontend.function_body import has_body
from compiler.frontend.local_functions import all_nodes
from compiler.frontend.node import CONVERTERS
from compiler.frontend.schema import operator_key

_OPEN = 2**31 - 1
"""The last version of a kernel that is there for its operator's newest version alone."""
_Key = tuple[str, str]


def is_refused(node: Any, opset: int) -> bool:
    """Whether a node's operator has no converter, and the standard does not define it by others."""
    return operator_key(node) not in CONVERTERS and not has_body(node.op_type, opset, node.domain)


def advice_for(model: Any, opset: int, at: Any = None) -> str:
    """How a model that is refused could be run, as the end of a sentence; empty if we know of no
    way.

    Args:
        model, opset: the ModelProto, and the version of the default domain by which it is read.
        at: the node that is refused, if it is one whose operator we have.
    """
    kinds = declared_kinds(model.graph)
    border = Border(model.graph, kinds, lambda n: is_refused(n, opset))
    nodes = [n for n in model.graph.node if n is at or border.is_seed(n)]
    versions = {o.domain: int(o.version) for o in model.opset_import}
    return advice(nodes, {**versions, "": opset}, kinds) if nodes else ""


def advice(nodes: Iterable[Any], versions: Mapping[str, int], kinds: Mapping[str, Any]) -> str:
    """The end of a sentence about nodes that we refuse: how they could run; empty if onnxruntime is
    not installed, or has no kernel for one of them.

    Args:
        nodes: NodeProtos.
        versions: domain -> version of its operator set; the default domain is "".
        kinds: value name -> TypeProto, as far as known.
    """
    if missing() or not all(_has_kernel(n, versions, kinds) for n in _with_inner(nodes)):
        return ""
    return (
        f"; engines=[{ENGINE!r}] (--engine {ENGINE}) hands such nodes to onnxruntime, which can "
        "run them"
    )


def _with_inner(nodes: Iterable[Any]) -> Iterator[Any]:
    for n in nodes:
        yield n
        for a in n.attribute:
            if a.HasField("g"):
                yield from all_nodes(a.g)


def _has_kernel(n: Any, versions: Mapping[str, int], kinds: Mapping[str, Any]) -> bool:
    domain = "" if n.domain == "ai.onnx" else n.domain
    key = domain, n.op_type
    if key == ("", "Constant"):  # which becomes a weight
        return True
    schemas = [s for s in _schemas().get(key, ()) if s.since_version <= versions.get(domain, 0)]
    if not schemas:
        return False
    schema = max(schemas, key=lambda s: int(s.since_version))
    names = [i.typeStr for i in schema.inputs]
    given = {
        names[k]: kind_text(kinds[x])
        for k, x in enumerate(n.input)
        if x in kinds and k < len(names)
    }
    return any(
        _fits(kernel, schema.since_version)
        and all(kind in kernel.type_constraints.get(t, [kind]) for t, kind in given.items())
        for kernel in _kernels().get(key, ())
    )


def _fits(kernel: Any, since: int) -> bool:
    """Whether a kernel is one of the operator's version, as onnxruntime decides it."""
    first, last = kernel.version_range
    return bool(first == since if last == _OPEN else first <= since <= last)


@cache
def _kernels() -> dict[_Key, list[Any]]:
    state = _state()
    every = state.get_all_opkernel_def() if hasattr(state, "get_all_opkernel_def") else []
    out: dict[_Key, list[Any]] = {}
    for k in every:
        if k.provider == "CPUExecutionProvider":
            out.setdefault((k.domain, k.op_name), []).append(k)
    return out


@cache
def _schemas() -> dict[_Key, list[Any]]:
    state = _state()
    every = state.get_all_operator_schema() if hasattr(state, "get_all_operator_schema") else []
    out: dict[_Key, list[Any]] = {}
    for s in every:
        out.setdefault((s.domain, s.name), []).append(s)
    return out


def _state() -> Any:
    from onnxruntime.capi import onnxruntime_pybind11_state

    return onnxruntime_pybind11_state
