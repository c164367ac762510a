"""Differences that are explained, each by a named rule with its reason.

A rule says which elements of a difference it explains; it looks at the operator, its operands and
both results, and bounds what it excuses: by computing the result anew (`recomputing`), or by
showing that both agree as soon as the operands are ordinary. Whatever no rule explains is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ml_dtypes import finfo
from onnx.reference import ReferenceEvaluator

import compiler
from compiler.transform import SimplifyInference
from random_graphs.comparing import (
    Difference,
    cut_model,
    fed,
    identical,
    listed,
    numbers,
    order_is_free,
    sized,
)
from random_graphs.drawing import NARROW_FLOATS, ml_isfinite, promoted
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array
from random_graphs.recomputing import (
    agrees,
    attribute,
    compiled_agrees,
    exact_norm,
    in_wider,
    operand,
    reduced_axes,
    reduced_shape,
    reference_on,
    saturated,
    touches_padding,
    without_odd,
    wrapped_sums,
)
from random_graphs.tolerances import FUNCTIONS, SUMS, wide

POSITIONS = {"Resize", "Upsample", "GridSample", "RoiAlign", "DeformConv"}
SCATTERS = {"ScatterElements", "ScatterND"}
REDUCED = {
    "ReduceMean", "ReduceProd", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMax",
    "ReduceLogSumExp", "ReduceSumSquare", "ReduceMin", "ArgMax", "ArgMin",
}  # fmt: skip
EXTREMES = {
    "Max", "Min", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "ArgMax", "ArgMin",
    "Hardmax", "TopK", "Clip", "Relu", "RoiAlign",
}  # fmt: skip
Explains = Callable[[Difference], Array | bool]


@dataclass(frozen=True)
class Rule:
    """Why results may differ.

    Attributes:
        name: what reports count.
        reason: in words, why it is no fault.
        explains: difference -> the elements it explains.
    """

    name: str
    reason: str
    explains: Explains


RULES: list[Rule] = []


def rule(name: str, reason: str) -> Callable[[Explains], Explains]:
    """Decorator: the function is a rule."""

    def register(f: Explains) -> Explains:
        RULES.append(Rule(name, reason, f))
        return f

    return register


@np.errstate(all="ignore")
def explained(d: Difference) -> list[str] | None:
    """The names of the rules that together explain a difference; None if they do not."""
    if d.error is not None or d.wrong is None:
        return next(([r.name] for r in RULES if np.all(r.explains(d))), None)
    left, names = d.wrong.copy(), []
    for r in RULES:
        known = left & np.broadcast_to(np.asarray(r.explains(d), bool), left.shape)
        if known.any():
            names.append(r.name)
            left &= ~known
        if not left.any():
            return names
    return None


# ---- what rules look at --------------------------------------------------------------------------
def operands(d: Difference) -> list[Array]:
    """What the node reads."""
    return [d.graph.arrays[r] for r in d.node.reads]


def floats(d: Difference) -> list[Array]:
    """The operands that are floats."""
    return [a for a in operands(d) if is_float(a.dtype)]


def odd(d: Difference) -> bool:
    """Whether an operand holds NaN or an infinity."""
    return any(not ml_isfinite(a).all() for a in floats(d))


def huge(d: Difference) -> bool:
    """Whether products and sums of operands may overflow."""
    return any(np.nan_to_num(np.abs(wide(a)), posinf=0).max(initial=0)
               > 0.01 * float(finfo(a.dtype).max) ** 0.25 for a in floats(d))  # fmt: skip


def nan(d: Difference) -> bool:
    """Whether an operand holds NaN."""
    return any(np.isnan(promoted(a)).any() for a in floats(d))


def of(d: Difference, *ops: str) -> bool:
    """Whether the interpreter and onnxruntime differ in one of these operators."""
    return d.stage == "interpreted" and d.error is None and d.node.op in ops


def non_finite(d: Difference) -> Array:
    """Where either result is no number."""
    assert d.wrong is not None
    if not is_float(d.want.dtype):
        return np.zeros_like(d.wrong)
    return np.asarray(~ml_isfinite(d.got) | ~ml_isfinite(d.want))


# ---- rounding and range --------------------------------------------------------------------------
@rule("16 bits", "onnxruntime computes 16-bit floats in float32 inside a node; we round each step")
def sixteen_bits(d: Difference) -> Array | bool:
    """Checked: in float32, both agree to the bits of the narrow dtype."""
    if not of(d, *FUNCTIONS, *SUMS) or not any(a.dtype in NARROW_FLOATS for a in operands(d)):
        return False
    return in_wider(d, np.float32)


@rule("overflow in between", "sums and squares of huge operands overflow in an order of their own")
def overflow(d: Difference) -> Array | bool:
    """Checked: in float64, where they do not overflow, both agree."""
    if not of(d, *FUNCTIONS, *SUMS) or d.wrong is None or not huge(d):
        return False
    return all(a.dtype == np.float32 for a in floats(d)) and in_wider(d, np.float64)


@rule("sums of infinities", "where a sum of huge elements overflows is up to its order; so is NaN")
def infinities(d: Difference) -> Array | bool:
    """Checked: what differs is no number, and both agree on operands of ordinary size."""
    if not of(d, *SUMS) or d.wrong is None or not (huge(d) or odd(d)):
        return False
    return non_finite(d) & without_odd(d)


@rule(
    "contractions overflow",
    "contractions of built-in floats are formed in an order that suits the target, and so is where "
    "huge terms overflow",
)
def contractions(d: Difference) -> Array | bool:
    """Checked: the module's own word that the order is free, what differs is no number, and both
    agree on operands of ordinary size."""
    if d.stage != "compiled" or d.error is not None or not (huge(d) or odd(d)):
        return False
    return order_is_free(d.graph, d.node) and non_finite(d) & compiled_agrees(d)


@rule(
    "batch norm as scale and shift",
    "SimplifyInference makes one scale and one shift of the statistics, as it is documented to",
)
def scale_and_shift(d: Difference) -> Array | bool:
    """Checked: compiled code has the bits of the interpreter on the module after that pass."""
    if d.stage != "compiled" or d.error is not None or d.node.op != "BatchNormalization":
        return False
    mod = SimplifyInference()(sized(cut_model(d.graph, [d.node])))
    with np.errstate(all="ignore"):
        own = listed(compiler.evaluate(mod, fed(d.graph, mod)))[d.output]
    return identical(d.got, numbers(own, d.want))


@rule("squares of float32", "ONNX's body squares in float32, where squares of huge elements are "
      "infinite and what is divided by them 0; onnxruntime sums in float64")  # fmt: skip
def squares(d: Difference) -> Array | bool:
    """Checked: 0 here (NaN of an element beyond float32), and the largest square is beyond it."""
    if not of(d, "RMSNormalization") or d.wrong is None:
        return False
    x = wide(operands(d)[0])
    largest = np.abs(np.nan_to_num(x, posinf=0, neginf=0)).max(initial=0)
    nothing = (wide(d.got) == 0) | (np.isnan(wide(d.got)) & (np.abs(x) > 2.0**127))
    return nothing & ml_isfinite(d.want) & bool(largest > 2.0**64)


@rule("products of denormals", "long products underflow in an order of their own")
def underflow(d: Difference) -> Array | bool:
    """Checked: in float64, where they do not, both agree."""
    if not of(d, "ReduceProd", "CumProd") or d.want.dtype != np.float32:
        return False
    return in_wider(d, np.float64)


@rule("norms by differences of squares", "onnxruntime takes the mean's square from the squares' "
      "mean, scaled means from the bias, and norms of squares that under- or overflow")  # fmt: skip
def norms(d: Difference) -> Array | bool:
    """Checked: ours is the norm computed in long doubles, within its conditioning."""
    return of(d, "MeanVarianceNormalization", "InstanceNormalization", "LayerNormalization",
              "LpNormalization") and exact_norm(d)  # fmt: skip


@rule("stash type", "ONNX says to normalize in float32 at any dtype; onnxruntime uses float64's")
def stash(d: Difference) -> Array | bool:
    """Checked: to float32's digits both agree."""
    if not of(d, "RMSNormalization", "GroupNormalization") or d.want.dtype != np.float64:
        return False
    return np.abs(d.got - d.want) <= 1e-5 * np.maximum(1, np.abs(d.want))


@rule("float32 constants", "onnxruntime has numbers of float64 nodes in float32")
def float32_constants(d: Difference) -> Array | bool:
    """Checked: to float32's digits both agree."""
    if not of(d, "DFT", "Shrink", "Gelu", "HardSwish") or d.want.dtype != np.float64:
        return False
    return np.abs(d.got - d.want) <= 1e-6 * np.abs(d.want).max()


@rule("windows", "ONNX's own body computes windows in float32, onnxruntime in float64")
def windows(d: Difference) -> Array | bool:
    """Checked: to float32's digits of 1 both agree."""
    if not of(d, "BlackmanWindow", "HammingWindow", "HannWindow") or d.wrong is None:
        return False
    return np.asarray(np.abs(d.got.astype(np.float64) - d.want) < 1e-6)


@rule("thresholds of 16 bits", "a threshold is rounded to the operand's dtype")
def thresholds(d: Difference) -> Array | bool:
    """Checked: only elements that are the rounded threshold."""
    x = operands(d)[0]
    if not of(d, "ThresholdedRelu") or x.dtype not in NARROW_FLOATS:
        return False
    alpha = float(attribute(d, "alpha", 1.0))
    return np.asarray(np.abs(wide(x) - alpha) <= float(finfo(x.dtype).eps) * abs(alpha))


# ---- NaN and infinities --------------------------------------------------------------------------
@rule(
    "padding times infinity",
    "padding contributes nothing by the definition of nn.conv2d; onnxruntime, and compiled code of "
    "built-in floats, multiply its 0 by infinite weights",
)
def padding(d: Difference) -> Array | bool:
    """Checked: a weight is infinite or NaN, and the window reaches beyond the data."""
    if d.stage not in ("interpreted", "compiled") or d.error is not None:
        return False
    if d.node.op not in ("Conv", "ConvTranspose") or d.wrong is None:
        return False
    w = operand(d, 1)
    if w is None or ml_isfinite(w).all():
        return False
    return non_finite(d) & touches_padding(d)


@rule("infinities between positions", "weights of 0 times infinity are NaN, and left out or not")
def between(d: Difference) -> Array | bool:
    """Checked: what differs is no number, and both agree on ordinary operands."""
    return of(d, *POSITIONS) and odd(d) and non_finite(d) & without_odd(d)


@rule("infinities in transforms", "which results of an FFT an infinity reaches is up to its order")
def transforms(d: Difference) -> Array | bool:
    """Checked: what differs is no number, and both agree on ordinary operands."""
    return of(d, "DFT", "STFT") and (odd(d) or huge(d)) and non_finite(d) & without_odd(d)


@rule(
    "extremes of NaN", "NaN is the largest and the least, as in numpy; onnxruntime passes it over"
)
def extremes(d: Difference) -> Array | bool:
    """Checked: with a number in place of NaN, all elements agree."""
    kind = attribute(d, "reduction")
    if not nan(d) or not (of(d, *EXTREMES) or (of(d, *SCATTERS) and kind in (b"min", b"max"))):
        return False
    return bool(np.all(agrees(d, _no_nan)))


@rule(
    "NaN in Unique", "every NaN is an element of its own; onnxruntime takes NaN for its neighbour"
)
def unique(d: Difference) -> bool:
    """Checked: with a number in place of NaN, both agree."""
    return d.stage == "interpreted" and d.node.op == "Unique" and nan(d) and bool(
        np.all(agrees(d, _no_nan)))  # fmt: skip


@rule(
    "bounds left out",
    "a bound that is left out bounds nothing, as in ONNX's reference, and the largest of "
    "infinities is one; onnxruntime takes the ends of the finite range",
)
def no_bounds(d: Difference) -> Array | bool:
    """Checked: an infinity here, the finite end on its side there."""
    if not of(d, "Clip", "MaxPool") or not is_float(d.want.dtype):
        return False
    end = float(finfo(d.want.dtype).max)
    return np.asarray(np.isinf(wide(d.got)) & (wide(d.want) == np.sign(wide(d.got)) * end))


@rule("positions far away", "so far out, infinitely too, float32 has no fractions of a pixel, and "
      "onnxruntime makes integers of positions that do not fit any")  # fmt: skip
def far_away(d: Difference) -> Array | bool:
    """Checked: the position is that far out, and both agree on ordinary operands."""
    if not of(d, "GridSample") or d.want.ndim != 4:
        return False
    far = (np.abs(np.nan_to_num(wide(operands(d)[1]), posinf=np.inf)) > 2.0**20).any(-1)
    return far[:, None] & without_odd(d)


def _no_nan(a: Array) -> Array:
    if not is_float(a.dtype):
        return a
    return np.where(np.isnan(promoted(a)), np.asarray(0.5, a.dtype), a).astype(a.dtype)


@rule("LRN by differences", "onnxruntime adds and takes away squares, which leaves errors and NaN")
def running_sums(d: Difference) -> Array | bool:
    """Checked: both agree on operands of ordinary size."""
    if not of(d, "LRN"):
        return False
    x = floats(d)[0]
    return bool(odd(d) or np.abs(promoted(x)).max(initial=0) > 50) and without_odd(d)


@rule("recurrent NaN", "onnxruntime's activations make numbers of NaN")
def recurrent_nan(d: Difference) -> Array | bool:
    """Checked: both agree on ordinary operands."""
    return of(d, "RNN", "GRU", "LSTM") and odd(d) and without_odd(d)


@rule("sign of NaN", "the sign of NaN is NaN, as in numpy; onnxruntime's float16 gives 0")
def sign_of_nan(d: Difference) -> Array | bool:
    """Checked: the element is NaN."""
    return of(d, "Sign") and np.asarray(np.isnan(wide(operands(d)[0])))


@rule("quantizing NaN", "an integer of NaN is 0; onnxruntime gives what its instructions give")
def quantized_nan(d: Difference) -> Array | bool:
    """Checked: the element is NaN, or (of a range that is measured) both agree without odd ones."""
    if of(d, "DynamicQuantizeLinear"):
        return odd(d) and without_odd(d)
    return of(d, "QuantizeLinear", "com.microsoft.QuantizeLinear") and np.asarray(
        np.isnan(wide(operands(d)[0]))
    )


@rule("casts saturate", "floats beyond an integer's range become its ends, and NaN 0; onnxruntime "
      "gives what its instructions give")  # fmt: skip
def casts(d: Difference) -> Array | bool:
    """Checked: ours is the number cast so by numpy."""
    if not of(d, "Cast", "CastLike", "Pow") or not np.issubdtype(d.want.dtype, np.integer):
        return False
    x = operands(d)[0]
    if d.node.op == "Pow":
        with np.errstate(all="ignore"):
            x = np.power(x.astype(np.float64), operands(d)[-1].astype(np.float64))
    if not is_float(x.dtype):
        return False
    return np.asarray(d.got == saturated(x, d.want.dtype))


@rule("masked rows", "attention to nothing is 0 by ONNX's body; onnxruntime divides 0 by 0")
def masked(d: Difference) -> Array | bool:
    """Checked: 0 here, NaN there."""
    return of(d, "Attention") and np.isnan(wide(d.want)) & (d.got == 0)


# ---- integers ------------------------------------------------------------------------------------
@rule("softmax of 256", "onnxruntime wraps a probability of 1, which is 256 of 256")
def softmax_wraps(d: Difference) -> Array | bool:
    """Checked: the end of the range here, what wraps from it there."""
    if not of(d, "com.microsoft.QLinearSoftmax"):
        return False
    info = np.iinfo(d.want.dtype)
    return np.asarray((d.want == info.min) & (d.got == info.max))


@rule("Shrink of integers", "onnxruntime computes it in float32, ONNX's body in the integers")
def shrink(d: Difference) -> Array | bool:
    """Checked: ours is numpy's in the integers."""
    x = operands(d)[0]
    if not of(d, "Shrink") or is_float(x.dtype):
        return False
    with np.errstate(all="ignore"):
        threshold = np.asarray(attribute(d, "lambd", 0.5)).astype(x.dtype)
        bias = np.asarray(attribute(d, "bias", 0.0)).astype(x.dtype)
        above = np.where(x > threshold, x - bias, np.zeros_like(x))
        return np.asarray(d.got == np.where(x < -threshold, x + bias, above))


@rule("saturated sums", "onnxruntime reduces integers in floats, and saturates; we wrap")
def saturated_sums(d: Difference) -> Array | bool:
    """Checked: ours is numpy's integer reduction, or einsum."""
    if of(d, "Einsum") and not is_float(d.want.dtype) and d.wrong is not None:
        given = [d.graph.arrays[n] for n in d.node.proto.input]
        equation = attribute(d, "equation").decode()
        return np.asarray(d.got == np.einsum(equation, *given, dtype=d.want.dtype))
    if not of(d, "ReduceProd", "ReduceSum", "ReduceMean", "ReduceSumSquare") or d.wrong is None:
        return False
    if is_float(operands(d)[0].dtype):
        return False
    own = wrapped_sums(d)
    return own is not None and np.asarray(d.got == own)


@rule("remainders of 64 bits", "onnxruntime takes C's remainders of integers in float64")
def remainders(d: Difference) -> Array | bool:
    """Checked: ours is numpy's remainder of the integers."""
    if not of(d, "Mod") or is_float(d.want.dtype) or not attribute(d, "fmod"):
        return False
    with np.errstate(all="ignore"):
        a, b = (d.graph.arrays[n] for n in d.node.proto.input)
        return np.asarray(d.got == np.fmod(a, b)) & (d.want.dtype.itemsize == 8)


@rule(
    "mean of nothing", "0 of 0 elements is NaN, as in numpy; in onnxruntime 0. ONNX leaves it open"
)
def mean_of_nothing(d: Difference) -> Array | bool:
    """Checked: there is no element, NaN here and 0 there."""
    if not of(d, "ReduceMean") or operands(d)[0].size or d.wrong is None:
        return False
    return is_float(d.want.dtype) and np.isnan(wide(d.got)) & (d.want == 0)


@rule("logarithms of integers", "ONNX's body computes them in floats and cuts the result short")
def integer_logarithms(d: Difference) -> Array | bool:
    """Checked: ours is 1 (or what float64 rounds) at most from the one of long doubles."""
    if not of(d, "ReduceLogSum", "ReduceLogSumExp") or is_float(operands(d)[0].dtype):
        return False
    x, axes = operands(d)[0].astype(np.longdouble), reduced_axes(d)
    with np.errstate(all="ignore"):
        unit = x.max(axes, keepdims=True) if d.node.op == "ReduceLogSumExp" else 0 * x
        terms = np.exp(x - unit) if d.node.op == "ReduceLogSumExp" else x
        exact = np.log(terms.sum(axes)).reshape(d.got.shape) + unit.max(axes).reshape(d.got.shape)
        info = np.iinfo(d.want.dtype)
        exact = np.clip(np.nan_to_num(exact, nan=0), info.min, info.max)
        return np.asarray(np.abs(d.got.astype(np.longdouble) - exact) <= 1 + 1e-15 * np.abs(exact))


@rule("integers between two", "a resized integer is cut to its whole part, which rounding decides")
def cut_short(d: Difference) -> Array | bool:
    """Checked: they are 1 apart at most; where onnxruntime filters 8-bit integers twice, with
    integers in between, 1 from its own result in float32."""
    if not of(d, "Resize") or is_float(operands(d)[0].dtype) or d.wrong is None:
        return False
    apart = np.abs(d.got.astype(np.int64) - d.want.astype(np.int64))
    if d.want.dtype.itemsize == 1 and attribute(d, "antialias"):
        small = d.want.dtype
        full = reference_on(d, lambda a: a.astype(np.float32) if a.dtype == small else a)
        return full is not None and np.abs(saturated(full, small) - d.got.astype(int)) <= 1
    return np.asarray(apart <= 1)


@rule("no range to quantize", "a range of 0 has the scale 0 by ONNX's body, in onnxruntime 1")
def no_range(d: Difference) -> Array | bool:
    """Checked: 0 here, 1 there."""
    return of(d, "DynamicQuantizeLinear") and d.output == 1 and (d.got == 0) & (d.want == 1)


# ---- positions and shapes ------------------------------------------------------------------------
@rule(
    "reductions of nothing", "onnxruntime keeps an axis that it reduces where there is no element"
)
def empty_reduction(d: Difference) -> bool:
    """Checked: our shape is the one of ONNX's words."""
    if not of(d, *REDUCED) or operands(d)[0].size or d.wrong is not None:
        return False
    return str(d.got).endswith(str(reduced_shape(d)))


@rule("align_corners", "onnxruntime counts whole elements of a resized axis; ONNX's reference does "
      "not, nor do we")  # fmt: skip
def align_corners(d: Difference) -> Array | bool:
    """Checked: ours is the result of ONNX's reference."""
    if not of(d, "Resize") or d.wrong is None:
        return False
    if attribute(d, "coordinate_transformation_mode") != b"align_corners":
        return False
    given = {f"{r}_read": d.graph.arrays[r] for r in d.node.reads if r not in d.graph.weights}
    try:
        with np.errstate(all="ignore"):
            own = ReferenceEvaluator(cut_model(d.graph, [d.node])).run(None, given)[d.output]
    except Exception:  # it has no exceptions of its own
        return False
    if own.shape != d.got.shape:
        return False
    x = wide(operands(d)[0])
    size = np.abs(np.nan_to_num(x, posinf=0, neginf=0)).max(initial=0)
    slack = 1.0
    if is_float(d.want.dtype):
        slack = size * max(1e-5, 8 * float(finfo(d.want.dtype).eps))
    with np.errstate(all="ignore"):
        near = np.abs(wide(d.got).astype(np.float64) - wide(own)) <= slack
    return np.asarray(near | (non_finite(d) & odd(d)))


@rule("nearest of two", "positions halfway between elements, which float32 rounds to either")
def halfway(d: Difference) -> Array | bool:
    """Checked: of a scale that float32 has no exact number for, and an element of the operand."""
    if not of(d, "Resize", "Upsample") or attribute(d, "mode") not in (b"nearest", None):
        return False
    scales = [a for a in floats(d)[1:] if a.size]
    if scales and not (scales[0] == np.float32(0.7)).any():
        return False
    return np.asarray(np.isin(wide(d.got), wide(operands(d)[0])))


@rule("mask of Dropout", "onnxruntime gives a mask of zeros before opset 12; ONNX does not say")
def masks(d: Difference) -> Array | bool:
    """Checked: all is kept here, zeros there."""
    if not of(d, "Dropout") or d.graph.opset >= 12 or d.output != 1 or d.wrong is None:
        return False
    return np.asarray((d.got != 0) & (d.want == 0))
