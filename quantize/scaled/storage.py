"""How much memory weights take in their formats."""

from __future__ import annotations

import math

from compiler.ir.expr import Constant, IRModule
from quantize.graph import Graph
from quantize.plan import Plan
from quantize.scaled.blocks import block_format
from quantize.scaled.element import element
from quantize.scaled.nodes import operands
from quantize.scaled.params import FLOAT, OperandFormat


def format_bits(name: str) -> int:
    """Bits of one element of a format or block format (without its share of a scale), or of
    float32."""
    if name == FLOAT:
        return 32
    block = block_format(name)
    return (block.elements if block is not None else element(name)).dtype.bits


def weight_bytes(module: IRModule, plan: Plan) -> tuple[int, int]:
    """Bytes of the weights that a plan puts in formats: as float32, and in the formats with their
    scales (float32, unless blocks have theirs in a format).

    Args:
        module: the prepared module that the plan's names refer to.
    """
    before, after = 0, 0.0
    for b, call in Graph(module.main).calls():
        for a, f in zip(operands(call), plan.formats.get(b.var.name, ()), strict=False):
            if isinstance(a, Constant):
                before += 4 * a.data.size
                after += _bits(a.data.shape, f) / 8
    return before, math.ceil(after)


def _bits(shape: tuple[int, ...], f: OperandFormat) -> float:
    size, block = math.prod(shape), block_format(f.format)
    if block is None:
        scales = 0 if f.format == FLOAT else 32 * len(f.scales)
        return size * format_bits(f.format) + scales
    along = shape[f.axis]
    blocks = size // along * -(-along // block.block)
    unit = 0 if block.powers else 32
    return size * format_bits(f.format) + blocks * block.scale_element.dtype.bits + unit
