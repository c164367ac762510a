"""How far apart two results of one node may be, element by element.

Operators that move, compare or compute with one rounding are exact. Functions may differ by units
in the last place. Sums may differ by what rounding their operands anew changes in the result (a
backward error): the node is run by onnxruntime on operands that differ in the last place, so that
neither cancellation nor the length of a sum needs a tolerance of its own.
"""

from __future__ import annotations

import numpy as np
from ml_dtypes import finfo

from compiler.arithmetic.scalar_functions import UNARY
from random_graphs.drawing import Drawn, Graph, ml_isfinite, reference
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array, Unavailable

FUNCTIONS = {
    *(f.onnx for f in UNARY.values() if f.onnx is not None and not f.integral),
    "Pow", "HardSwish", "Softplus", "Softsign", "Mish", "Elu", "Celu", "Swish", "Selu",
    "HardSigmoid", "Gelu", "Reciprocal", "Mean", "Div", "BlackmanWindow", "HammingWindow",
    "HannWindow", "LeakyRelu", "Mod", "Shrink",
}  # fmt: skip
FUNCTIONS |= (
    GELUS := {f"com.microsoft.{name}" for name in ("Gelu", "BiasGelu", "FastGelu", "QuickGelu")}
)
"""Of one element, by a few roundings."""
SUMS = {
    "ReduceMean", "ReduceProd", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare", "CumSum", "CumProd", "Softmax", "LogSoftmax",
    "BatchNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
    "GroupNormalization", "LpNormalization", "MeanVarianceNormalization", "LRN",
    "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "DFT", "STFT", "Conv", "ConvTranspose",
    "DeformConv", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalLpPool", "Gemm", "MatMul",
    "Einsum", "RNN", "GRU", "LSTM", "Resize", "Upsample", "GridSample", "RoiAlign", "Col2Im",
    "Attention", "RotaryEmbedding", "Sum", "com.microsoft.MatMulNBits", "ScatterElements",
    "ScatterND", "Scatter", "com.microsoft.QGemm", "Det",
    "com.microsoft.DynamicQuantizeLSTM", "AffineGrid",
}  # fmt: skip
ATTENTION = {
    f"com.microsoft.{name}"
    for name in ("Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding")
}
SKIPS = {
    "SimplifiedLayerNormalization", "com.microsoft.SkipLayerNormalization",
    "com.microsoft.SkipSimplifiedLayerNormalization", "com.microsoft.EmbedLayerNormalization",
}  # fmt: skip
SUMS |= ATTENTION | SKIPS
"""Of many elements, in an order of their own."""
CANCELLING = {
    "Elu", "Celu", "Selu", "Gelu", "Mish", "Softplus", "Sigmoid", "Cos", "Sin", "Tan",
    "BlackmanWindow", "HammingWindow", "HannWindow", "LogSoftmax", "RNN", "GRU", "LSTM", "Shrink",
    "com.microsoft.DynamicQuantizeLSTM",
    "Erf", "Tanh", "ReduceLogSumExp", "ReduceLogSum",
    "Swish", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
}  # fmt: skip
CANCELLING |= GELUS | ATTENTION
"""Of which something about 1 in size is taken away, or that are computed as polynomials."""
SCALED = {
    "Resize", "Upsample", "GridSample", "RoiAlign", "DeformConv", "DFT", "STFT", "AffineGrid",
}  # fmt: skip
"""By coefficients that are rounded themselves: the error is one of the largest operand."""
NORMS = {
    "InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization",
    "MeanVarianceNormalization", "BatchNormalization", "LpNormalization", "Softmax", "LogSoftmax",
    *SKIPS,
}  # fmt: skip
LINEAR = {
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "ReduceSum", "CumSum", "Sum", "Col2Im",
    "ReduceMean", "AveragePool", "GlobalAveragePool",
}  # fmt: skip
"""Sums of products, which are largest of the operands' absolute values."""
ULPS = 8
"""Units in the last place that a function may be off."""
FACTOR = 16
"""How much more than its perturbations show a sum may be off."""
TRIES = 3


def same(a: Array, b: Array) -> Array:
    """Where two arrays hold the same numbers; NaN equals NaN, and zeros of both signs are equal."""
    if is_float(a.dtype):
        a, b = wide(a), wide(b)
        return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))
    return np.asarray(a == b)


def wide(a: Array) -> Array:
    """Floats in float64."""
    return a.astype(np.float64) if is_float(a.dtype) else a


def within(n: Drawn, g: Graph, got: Array, want: Array, output: int) -> Array:
    """Where `got` is what `want` says of a node's output, within what the operator may be off."""
    equal = same(got, want)
    if equal.all() or not is_float(want.dtype) or n.op not in FUNCTIONS | SUMS:
        return equal
    with np.errstate(all="ignore"):
        a, b = wide(got), wide(want)
        slack = ulps(n, g, want)
        if n.op in SUMS:
            slack = slack + FACTOR * perturbed(n, g, output, b)
        if n.op in LINEAR:
            slack = slack + absolute(n, g, output)
        finite = ml_isfinite(got) & ml_isfinite(want)
        return np.asarray(equal | (finite & (np.abs(a - b) <= slack)))


def ulps(n: Drawn, g: Graph, want: Array) -> Array:
    """ULPS of every element."""
    info = finfo(want.dtype)
    size = np.maximum(np.abs(wide(want)), float(info.smallest_normal))
    if n.op in CANCELLING:
        size = np.maximum(size, 0.5)
    if n.op in NORMS:  # their elements are about 1, times a scale, plus a bias
        rest = [wide(g.arrays[r]) for r in n.reads[1:]] or [np.ones(1)]
        size = np.maximum(size, max(np.abs(r[np.isfinite(r)]).max(initial=0) for r in rest))
    if n.op in SCALED:
        first = wide(g.arrays[n.reads[0]])
        largest = np.abs(first[np.isfinite(first)]).max(initial=0)
        size = np.maximum(size, largest * (first.shape[1] if n.op.endswith("FT") else 2))
    return np.asarray(ULPS * float(info.eps) * size)


def absolute(n: Drawn, g: Graph, output: int) -> Array:
    """ULPS of the sum of the terms' absolute values."""
    arrays = {r: np.abs(g.arrays[r]) if is_float(g.arrays[r].dtype) else g.arrays[r]
              for r in n.reads}  # fmt: skip
    try:
        found = reference(n, arrays, g.weights, g.opset)[output]
    except Unavailable:
        return np.zeros(())
    size = np.nan_to_num(np.abs(wide(found)), nan=0, posinf=0)
    return np.asarray(ULPS * float(finfo(found.dtype).eps) * size)


def perturbed(n: Drawn, g: Graph, output: int, want: Array) -> Array:
    """The largest change of an output where the operands change in the last place; infinite where
    that makes it infinite, or NaN."""
    worst = np.zeros_like(want)
    rng = np.random.default_rng(0)
    for _ in range(TRIES):
        arrays = {r: _nudged(rng, g.arrays[r], g.arrays[r].dtype) for r in n.reads}
        try:
            found = reference(n, arrays, g.weights, g.opset)[output]
        except Unavailable:
            return worst
        if found.shape != want.shape:
            return worst
        change = np.abs(wide(found) - want)
        odd = np.isfinite(wide(found)) != np.isfinite(want)
        change = np.where(odd, np.inf, np.where(np.isnan(change), 0, change))
        worst = np.maximum(worst, change)
    return worst


def _nudged(rng: np.random.Generator, a: Array, dtype: np.dtype) -> Array:
    """The array with floats changed by up to a unit in the last place."""
    if not is_float(dtype) or a.size == 0:
        return a
    eps = float(finfo(dtype).eps)
    moved = wide(a) * (1 + eps * rng.choice([-1, 1], a.shape))
    return np.asarray(moved.astype(dtype))
