"""Sums of products of 8-bit integers for converters: on integer kernels where zero points and
weights are known, or None, where a composition has to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontend.converters_conv import convolution
from compiler.frontend.node import Node
from compiler.frontend.windows import windows
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.transform.integer_weights import int8_parts
from compiler.types.dtypes import INT8, INT32, UINT8, Array

MOST_SCALE = 0.5
"""Below it, no scaled accumulator reaches 2^31."""


def one_zero_point(n: Node, i: int) -> int | None:
    """The zero point of input `i` if it is one known number everywhere."""
    if not n.has(i):
        return 0
    data = n.constant(i)
    same = data is not None and data.size > 0 and (data == data.reshape(-1)[0]).all()
    return int(data.reshape(-1)[0]) if data is not None and same else None


def known_integers(n: Node, i: int, zero: int, axis: int) -> Array | None:
    """Input `i` minus the zero points of input `zero` (one, or one for each of `axis`), int64."""
    data = n.constant(i)
    if data is None or data.dtype.itemsize != 1 or data.dtype.kind not in "iu":
        return None
    if not n.has(zero):
        return data.astype(np.int64)
    zeros = n.constant(zero)
    if zeros is None or zeros.size not in (1, data.shape[axis]):
        return None
    shape = [-1 if k == axis else 1 for k in range(data.ndim)] if zeros.size > 1 else []
    return np.asarray(data.astype(np.int64) - zeros.astype(np.int64).reshape(shape))


def integer_convolution(
    n: Node, weights: Array | None, zeros: tuple[int, int], bias: Sequence[Atom]
) -> Atom | None:
    """The int32 convolution of input 0 with `weights`, minus zero points; None if it is none of
    8-bit images by known weights."""
    t = n.type(0)
    if weights is None or t.rank != 4 or t.dtype not in (INT8, UINT8) or not _constant(bias):
        return None
    zero = one_zero_point(n, zeros[0])
    if zero is None and (
        not _one(n, zeros[0]) or any(map(any, windows(n, t, weights.shape[2:]).pads))
    ):
        return None

    def emit(op: str, *args: Atom, **attrs: Any) -> Atom:
        return n.step(op, *args, out_dtype="int32", input_zero_point=zero or 0, **attrs)

    total: Atom | None = None
    for part in int8_parts(weights):
        one = convolution(n, n.atom(0), part, bias if total is None else (), emit)
        total = one if total is None else n.step("add", total, one)
    assert total is not None
    if zero is None:
        return _above(n, total, zeros[0], weights.sum(axis=(1, 2, 3)).reshape(1, -1, 1, 1))
    return total


def integer_matrices(
    n: Node, a: Atom, weights: Array | None, zero: int, bias: Sequence[Atom] = ()
) -> Atom | None:
    """The int32 product of `a`, minus the zero point of input `zero`, with known weights [N, K]."""
    t = tensor_type(a)
    if weights is None or weights.ndim != 2 or t.rank < 2 or t.dtype not in (INT8, UINT8):
        return None
    known = one_zero_point(n, zero)
    if (known is None and not _one(n, zero)) or not _constant(bias):
        return None
    total: Atom | None = None
    for part in int8_parts(weights):
        args = (a, part, *(bias if total is None else ()))
        one = n.step("nn.dense", *args, out_dtype="int32", input_zero_point=known or 0)
        total = one if total is None else n.step("add", total, one)
    assert total is not None
    return _above(n, total, zero, weights.sum(axis=1)) if known is None else total


def _constant(bias: Sequence[Atom]) -> bool:
    return all(isinstance(b, Constant) and b.dtype == INT32 and b.data.ndim == 1 for b in bias)


def _one(n: Node, i: int) -> bool:
    """Whether input `i` is one number."""
    return n.has(i) and n.type(i).shape in ((), (1,))


def _above(n: Node, total: Atom, zero: int, sums: Array) -> Atom:
    """sum(x * w) - zero * sum(w): the zero point is known when it runs."""
    z = n.step("cast", n.step("reshape", n.atom(zero), newshape=()), dtype="int32")
    offset = n.step("multiply", Constant(sums.astype(np.int32), INT32), z)
    return n.step("subtract", total, offset)


def integer_requantized(
    n: Node, acc: Atom, factor: Atom, scale: int, bounds: tuple[int, int]
) -> Atom | None:
    """Accumulators times a known `factor`, which has the rank of `acc` or none, on the grid of the
    zero point that follows input `scale`; None if that is not known, or not of 8 bits."""
    zero, dtype = one_zero_point(n, scale + 1), n.type(scale + 1).dtype
    if zero is None or not isinstance(factor, Constant) or dtype not in (INT8, UINT8):
        return None
    f = factor.data
    axes = [k for k, d in enumerate(f.shape) if d != 1]
    if len(axes) > 1 or not ((f > 0) & (f <= MOST_SCALE)).all():
        return None
    vector = Constant(f.reshape(-1 if axes else ()), factor.dtype)
    return n.call(
        "qnn.requantize", acc, vector, axis=axes[0] if axes else 0, output_zero_point=zero,
        out_dtype=str(dtype), qmin=bounds[0], qmax=bounds[1],
    )  # fmt: skip
