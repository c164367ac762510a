"""nn.hadamard: the fast Walsh-Hadamard transform of the last axis, of orthonormal scale.

n log2(n) sums instead of n^2 products (Fino and Algazi, Unified Matrix Treatment of the Fast
Walsh-Hadamard Transform, 1976). It is its own inverse, and keeps sums of squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.common import need_constant, require
from compiler.op.gradients import linear as rules
from compiler.op.opdef import NoAttrs, OpDef, register_op
from compiler.symbolic import Index, IntLike
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Expr
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


def _infer(_: NoAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    require(
        x.dtype.is_float or x.dtype.is_custom,
        f"nn.hadamard is not defined for {x.dtype}; cast the operand to a float dtype",
    )
    require(x.rank > 0, "nn.hadamard transforms the last axis, and a scalar has none")
    n = need_constant("nn.hadamard", "the length of the last axis", x.shape[-1])
    require(
        n > 0 and n & (n - 1) == 0,
        f"nn.hadamard needs a power of two as the length of the last axis, not {n}; the nearest "
        f"are {1 << max(n.bit_length() - 1, 0)} and {1 << n.bit_length()}",
    )
    return x


def walsh_matrix(n: int) -> Array:
    """float64 [n, n]: what the transform of n elements, a power of two, multiplies them with."""
    signs = np.ones((1, 1))
    while len(signs) < n:
        signs = np.block([[signs, signs], [signs, -signs]])
    return np.asarray(signs / math.sqrt(n))


def _steps(n: int) -> list[int]:
    """How far apart the two elements are that each step adds and subtracts."""
    return [1 << k for k in range(n.bit_length() - 1)]


def _reference(ar: Arithmetic, _: NoAttrs, x: Array) -> Array:
    """For h = 1, 2, 4 ... n / 2: of all elements a and b that are h apart, in blocks of 2 h, a + b
    in place of a and a - b in place of b, each rounded; then all times 1 / sqrt(n)."""
    n, y = x.shape[-1], x
    for h in _steps(n):
        pairs = y.reshape(*x.shape[:-1], n // (2 * h), 2, h)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([ar.add(a, b), ar.sub(a, b)], axis=-2).reshape(x.shape)
    return ar.mul(y, ar.const(1 / math.sqrt(n)))


def _lower(b: PrimBuilder, _: NoAttrs, x: Buffer) -> Buffer:
    n = x.shape[-1].const
    lead = {f"i{k}": d for k, d in enumerate(x.shape[:-1])}
    y = x
    for h in _steps(n):
        out = b.buffer(f"butterflies{h}", x.shape, x.dtype)
        for sign in (1, -1):

            def butterfly(
                *i: IntLike, y: Buffer = y, h: int = h, sign: int = sign
            ) -> tuple[tuple[IntLike, ...], Expr]:
                *outer, block, inner = i
                first = Index.of(block) * (2 * h) + inner
                u, v = y[(*outer, first)], y[(*outer, first + h)]
                return (*outer, first if sign > 0 else first + h), u + v if sign > 0 else u - v

            b.stage(out, {**lead, "block": n // (2 * h), "inner": h}, butterfly)
        y = out
    scale = 1 / math.sqrt(n)
    return b.compute("hadamard", x.shape, x.dtype, lambda *i: y[i] * scale)


HADAMARD = register_op(
    OpDef(
        "nn.hadamard",
        _infer,
        _reference,
        _lower,
        gradient=rules.hadamard,
        doc="the orthonormal Walsh-Hadamard transform of the last axis, a power of two long",
    )
)
