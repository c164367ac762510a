"""Weights in formats of few bits, kept as codes that are looked up and scaled before the layer.

Numbers of a format times scales are float32 numbers, which take eight times the memory of four
bits. Written as what they are made from, they can be read packed where few rows share them (see
`compiler.transform.pack_weights`), and become those float32 numbers when constants are folded
everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Constant
from compiler.op.qnn.lookup import ENTRIES
from compiler.passes import rewrite
from compiler.types.dtypes import FLOAT32, UINT8, Array
from quantize.formats.blocks import FLOAT
from quantize.formats.chosen import Numbers, weight_array
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import OperandFormat

MOST_BITS = 4
"""Widest codes that are kept."""
FEWEST = 1 << 18
"""Weights that are kept as codes: fewer stay in a cache as float32 numbers."""


@dataclass(frozen=True)
class Codes:
    """A matrix [units, inputs] of weights.

    Attributes:
        codes: uint8 [units * groups, group], positions in the table.
        table: float32 [256], of which codes read the first.
        scales: float32 [units * groups, 1].
    """

    codes: Array
    table: Array
    scales: Array


def codes_of(x: Array, f: OperandFormat) -> Codes | None:
    """What the weights x [units, inputs] in a format are made from; None if that takes more than 4
    bits, or scales lie otherwise than in groups of neighbouring inputs."""
    if x.ndim != 2 or f.format == FLOAT or unsigned_bits(f.format) or not np.isfinite(x).all():
        return None
    block, inputs = f.blocks, x.shape[1]
    if f.axes or f.axis % 2 != (0 if block is None else 1):
        return None
    group = (block.block if block is not None else f.group) or inputs
    bits = (block.elements if block is not None else element(f.format)).dtype.bits
    if inputs % group or bits > MOST_BITS:
        return None
    n = Numbers(f)
    places, scale = n.chosen_for(x)
    rows = scale.reshape(-1, group)
    if (rows != rows[:, :1]).any() or (n.real(places, scale) != weight_array(x, f)).any():
        return None
    table = np.zeros(ENTRIES, np.float32)
    table[: len(n.values)] = n.values
    codes = np.ascontiguousarray(places.reshape(-1, group), np.uint8)
    return Codes(codes, table, np.ascontiguousarray(rows[:, :1], np.float32))


def from_codes(b: FunctionBuilder, x: Array, f: OperandFormat, name: str) -> Atom | None:
    """Weights in a format, made from codes by `b`; None if they are few, or no such weights."""
    found = codes_of(x, f) if x.size >= FEWEST else None
    if found is None:
        return None
    codes, table = Constant(found.codes, UINT8), Constant(found.table, FLOAT32)
    looked_up = b.bind(rewrite.call("qnn.lookup", codes, table), f"{name}_numbers")
    scaled = rewrite.call("multiply", looked_up, Constant(found.scales, FLOAT32))
    groups = b.bind(scaled, f"{name}_groups")
    return b.bind(rewrite.call("reshape", groups, newshape=x.shape), f"{name}_weight")
