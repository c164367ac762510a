"""Formats of scales: how the scale of some numbers follows from the largest magnitude of them.

`float32` scales are what they are. Scales that are powers of two (`float8_e8m0fnu`) are found by
the rules of `compiler.op.qnn.formats.SCALE_ROUNDINGS`; those of any other format are rounded to its
nearest number, down as well as up, so that the largest elements may be cut off. Formats of 8 bits
or fewer have a short range: their scales are relative to one, in float32, of the whole tensor, by
which the largest of them is the format's largest number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.op.qnn.formats import SimulatedBlocksAttrs, block_scales
from compiler.types.dtypes import FLOAT32, Array
from quantize.formats.blocks import FLOAT, BlockFormat


def scale_attrs(block: BlockFormat, unit: float) -> dict[str, Any]:
    """Attributes of `qnn.simulated_blocks` that give the format of scales; none if it is that of
    MX."""
    if block.scale == FLOAT:
        info = np.finfo(np.float32)
        low, high = float(info.tiny), float(info.max)
        return {"scale_dtype": FLOAT, "scale_low": low, "scale_high": high}
    if block.powers:
        return {}
    e = block.scale_element
    return {
        "scale_dtype": str(e.dtype), "scale_low": e.least, "scale_high": e.high, "unit": unit
    }  # fmt: skip


def block_attrs(block: BlockFormat, unit: float, rounding: str) -> dict[str, Any]:
    """Attributes of `qnn.simulated_blocks` that say how blocks find their scales; those that are
    not at their defaults."""
    e = block.elements
    attrs: dict[str, Any] = {} if e.target == e.high else {"top": e.target}
    attrs |= scale_attrs(block, unit)
    attrs |= {} if rounding == "floor" else {"scale_rounding": rounding}
    return attrs | ({"step": e.step} if rounding == "even" else {})


@dataclass(frozen=True)
class ScaleFormat:
    """A format of the scales of a tensor's groups, channels or tokens.

    Attributes:
        block: the numbers that are scaled, and the scales' format.
        rounding: of powers of two.
        unit: scale of the whole tensor, 1 where the format needs none; float32 holds it.
    """

    block: BlockFormat
    rounding: str = "floor"
    unit: float = 1.0

    @staticmethod
    def of(element: str, name: str, rounding: str, largest: float) -> ScaleFormat:
        """That called `name`, of a tensor of `element` with this largest magnitude."""
        block = BlockFormat("", element, name, 1)
        unit = float(np.float32(block.unit(largest)))
        return ScaleFormat(block, rounding if block.powers else "floor", unit if unit > 0 else 1.0)

    def covering(self, largest: Array) -> Array:
        """float64 scales of sets of numbers with these largest magnitudes."""
        e, given = self.block.elements, block_attrs(self.block, self.unit, self.rounding)
        attrs = SimulatedBlocksAttrs(str(e.dtype), e.low, e.high, 0, 1, **given)
        bits = np.ascontiguousarray(largest, np.float32).view(np.int32)
        return block_scales(arithmetic(FLOAT32), attrs, bits).astype(np.float64)

    def nearest(self, scale: float) -> float:
        """The scale of the format that is nearest to one."""
        if self.block.scale == FLOAT:
            return float(np.float32(scale))
        e = self.block.scale_element
        ratio = np.clip(np.asarray([scale / self.unit]), e.least, e.high)
        return float(np.float32(e.rounded(ratio)[0]) * np.float32(self.unit))
