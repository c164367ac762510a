"""Differences that are explained, each by a named rule with its reason.

A rule says which elements of a difference it explains; it looks at no more than the operator, its
operands and both results. Whatever no rule explains is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ml_dtypes import finfo

import compiler
from random_graphs.comparing import Difference, cut_model, fed, listed
from random_graphs.drawing import NARROW_FLOATS, ml_isfinite, promoted, reference
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array, Unavailable
from random_graphs.tolerances import FUNCTIONS, LINEAR, SUMS, wide, within
from random_graphs.whole import WholeDifference

POSITIONS = {"Resize", "Upsample", "GridSample", "RoiAlign", "DeformConv"}
WINDOWED = {"Conv", "ConvTranspose", "Col2Im"}
SEVERAL = {"Einsum", "com.microsoft.MatMulNBits", "GlobalLpPool", "LpPool", "LRN"}
SCATTERS = {"ScatterElements", "ScatterND"}
EXTREMES = {
    "Max", "Min", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "ArgMax", "ArgMin",
    "Hardmax", "TopK", "Clip", "Relu", "RoiAlign",
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Why results may differ.

    Attributes:
        name: what reports count.
        reason: in words.
        explains: difference -> the elements it explains.
        temporary: whether it stands for a fault that is known.
    """

    name: str
    reason: str
    explains: Callable[[Difference], Array | bool]
    temporary: bool = False


RULES: list[Rule] = []


def rule(
    name: str, reason: str, temporary: bool = False
) -> Callable[[Callable[[Difference], Array | bool]], Callable[[Difference], Array | bool]]:
    """Decorator: the function is a rule."""

    def register(
        f: Callable[[Difference], Array | bool],
    ) -> Callable[[Difference], Array | bool]:
        RULES.append(Rule(name, reason, f, temporary))
        return f

    return register


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


def attribute(d: Difference, name: str) -> object:
    """An attribute of the node, or None."""
    from onnx import helper

    found = [a for a in d.node.proto.attribute if a.name == name]
    return helper.get_attribute_value(found[0]) if found else None


# ---- rules ---------------------------------------------------------------------------------------
@rule("16 bits", "onnxruntime computes 16-bit floats in float32 inside a node; we round each step")
def sixteen_bits(d: Difference) -> Array | bool:
    """Checked: in float32, both agree to the bits of the narrow dtype."""
    if not of(d, *FUNCTIONS, *SUMS) or not any(a.dtype in NARROW_FLOATS for a in operands(d)):
        return False
    return _agrees_in(d, np.float32)


@rule("overflow in between", "sums and squares of huge operands overflow in an order of their own")
def overflow(d: Difference) -> Array | bool:
    """Checked: in float64, where they do not overflow, both agree."""
    if not of(d, *FUNCTIONS, *SUMS) or odd(d):
        return False
    if d.wrong is None or not all(a.dtype == np.float32 for a in floats(d)) or not huge(d):
        return False
    return non_finite(d) & _agrees_in(d, np.float64)


def _agrees_in(d: Difference, wider: type) -> Array | bool:
    """Where the interpreter in a wider dtype gives the reference's result, which is computed in
    the wider dtype too and rounded."""
    from dataclasses import replace

    def widened(a: Array) -> Array:
        return a.astype(wider) if is_float(a.dtype) else a

    arrays = {r: widened(d.graph.arrays[r]) for r in d.node.reads}
    g = replace(d.graph, arrays=arrays, nodes=(d.node,))
    n = replace(d.node, promoted=False)
    try:
        want = reference(n, arrays, g.weights, g.opset)
        mod = compiler.from_onnx(cut_model(g, [n]))
        with np.errstate(all="ignore"):
            got = listed(compiler.evaluate(mod, fed(g, mod)))
    except (Unavailable, compiler.DtypelabError):
        return False
    full = replace(g, arrays={**arrays, **dict(zip(n.gives, want, strict=True))})
    a, b = got[d.output], want[d.output]
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return within(n, full, a, b, d.output)


@rule(
    "padding times infinity", "padding contributes nothing; onnxruntime multiplies 0 and infinity"
)
def padding(d: Difference) -> Array | bool:
    if not of(d, *WINDOWED) or len(floats(d)) < 2:
        return False
    return non_finite(d) & (not ml_isfinite(floats(d)[1]).all())


@rule("infinities between positions", "weights of 0 times infinity are NaN, and left out or not")
def between(d: Difference) -> Array | bool:
    return of(d, *POSITIONS) and odd(d) and non_finite(d)


@rule("infinities in transforms", "which results of an FFT an infinity reaches is up to its order")
def transforms(d: Difference) -> Array | bool:
    return of(d, "DFT", "STFT") and (odd(d) or huge(d)) and non_finite(d)


@rule(
    "extremes of NaN", "NaN is the largest and the least, as in numpy; onnxruntime passes it over"
)
def extremes(d: Difference) -> Array | bool:
    kind = attribute(d, "reduction")
    return nan(d) and (of(d, *EXTREMES) or (of(d, *SCATTERS) and kind in (b"min", b"max")))


@rule("LRN by differences", "onnxruntime adds and takes away squares, which leaves errors and NaN")
def running_sums(d: Difference) -> Array | bool:
    if not of(d, "LRN"):
        return False
    x = floats(d)[0]
    return odd(d) or bool(np.abs(promoted(x)).max(initial=0) > 1e3)


@rule("softmax of 256", "onnxruntime wraps a probability of 1, which is 256 of 256")
def softmax_wraps(d: Difference) -> Array | bool:
    return of(d, "com.microsoft.QLinearSoftmax") and np.asarray((d.want == 0) | (d.want == 128))


@rule("windows", "ONNX's own body computes windows in float32, onnxruntime in float64")
def windows(d: Difference) -> Array | bool:
    if not of(d, "BlackmanWindow", "HammingWindow", "HannWindow") or d.wrong is None:
        return False
    return np.asarray(np.abs(d.got.astype(np.float64) - d.want) < 1e-6)


@rule("Shrink of integers", "onnxruntime computes it in float32, ONNX's body in the integers")
def shrink(d: Difference) -> Array | bool:
    return of(d, "Shrink") and not is_float(operands(d)[0].dtype)


@rule("quantizing NaN", "an integer of NaN is 0; onnxruntime gives what its instructions give")
def quantized_nan(d: Difference) -> Array | bool:
    return of(d, "DynamicQuantizeLinear", "QuantizeLinear", "com.microsoft.QuantizeLinear") and odd(
        d
    )


@rule("sums of infinities", "where a sum of huge elements overflows is up to its order; so is NaN")
def infinities(d: Difference) -> Array | bool:
    """Where all elements are of ordinary size, a sum of products has one value."""
    if not of(d, *SUMS) or d.wrong is None:
        return False
    return non_finite(d) & (huge(d) | (odd(d) and d.node.op not in LINEAR - {"Einsum"}))


@rule("products of denormals", "long products underflow in an order of their own")
def underflow(d: Difference) -> Array | bool:
    """Checked: in float64, where they do not, both agree."""
    if not of(d, "ReduceProd", "CumProd") or d.want.dtype != np.float32:
        return False
    return _agrees_in(d, np.float64)


@rule("no range to quantize", "a range of 0 has the scale 0 by ONNX's body, in onnxruntime 1")
def no_range(d: Difference) -> Array | bool:
    return of(d, "DynamicQuantizeLinear") and d.output == 1 and d.got == 0


@rule("masked rows", "attention to nothing is 0 by ONNX's body; onnxruntime divides 0 by 0")
def masked(d: Difference) -> Array | bool:
    return of(d, "Attention") and non_finite(d) & (d.got == 0)


@rule("shape of no extreme", "onnxruntime keeps the axis that it reduces where there is no element")
def empty_search(d: Difference) -> bool:
    return of(d, "ArgMax", "ArgMin") and operands(d)[0].size == 0


@rule("align_corners", "onnxruntime counts whole elements of a resized axis; ONNX's reference does "
      "not, nor do we")  # fmt: skip
def align_corners(d: Difference) -> Array | bool:
    return of(d, "Resize") and attribute(d, "coordinate_transformation_mode") == b"align_corners"


@rule("integers between two", "a resized integer is cut to its whole part, which rounding decides")
def cut_short(d: Difference) -> Array | bool:
    if not of(d, "Resize") or is_float(operands(d)[0].dtype) or d.wrong is None:
        return False
    return np.asarray(np.abs(d.got.astype(np.int64) - d.want.astype(np.int64)) <= 1)


@rule("nearest of two", "positions halfway between elements, which float32 rounds to either")
def halfway(d: Difference) -> Array | bool:
    """Checked: of a scale that float32 has no exact number for."""
    if not of(d, "Resize", "Upsample") or attribute(d, "mode") not in (b"nearest", None):
        return False
    scales = [a for a in floats(d)[1:] if a.size]
    return not scales or bool((scales[0] == np.float32(0.7)).any())


@rule("stash type", "ONNX says to normalize in float32 at any dtype; onnxruntime uses float64's")
def stash(d: Difference) -> Array | bool:
    if (
        not of(d, "RMSNormalization", "GroupNormalization")
        or d.wrong is None
        or d.want.dtype != np.float64
    ):
        return False
    return np.abs(d.got - d.want) <= 1e-5 * np.maximum(1, np.abs(d.want))


@rule("float32 constants", "onnxruntime has numbers of float64 nodes in float32")
def float32_constants(d: Difference) -> Array | bool:
    if (
        not of(d, "DFT", "Shrink", "Gelu", "HardSwish")
        or d.wrong is None
        or d.want.dtype != np.float64
    ):
        return False
    return np.abs(d.got - d.want) <= 1e-6 * np.abs(d.want).max()


@rule("mask of Dropout", "onnxruntime gives a mask of zeros before opset 12; ONNX does not say")
def masks(d: Difference) -> Array | bool:
    return of(d, "Dropout") and d.graph.opset < 12 and d.output == 1 and d.wrong is not None


@rule("recurrent NaN", "onnxruntime's activations make numbers of NaN")
def recurrent_nan(d: Difference) -> Array | bool:
    return of(d, "RNN", "GRU", "LSTM") and odd(d)


@rule("sign of NaN", "the sign of NaN is NaN, as in numpy; onnxruntime's float16 gives 0")
def sign_of_nan(d: Difference) -> Array | bool:
    return of(d, "Sign") and non_finite(d)


@rule("saturated products", "onnxruntime reduces integers in floats, and saturates; we wrap")
def saturated(d: Difference) -> Array | bool:
    return of(d, "ReduceProd", "ReduceSum", "ReduceMean", "ReduceSumSquare") and not is_float(
        operands(d)[0].dtype
    )


@rule("casts saturate", "floats beyond an integer's range become its ends, and NaN 0; onnxruntime "
      "gives what its instructions give")  # fmt: skip
def casts(d: Difference) -> Array | bool:
    if not of(d, "Cast", "CastLike", "Pow") or is_float(d.want.dtype):
        return False
    info = np.iinfo(d.want.dtype)
    return np.asarray((d.got == info.min) | (d.got == info.max) | (d.got == 0))


@rule("variance by difference", "onnxruntime takes the mean's square from the squares' mean")
def variances(d: Difference) -> Array | bool:
    """Where that leaves nothing, or a number of 16 bits."""
    if not of(d, "MeanVarianceNormalization") or d.wrong is None:
        return False
    return non_finite(d) | (d.want.dtype != np.float32)


@rule("bias by difference", "onnxruntime takes scaled means from the bias, which huge ones swallow")
def shifted(d: Difference) -> Array | bool:
    return of(d, "InstanceNormalization") and huge(d)


@rule("logarithms of integers", "ONNX's body computes them in floats and cuts the result short")
def integer_logarithms(d: Difference) -> Array | bool:
    return of(d, "ReduceLogSum", "ReduceLogSumExp") and not is_float(operands(d)[0].dtype)


@rule("thresholds of 16 bits", "a threshold is rounded to the operand's dtype")
def thresholds(d: Difference) -> Array | bool:
    return of(d, "ThresholdedRelu") and operands(d)[0].dtype in NARROW_FLOATS


# ---- faults that are known ----------------------------------------------------------------------
@rule("zero-size", "inputs without elements are refused", temporary=True)
def zero_size(d: Difference) -> bool:
    return any(a.size == 0 for a in operands(d)) and d.error is not None


WHOLE: list[tuple[str, Callable[[WholeDifference], bool]]] = [
    ("zero-size", lambda d: "is empty" in str(d.error)),
]
"""Rules for whole graphs, temporary ones only: compiled code and the interpreter give the same
bits."""


def explained_whole(d: WholeDifference) -> str | None:
    """The name of the rule that explains a difference of a whole graph; None if none does."""
    return next((name for name, explains in WHOLE if explains(d)), None)
