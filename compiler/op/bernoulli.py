"""bernoulli: draws of true and false, as hashes of a number that is an operand, so that programs
with them are functions as all others are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.arithmetic.random_bits import UINT32, drawn_bits, drawn_bits_at, node_key
from compiler.op.common import known_shape, require
from compiler.op.gradient import flat
from compiler.op.opdef import OpDef, register_op
from compiler.symbolic import Dim, Index, dim, product
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, const, index_value
from compiler.types.dtypes import BOOL, INT64, Array
from compiler.types.tensor_types import TensorType

_CODES = 2**32


@dataclass(frozen=True)
class BernoulliAttrs:
    """Attributes of bernoulli.

    Attributes:
        shape: of the result.
        probability: of true, from 0 to 1; it is rounded to a multiple of 2**-32.
        node: which of the draws of a program this is: others are independent of it.
    """

    shape: tuple[Dim, ...]
    probability: float
    node: int = 0


def _infer(a: BernoulliAttrs, types: Sequence[TensorType]) -> TensorType:
    (draw,) = types
    require(draw == TensorType((), INT64), f"bernoulli takes a draw, an int64[], not {draw}")
    require(0 <= a.probability <= 1, f"bernoulli: {a.probability} is no probability")
    return TensorType(tuple(dim(d) for d in a.shape), BOOL)


def _below(a: BernoulliAttrs) -> int:
    """Bits below this are true."""
    return round(a.probability * _CODES)


def _reference(_: Arithmetic, a: BernoulliAttrs, draw: Array) -> Array:
    shape = known_shape(a.shape)
    index = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    bits = drawn_bits(node_key(0, a.node), index, int(draw))
    return np.asarray(bits.astype(np.uint64) < _below(a))


def _lower(b: PrimBuilder, a: BernoulliAttrs, draw: Buffer) -> Buffer:
    shape, key, below = [Index.of(d) for d in a.shape], node_key(0, a.node), _below(a)

    def drawn(*i: Index) -> Expr:
        if below >= _CODES:  # which no uint32 holds
            return const(1, BOOL)
        at = Index.of(0)
        for k, v in enumerate(i):
            at = at + v * product(shape[k + 1 :])
        return drawn_bits_at(key, index_value(at), draw[()]) < const(below, UINT32)

    return b.compute("bernoulli", shape, BOOL, drawn)


register_op(
    OpDef(
        "bernoulli", _infer, _reference, _lower, BernoulliAttrs, gradient=flat,
        doc="true with a probability, as a hash of the operand, a number of a draw, says",
    )
)  # fmt: skip
