"""How much memory tensors take in their formats."""

from __future__ import annotations

import math

from quantize.formats.blocks import block_format
from quantize.formats.element import element
from quantize.formats.operand_format import FLOAT, OperandFormat, flattened


def format_bits(name: str) -> int:
    """Bits of one element of a format or block format (without its share of a scale), or of
    float32."""
    if name == FLOAT:
        return 32
    block = block_format(name)
    return (block.elements if block is not None else element(name)).dtype.bits


def operand_bits(shape: tuple[int, ...], f: OperandFormat) -> int:
    """Bits of an operand in its format with its scales, which are float32 unless blocks have theirs
    in a format."""
    size, block = math.prod(shape), block_format(f.format)
    if block is None:
        scales = 0 if f.format == FLOAT else 32 * len(f.scales)
        return size * format_bits(f.format) + scales
    shape = flattened(shape, f)
    along = shape[f.axis]
    blocks = size // along * -(-along // block.block)
    unit = 0 if block.powers else 32
    return size * format_bits(f.format) + blocks * block.scale_element.dtype.bits + unit
