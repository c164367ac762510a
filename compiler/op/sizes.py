"""Operators between sizes and data: arange counts up to a dimension, match_shape finds dimensions
in numbers that the program has computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.errors import LoweringError
from compiler.op.common import known_shape, require
from compiler.op.gradient import INTEGERS, flat
from compiler.op.opdef import Fusion, OpDef, register_op
from compiler.symbolic import Dim, dim
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, index_value
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType, shape_text


@dataclass(frozen=True)
class ArangeAttrs:
    """How many numbers."""

    size: Dim


def _infer_arange(a: ArangeAttrs, _: Sequence[TensorType]) -> TensorType:
    return TensorType((dim(a.size),), INT64)


def _arange(_: Arithmetic, a: ArangeAttrs) -> Array:
    return np.arange(*known_shape((a.size,)), dtype=np.int64)


def _lower_arange(b: PrimBuilder, a: ArangeAttrs) -> Buffer:
    return b.compute("arange", (a.size,), INT64, lambda i: index_value(i))


@dataclass(frozen=True)
class MatchShapeAttrs:
    """One dimension for each number. A name that is new gets the number as its size; what is known
    already is checked; `claim` is what errors say then, if it is not empty."""

    shape: tuple[Dim, ...]
    claim: str = ""


def _infer_match_shape(a: MatchShapeAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    wanted = TensorType((len(a.shape),), INT64)
    require(x == wanted, f"match_shape {shape_text(a.shape)} takes {wanted}, not {x}")
    return x


def _match_shape(_: Arithmetic, __: MatchShapeAttrs, x: Array) -> Array:
    return x


def _no_loops(*_: Any) -> Buffer:
    raise LoweringError("match_shape finds sizes for kernels, and cannot be part of one")


register_op(
    OpDef(
        "arange",
        _infer_arange,
        _arange,
        _lower_arange,
        ArangeAttrs,
        (0, 0),
        Fusion.ELEMENTWISE,
        gradient=flat,
        doc="0, 1, 2 ... of int64, as many as a dimension says",
    )
)
MATCH_SHAPE = register_op(
    OpDef(
        "match_shape",
        _infer_match_shape,
        _match_shape,
        _no_loops,
        MatchShapeAttrs,
        effect=True,
        gradient=INTEGERS,
        doc="its operand, numbers of int64 that are the sizes of dimensions",
    )
)
