"""Converters of normalizations and softmax."""

from __future__ import annotations

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.frontend.values import Imported
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import Dim
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


@aten("native_layer_norm", "layer_norm")
def layer_norm(n: TorchNode) -> Results:
    """Over the last axes."""
    x = n.x("input")
    t = tensor_type(x)
    inner = t.shape[t.rank - len(n.arg("normalized_shape")) :]
    gain = _filled(n, "weight", inner, 1.0, t.dtype)
    bias = n.x("bias") if n.arg("bias") is not None else None
    axis = t.rank - len(inner)
    return n.spelled("LayerNormalization", x, gain, bias, axis=axis, epsilon=float(n.number("eps")))


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
    y = n.spelled("RMSNormalization", x, gain, axis=t.rank - len(inner), epsilon=float(eps))
    return [y] if isinstance(y, Imported) else y


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
    return [y] if isinstance(y, Imported) else y


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
