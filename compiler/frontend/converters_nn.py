"""Converters of convolutions, matrix products, normalization and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontend.node import Imported, Node, converts, scalar, transposed
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.ir.types import TensorType

Pair = tuple[int, int]


# ---- windows -------------------------------------------------------------------------------------
def _spatial(n: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    v = tuple(int(x) for x in n.attr(name, (default,) * count))
    if len(v) != count or any(x < 1 for x in v):
        raise n.unsupported(f"{name}={v} for an input of {count} spatial dimensions")
    return v


def _padding(
    n: Node, t: TensorType, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[Pair]:
    """(before, after) of every spatial axis, from pads or auto_pad."""
    count = len(kernel)
    auto = n.expect("auto_pad", "NOTSET", "NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto in ("NOTSET", ""):
        pads = tuple(n.attr("pads", (0,) * (2 * count)))
        if len(pads) != 2 * count or any(p < 0 for p in pads):
            raise n.unsupported(f"pads={pads} for an input of {count} spatial dimensions")
        return list(zip(pads[:count], pads[count:], strict=True))
    if auto == "VALID":
        return [(0, 0)] * count
    out = []
    for size, k, s, d in zip(t.shape[2:], kernel, strides, dilation, strict=True):
        # with stride 1 the padding does not depend on the size
        if not isinstance(size, int) and s != 1:
            raise n.unsupported(f"auto_pad={auto!r} and the symbolic size {size}; use shapes=...")
        steps = (-(-size // s) - 1) * s - size if isinstance(size, int) else -1
        total = max(0, steps + (k - 1) * d + 1)
        small, large = total // 2, total - total // 2
        out.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return out


def _two(values: Sequence[int], fill: int) -> Pair:
    """A 1-D setting as that of a 2-D window of height 1."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def _four(pads: Sequence[Pair]) -> tuple[int, int, int, int]:
    """(top, left, bottom, right)."""
    (top, bottom), (left, right) = [(0, 0), *pads] if len(pads) == 1 else pads
    return top, left, bottom, right


def _window(n: Node, t: TensorType, kernel: Sequence[int]) -> dict[str, Any]:
    count = len(kernel)
    strides = _spatial(n, "strides", count, 1)
    dilation = _spatial(n, "dilations", count, 1)
    pads = _padding(n, t, kernel, strides, dilation)
    return {
        "strides": _two(strides, 1),
        "padding": _four(pads),
        "dilation": _two(dilation, 1),
    }


def _expanded(n: Node, a: Atom) -> Atom:
    """A tensor with an axis of length 1 at position 2 (a 1-D signal as an image of height 1)."""
    if isinstance(a, Constant):
        return Constant(np.expand_dims(a.data, 2), a.dtype)
    return n.step("expand_dims", a, axes=(2,))


# ---- convolution ---------------------------------------------------------------------------------
@converts("Conv")
def conv(n: Node) -> Imported:
    """1-D (as height 1) and 2-D, with groups, dilation and asymmetric padding."""
    rank = n.rank_of(0, 3, 4)
    x, w = n.atom(0), n.atom(1)
    weight = tensor_type(w)
    if weight.rank != rank:
        raise n.unsupported(f"weights of shape {weight.shape}")
    kernel = weight.static_shape[2:]
    if tuple(n.attr("kernel_shape", kernel)) != kernel:
        raise n.unsupported(f"kernel_shape={n.attr('kernel_shape')} and weights of {kernel}")
    attrs = _window(n, n.type(0), kernel) | {"groups": int(n.attr("group", 1))}
    bias = [n.atom(2)] if n.has(2) else []
    if rank == 4:
        return n.call("nn.conv2d", x, w, *bias, **attrs)
    y = n.step("nn.conv2d", _expanded(n, x), _expanded(n, w), *bias, **attrs)
    return n.call("squeeze", y, axis=(2,))


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
        return Constant((c.data * np.asarray(factor, c.data.dtype)).astype(c.data.dtype), c.dtype)


def _vector(c: Atom, units: Any) -> Atom | None:
    """`c` as a bias vector of `units`, if it is one."""
    t = tensor_type(c)
    if t.shape == (units,):
        return c
    constant_row = isinstance(c, Constant) and all(d == 1 for d in t.shape[:-1]) and t.rank <= 2
    if constant_row and isinstance(units, int) and t.shape[-1:] in ((), (1,), (units,)):
        assert isinstance(c, Constant)
        return Constant(np.broadcast_to(c.data.reshape(-1), (units,)).copy(), c.dtype)
    return None


@converts("MatMul")
def matmul(n: Node) -> Imported:
    """A constant matrix on the right makes a dense layer, which has weights to quantize."""
    a, b = n.atom(0), n.atom(1)
    left, right = n.type(0).rank, n.type(1).rank
    if isinstance(b, Constant) and right == 2 and left >= 2:
        return n.call("nn.dense", a, transposed(b))
    if left >= 2 and right >= 2:
        return n.call("nn.matmul", a, b)
    # numpy's rule: a vector is a row on the left, a column on the right; its axis is dropped again
    if left == 1:
        a = n.step("expand_dims", a, axes=(0,))
    if right == 1:
        b = n.step("expand_dims", b, axes=(1,))
    y = n.step("nn.matmul", a, b)
    dropped = ([-2] if left == 1 else []) + ([-1] if right == 1 else [])
    rank = tensor_type(y).rank
    return n.call("squeeze", y, axis=tuple(d + rank for d in dropped))


# ---- normalization -------------------------------------------------------------------------------
@converts("BatchNormalization")
def batch_norm(n: Node) -> Imported:
    """With the statistics of training."""
    n.expect("training_mode", 0, 0)
    args = [n.atom(i) for i in range(5)]
    return n.call("nn.batch_norm", *args, epsilon=float(n.attr("epsilon", 1e-5)), axis=1)


@converts("LayerNormalization")
def layer_norm(n: Node) -> Imported:
    """Over the axes from `axis` on; several axes are flattened into one first."""
    x, t = n.atom(0), n.type(0)
    n.expect("stash_type", 1, 1)
    axis = n.axis(-1, t.rank)
    gamma = n.atom(1)
    beta = n.atom(2) if n.has(2) else _zeros(n, tensor_type(gamma))
    epsilon = float(n.attr("epsilon", 1e-5))
    if axis == t.rank - 1:
        return n.call("nn.layer_norm", x, gamma, beta, axis=-1, epsilon=epsilon)
    flat = n.step("flatten", x, axis=axis)
    gamma, beta = (n.step("reshape", v, newshape=(-1,)) for v in (gamma, beta))
    y = n.step("nn.layer_norm", flat, gamma, beta, axis=-1, epsilon=epsilon)
    return n.call("reshape", y, newshape=t.shape)


def _zeros(n: Node, t: TensorType) -> Constant:
    return Constant(np.zeros(t.static_shape, t.dtype.storage), t.dtype)


# ---- pooling -------------------------------------------------------------------------------------
@converts("MaxPool", "AveragePool")
def pool(n: Node) -> Imported:
    """1-D (as height 1) and 2-D."""
    rank = n.rank_of(0, 3, 4)
    x, t = n.atom(0), n.type(0)
    kernel = tuple(int(k) for k in n.need("kernel_shape"))
    if len(kernel) != rank - 2:
        raise n.unsupported(f"kernel_shape={kernel} for an input of rank {rank}")
    attrs = _window(n, t, kernel) | {
        "pool_size": _two(kernel, 1),
        "ceil_mode": bool(n.attr("ceil_mode", 0)),
    }
    op = "nn.max_pool2d"
    if n.op == "AveragePool":
        op = "nn.avg_pool2d"
        attrs["count_include_pad"] = bool(n.attr("count_include_pad", 0))
    if rank == 4:
        return n.call(op, x, **attrs)
    return n.call("squeeze", n.step(op, _expanded(n, x), **attrs), axis=(2,))
