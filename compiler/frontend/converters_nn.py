"""Converters of matrix products and of the normalizations of networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, constant_of, numbers, scalar, transposed
from compiler.frontend.widening import in_dtype_of, widened
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.op.mixed import CAST
from compiler.types.dtypes import FLOAT32
from compiler.types.tensor_types import TensorType


# ---- matrix products -----------------------------------------------------------------------------
@converts("Gemm")
def gemm(n: Node) -> Imported:
    """alpha * A' B' + beta * C; constant alpha and beta are multiplied into constant B and C."""
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 1.0))
    a, b = n.atom(0), n.atom(1)
    n.rank_of(0, 2)
    n.rank_of(1, 2)
    if n.attr("transA", 0):
        a = n.step("transpose", a, axes=(1, 0))
    if not n.attr("transB", 0):
        b = transposed(b) if isinstance(b, Constant) else n.step("transpose", b, axes=(1, 0))
    after = alpha != 1 and not isinstance(b, Constant)
    if alpha != 1 and isinstance(b, Constant):
        b = _scaled(b, alpha)
    if not n.has(2) or beta == 0:
        if after:
            return n.call("multiply", n.step("nn.dense", a, b), scalar(alpha, n.type(0)))
        return n.call("nn.dense", a, b)
    c = n.atom(2)
    if beta != 1:
        c = _scaled(c, beta) if isinstance(c, Constant) else n.step(
            "multiply", c, scalar(beta, n.type(0))
        )  # fmt: skip
    units = tensor_type(b).shape[0]
    bias = _vector(c, units)
    if bias is not None and not after:
        return n.call("nn.dense", a, b, bias)
    y = n.step("nn.dense", a, b)
    if after:
        y = n.step("multiply", y, scalar(alpha, n.type(0)))
    return n.call("add", y, c)


def _scaled(c: Constant, factor: float) -> Constant:
    with np.errstate(all="ignore"):
        if c.dtype.is_custom:
            return constant_of(numbers(c) * factor, c.dtype)
        return Constant(
            (c.data * np.asarray(factor, c.data.dtype)).astype(c.data.dtype), c.dtype, c.name
        )


def _vector(c: Atom, units: Any) -> Atom | None:
    """`c` as a bias vector of `units`, if it is one."""
    t = tensor_type(c)
    if t.shape == (units,):
        return c
    constant_row = isinstance(c, Constant) and all(d == 1 for d in t.shape[:-1]) and t.rank <= 2
    if constant_row and isinstance(units, int) and t.shape[-1:] in ((), (1,), (units,)):
        assert isinstance(c, Constant)
        return Constant(np.broadcast_to(c.data.reshape(-1), (units,)).copy(), c.dtype, c.name)
    return None


@converts("MatMul")
def matmul(n: Node) -> Imported:
    """A constant matrix on the right makes a dense layer, which has weights to quantize."""
    return matrix_product(n, n.atom(0), n.atom(1), n.call)


def matrix_product(n: Node, a: Atom, b: Atom, emit: Emit) -> Atom:
    """numpy's matmul; `emit` makes the last call."""
    left, right = tensor_type(a).rank, tensor_type(b).rank
    if isinstance(b, Constant) and right == 2 and left >= 2:
        return emit("nn.dense", a, transposed(b))
    stored = _converted(n, b) if right == 2 and left >= 2 else None
    if stored is not None:
        weights = n.step("cast", transposed(stored), dtype=str(tensor_type(b).dtype))
        return emit("nn.dense", a, weights)
    if left >= 2 and right >= 2:
        return emit("nn.matmul", a, b)
    # numpy's rule: a vector is a row on the left, a column on the right; its axis is dropped again
    if left == 1:
        a = n.step("expand_dims", a, axes=(0,))
    if right == 1:
        b = n.step("expand_dims", b, axes=(1,))
    y = n.step("nn.matmul", a, b)
    dropped = ([-2] if left == 1 else []) + ([-1] if right == 1 else [])
    rank = tensor_type(y).rank
    return emit("squeeze", y, axis=tuple(d + rank for d in dropped))


def _converted(n: Node, b: Atom) -> Constant | None:
    """The floats that `b` is a conversion of, if they are known: weights stored in fewer bits."""
    made = n.graph.maker(b) if isinstance(b, Var) else None
    if not isinstance(made, Call) or made.op is not CAST or not isinstance(made.args[0], Constant):
        return None
    dtype = made.args[0].dtype
    return made.args[0] if dtype.is_float or dtype.is_custom else None


# ---- normalization -------------------------------------------------------------------------------
@converts("BatchNormalization")
def batch_norm(n: Node) -> Sequence[Imported]:
    """With the statistics of training; in training mode with those of the batch, which are mixed
    into the running ones."""
    if n.expect("training_mode", 0, 0, 1):
        return _trained_batch_norm(n)
    args = [n.atom(i) for i in range(5)]
    return [n.call("nn.batch_norm", *args, epsilon=float(n.attr("epsilon", 1e-5)), axis=1)]


def _trained_batch_norm(n: Node) -> list[Imported]:
    t = n.type(0)
    axes = tuple(k for k in range(t.rank) if k != 1)
    y, mean, var = _normalized(n, axes, (-1, *(1 for _ in axes[1:])))
    out: list[Imported] = [y]
    momentum = float(n.attr("momentum", 0.9))
    for i, batch in ((1, mean), (2, var)):
        if n.wants(i):
            kept = n.type(i + 2)
            running = n.step("multiply", n.atom(i + 2), scalar(momentum, kept))
            found = n.step("reshape", batch, newshape=kept.shape)
            if tensor_type(found).dtype != kept.dtype:
                found = n.step("cast", found, dtype=str(kept.dtype))
            share = n.step("multiply", found, scalar(1 - momentum, kept))
            out.append(n.result(i, "add", running, share))
        else:
            out.append(y)
    return out


def _normalized(n: Node, axes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Atom, Atom, Atom]:
    """Input 0 with mean 0 and variance 1 over `axes`, times input 1, plus input 2 (both as
    `shape`); and that mean and variance, with these axes kept."""
    y, mean, var = _unscaled(n, widened(n, n.atom(0)), axes)
    gamma, beta = (n.step("reshape", widened(n, n.atom(i)), newshape=shape) for i in (1, 2))
    return in_dtype_of(n, 0, "add", n.step("multiply", y, gamma), beta), mean, var


def _unscaled(n: Node, x: Atom, axes: tuple[int, ...]) -> tuple[Atom, Atom, Atom]:
    """x with mean 0 and variance 1 over `axes`; and that mean and variance, with these axes
    kept."""
    mean, away, var = _moments(n, x, axes, n.step)
    epsilon = scalar(n.attr("epsilon", 1e-5), tensor_type(x))
    return n.step("divide", away, n.step("sqrt", n.step("add", var, epsilon))), mean, var


def _moments(n: Node, x: Atom, axes: tuple[int, ...], emit: Emit) -> tuple[Atom, Atom, Atom]:
    """Mean (which `emit` makes), distance from it, and variance of `x`, with the axes kept."""
    mean = emit("mean", x, axis=axes, keepdims=True)
    away = n.step("subtract", x, mean)
    var = n.step("mean", n.step("multiply", away, away), axis=axes, keepdims=True)
    return mean, away, var


@converts("LayerNormalization")
def layer_norm(n: Node) -> Sequence[Imported]:
    """Over the axes from `axis` on; several axes are flattened into one first. In float32 at least,
    as stash_type says."""
    x, t = widened(n, n.atom(0)), n.type(0)
    n.expect("stash_type", 1, 1)
    axis = n.axis(-1, t.rank)
    gamma = widened(n, n.atom(1))
    beta = widened(n, n.atom(2)) if n.has(2) else _zeros(n, tensor_type(gamma))
    epsilon = float(n.attr("epsilon", 1e-5))
    if axis == t.rank - 1:
        y = in_dtype_of(n, 0, "nn.layer_norm", x, gamma, beta, axis=-1, epsilon=epsilon)
    else:
        flat = n.step("flatten", x, axis=axis)
        inner_shape = t.shape[axis:]
        gamma, beta = (
            v if tensor_type(v).shape == inner_shape
            else n.step("broadcast_to", v, shape=inner_shape)
            for v in (gamma, beta)
        )  # fmt: skip
        gamma, beta = (n.step("reshape", v, newshape=(-1,)) for v in (gamma, beta))
        inner = n.step("nn.layer_norm", flat, gamma, beta, axis=-1, epsilon=epsilon)
        y = in_dtype_of(n, 0, "reshape", inner, newshape=t.shape)
    return [y, *_statistics(n, tuple(range(axis, t.rank)), epsilon)]


@converts("RMSNormalization")
def rms_norm(n: Node) -> Imported:
    """Over the axes from `axis` on; in float32 at least, as stash_type says."""
    n.expect("stash_type", 1, 1)
    return rms_normalized(n, widened(n, n.atom(0)), n.axis(-1, n.type(0).rank), n.atom(1))


def rms_normalized(n: Node, x: Atom, axis: int, gain: Atom) -> Imported:
    """x, of the dtype of input 0 or a wider one, over its root mean square from `axis` on, times
    `gain`; it is output 0."""
    t, inner = tensor_type(x), tensor_type(x).shape[axis:]
    gain, epsilon = widened(n, gain), float(n.attr("epsilon", 1e-5))
    shape = tensor_type(gain).shape
    while len(shape) > len(inner) and shape[0] == 1:
        shape = shape[1:]
    if len(shape) <= len(inner):
        if shape != tensor_type(gain).shape:
            gain = n.step("reshape", gain, newshape=shape)
        return in_dtype_of(n, 0, "nn.rms_norm", x, gain, axis=axis - t.rank, epsilon=epsilon)
    one = scalar(1, t)
    y = n.step("nn.rms_norm", x, one, axis=axis - t.rank, epsilon=epsilon)
    return in_dtype_of(n, 0, "multiply", y, gain)


def _statistics(n: Node, axes: tuple[int, ...], epsilon: float) -> list[Imported]:
    """Outputs 1 and 2 of a normalization: the float32 mean and 1 / standard deviation."""
    if not (n.wants(1) or n.wants(2)):
        return []
    x = n.atom(0) if n.type(0).dtype == FLOAT32 else n.step("cast", n.atom(0), dtype="float32")
    emit = partial(n.result, 1) if n.wants(1) else n.step
    mean, _, var = _moments(n, x, axes, emit)
    if not n.wants(2):
        return [mean]
    shifted = n.step("add", var, scalar(epsilon, tensor_type(x)))
    return [mean, n.result(2, "divide", scalar(1, tensor_type(x)), n.step("sqrt", shifted))]


def _zeros(n: Node, t: TensorType) -> Constant:
    n.reserve(*t.static_shape)
    return Constant(np.zeros(t.static_shape, t.dtype.storage), t.dtype)


@converts("InstanceNormalization")
def instance_norm(n: Node) -> Imported:
    """Every channel of every image with mean 0 and variance 1, then a scale and a bias."""
    axes = tuple(range(2, n.type(0).rank))
    return _normalized(n, axes, (1, -1, *(1 for _ in axes)))[0]


@converts("GroupNormalization")
def group_norm(n: Node) -> Imported:
    """Every group of channels of every image with mean 0 and variance 1, then a scale and a bias
    of every channel (before opset 21: of every group). The variance is that of the distances from
    the mean: as the standard's function writes it, less the square of the mean, it loses all
    digits where the mean is large."""
    t, groups = n.type(0), int(n.need("num_groups"))
    n.expect("stash_type", 1, 1)
    x = n.step("reshape", widened(n, n.atom(0)), newshape=(t.shape[0], groups, -1))
    y = _unscaled(n, x, (2,))[0]
    per_channel = (1, -1, *(1 for _ in t.shape[2:]))
    shape = per_channel if n.opset >= 21 else (1, -1, 1)
    gamma, beta = (n.step("reshape", widened(n, n.atom(i)), newshape=shape) for i in (1, 2))
    if n.opset >= 21:
        y = n.step("reshape", y, newshape=t.shape)
        return in_dtype_of(n, 0, "add", n.step("multiply", y, gamma), beta)
    scaled = n.step("add", n.step("multiply", y, gamma), beta)
    return in_dtype_of(n, 0, "reshape", scaled, newshape=t.shape)


@converts("LRN")
def lrn(n: Node) -> Imported:
    """x / (bias + alpha / size * sum of the squares of `size` channels around)^beta."""
    x, size = widened(n, n.atom(0)), int(n.need("size"))
    t = tensor_type(x)
    channels = t.shape[1]
    if not isinstance(channels, int):
        raise n.unsupported(f"{channels} channels; use shapes=...")
    around = ((size - 1) // 2, size - 1 - (size - 1) // 2)
    edges = tuple(around if k == 1 else (0, 0) for k in range(t.rank))
    squares = n.step(
        "nn.pad", n.step("multiply", x, x), pad_width=edges, mode="constant", value=0.0
    )
    total: Atom | None = None
    for k in range(size):
        part = n.step("strided_slice", squares, begin=(k,), end=(k + channels,), axes=(1,))
        total = part if total is None else n.step("add", total, part)
    assert total is not None
    scaled = n.step("multiply", total, scalar(float(n.attr("alpha", 1e-4)) / size, t))
    base = n.step("add", scaled, scalar(n.attr("bias", 1.0), t))
    power = n.step("power", base, scalar(n.attr("beta", 0.75), t))
    return in_dtype_of(n, 0, "divide", x, power)
