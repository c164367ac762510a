"""How much memory tensors take in their formats."""

from __future__ import annotations

import math

from quantize.formats.blocks import FLOAT, BlockFormat, block_format
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import OperandFormat, flattened


def format_bits(name: str) -> int:
    """Bits of one element of a format or block format (without its share of a scale), or of
    float32."""
    if name == FLOAT:
        return 32
    if bits := unsigned_bits(name):
        return bits
    block = block_format(name)
    return (block.elements if block is not None else element(name)).dtype.bits


def bits_with_scales(name: str) -> float:
    """The same, of blocks with their share of a scale."""
    block = block_format(name)
    return format_bits(name) if block is None else block.bits


def operand_bits(shape: tuple[int, ...], f: OperandFormat) -> int:
    """Bits of an operand in its format with its scales and zero point."""
    size, block = math.prod(shape), f.blocks
    if f.token:
        one = BlockFormat("", "int8", f.scale_dtype)
        each = one.scale_bits + unsigned_bits(f.format)
        rows = size // max(1, shape[f.axis])
        return size * format_bits(f.format) + rows * each + (32 if one.has_unit else 0)
    if block is None:
        return size * format_bits(f.format) + (0 if f.format == FLOAT else operand_scales(f))
    shape = flattened(shape, f)
    along = shape[f.axis]
    blocks = size // along * -(-along // block.block)
    unit = 32 if block.has_unit else 0
    return size * format_bits(f.format) + blocks * block.scale_bits + unit


def operand_scales(f: OperandFormat) -> int:
    """Bits of the scales that a plan gives an operand, in their format; with the scale of the whole
    tensor that those of few bits are relative to, and the zero point."""
    one = BlockFormat("", "int8", f.scale_dtype)
    unit = 32 if one.has_unit else 0
    zero = unsigned_bits(f.format) if f.zero_point else 0
    return len(f.scales) * one.scale_bits + unit + zero
