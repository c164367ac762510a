"""nn.rotary: rotary embedding of positions (Su et al., RoFormer: Enhanced Transformer with Rotary
Position Embedding, 2021), as Llama's exporters write it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import need_constant, one_dtype, read, require
from compiler.op.concatenate import copy_into
from compiler.op.gradients import linear as rules
from compiler.op.opdef import Fusion, NoAttrs, OpDef, register_op
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import const
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, broadcast, shape_text


def _infer(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    x, *angles = types
    dtype = one_dtype("nn.rotary", types)
    require(
        dtype.is_float or dtype.is_custom,
        f"nn.rotary is not defined for {dtype}; cast the operands to a float dtype",
    )
    require(x.rank > 0, "nn.rotary: data must have an axis")
    size = need_constant("nn.rotary", "the size of the last axis", x.shape[-1])
    require(size % 2 == 0, f"nn.rotary: the last axis has an odd size, {size}")
    for t in angles:
        require(
            broadcast(x.shape, t.shape) == x.shape,
            f"nn.rotary: angles of shape {shape_text(t.shape)} do not fit data of shape "
            f"{shape_text(x.shape)}",
        )
    return x


def _reference(ar: Arithmetic, _: NoAttrs, x: Array, cos: Array, sin: Array) -> Array:
    """x * cos + turned * sin, where `turned` has the second half of the last axis, negated as
    -0 - x, and then the first: one rounding per operation."""
    half = x.shape[-1] // 2
    below = ar.sub(ar.const(-0.0), x)
    turned = np.concatenate([below[..., half:], x[..., :half]], -1)
    return ar.add(ar.mul(x, cos), ar.mul(turned, sin))


def _lower(b: PrimBuilder, _: NoAttrs, x: Buffer, cos: Buffer, sin: Buffer) -> Buffer:
    *outer, size = x.shape
    half = size // 2
    below = b.compute("rotary_negative", x.shape, x.dtype, lambda *i: const(-0.0, x.dtype) - x[i])
    shape, none = (*outer, half), [0] * len(outer)
    second = b.compute("rotary_second", shape, x.dtype, lambda *i: below[(*i[:-1], i[-1] + half)])
    first = b.compute("rotary_first", shape, x.dtype, lambda *i: x[i])
    turned = b.buffer("rotary_turned", x.shape, x.dtype)
    copy_into(b, turned, second, [*none, 0])
    copy_into(b, turned, first, [*none, half])
    straight = b.compute("rotary_cos", x.shape, x.dtype, lambda *i: x[i] * read(cos, i))
    across = b.compute("rotary_sin", x.shape, x.dtype, lambda *i: turned[i] * read(sin, i))
    return b.compute("rotary", x.shape, x.dtype, lambda *i: straight[i] + across[i])


ROTARY = register_op(
    OpDef(
        "nn.rotary",
        _infer,
        _reference,
        _lower,
        arity=(3, 3),
        fusion=Fusion.ANCHOR,
        numbered=True,
        gradient=rules.rotary,
        doc="data, cosines and sines that broadcast to it: pairs (i, i + half) of the last axis "
        "turned",
    )
)
