"""Which products of two factors in formats are sums of products of integers: what a plan means, for
its realization as for its reference."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.expr import Call, tensor_type
from quantize.formats.element import unsigned_bits
from quantize.formats.operand_format import OperandFormat
from quantize.plan.call_facts import block_axis, contraction, operands

MOST_PRODUCTS = (2**31 - 1) // (255 * 128)
"""Products that an int32 accumulator holds for certain."""


def on_integers(call: Call, formats: Sequence[OperandFormat]) -> bool:
    """Whether a product in these formats is computed on integers."""
    first, second = formats
    axes = contraction(call)
    if not (first.integers and second.integers) or axes.kernel:
        return False
    if min(tensor_type(a).rank for a in operands(call)) < 2:
        return False
    if not first.token and len(first.scales) > 1:
        return False
    if first.token and first.axis != block_axis(call, 0):
        return False
    if axes.by_rows and len(second.scales) > 1 and not second.group and _axes(second) != (0,):
        return False
    if not axes.by_rows and not _factors_out(call, second):
        return False
    if first.token and unsigned_bits(first.format) and not axes.by_rows:
        return False
    inner = tensor_type(call.args[0]).shape[axes.data]
    return not isinstance(inner, int) or min(inner, second.group or inner) <= MOST_PRODUCTS


def _factors_out(call: Call, f: OperandFormat) -> bool:
    """Whether the scales of the second of two activations are the same all along a sum."""
    summed = block_axis(call, 1)
    if f.token:
        return f.axis == summed and not unsigned_bits(f.format)
    return len(f.scales) == 1 or summed not in _axes(f)


def _axes(f: OperandFormat) -> tuple[int, ...]:
    """The axes that scales found by calibration differ along."""
    return f.axes or (f.axis,)
