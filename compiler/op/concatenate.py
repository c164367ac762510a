"""concatenate and split: tensors one after the other along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.errors import TypeInferenceError
from compiler.op.common import axis_of, one_dtype, require, type_of
from compiler.op.facts import Moves, onnx_node
from compiler.op.gradients import moves as rules
from compiler.op.opdef import Fusion, OpDef, Quantized, register_ops
from compiler.symbolic import Dim, Index, dim
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType, require_equal, shape_text


@dataclass(frozen=True)
class ConcatenateAttrs:
    """Attributes of concatenate: the axis along which operands follow each other."""

    axis: int = 0


def _infer_concatenate(a: ConcatenateAttrs, types: Sequence[TensorType]) -> TensorType:
    dtype, first = one_dtype("concatenate", types), types[0].shape
    axis = axis_of("concatenate", a.axis, len(first))
    length: Dim = 0
    for t in types:
        differ = (
            f"concatenate: shapes {shape_text(first)} and {shape_text(t.shape)} differ outside "
            f"axis {axis}"
        )
        require(t.rank == len(first), differ)
        both = zip(t.shape, first, strict=True)
        require_equal([pair for k, pair in enumerate(both) if k != axis], differ)
        length = dim(t.shape[axis] + length)
    return TensorType((*first[:axis], length, *first[axis + 1 :]), dtype)


def _concatenate(_: Arithmetic, a: ConcatenateAttrs, *xs: Array) -> Array:
    return np.concatenate(xs, a.axis)


def _lower_concatenate(b: PrimBuilder, a: ConcatenateAttrs, *xs: Buffer) -> Buffer:
    t = _infer_concatenate(a, [type_of(x) for x in xs])
    axis, offset = a.axis % t.rank, Index()
    out = b.buffer("concatenate", t.shape, t.dtype)
    for x in xs:
        copy_into(b, out, x, [offset if k == axis else 0 for k in range(t.rank)])
        offset = offset + x.shape[axis]
    return out


def copy_into(b: PrimBuilder, out: Buffer, x: Buffer, at: Sequence[Any]) -> None:
    """Stage that copies `x` into `out`, moved by `at`."""
    b.stage(
        out,
        {f"i{k}": n for k, n in enumerate(x.shape)},
        lambda *i: (tuple(j + o for j, o in zip(i, at, strict=True)), x[i]),
        name=f"{out.name}_copy",
    )


@dataclass(frozen=True)
class SplitAttrs:
    """Attributes of split: sizes of the parts along `axis`."""

    sizes: tuple[int, ...]
    axis: int = 0


def _infer_split(a: SplitAttrs, types: Sequence[TensorType]) -> TupleType:
    (x,) = types
    axis = axis_of("split", a.axis, x.rank)
    text = f"split: sizes {a.sizes} do not add up to axis {axis} of {shape_text(x.shape)}"
    require(len(a.sizes) > 0, text)
    require_equal([(x.shape[axis], sum(a.sizes))], text)
    return TupleType(
        tuple(TensorType((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype) for n in a.sizes)
    )


def _split(_: Arithmetic, a: SplitAttrs, x: Array) -> tuple[Array, ...]:
    return tuple(np.split(x, np.cumsum(a.sizes)[:-1], a.axis))


def _lower_split(b: PrimBuilder, a: SplitAttrs, x: Buffer) -> tuple[Buffer, ...]:
    axis, offset, parts = a.axis % len(x.shape), 0, []
    for t in _infer_split(a, [type_of(x)]).fields:
        if not isinstance(t, TensorType):
            raise TypeInferenceError("split: a part must be a tensor")

        def value(*i: Any, offset: int = offset) -> Any:
            return x[(*i[:axis], i[axis] + offset, *i[axis + 1 :])]

        parts.append(b.compute("split", t.shape, x.dtype, value))
        offset += a.sizes[len(parts) - 1]
    return tuple(parts)


CONCATENATE, SPLIT = register_ops(
    OpDef(
        "concatenate",
        _infer_concatenate,
        _concatenate,
        _lower_concatenate,
        ConcatenateAttrs,
        (1, None),
        Fusion.INJECTIVE,
        Quantized.SAME,
        moves=Moves.JOIN,
        in_order=True,
        onnx=onnx_node("Concat", "axis"),
        gradient=rules.concatenate,
        doc="operands one after the other along an axis",
    ),
    OpDef(
        "split",
        _infer_split,
        _split,
        _lower_split,
        SplitAttrs,
        quantized=Quantized.SAME,
        moves=Moves.SPLIT,
        gradient=rules.split,
        doc="a tuple of consecutive parts along an axis",
    ),
)
