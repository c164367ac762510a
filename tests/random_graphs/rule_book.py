"""What a rule is, the rules that there are, and what they look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ml_dtypes import finfo

from random_graphs.comparing import Difference
from random_graphs.drawing import ml_isfinite, promoted
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array
from random_graphs.tolerances import wide

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


REGISTERED: list[Rule] = []


def rule(name: str, reason: str) -> Callable[[Explains], Explains]:
    """Decorator: the function is a rule."""

    def register(f: Explains) -> Explains:
        REGISTERED.append(Rule(name, reason, f))
        return f

    return register


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
