"""Compares the integer graph of a plan, interpreted and compiled, with `quantize.trace_plan`."""

from __future__ import annotations

from typing import Any

import numpy as np

import compiler
import quantize
from compiler.interpret.graph import trace
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType
from quantize import Plan
from quantize.reference.integers import quantized
from quantize.reference.trace import Traced


def values_of(q: IRModule, compiled: bool, *args: Array) -> dict[str, Any]:
    """Name -> array of every tensor of an integer graph."""
    if not compiled:
        return {b.var.name: v for b, v in trace(q, *args)}
    f = q.main
    tensors = [b.var for b in f.bindings if isinstance(b.var.type, TensorType)]
    got = compiler.build(q.with_function("main", f.with_body(f.bindings, tensors)))(*args)
    got = got if isinstance(got, list) else [got]
    return dict(zip([v.name for v in tensors], got, strict=True))


def check_plan(mod: IRModule, plan: Plan, *args: Array, compiled: bool = True) -> dict[str, int]:
    """Compare every node by both executions (or interpreted alone); counts nodes by their kind."""
    q = quantize.realize(mod, plan)
    counts: dict[str, int] = {}
    for native in (False, True)[: 1 + compiled]:
        got = values_of(q, native, *args)
        counts = {}
        for name, node in quantize.trace_plan(mod, plan, *args, given=floats_of(got)).items():
            if _compared(name, node, got, plan, exact=not native):
                counts[node.kind] = counts.get(node.kind, 0) + 1
    if compiled:  # as it runs usually: fused, with the results alone
        whole, alone = compiler.evaluate(q, *args), compiler.build(q)(*args)
        if not counts.get("float"):
            np.testing.assert_array_equal(np.asarray(alone), np.asarray(whole))
    return counts


def floats_of(got: dict[str, Any]) -> dict[str, Array]:
    """The float values among them."""
    return {k: v for k, v in got.items() if getattr(v, "dtype", None) == np.float32}


def _compared(name: str, node: Traced, got: dict[str, Any], plan: Plan, exact: bool) -> bool:
    """Whether the integer graph has the node; it then agrees."""
    if node.kind == "float":
        return name in got and _agree(name, node.values, got[name], plan, exact)
    stored = f"{name}_q" if node.kind == "integer" else f"{name}_acc"
    if stored not in got or isinstance(got[stored], tuple):  # dead, or compared field by field
        return False
    np.testing.assert_array_equal(got[stored].astype(np.float64), node.values, err_msg=name)
    return True


def _agree(name: str, want: Any, got: Any, plan: Plan, exact: bool) -> bool:
    """Float nodes: the same reference where interpreted; else within a unit where it is put on a
    grid."""
    for w, g in zip(*(v if isinstance(v, tuple) else (v,) for v in (want, got)), strict=True):
        if exact:
            np.testing.assert_array_equal(g, w, err_msg=name)
        elif name in plan.values:
            params = plan.values[name]
            apart = np.abs(quantized(g, params) - quantized(w, params))
            assert apart.max() <= 1, name
        else:
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5, err_msg=name)
    return True
