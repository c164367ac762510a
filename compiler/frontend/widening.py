"""Operators that compute in float32 what a model keeps in shorter floats: sums of squares leave the
range of float16 where the results do not, so the standard (stash_type) and other runtimes do."""

from __future__ import annotations

from typing import Any

from compiler.frontend.node import Node
from compiler.ir.expr import Atom, tensor_type
from compiler.types.dtypes import DType


def is_short(dtype: DType) -> bool:
    """Whether a model's floats have fewer bits than float32."""
    return (dtype.is_float or dtype.is_custom) and dtype.bits < 32


def widened(n: Node, x: Atom) -> Atom:
    """x in float32 if its floats are shorter, else x."""
    return n.step("cast", x, dtype="float32") if is_short(tensor_type(x).dtype) else x


def in_dtype_of(n: Node, i: int, op: str, *args: Atom, **attrs: Any) -> Atom:
    """Emit the call that computes the node's output, in the dtype of input `i`: the last call, and
    a cast if its floats are short."""
    dtype = n.type(i).dtype
    if not is_short(dtype):
        return n.call(op, *args, **attrs)
    return n.call("cast", n.step(op, *args, **attrs), dtype=str(dtype))
