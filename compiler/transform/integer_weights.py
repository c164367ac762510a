"""Constant weights and biases of integer operators, for UseIntegers: the integers and scales that
they are dequantized from, and what keeps their sums in int32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.ir.expr import Atom, Binding, Call, Constant, tensor_type
from compiler.op.common import channelwise
from compiler.op.facts import Moves
from compiler.op.opdef import OpDef
from compiler.op.qnn.quantize import DEQUANTIZE
from compiler.passes.rewrite import Rewriter, op_of
from compiler.transform.integer_forms import Grid
from compiler.types.dtypes import INT8, INT64, Array

MOST = 2**31 - 1
_RESHAPING = (Moves.VIEW, Moves.PERMUTE)
_SHORTENED = 2.0**-12
"""Of a bias, what may be missing at its far end: less than a tenth of a step of 8 bits."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Constant weights as int64 integers minus their zero point, and their float32 scales: one, or
    one for each of the first axis."""

    q: Array
    scales: Array


def int8_parts(q: Array) -> list[Constant]:
    """int8 tensors whose sum is `q`: one, or more where 8 bits do not hold it."""
    parts: list[Array] = []
    rest = q
    while not parts or rest.any():
        parts.append(np.clip(rest, -128, 127))
        rest = rest - parts[-1]
    return [Constant(np.ascontiguousarray(p, np.int8), INT8) for p in parts]


def weights_of(r: Rewriter, a: Atom, turned: bool = False) -> Weights | None:
    """The integers that a float operand is dequantized from, if they are constants.

    `turned`: the operand is a matrix, and its transpose is meant.
    """
    moves: list[Call] = []
    made = r.producer(a)
    while made is not None and isinstance(made.value, Call):
        op = op_of(made.value)
        if op is None or op.moves not in _RESHAPING:
            break
        moves.append(made.value)
        made = r.producer(made.value.args[0])
    if made is None or not isinstance(made.value, Call) or made.value.op is not DEQUANTIZE:
        return None
    data, scale = made.value.args
    if not isinstance(data, Constant) or not isinstance(scale, Constant):
        return None
    attrs = made.value.attrs
    q = data.data.astype(np.int64) - attrs.zero_point
    along = (
        channelwise(scale.data, q.ndim, attrs.axis % q.ndim) if scale.data.ndim == 1 else scale.data
    )
    s = np.broadcast_to(along, q.shape)
    for move in reversed(moves):
        assert isinstance(move.op, OpDef)
        ar = arithmetic(INT64)
        q, s = (np.asarray(move.op.reference(ar, move.attrs, v)) for v in (q, s))
    if turned:
        q, s = q.T, s.T
    rows = s.reshape(len(q), -1) if q.size else s
    if not q.size or not (rows == rows[:, :1]).all() or not (rows > 0).all():
        return None
    scales = rows[:, 0]
    return Weights(q, scales[:1].reshape(()) if (scales == scales[0]).all() else scales)


def _integers(made: Binding | None) -> tuple[Array, Array] | None:
    """(int64 integers minus their zero point, float32 scales) of a dequantized constant."""
    if made is None or not isinstance(made.value, Call) or made.value.op is not DEQUANTIZE:
        return None
    data, scale = made.value.args
    if not isinstance(data, Constant) or not isinstance(scale, Constant):
        return None
    q, s = data.data.astype(np.int64) - made.value.attrs.zero_point, scale.data
    if s.ndim == 1:
        s = channelwise(s, q.ndim, made.value.attrs.axis % q.ndim)
    return q, np.broadcast_to(s, q.shape)


def real_constant(r: Rewriter, a: Atom) -> Array | None:
    """The numbers of a float operand that is constant, or dequantized from a constant."""
    if isinstance(a, Constant):
        return a.data
    known = _integers(r.producer(a))
    return None if known is None else known[0].astype(np.float32) * known[1]


# ---- sums that int32 holds -----------------------------------------------------------------------
def fitted_bias(g: Grid, weights: Weights, real: Array | None) -> tuple[Array, float] | str:
    """(float64 bias of each channel in units of the accumulator, the largest magnitude of a
    result); or why int32 does not hold the sums.

    A channel whose weights are next to nothing has a bias near 2^31 units (tools choose its scale
    so): it may be shortened by 2^-12 of itself to leave room for the products.

    Args:
        g: the grid of the data.
        weights: of N channels.
        real: float bias [N], or None.
    """
    units = g.scale * np.broadcast_to(weights.scales, len(weights.q)).astype(np.float64)
    wanted = np.zeros(len(units)) if real is None else np.rint(real.astype(np.float64) / units)
    info = np.iinfo(tensor_type(g.atom).dtype.storage)
    ends = np.array([info.min - g.zero_point, info.max - g.zero_point], np.float64)
    rows = weights.q.reshape(len(weights.q), -1).astype(np.float64)
    above, below = rows.clip(min=0).sum(axis=1), rows.clip(max=0).sum(axis=1)
    least, most = above * ends[0] + below * ends[1], above * ends[1] + below * ends[0]
    if (most - least).max() > MOST:
        return f"sums of {weights.q[0].size} products could overflow int32"
    bias = wanted.clip(-MOST - least, MOST - most)
    if (np.abs(bias - wanted) > _SHORTENED * np.abs(wanted)).any():
        return "its bias does not fit an int32 accumulator"
    reach = np.maximum(np.abs(bias + least), np.abs(bias + most)) * units
    return bias, float(reach.max())
