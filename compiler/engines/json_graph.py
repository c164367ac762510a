"""Engines that are runtimes of their own: they are given a region as JSON, and its constants.

The graph is one object:

    {"version": 1, "name": "left_0",
     "inputs": [TENSOR ...], "constants": [TENSOR ...],
     "nodes": [{"composite": "conv_relu", "inputs": [REF ...], "outputs": [TENSOR ...],
                "inside": [{"op": "nn.conv2d", "attrs": {...}, "inputs": [REF ...],
                            "outputs": [TENSOR ...]} ...]} ...],
     "outputs": [REF ...]}

TENSOR is {"shape": [2, "N"], "dtype": "float32"}; sizes that are open are texts. REF is
["input", k], ["constant", k] or ["node", k, field]; inside of a composite, "input" counts what it
reads, and "node" its own nodes; constants are those of the whole graph. The last node inside is
what the composite gives. Attributes are those of the operator, lists where it has tuples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from compiler.engines.engine import Engine, Runner
from compiler.engines.sequence import composite_name, parts
from compiler.errors import UnsupportedError
from compiler.ir.expr import (
    Atom,
    Call,
    Constant,
    Function,
    TupleGetItem,
    Var,
    atom_type,
)
from compiler.ir.regions import composite_of
from compiler.op.opdef import OpDef
from compiler.pattern.tables import CompositePattern
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType, Type

VERSION = 1
Runtime = Callable[[str, Sequence[Array]], Runner]
"""Makes a runner of a graph's text and the arrays of its constants."""
_Ref = list[Any]


def json_engine(
    name: str,
    patterns: Sequence[CompositePattern],
    runtime: Runtime,
    missing: Callable[[], str] = str,
    doc: str = "",
) -> Engine:
    """An engine whose own runtime reads graphs (not registered yet)."""

    def compile_(f: Function, region: str) -> Runner:
        return runtime(*graph_json(f, region))

    return Engine(name, tuple(patterns), compile_, missing, doc)


def graph_json(f: Function, name: str) -> tuple[str, list[Array]]:
    """A region as JSON, and its constants.

    Raises:
        UnsupportedError: an operator is in no composite.
    """
    parts(f)
    constants: list[Constant] = []
    graph = {
        "version": VERSION,
        "name": name,
        "inputs": [_tensor(atom_type(p)) for p in f.params],
        **_nodes(f, constants, _composite),
    }
    graph["constants"] = [_tensor(c.type) for c in constants]
    return json.dumps(graph), [c.data for c in constants]


def _nodes(
    f: Function, constants: list[Constant], node: Callable[[Call, list[Constant]], dict[str, Any]]
) -> dict[str, Any]:
    refs: dict[Var, _Ref] = {p: ["input", k] for k, p in enumerate(f.params)}

    def ref(a: Atom) -> _Ref:
        if isinstance(a, Var):
            return refs[a]
        at = next((k for k, c in enumerate(constants) if c.data is a.data), len(constants))
        if at == len(constants):
            constants.append(a)
        return ["constant", at]

    made: list[dict[str, Any]] = []
    for b in f.bindings:
        v = b.value
        if isinstance(v, TupleGetItem):
            kind, k, *_ = ref(v.value)
            refs[b.var] = [kind, k, v.index]
            continue
        if not isinstance(v, Call):
            raise UnsupportedError(f"%{b.var.name} is a tuple, which graphs as JSON do not have")
        refs[b.var] = ["node", len(made), 0]
        outputs = [_tensor(t) for t in _leaves(atom_type(b.var))]
        inputs = [ref(a) for a in v.args]
        made.append({**node(v, constants), "inputs": inputs, "outputs": outputs})
    return {"nodes": made, "outputs": [ref(r) for r in f.results]}


def _composite(v: Call, constants: list[Constant]) -> dict[str, Any]:
    c = composite_of(v)
    assert c is not None
    return {"composite": composite_name(c), "inside": _nodes(c, constants, _operator)["nodes"]}


def _operator(v: Call, _: list[Constant]) -> dict[str, Any]:
    assert isinstance(v.op, OpDef)
    return {"op": v.op.name, "attrs": _plain(v.attrs)}


def _leaves(t: Type) -> list[TensorType]:
    types = t.fields if isinstance(t, TupleType) else (t,)
    return [x for x in types if isinstance(x, TensorType)]


def _tensor(t: Type) -> dict[str, Any]:
    assert isinstance(t, TensorType)
    return {"shape": [d if isinstance(d, int) else str(d) for d in t.shape], "dtype": str(t.dtype)}


def _plain(value: Any) -> Any:
    """A value of an attribute as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in fields(value)}
        return {k: _plain(v) for k, v in own.items()} if own or not str(value) else {}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
