"""Rules on positions and shapes."""

from __future__ import annotations

import numpy as np
from ml_dtypes import finfo
from onnx.reference import ReferenceEvaluator

from random_graphs.comparing import Difference, cut_model
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array
from random_graphs.recomputing import attribute, reduced_shape
from random_graphs.rule_book import REDUCED, floats, non_finite, odd, of, operands, rule
from random_graphs.tolerances import wide


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
