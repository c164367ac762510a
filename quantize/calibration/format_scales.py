"""Choosing the scales of scalar formats.

A scale is searched that has the least squared error of rounding, among octaves and then among
eighths of an octave (with `scales="power_of_two"` octaves only); where a range is given instead,
its end comes to lie on the format's `target`. For native sums, values of magnitude 1 are best: a
product of two is of magnitude 1, and their sums stay in range longest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from compiler.types.dtypes import Array
from quantize.calibration.observers import Histogram, Several, observer
from quantize.config.qconfig import QConfig
from quantize.formats.blocks import FLOAT
from quantize.formats.element import Element, element
from quantize.formats.operand_format import OperandFormat
from quantize.formats.scale_format import ScaleFormat
from quantize.plan.params import power_of_two
from quantize.plan.scales import in_groups

_OCTAVES = range(-4, 13)
_EIGHTHS = range(-7, 8)
Errors = Callable[[Array], Array]
"""Scales [C] -> squared errors [C]."""


class FormatObserver(Several):
    """Watches a value that is to be put in a format: its range as `calibrate` says, and, where that
    is not all that is asked, the distribution of its magnitudes."""

    def __init__(self, config: QConfig, bits: int = 0):
        self.config = config
        # The signs of formats are symmetric; the integers only tell thresholds how many levels. But
        # unsigned integers, of so many `bits`, are observed as those of whole networks are.
        self.integers = QConfig(
            calibrate=config.calibrate, percentile=config.percentile, kl_bins=config.kl_bins,
            momentum=config.momentum, sigmas=config.sigmas,
            activation_dtype="uint8" if bits else "int8", activation_bits=bits or 8,
            activation_symmetric=not bits,
        )  # fmt: skip
        self.ends = observer(self.integers)
        self.searched = config.calibrate in ("mse", "power_of_two")
        counted = isinstance(self.ends, Histogram)
        self.counts: Any = self.ends if counted else Histogram() if self.native else None
        both: list[Any] = [self.ends, self.counts]
        apart = self.counts is not None and self.counts is not self.ends
        super().__init__(both if apart else both[:1])

    @property
    def native(self) -> bool:
        """Whether sums are formed in the format."""
        return self.config.compute == "native"

    @property
    def largest(self) -> float:
        """The largest magnitude of the range."""
        return max(abs(v) for v in self.range())

    @property
    def reach(self) -> float:
        """The largest magnitude that blocks with scales of their own are to hold. All that was
        seen, unless `calibrate` states a range: searches for the best one weigh the error of a grid
        of equal steps, which blocks do not have, and would cut off what they hold for nothing."""
        if self.config.calibrate not in ("mse", "kl", "power_of_two"):
            return self.largest
        return max(abs(float(self.counts.low)), abs(float(self.counts.high)))

    def grid(self, bits: int) -> tuple[float, int]:
        """The scale and the zero point of unsigned integers."""
        low, high = (float(f(v, 0.0)) for f, v in zip((min, max), self.range(), strict=True))
        most = (1 << bits) - 1
        held = held_scales(self.config, element(f"int{bits}"), (high - low) / 2)
        scale = held.nearest((high - low) / most)
        return scale, int(np.clip(np.rint(-low / scale), 0, most))

    def scale(self, e: Element) -> float:
        """The scale for a format."""
        powers = powers_of_two(self.config)
        held = held_scales(self.config, e, self.reach if self.counts is not None else 1.0)
        if self.native:
            used = self.counts.counts > 0
            squares = self.counts.centres[used] ** 2 * self.counts.counts[used]
            mean = math.sqrt(squares.sum() / max(self.counts.counts.sum() - self.counts.zeros, 1))
            return rounded_scale(max(mean, self.largest / e.high), powers)
        if not self.searched:
            return float(held.covering(np.asarray([self.largest]))[0])
        used = np.flatnonzero(self.counts.counts)
        x, n = self.counts.centres[used], self.counts.counts[used].astype(np.float64)
        most = max(abs(self.counts.low), abs(self.counts.high))

        def errors(scales: Array) -> Array:
            return np.asarray([(n * (e.rounded(x / s) * s - x) ** 2).sum() for s in scales])

        return least_errors(np.asarray([most]), errors, held)[0]


class HeldScales(Protocol):
    """What scales may be."""

    def covering(self, largest: Array) -> Array:
        """float64 scales by which sets of numbers with these largest magnitudes are covered."""

    def nearest(self, scale: float) -> float:
        """The nearest of them."""


@dataclass(frozen=True)
class FloatScales:
    """Scales in float32, or powers of two: those that put a largest magnitude on `target`."""

    target: float
    powers: bool

    def covering(self, largest: Array) -> Array:
        """See HeldScales."""
        return np.asarray([rounded_scale(float(v) / self.target, self.powers) for v in largest])

    def nearest(self, scale: float) -> float:
        """See HeldScales."""
        return rounded_scale(scale, self.powers)


def held_scales(config: QConfig, e: Element, largest: float) -> HeldScales:
    """What the scales of a tensor of a format, with this largest magnitude, may be."""
    if config.scale_dtype == FLOAT:
        return FloatScales(e.target, powers_of_two(config))
    return ScaleFormat.of(str(e.dtype), config.scale_dtype, config.block_scale_rounding, largest)


def powers_of_two(config: QConfig) -> bool:
    """Whether scales have to be powers of two."""
    return config.scales == "power_of_two" or config.calibrate == "power_of_two"


def weight_scales(weight: Array, e: Element, config: QConfig) -> tuple[float, ...]:
    """Scales of weights [O, ...] for a format: one, one for each output channel, or for each group
    of them."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    if config.weight_granularity == "tensor":
        rows = rows.reshape(1, -1)
    elif config.weight_granularity == "group":
        rows = in_groups(rows, config.weight_group_size)
    largest = np.abs(rows).max(axis=1)
    if config.compute == "native":
        counts = np.maximum((rows != 0).sum(axis=1), 1)
        mean = np.sqrt((rows**2).sum(axis=1) / counts)
        powers = powers_of_two(config)
        return tuple(rounded_scale(float(s), powers) for s in np.maximum(mean, largest / e.high))
    held = held_scales(config, e, float(largest.max(initial=0.0)))
    if config.weight_calibrate == "max":
        return tuple(map(float, held.covering(largest)))

    def errors(scales: Array) -> Array:
        s = scales[:, None]
        return np.asarray(((e.rounded(rows / s) * s - rows) ** 2).sum(axis=1))

    return tuple(least_errors(largest, errors, held))


def least_errors(largest: Array, errors: Errors, held: HeldScales) -> list[float]:
    """The scale with the least error for each of several sets of numbers, of which `largest` has
    the largest magnitudes."""
    best = held.covering(largest)
    least = np.full(len(best), np.inf)
    powers = isinstance(held, FloatScales) and held.powers
    nearest = float32_scale if isinstance(held, FloatScales) else held.nearest
    for step, candidates in ((1.0, _OCTAVES), (1 / 8, _EIGHTHS)):
        if step < 1 and powers:
            break
        centre = best
        for k in candidates:
            scales = np.asarray([nearest(s) for s in centre * 2.0 ** (k * step)])
            found = errors(scales)
            best = np.where(found < least, scales, best)
            least = np.minimum(found, least)
    return [float(s) for s in best]


def with_room(
    formats: tuple[OperandFormat, ...], reach: float, powers: bool
) -> tuple[OperandFormat, ...]:
    """Formats of two factors whose scales are raised, each by its part, until twice the largest
    result (the sums on the way to it are larger) is in the format's range."""
    first, second = formats
    need = 2 * reach / element(first.format).high
    lacking = max(1.0, need / (first.scales[0] * min(second.scales)))
    a = rounded_scale(first.scales[0] * math.sqrt(lacking), powers)
    b = (rounded_scale(max(s, need / a), powers) for s in second.scales)
    return replace(first, scales=(a,)), replace(second, scales=tuple(b))


def rounded_scale(scale: float, powers: bool) -> float:
    """A scale of at least this size that float32 holds, or that is a power of two; 1 for 0."""
    scale = float32_scale(scale)
    return power_of_two(scale) if powers else scale


def float32_scale(scale: float) -> float:
    """The float32 nearest to a scale, within its normal numbers; 1 for 0."""
    if scale == 0:
        return 1.0
    info = np.finfo(np.float32)
    return float(np.float32(min(max(scale, float(info.tiny)), float(info.max))))
