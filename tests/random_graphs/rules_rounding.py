"""Rules on rounding and range."""

from __future__ import annotations

import numpy as np
from ml_dtypes import finfo

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
from random_graphs.drawing import NARROW_FLOATS, ml_isfinite
from random_graphs.oracle import Array
from random_graphs.recomputing import attribute, compiled_agrees, exact_norm, in_wider, without_odd
from random_graphs.rule_book import floats, huge, non_finite, odd, of, operands, rule
from random_graphs.tolerances import FUNCTIONS, SUMS, wide


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
