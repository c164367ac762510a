"""Converters of normalizations and softmax."""

from __future__ import annotations

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Dim, Index
from compiler.types.dtypes import DType


def _filled(n: TorchNode, name: str, shape: tuple[Dim, ...], value: float, dtype: DType) -> Atom:
    """An argument, or a constant in its place."""
    if n.arg(name) is not None:
        return n.x(name)
    if not all(isinstance(d, int) for d in shape):
        raise n.unsupported(f"no {name} and the symbolic size {shape}")
    n.reserve(*(int(str(d)) for d in shape))
    full = np.full([int(str(d)) for d in shape], value)
    return Constant.of(full, dtype)


@aten("_native_batch_norm_legit_no_training", "batch_norm", "native_batch_norm",
      "_native_batch_norm_legit")  # fmt: skip
def batch_norm(n: TorchNode) -> Results:
    """With the statistics of training."""
    if n.arg("training"):
        raise n.unsupported("training=True; call module.eval() first")
    x = n.x("input")
    t = tensor_type(x)
    channels = t.shape[1:2]
    args = [
        _filled(n, name, channels, value, t.dtype)
        for name, value in (
            ("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)
        )
    ]  # fmt: skip
    return [n.call("nn.batch_norm", x, *args, epsilon=float(n.number("eps")), axis=1)]


@aten("_native_batch_norm_legit_functional")
def trained_batch_norm(n: TorchNode) -> Results:
    """With the statistics of the batch: also its mean, 1 / deviation, and the running statistics,
    into which `momentum` of them is mixed (of the variance, that of a sample)."""
    if not n.arg("training"):
        return batch_norm(n)
    x = n.x("input")
    t = tensor_type(x)
    axes = (0, *range(2, t.rank))
    wide = (-1, *(1 for _ in axes[1:]))
    mean = n.step("mean", x, axis=axes, keepdims=True)
    away = n.step("subtract", x, mean)
    var = n.step("mean", n.step("multiply", away, away), axis=axes, keepdims=True)
    shifted = n.step("add", var, scalar(float(n.number("eps")), t))
    inverse = n.step("rsqrt", shifted)
    y = n.step("multiply", away, inverse)
    for name, op in (("weight", "multiply"), ("bias", "add")):
        if n.arg(name) is not None:
            y = n.step(op, y, n.step("reshape", n.x(name), newshape=wide))
    found = [n.step("squeeze", v, axis=axes) for v in (mean, inverse, var)]
    count = Index.of(1)
    for a in axes:
        count = count * t.shape[a]
    if count.terms:
        raise n.unsupported(f"statistics of the symbolic number {count} of elements")
    sample = n.step("multiply", found[2], scalar(count.const / max(count.const - 1, 1), t))
    kept = [_mixed(n, "running_mean", found[0]), _mixed(n, "running_var", sample)]
    return [y, found[0], found[1], *kept]


def _mixed(n: TorchNode, name: str, new: Atom) -> Atom:
    """Running statistics, with their share of new ones."""
    share = float(n.number("momentum"))
    t = tensor_type(new)
    old = n.step("multiply", n.x(name), scalar(1 - share, t))
    return n.step("add", old, n.step("multiply", new, scalar(share, t)))


@aten("native_layer_norm", "layer_norm")
def layer_norm(n: TorchNode) -> Results:
    """Over the last axes."""
    x = n.x("input")
    t = tensor_type(x)
    inner = t.shape[t.rank - len(n.arg("normalized_shape")) :]
    gain = _filled(n, "weight", inner, 1.0, t.dtype)
    bias = n.x("bias") if n.arg("bias") is not None else None
    axis, eps = t.rank - len(inner), float(n.number("eps"))
    y = n.spelled("LayerNormalization", x, gain, bias, axis=axis, epsilon=eps)
    return y if not n.wants(1) else [_first(y), *_statistics(n, x, tuple(range(axis, t.rank)), eps)]


def _first(y: Results) -> Imported:
    return y if isinstance(y, Imported) else y[0]


def _statistics(n: TorchNode, x: Atom, axes: tuple[int, ...], eps: float) -> list[Atom]:
    """What torch's backward graphs read: the mean, and 1 / deviation."""
    mean = n.step("mean", x, axis=axes, keepdims=True)
    away = n.step("subtract", x, mean)
    return [mean, _inverse(n, away, axes, eps)]


def _inverse(n: TorchNode, away: Atom, axes: tuple[int, ...], eps: float) -> Atom:
    """1 / the root of the mean of squares."""
    var = n.step("mean", n.step("multiply", away, away), axis=axes, keepdims=True)
    return n.step("rsqrt", n.step("add", var, scalar(eps, tensor_type(var))))


@aten("rms_norm", "_fused_rms_norm")
def rms_norm(n: TorchNode) -> Results:
    """Over the last axes; without an epsilon, that of the dtype."""
    x = n.x("input")
    t = tensor_type(x)
    inner = t.shape[t.rank - len(n.arg("normalized_shape")) :]
    eps = n.number("eps")
    if eps is None:
        eps = float(np.finfo(t.dtype.storage).eps)
    gain = _filled(n, "weight", inner, 1.0, t.dtype)
    axis = t.rank - len(inner)
    y = n.spelled("RMSNormalization", x, gain, axis=axis, epsilon=float(eps))
    more = [_inverse(n, x, tuple(range(axis, t.rank)), float(eps))] if n.wants(1) else []
    return [_first(y), *more]


@aten("native_group_norm", "group_norm")
def group_norm(n: TorchNode) -> Results:
    """Of every group of channels of every image."""
    x = n.x("input")
    t = tensor_type(x)
    groups = n.number("group" if "group" in n.args else "num_groups")
    gain = _filled(n, "weight", t.shape[1:2], 1.0, t.dtype)
    bias = _filled(n, "bias", t.shape[1:2], 0.0, t.dtype)
    eps = float(n.number("eps"))
    y = n.spelled("GroupNormalization", x, gain, bias, num_groups=groups, epsilon=eps)
    if not n.wants(1):
        return [_first(y)]
    apart = n.step("reshape", x, newshape=(t.shape[0], groups, -1))
    found = _statistics(n, apart, (2,), eps)
    return [_first(y), *(n.step("squeeze", v, axis=(2,)) for v in found)]


@aten("instance_norm")
def instance_norm(n: TorchNode) -> Results:
    """Of every channel of every image."""
    x = n.x("input")
    t = tensor_type(x)
    if not n.arg("use_input_stats"):
        return batch_norm(n)
    gain = _filled(n, "weight", t.shape[1:2], 1.0, t.dtype)
    bias = _filled(n, "bias", t.shape[1:2], 0.0, t.dtype)
    return n.spelled("InstanceNormalization", x, gain, bias, epsilon=float(n.number("eps")))


@aten("_softmax", "softmax", "_log_softmax", "log_softmax", "_safe_softmax")
def softmax(n: TorchNode) -> Results:
    """Along one axis."""
    op = "nn.log_softmax" if "log" in n.op else "nn.softmax"
    x = n.in_dtype("self", n.dtype)
    axis = n.front(n.number("dim"), max(tensor_type(x).rank, 1))
    return n.call(op, x, axis=axis)
