"""In which layout operators want to work: a rule for each, which users may replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import InputError
from compiler.ir.expr import Call, tensor_type
from compiler.op.attribute_types import declared
from compiler.op.facts import Moves
from compiler.op.library import get_op
from compiler.op.nn.conv import CONV2D
from compiler.op.opdef import Fusion, OpDef
from compiler.target.intrinsics import for_target, matrix_steps
from compiler.target.registry import Target
from compiler.types.dtypes import INT8, UINT8
from compiler.types.tensor_types import TensorType


def is_mean(op: OpDef) -> bool:
    """Whether an operator is a mean over axes, of floats or integers."""
    return op.average is not None and op.average.axes is not None


def takes_rule(op: OpDef) -> bool:
    """Whether an operator can work on blocks of channels, so that a rule may choose them."""
    laid_out = "data_layout" in declared(op.attrs)
    joins = op.moves is Moves.JOIN
    return laid_out or joins or op.blocked or is_mean(op) or op.fusion is Fusion.ELEMENTWISE


@dataclass(frozen=True)
class OpLayout:
    """What a rule wants: channels in a block of the operator's data and of its result (1: NCHW for
    the data of a convolution; the same for both elsewhere).

    Attributes:
        steps: an integer convolution's input channels are filled up to a multiple of this, so that
            dot products of as many steps fit.
    """

    data: int
    out: int
    steps: int = 4

    def __post_init__(self) -> None:
        if self.data < 1 or self.out < 2 or self.steps < 1:
            raise InputError(f"{self}: blocks of the result hold at least 2 channels, others 1")
        if self.data > 1 and self.data % self.steps:
            raise InputError(f"{self}: a block of data must hold a multiple of {self.steps} steps")


LayoutRule = Callable[[Any, Sequence[Any], int, Target], OpLayout | None]
"""(attributes, operand types in NCHW, channels that a block should have, target) -> layout, or None
to leave the operator in NCHW."""


def _by_rows(attrs: Any, types: Sequence[TensorType]) -> bool:
    """Whether few channels are better left apart: dot products over the taps of a row are no more
    than those over the channels, filled up to 4. They read beyond the row, which padding leaves
    room for."""
    data, weight = types[:2]
    channels, taps = data.shape[1], weight.shape[3]
    if not isinstance(channels, int) or not isinstance(taps, int) or data.dtype != UINT8:
        return False
    roomy = any(attrs.padding) and attrs.groups == attrs.dilation[1] == 1
    return roomy and channels * -(-taps // 4) <= taps


def default_rule(
    attrs: Any, types: Sequence[TensorType], lanes: int, target: Target
) -> OpLayout | None:
    """Convolutions: blocks of `lanes`; data of at most 4 channels in blocks of 4 if integer, else
    plain."""
    data, weight = types[:2]
    channels, outputs = data.shape[1], weight.shape[0]
    codes = data.dtype.is_custom and not data.dtype.lane
    if not isinstance(channels, int) or not isinstance(outputs, int) or codes:
        return None
    depthwise = attrs.groups == channels == outputs
    if attrs.groups == channels and not depthwise and channels > 1:
        return None
    if target.architecture.block:
        least = _fewest_steps(target)
        into = _dividing(outputs, lanes, least)
        if channels <= 4 and not depthwise and not data.dtype.is_integer:
            return OpLayout(1, into, least)
        return OpLayout(_dividing(channels, lanes, least), into, least)
    steps = 4 if lanes % 4 == 0 else 1
    if channels <= 4 and not depthwise:
        return OpLayout(4 if data.dtype.is_integer and not _by_rows(attrs, types) else 1, lanes, 4)
    return OpLayout(lanes, lanes, steps)


def usual_block(calls: Sequence[Call], target: Target) -> int:
    """Channels of a block, unless something else is asked for: as many as the target's products of
    matrices multiply at a time, if all convolutions among `calls` are of bytes and fill such
    blocks; else as a vector has 32-bit lanes."""
    steps = matrix_steps(target)
    ops = [(c.op, c) for c in calls if isinstance(c.op, OpDef)]
    found = [c for op, c in ops if layout_rule(op.name, target) is default_rule]
    fill = bool(steps and found) and all(_fills(c, steps) for c in found)
    return steps if fill else target.block


def _fills(c: Call, block: int) -> bool:
    """Whether a convolution is of bytes, and fills blocks; its data may be of few channels."""
    data, weight = (tensor_type(a) for a in c.args[:2])
    held, made = data.shape[1], weight.shape[0]
    if not isinstance(held, int) or not isinstance(made, int) or c.attrs.groups != 1:
        return False
    whole = made % block == 0 and (held <= 4 or held % block == 0)
    return whole and {data.dtype, weight.dtype} <= {INT8, UINT8}


def _fewest_steps(target: Target) -> int:
    """Of the dot products of the bytes that the target's best multiplies."""
    dots = [i for i in for_target(target) if i.steps]
    return min(i.steps for i in dots if i.operand_dtypes == dots[0].operand_dtypes)


def _dividing(channels: int, most: int, least: int) -> int:
    """Channels of a block: the most that divide them, so that few are filled up."""
    return next((n for n in (16, 8) if least <= n <= most and channels % n == 0), least)


_rules: dict[tuple[str, str], LayoutRule] = {(CONV2D.name, ""): default_rule}
_shipped = dict(_rules)


def registered() -> tuple[tuple[str, str, LayoutRule], ...]:
    """The operators, targets and rules that did not ship, sorted."""
    own = {key: rule for key, rule in _rules.items() if _shipped.get(key) is not rule}
    return tuple((op, target, rule) for (op, target), rule in sorted(own.items()))


def register_alter_op_layout(op: str, rule: LayoutRule, target: str = "") -> LayoutRule:
    """Let `rule` choose the layouts of operator `op`, for one target or (default) for all.

    Convolutions start blocks of channels. Pooling, means, concatenation and elementwise operators
    follow their operands' layout unless a rule says otherwise.

    Raises:
        InputError: the operator works in NCHW only.
        UnsupportedError: the target is unknown.
    """
    if not takes_rule(get_op(op)):
        raise InputError(f"{op} works in NCHW only: it takes no layout rule")
    _rules[op, str(Target.parse(target)) if target else ""] = rule
    return rule


def layout_rule(op: str, target: Target) -> LayoutRule | None:
    """The rule for an operator: the target's own, else the general one, if any."""
    return _rules.get((op, str(target))) or _rules.get((op, ""))
