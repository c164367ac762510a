"""Rules on NaN and infinities."""

from __future__ import annotations

import numpy as np
from ml_dtypes import finfo

from random_graphs.comparing import Difference
from random_graphs.drawing import ml_isfinite, promoted
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array
from random_graphs.recomputing import (
    agrees,
    attribute,
    operand,
    saturated,
    touches_padding,
    without_odd,
)
from random_graphs.rule_book import (
    EXTREMES,
    POSITIONS,
    SCATTERS,
    floats,
    huge,
    nan,
    non_finite,
    odd,
    of,
    operands,
    rule,
)
from random_graphs.tolerances import wide


@rule(
    "padding times infinity",
    "padding contributes nothing by the definition of nn.conv2d; onnxruntime, and compiled code of "
    "built-in floats whose weights are not known, multiply its 0 by infinite weights",
)
def padding(d: Difference) -> Array | bool:
    """Checked: a weight is infinite or NaN, and the window reaches beyond the data; where compiled
    code differs, weights of a convolution are not stored in the model."""
    if d.stage not in ("interpreted", "compiled") or d.error is not None:
        return False
    if d.node.op not in ("Conv", "ConvTranspose") or d.wrong is None:
        return False
    if d.stage == "compiled" and d.node.op == "Conv" and d.node.reads[1] in d.graph.weights:
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
