"""Writes out a model's local functions; refuses those that call themselves or grow too large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compiler.errors import ModelError, UnsupportedError
from compiler.frontend.limits import LOCAL_NODES

_DEPTH = 64
Key = tuple[str, str, str]


def inlined(model: Any) -> Any:
    """The model with its local functions written out.

    Raises:
        ModelError: they cannot be, since one calls itself, or does not fit its calls.
        UnsupportedError: the result would be too large.
    """
    import onnx.checker
    import onnx.inliner

    _check_size(model)
    try:
        return onnx.inliner.inline_local_functions(model)
    except (ValueError, RuntimeError, onnx.checker.ValidationError) as e:
        said = (str(e).splitlines() or [type(e).__name__])[0]
        raise ModelError(f"the model's local functions cannot be inlined: {said}") from None


def all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph (or function) and of the subgraphs in their attributes."""
    for n in graph.node:
        yield n
        for a in n.attribute:
            if a.HasField("g"):
                yield from all_nodes(a.g)
            for g in a.graphs:
                yield from all_nodes(g)


def _key(n: Any, name: str) -> Key:
    return n.domain, name, n.overload


def _check_size(model: Any) -> None:
    """Count the nodes of every function, written out, before anything is."""
    functions = {_key(f, f.name): f for f in model.functions}
    sizes: dict[Key, int] = {}

    def size(graph: Any, path: tuple[Key, ...]) -> int:
        total = 0
        for n in all_nodes(graph):
            total += expanded(_key(n, n.op_type), path)
            if total > LOCAL_NODES:
                raise UnsupportedError(
                    f"the model's local functions, written out, have more than {LOCAL_NODES} nodes"
                )
        return total

    def expanded(key: Key, path: tuple[Key, ...]) -> int:
        if key not in functions:
            return 1
        if key in path:
            raise ModelError(f"the model's local function {key[1]!r} calls itself; export it again")
        if len(path) >= _DEPTH:
            raise UnsupportedError(f"local functions that call each other {_DEPTH} deep")
        if key not in sizes:
            sizes[key] = size(functions[key], (*path, key))
        return sizes[key]

    size(model.graph, ())
