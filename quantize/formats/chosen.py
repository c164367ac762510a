"""Numbers of a format chosen by data: those that stand for weights, and the scales of blocks.

Plain rounding takes the numbers nearest to the weights, and finds the scale of a block from them.
What a method chooses instead is kept by how far it is from that, counted in the numbers of the
format and of the scales' format, as they follow each other in size.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.errors import ConfigError
from compiler.ir.expr import Constant
from compiler.op.qnn.formats import SimulatedBlocksAttrs, block_scales
from compiler.types.dtypes import FLOAT32, Array, custom
from quantize.formats.blocks import FLOAT, block_format
from quantize.formats.element import Element, element
from quantize.formats.operand_format import (
    OperandFormat,
    flattened,
    rounded_array,
    rounding_call,
)
from quantize.formats.packing import packed, unpacked

MOST_BITS = 16
"""Formats of more bits have too many numbers to be counted."""


@cache
def numbers(e: Element) -> Array:
    """float64, ascending: the finite numbers of a scalar format that float32 holds.

    Raises:
        ConfigError: it has more than 16 bits.
    """
    if e.dtype.bits > MOST_BITS:
        raise ConfigError(
            f"weights in {e.dtype.name} cannot be chosen by data: formats of up to "
            f"{MOST_BITS} bits can; set weight_rounding='nearest'"
        )
    codes = np.arange(1 << e.dtype.bits).astype(e.dtype.storage)
    with np.errstate(all="ignore"):
        decoded = np.asarray(custom(e.dtype.name).decode(codes, e.dtype), np.float64)
    found: Array = np.unique(decoded[(decoded >= e.low) & (decoded <= e.high)] + 0.0)
    return found


class Numbers:
    """What the elements and the scales of one operand's format may be.

    Args:
        f: a scalar format, or a block format.

    Raises:
        ConfigError: the format has more than 16 bits, or its blocks have scales in float32.
    """

    def __init__(self, f: OperandFormat):
        self.format, self.block = f, block_format(f.format)
        self.element: Element = self.block.elements if self.block is not None else element(f.format)
        self.values = numbers(self.element)
        if self.block is not None:
            if self.block.scale == FLOAT:
                raise ConfigError(
                    f"weights in {f.format} cannot be chosen by data: its scales are float32, of "
                    "which there are too many to count; set weight_rounding='nearest' and a "
                    "weight_calibrate other than 'output', or give the blocks scales in a format"
                )
            own = numbers(self.block.scale_element)
            own = own[(own > 0) & np.isfinite(own)].astype(np.float32)
            self.scales: Array = own * np.float32(f.scales[0])

    def nearest(self, ratio: Array) -> Array:
        """For float32 quotients of weights and scales: the places of the nearest numbers."""
        rounded = self.element.rounded(np.asarray(ratio, np.float64)) + 0.0
        return np.searchsorted(self.values, rounded)

    def real(self, places: Array, scale: Array) -> Array:
        """float32: the numbers at some places, times their scales."""
        return np.asarray(self.values[places].astype(np.float32) * scale, np.float32)

    def scale_places(self, largest: Array) -> Array:
        """The places among `scales` of those of blocks with these largest magnitudes, float32."""
        attrs = self._attrs()
        bits = np.ascontiguousarray(largest, np.float32).view(np.int32)
        found = block_scales(arithmetic(FLOAT32), attrs, bits)
        return np.clip(np.searchsorted(self.scales, found), 0, len(self.scales) - 1)

    def _attrs(self) -> SimulatedBlocksAttrs:
        plain = replace(self.format, axis=0, flat=False)
        attrs = rounding_call(Constant.of(np.zeros(1, np.float32), FLOAT32), plain).attrs
        assert isinstance(attrs, SimulatedBlocksAttrs)
        return attrs

    # ---- a whole operand -------------------------------------------------------------------------
    def blocks(self, shape: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        """Where blocks are in an operand: the axis that they run along, how long it is, and the
        shape of their scales; of the shape that `flattened` makes."""
        assert self.block is not None
        axis = self.format.axis % len(shape)
        count = -(-shape[axis] // self.block.block)
        return axis, shape[axis], (*shape[:axis], count, *shape[axis + 1 :])

    def plain_scales(self, x: Array) -> Array:
        """The places of the scales that plain rounding finds for the blocks of `x`, flattened."""
        assert self.block is not None
        axis, length, _ = self.blocks(x.shape)
        starts = np.arange(0, length, self.block.block)
        return self.scale_places(np.maximum.reduceat(np.abs(x), starts, axis))

    def spread(self, of_blocks: Array, shape: tuple[int, ...]) -> Array:
        """What is given for every block, for every element of an operand of a flattened shape."""
        assert self.block is not None
        axis, length, _ = self.blocks(shape)
        wide = np.repeat(of_blocks, self.block.block, axis)
        return wide[tuple(slice(length if k == axis else None) for k in range(len(shape)))]

    def element_scales(self, x: Array, scale_places: Array | None) -> Array:
        """float32: the scale of every element of an operand; of blocks with scales at these places
        (`plain_scales`, if none are given)."""
        if self.block is None:
            scales = self.format.scale_array(x.shape)
            if scales.ndim == 1:
                scales = scales.reshape(-1, *[1] * (x.ndim - 1 - self.format.axis % x.ndim))
            return np.broadcast_to(scales, x.shape)
        flat = x.reshape(flattened(x.shape, self.format))
        places = self.plain_scales(flat) if scale_places is None else scale_places
        return self.spread(self.scales[places], flat.shape).reshape(x.shape)

    def chosen_for(self, x: Array) -> tuple[Array, Array]:
        """The places of the numbers that stand for weights `x`, and their float32 scales.

        Raises:
            ConfigError: what the format says of the choice is damaged, or for other weights.
        """
        f = self.format
        scale_places: Array | None = None
        if f.scale_steps:
            flat = x.reshape(flattened(x.shape, f))
            *_, shape = self.blocks(flat.shape)
            steps = unpacked(f.scale_steps, int(np.prod(shape))).reshape(shape)
            scale_places = _within(self.plain_scales(flat) + steps, self.scales)
        scale = self.element_scales(x, scale_places)
        with np.errstate(all="ignore"):
            found = self.nearest(np.asarray(x, np.float32) / scale)
        return _within(found + unpacked(f.rounding, x.size).reshape(x.shape), self.values), scale


def weight_array(x: Array, f: OperandFormat) -> Array:
    """The float32 numbers that stand for weights `x` in a format: the nearest, or those chosen.

    Raises:
        ConfigError: what it says of the choice is damaged, or for other weights.
    """
    if not f.chosen:
        return x if f.format == FLOAT else rounded_array(x, f)
    n = Numbers(f)
    return n.real(*n.chosen_for(x))


def _within(places: Array, of: Array) -> Array:
    if places.size and (places.min() < 0 or places.max() >= len(of)):
        raise ConfigError("the rounding of weights is not that of these weights: calibrate again")
    return places


def with_choice(
    x: Array, f: OperandFormat, places: Array, scale_places: Array | None
) -> OperandFormat:
    """The format, choosing the numbers at `places` (of the shape of `x`) for weights `x`, and the
    scales at `scale_places` for their blocks (of the shape that `blocks` gives)."""
    n = Numbers(replace(f, rounding="", scale_steps=""))
    steps = ""
    if scale_places is not None:
        steps = packed(scale_places - n.plain_scales(x.reshape(flattened(x.shape, f))))
    with np.errstate(all="ignore"):
        plain = n.nearest(np.asarray(x, np.float32) / n.element_scales(x, scale_places))
    return replace(f, rounding=packed(places - plain), scale_steps=steps)
