"""Operators that show one tensor under another shape: reshape, flatten, transpose, squeeze,
expand_dims, broadcast_to, shape_of. They move storage elements and compute with none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import axes_of, known_shape, read, require, type_of, unflatten
from compiler.op.facts import Moves, onnx_node
from compiler.op.gradient import flat
from compiler.op.gradients import moves as rules
from compiler.op.opdef import Fusion, NoAttrs, OpDef, Quantized, register_op, register_ops
from compiler.symbolic import Dim, Index, dim, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, index_value
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType, broadcast, require_equal, shape_text

NewShape = Callable[[Any, Sequence[Dim]], tuple[Dim, ...]]


# ---- the same elements in row-major order under another shape ------------------------------------
def _register_reshape(name: str, new_shape: NewShape, attrs: type, doc: str) -> OpDef:
    def infer(a: Any, types: Sequence[TensorType]) -> TensorType:
        return TensorType(new_shape(a, types[0].shape), types[0].dtype)

    def reference(_: Arithmetic, a: Any, x: Array) -> Array:
        return x.reshape(known_shape(new_shape(a, x.shape)))

    def lower(b: PrimBuilder, a: Any, x: Buffer) -> Buffer:
        return _copy_flat(b, name.removeprefix("nn."), x, infer(a, [type_of(x)]).shape)

    return register_op(
        OpDef(
            name,
            infer,
            reference,
            lower,
            attrs,
            fusion=Fusion.INJECTIVE,
            quantized=Quantized.SAME,
            view=True,
            moves=Moves.VIEW,
            in_order=True,
            gradient=rules.view,
            doc=doc,
        )
    )


def _copy_flat(b: PrimBuilder, name: str, x: Buffer, shape: tuple[Dim, ...]) -> Buffer:
    """Copy by row-major position; equal leading dimensions keep their own index, so that what
    follows them divides by known sizes only."""
    old = type_of(x).shape
    same = 0
    while same < min(len(old), len(shape)) and old[same] == shape[same]:
        same += 1

    def value(*i: Index) -> Any:
        flat = Index()
        for k, n in zip(i[same:], shape[same:], strict=True):
            flat = flat * n + k
        return x[(*i[:same], *unflatten(flat, old[same:]))]

    return b.compute(name, shape, x.dtype, value)


@dataclass(frozen=True)
class ReshapeAttrs:
    """Attributes of reshape.

    Attributes:
        newshape: known or symbolic dimensions; -1: what remains; 0: the input's (see allowzero).
        allowzero: a 0 in `newshape` is a dimension of length zero.
    """

    newshape: tuple[Dim, ...]
    allowzero: bool = False


def _reshape(a: ReshapeAttrs, old: Sequence[Dim]) -> tuple[Dim, ...]:
    text = f"reshape: {shape_text(old)} cannot become {shape_text(a.newshape)}"
    new: list[Dim] = []
    for k, d in enumerate(a.newshape):
        copies = d == 0 and not a.allowzero
        require(not copies or k < len(old), f"{text}: dimension {k} has none to copy")
        new.append(old[k] if copies else dim(d))
    size, holes = product(old), [k for k, d in enumerate(new) if d == -1]
    require(len(holes) <= 1, f"{text}: only one dimension can be -1")
    if holes:
        known = product(d for d in new if d != -1)
        if known == 0:  # what is copied cancels, as it does in symbols
            copied = {k for k, d in enumerate(a.newshape) if d == 0 and not a.allowzero}
            size = product(d for k, d in enumerate(old) if k not in copied)
            known = product(d for k, d in enumerate(new) if d != -1 and k not in copied)
        require(known != 0, f"{text}: the rest of an empty shape is not known")
        new[holes[0]] = dim(Index.of(size) // known)
    size, made = product(old), product(new)
    # A symbolic remainder may be a division that does not simplify: it is checked when it runs (see
    # compiler.boundary.assumptions).
    if not holes or (isinstance(size, int) and isinstance(made, int)):
        require_equal([(size, made)], f"{text}: the sizes differ")
    return tuple(new)


def _batch_flatten(_: NoAttrs, old: Sequence[Dim]) -> tuple[Dim, ...]:
    require(len(old) >= 1, "nn.batch_flatten: a scalar has no batch dimension")
    return (old[0], product(old[1:]))


@dataclass(frozen=True)
class FlattenAttrs:
    """Attributes of flatten: axes before `axis` become rows, the others columns."""

    axis: int = 1


def _flatten(a: FlattenAttrs, old: Sequence[Dim]) -> tuple[Dim, ...]:
    rank = len(old)
    require(-rank <= a.axis <= rank, f"flatten: axis {a.axis} is out of range for rank {rank}")
    at = a.axis + rank if a.axis < 0 else a.axis
    return (product(old[:at]), product(old[at:]))


@dataclass(frozen=True)
class SqueezeAttrs:
    """Attributes of squeeze: axes of length 1 to drop; empty: all of them."""

    axis: int | tuple[int, ...] = ()


def _squeeze(a: SqueezeAttrs, old: Sequence[Dim]) -> tuple[Dim, ...]:
    if a.axis == ():
        return tuple(n for n in old if n != 1)
    drop = axes_of("squeeze", a.axis, len(old))
    for k in drop:
        text = f"squeeze: axis {k} of {shape_text(old)} does not have length 1"
        require_equal([(old[k], 1)], text)
    return tuple(n for k, n in enumerate(old) if k not in drop)


@dataclass(frozen=True)
class ExpandDimsAttrs:
    """Attributes of expand_dims: positions, in the result, of new axes of length 1."""

    axes: int | tuple[int, ...]


def _expand_dims(a: ExpandDimsAttrs, old: Sequence[Dim]) -> tuple[Dim, ...]:
    count = 1 if isinstance(a.axes, int) else len(a.axes)
    rank = len(old) + count
    new, rest = axes_of("expand_dims", a.axes, rank), iter(old)
    return tuple(1 if k in new else next(rest) for k in range(rank))


RESHAPE, BATCH_FLATTEN, FLATTEN, SQUEEZE, EXPAND_DIMS = (
    _register_reshape(*_row)
    for _row in (
        ("reshape", _reshape, ReshapeAttrs, "the elements, row-major, under another shape"),
        ("nn.batch_flatten", _batch_flatten, NoAttrs, "all but the first axis become one"),
        ("flatten", _flatten, FlattenAttrs, "a matrix: axes before and from `axis`"),
        ("squeeze", _squeeze, SqueezeAttrs, "without axes of length 1"),
        ("expand_dims", _expand_dims, ExpandDimsAttrs, "with new axes of length 1"),
    )
)


# ---- transpose, broadcast_to ---------------------------------------------------------------------
@dataclass(frozen=True)
class TransposeAttrs:
    """Attributes of transpose: result axis k is axis axes[k] of the operand; empty: reversed."""

    axes: tuple[int, ...] = ()


def _order(a: TransposeAttrs, rank: int) -> tuple[int, ...]:
    if a.axes == ():
        return tuple(reversed(range(rank)))
    axes_of("transpose", a.axes, rank)
    require(len(a.axes) == rank, f"transpose: axes {a.axes} do not name each of {rank} axes")
    return tuple(k % rank for k in a.axes)


def _infer_transpose(a: TransposeAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    return TensorType(tuple(x.shape[k] for k in _order(a, x.rank)), x.dtype)


def _transpose(_: Arithmetic, a: TransposeAttrs, x: Array) -> Array:
    return x.transpose(_order(a, x.ndim))


def _lower_transpose(b: PrimBuilder, a: TransposeAttrs, x: Buffer) -> Buffer:
    order = _order(a, len(x.shape))
    place = [order.index(k) for k in range(len(order))]
    shape = [x.shape[k] for k in order]
    return b.compute("transpose", shape, x.dtype, lambda *i: x[tuple(i[p] for p in place)])


@dataclass(frozen=True)
class BroadcastToAttrs:
    """Attributes of broadcast_to: a shape that the operand's shape is broadcast with."""

    shape: tuple[Dim, ...]


def _infer_broadcast_to(a: BroadcastToAttrs, types: Sequence[TensorType]) -> TensorType:
    return TensorType(broadcast(types[0].shape, tuple(dim(d) for d in a.shape)), types[0].dtype)


def _broadcast_to(_: Arithmetic, a: BroadcastToAttrs, x: Array) -> Array:
    return np.broadcast_to(x, known_shape(broadcast(x.shape, a.shape)))


def _lower_broadcast_to(b: PrimBuilder, a: BroadcastToAttrs, x: Buffer) -> Buffer:
    shape = _infer_broadcast_to(a, [type_of(x)]).shape
    return b.compute("broadcast_to", shape, x.dtype, lambda *i: read(x, i))


# ---- shape_of ------------------------------------------------------------------------------------
def _infer_shape_of(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    return TensorType((types[0].rank,), INT64)


def _shape_of(_: Arithmetic, __: NoAttrs, x: Array) -> Array:
    return np.array(x.shape, np.int64)


def _lower_shape_of(b: PrimBuilder, _: NoAttrs, x: Buffer) -> Buffer:
    out = b.buffer("shape", (len(x.shape),), INT64)
    for k, n in enumerate(x.shape):

        def store(_: Any, k: int = k, n: Index = n) -> Any:
            return (k,), index_value(n)

        b.stage(out, {"i0": 1}, store)
    return out


TRANSPOSE, BROADCAST_TO, SHAPE_OF = register_ops(
    OpDef(
        "transpose",
        _infer_transpose,
        _transpose,
        _lower_transpose,
        TransposeAttrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.SAME,
        moves=Moves.PERMUTE,
        gradient=rules.transpose,
        doc="axes in another order",
    ),
    OpDef(
        "broadcast_to",
        _infer_broadcast_to,
        _broadcast_to,
        _lower_broadcast_to,
        BroadcastToAttrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.SAME,
        moves=Moves.REPEAT,
        in_order=True,
        gradient=rules.broadcast_to,
        doc="the operand repeated along axes of length 1, as numpy broadcasts",
    ),
    OpDef(
        "shape_of",
        _infer_shape_of,
        _shape_of,
        _lower_shape_of,
        onnx=onnx_node("Shape"),
        gradient=flat,
        doc="the operand's dimensions as an int64 vector",
    ),
)
