"""Where an element of a small vector of integers comes from: models cut sizes out of vectors and
join them again, and what is the same number must be the same size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.frontend.values import numbers
from compiler.ir.expr import Atom, Call, Constant, TupleGetItem, Var, tensor_type
from compiler.op.opdef import OpDef
from compiler.passes.rewrite import op_name
from compiler.symbolic import Dim
from compiler.types.dtypes import INT64
from compiler.types.tensor_types import TensorType

if TYPE_CHECKING:
    from compiler.frontend.node import Graph

_SAME_ORDER = ("reshape", "expand_dims", "squeeze", "nn.dropout", "copy")
_MOVES = ("take", "strided_slice", "transpose", "broadcast_to")
_MOST = 256
"""Elements of the largest tensor that is looked into."""


def element(graph: Graph, v: Atom, k: int) -> Dim | tuple[Var, int]:
    """The number that element `k` of `v` (row-major, int64) is; or the variable and the position in
    it that it was taken from."""
    while isinstance(v, Var):
        before = _before(graph, v, k)
        if before is None:
            return v, k
        v, k = before
        maker = graph.maker(v) if isinstance(v, Var) else None
        if isinstance(maker, Call) and op_name(maker) == "shape_of":
            return tensor_type(maker.args[0]).shape[k]
    return int(v.data.reshape(-1)[k])


def whole_number(graph: Graph, v: Atom) -> Dim | tuple[Var, int] | None:
    """The integer that a float of one element is, if it is a small whole constant or the cast of an
    integer; None if it is not certain. (Of sizes, which floats count exactly up to 2^24.)"""
    while isinstance(v, Var):
        made = graph.maker(v)
        if not isinstance(made, Call) or op_name(made) not in (*_SAME_ORDER, "cast"):
            return None
        v = made.args[0]
        if tensor_type(v).dtype == INT64:
            return element(graph, v, 0)
    value = numbers(v).reshape(-1)[0]
    return int(value) if abs(value) < 2**24 and value == int(value) else None


def _before(graph: Graph, v: Var, k: int) -> tuple[Atom, int] | None:
    """The operand of what makes `v`, and the position in it, that element `k` is moved from."""
    made = graph.maker(v)
    if isinstance(made, TupleGetItem) and isinstance(made.value, Var):
        cut = graph.maker(made.value)
        if isinstance(cut, Call) and op_name(cut) == "split" and _is_vector(cut.args[0]):
            return cut.args[0], k + sum(cut.attrs.sizes[: made.index])
    if not isinstance(made, Call) or not made.args or tensor_type(made.args[0]).dtype != INT64:
        return None
    op, first = op_name(made), made.args[0]
    if op in _SAME_ORDER or (op == "cast" and tensor_type(v).dtype == INT64):
        return first, k
    if op == "concatenate":
        return _joined(made, tensor_type(v), k)
    known = all(isinstance(a, Constant) for a in made.args[1:])
    if op not in _MOVES or not known or not _is_small(first):
        return None
    # what the operator does to the positions themselves says where each element comes from
    t = tensor_type(first)
    places = np.arange(math.prod(t.static_shape)).reshape(t.static_shape)
    others = [a.data for a in made.args[1:] if isinstance(a, Constant)]
    assert isinstance(made.op, OpDef)
    moved = made.op.reference(arithmetic(INT64), made.attrs, places, *others)
    return first, int(moved.reshape(-1)[k])


def _joined(made: Call, t: TensorType, k: int) -> tuple[Atom, int] | None:
    """The part of a concatenation that element `k` lies in, and where."""
    if not all(map(_is_small, made.args)):
        return None
    axis = made.attrs.axis % t.rank
    at = list(np.unravel_index(k, t.static_shape))
    for part in made.args:
        shape = tensor_type(part).static_shape
        if at[axis] < shape[axis]:
            return part, int(np.ravel_multi_index(at, shape))
        at[axis] -= shape[axis]
    return None


def _is_vector(v: Atom) -> bool:
    """Whether it is a vector of known length."""
    return tensor_type(v).rank == 1 and _is_small(v)


def _is_small(v: Atom) -> bool:
    """Whether it has a known shape of a few elements."""
    t = tensor_type(v)
    return isinstance(t.size, int) and 0 < t.size <= _MOST
