"""Sizes that depend on those of the inputs, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir.expr import tensor_type
from compiler.symbolic import Index, IntLike, Var

if TYPE_CHECKING:
    from quantize.onnx.export import Writer


def shape(w: Writer, dims: Sequence[IntLike]) -> str:
    """The name of an int64 vector of these sizes.

    Raises:
        UnsupportedError: one is not made of the inputs' sizes.
    """
    if all(isinstance(d, int) for d in dims) or not dims:
        return w.constant(list(dims), np.int64)
    parts = [size(w, d) for d in dims]
    return parts[0] if len(parts) == 1 else w.step("Concat", parts, "shape", axis=0)


def size(w: Writer, d: IntLike) -> str:
    """The name of an int64 vector of one element, a size; written once.

    Raises:
        UnsupportedError: see `shape`.
    """
    d = Index.of(d)
    if d not in w.sizes:
        w.sizes[d] = _sum(w, d)
    return w.sizes[d]


def _sum(w: Writer, d: Index) -> str:
    out = ""
    for atom, c in d.terms.items():
        if isinstance(atom, Var):
            part = _given(w, atom)
        else:
            part = _pair(w, atom.op, size(w, atom.a), size(w, atom.b))
        if c != 1:
            part = w.step("Mul", [part, w.constant([c], np.int64)], "size")
        out = w.step("Add", [out, part], "size") if out else part
    if not out:
        return w.constant([d.const], np.int64)
    return w.step("Add", [out, w.constant([d.const], np.int64)], "size") if d.const else out


def _given(w: Writer, v: Var) -> str:
    for p in w.f.params:
        dims = tensor_type(p).shape
        if v in dims:
            k = dims.index(v)
            return w.step("Shape", [w.name(p)], str(v), start=k, end=k + 1)
    raise UnsupportedError(f"the size {v} is found at run time")


def _pair(w: Writer, op: str, a: str, b: str) -> str:
    """`a op b`, where ONNX's Div of integers rounds towards zero and ours downwards."""
    if op == "//":
        rest = w.step("Mod", [a, b], "rest")  # of the sign of b
        return w.step("Div", [w.step("Sub", [a, rest], "exact"), b], "size")
    return w.step({"%": "Mod", "*": "Mul", "min": "Min"}[op], [a, b], "size")
