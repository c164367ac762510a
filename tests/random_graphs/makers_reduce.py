"""Draws reductions, scans, softmax and normalization."""

from __future__ import annotations

import numpy as np

from random_graphs.drawing import Drawing, draws, schema_of
from random_graphs.oracle import Unavailable

RANKED = (1, 2, 3, 4)


@draws(
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def reduce(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op))
    rank = g.of(x).ndim
    axes = [int(a) for a in g.rng.permutation(rank)[: g.int(1, max(rank, 1))]]
    axes = [a - rank if g.chance(0.2) and g.opset >= 11 else a for a in axes]
    keep = g.any([None, 0, 1])
    if g.chance(0.2) or not axes:
        noop = g.any([None, 0, 1]) if g.has(op, "noop_with_empty_axes") else None
        g.node(op, [x], keepdims=keep, noop_with_empty_axes=noop)
    elif g.has(op, "axes"):
        g.node(op, [x], axes=axes, keepdims=keep)
    else:
        g.node(op, [x, g.numbers(axes)], keepdims=keep)


@draws("ArgMax", "ArgMin")
def arg_extreme(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    last = g.any([None, 0, 1]) if g.has(op, "select_last_index") else None
    axis = g.axis(g.of(x).ndim) if g.opset >= 11 else g.int(0, g.of(x).ndim - 1)
    g.node(op, [x], axis=axis, keepdims=g.any([None, 0, 1]), select_last_index=last)


@draws("CumSum", "CumProd")
def cumulative(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    axis = g.stored(np.asarray(g.axis(g.of(x).ndim), np.int64))
    g.node(op, [x, axis], exclusive=g.any([None, 0, 1]), reverse=g.any([None, 0, 1]))


@draws("Softmax", "LogSoftmax", "Hardmax")
def softmax(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    axis = g.axis(g.of(x).ndim) if g.opset >= 11 else g.int(0, g.of(x).ndim - 1)
    g.node(op, [x], axis=axis if g.chance(0.8) else None)


@draws("BatchNormalization")
def batch_norm(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, (2, 3, 4))
    c = g.of(x).shape[1]
    stats = [g.given((c,), dtype, 0.9, "normal") for _ in range(3)]
    variance = g.stored(g.rng.uniform(0.2, 2, c).astype(dtype))
    g.node(op, [x, *stats, variance], epsilon=g.any([None, 1e-2]))


@draws("InstanceNormalization")
def instance_norm(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, (3, 4))
    c = g.of(x).shape[1]
    g.node(op, [x, *(g.given((c,), dtype, 0.9) for _ in range(2))], epsilon=g.any([None, 1e-2]))


@draws("LayerNormalization", "RMSNormalization")
def layer_norm(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, (2, 3, 4))
    shape = g.of(x).shape
    axis = g.axis(len(shape))
    given = [g.given(shape[axis:] if g.chance(0.8) else (shape[-1],), dtype, 0.8)]
    if op == "LayerNormalization" and g.chance(0.7):
        given.append(g.given(g.of(given[0]).shape, dtype, 0.8))
    g.node(op, [x, *given], axis=axis if g.chance(0.8) or axis not in (-1, len(shape) - 1)
           else None, epsilon=g.any([None, 1e-2]))  # fmt: skip


@draws("GroupNormalization")
def group_norm(g: Drawing, op: str) -> None:
    dtype, groups = g.dtype(op), g.int(1, 3)
    c = groups * g.int(1, 3)
    x = g.given((g.int(1, 2), c, *g.shape(g.int(1, 2))), dtype, 0)
    many = groups if g.opset < 21 else c
    g.node(op, [x, *(g.given((many,), dtype, 0.9) for _ in range(2))], num_groups=groups)


@draws("LpNormalization")
def lp_norm(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    g.node(op, [x], axis=g.axis(g.of(x).ndim), p=g.any([None, 1, 2]))


@draws("MeanVarianceNormalization")
def mean_variance_norm(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (4,))
    g.node(op, [x], axes=g.any([None, [0, 2, 3], [1, 2, 3], [1]]))


@draws("LRN")
def lrn(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (4,))
    g.node(op, [x], size=g.any([1, 3, 5]), alpha=g.any([None, 0.3]), beta=g.any([None, 0.6]),
           bias=g.any([None, 1.5]))  # fmt: skip


@draws("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def losses(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    n, c, *rest = g.int(1, 4), g.int(2, 5), *g.shape(g.int(0, 2))
    target = g.rng.integers(0, c, (n, *rest)).astype(g.any([np.int32, np.int64]))
    weights = [g.stored(g.rng.uniform(0.2, 2, c).astype(dtype))] if g.chance(0.4) else []
    ignored = g.int(0, c - 1) if g.chance(0.3) else None
    outputs = 2 if op == "SoftmaxCrossEntropyLoss" and g.chance(0.4) else 1
    g.node(op, [g.given((n, c, *rest), dtype, 0), g.input(target), *weights], outputs,
           reduction=g.any([None, "none", "mean", "sum"]), ignore_index=ignored)  # fmt: skip


@draws("DFT")
def dft(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    inner = g.shape(g.int(1, 2))
    x = g.given((g.int(1, 2), *inner, g.any([1, 2])), dtype, 0)
    axis = g.int(1, len(inner))
    inverse = g.int(0, 1)
    onesided = 1 if not inverse and g.of(x).shape[-1] == 1 and g.chance() else None
    if 0 in inner:
        raise Unavailable("nothing to transform")
    if g.has(op, "axis"):
        g.node(op, [x], axis=axis, inverse=inverse, onesided=onesided)
    else:
        at = g.stored(np.asarray(axis, np.int64))
        g.node(op, [x, "", at], inverse=inverse, onesided=onesided)


@draws("STFT")
def stft(g: Drawing, op: str) -> None:
    dtype = g.any([np.dtype(np.float32), np.dtype(np.float64)])
    length, frame, step = g.int(12, 24), g.any([4, 6, 8]), g.int(1, 4)
    x = g.given((g.int(1, 2), length, 1), dtype, 0)
    window = g.stored(g.rng.uniform(0.2, 1, frame).astype(dtype)) if g.chance() else ""
    g.node(op, [x, g.stored(np.asarray(step, np.int64)), window,
                g.stored(np.asarray(frame, np.int64))], onesided=g.any([None, 0, 1]))  # fmt: skip


@draws("BlackmanWindow", "HammingWindow", "HannWindow")
def windows(g: Drawing, op: str) -> None:
    size = g.stored(np.asarray(g.int(2, 12), g.any([np.int32, np.int64])))
    g.node(op, [size], periodic=g.any([None, 0, 1]), output_datatype=g.any([None, 1, 11]))


__all__ = ["schema_of"]
