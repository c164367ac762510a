"""Parameters of quantized values and weights, and how they follow from observed ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.types.dtypes import Array
from quantize.config.qconfig import QConfig
from quantize.formats.packing import packed, unpacked
from quantize.plan.half_quadratic import half_quadratic
from quantize.plan.scales import ends, in_groups, largest, least_error, zeros

BLOCK = 1 << 15
"""Weights that are worked on at a time."""


@dataclass(frozen=True)
class ValueParams:
    """How a value is kept as integers: real = (q - zero_point) * scale.

    Attributes:
        scale: a positive number that float32 holds exactly.
        dtype: `int8` or `uint8`; `int16` for more than 8 bits.
        bits: how much of the dtype's range is used.
        restricted: the smallest integer is left out, so that as many are on either side of the
            middle.
    """

    scale: float
    zero_point: int
    dtype: str
    bits: int = 8
    restricted: bool = False

    @property
    def qmin(self) -> int:
        """Smallest integer used."""
        return (0 if self.dtype == "uint8" else -(1 << (self.bits - 1))) + self.restricted

    @property
    def qmax(self) -> int:
        """Largest integer used."""
        return (1 << (self.bits - (self.dtype != "uint8"))) - 1

    @property
    def middle(self) -> int:
        """The integer in the middle of the whole range."""
        return 1 << (self.bits - 1) if self.dtype == "uint8" else 0

    @property
    def span(self) -> int:
        """Largest distance of an integer from the zero point."""
        return max(self.qmax - self.zero_point, self.zero_point - self.qmin)

    @property
    def reach(self) -> float:
        """Largest magnitude of a real value."""
        return self.span * self.scale

    def clipped(self, real: float) -> int:
        """The integer nearest to a real value, which may be infinite."""
        if np.isinf(real):
            return self.qmax if real > 0 else self.qmin
        return int(np.clip(np.rint(real / self.scale) + self.zero_point, self.qmin, self.qmax))


@dataclass(frozen=True)
class WeightParams:
    """How weights are kept as integers: real = q * scale.

    They are counted from the integer of 0, as int8, or as int16 where that does not hold them.

    Attributes:
        scales: one scale, or one per output channel; each is held exactly by float32.
        bits: integers are in [-(2^(bits-1) - 1), 2^(bits-1) - 1] without zero points.
        shift: what is added to the bias of each output channel, see `bias_correction`; may be
            empty.
        rounding: by how much the integers differ from those nearest to the weights, as
            `quantize.formats.packing` writes them; empty if they do not.
        zero_points: integers z that stand for 0 among -2^(bits-1) to 2^(bits-1) - 1, one for each
            scale: the integers are in [-2^(bits-1) - z, 2^(bits-1) - 1 - z].
        group: if not 0, `scales` has one for every so many inputs of each output, row after row;
            the last of a row may have fewer (see `quantize.realization.weight_only`).
        offsets: if given, what is added to the weights of each scale: real = q * scale + offset,
            where zero points are no integers (of weights alone; see `half_quadratic`).
    """

    scales: tuple[float, ...]
    bits: int = 8
    shift: tuple[float, ...] = ()
    rounding: str = ""
    zero_points: tuple[int, ...] = ()
    group: int = 0
    offsets: tuple[float, ...] = ()

    def ends(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The least and the largest integer of every weight of `shape`, float64."""
        kind = "asymmetric" if self.zero_points else "restricted"
        zero = self.each(self.zero_points, shape) if self.zero_points else np.zeros(shape)
        return ends(kind, self.bits, zero)

    @property
    def dtype(self) -> str:
        """What the integers are stored as."""
        return "int8" if self.bits + (self.bits == 8 and any(self.zero_points)) <= 8 else "int16"

    def is_wide(self, data: ValueParams) -> bool:
        """Whether products with `data` are of 16 bits, so that int32 may not hold their sums."""
        return self.dtype == "int16" or data.bits > 8

    def sums_dtype(self, integers: Array, bias: Array | None, data: ValueParams) -> str:
        """The narrower of int32 and int64 that holds every sum.

        Args:
            integers: weights, the output channel first; bias: of the same units; both integer.
            data: parameters of the values that they are multiplied with.
        """
        if not self.is_wide(data):
            return "int32"  # which annotation has made sure of
        rows = np.abs(integers.astype(np.float64)).reshape(len(integers), -1).sum(axis=1)
        most = rows * data.span + (0.0 if bias is None else np.abs(bias.astype(np.float64)))
        return "int32" if most.max() < 2**31 else "int64"

    def spread(self, shape: tuple[int, ...]) -> Array:
        """float64 scale of every weight of `shape`, whose first axis is the output channel."""
        return self.each(self.scales, shape)

    def each(self, values: Sequence[float], shape: tuple[int, ...]) -> Array:
        """What a list of one value per scale gives every weight of `shape`, float64."""
        given = np.asarray(values, np.float64)
        if self.group:
            inputs = int(np.prod(shape[1:]))
            rows = given.reshape(shape[0], -1).repeat(self.group, axis=1)[:, :inputs]
            return rows.reshape(shape)
        return np.broadcast_to(given.reshape(-1, *[1] * (len(shape) - 1)), shape)

    def real(self, weight: Array) -> Array:
        """float64: the numbers that stand for `weight`."""
        found: Array = self.quantized(weight) * self.spread(weight.shape)
        return found + self.each(self.offsets, weight.shape) if self.offsets else found

    def quantized(self, weight: Array) -> Array:
        """Integers that stand for `weight`, whose first axis is the output channel."""
        spread = self.spread(weight.shape)
        if self.offsets:
            weight = weight - self.each(self.offsets, weight.shape)
        low, high = (
            np.broadcast_to(a, weight.shape)
            for a in self.ends(weight.shape if self.zero_points else ())
        )
        moved = unpacked(self.rounding, weight.size) if self.rounding else None
        moved = None if moved is None else moved.reshape(weight.shape)
        out = np.empty(weight.shape, self.dtype)
        for rows in blocks_of_rows(weight):
            nearest = np.asarray(weight[rows] / spread[rows])
            np.rint(nearest, out=nearest)
            np.clip(nearest, low[rows], high[rows], out=nearest)
            if moved is not None:
                nearest += moved[rows]
                np.clip(nearest, low[rows], high[rows], out=nearest)
            out[rows] = nearest
        return out

    def rounded_to(self, weight: Array, integers: Array) -> WeightParams:
        """These parameters with `integers` standing for `weight`."""
        plain = replace(self, rounding="")
        return replace(self, rounding=packed(integers - plain.quantized(weight)))

    def shifted(self, bias: Array | None) -> Array | None:
        """`bias` [C] with the shift added; None if there is neither."""
        if not self.shift:
            return bias
        shift = np.asarray(self.shift, np.float32)
        return shift if bias is None else bias + shift

    def bias(self, bias: Array, data: ValueParams) -> Array:
        """Integers of `bias` [C] in units of the accumulator, data scale x weight scale: int64 if
        that may be, otherwise int32."""
        units = data.scale * np.asarray(self.scales, np.float64)
        if self.is_wide(data):
            return np.clip(np.rint(bias / units), -(2.0**52), 2.0**52).astype(np.int64)
        return np.clip(np.rint(bias / units), -(2.0**31), 2.0**31 - 1).astype(np.int32)

    def reach(self, weight: Array, bias: Array | None, data: ValueParams) -> float:
        """Largest magnitude of a result: that of the products' sums, and of `bias`."""
        sums = np.empty(len(weight))
        for rows in blocks_of_rows(weight):
            part = weight[rows].reshape(rows.stop - rows.start, -1)
            sums[rows] = np.abs(part).astype(np.float64).sum(axis=1)
        return float((sums * data.reach + (0 if bias is None else np.abs(bias))).max())

    def accumulator_scale(self, data: ValueParams) -> Array:
        """float64 real value of one unit of the accumulator: [C], or a scalar."""
        values = data.scale * np.asarray(self.scales, np.float64)
        return np.asarray(values[0] if len(values) == 1 else values)


def blocks_of_rows(weight: Array) -> Iterator[slice]:
    """Slices of the first axis, together all of it, of some BLOCK elements each: float64 copies of
    a network's weights would take longer to put into memory than what is done with them."""
    count = len(weight)
    step = max(1, BLOCK * count // max(1, weight.size))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def exact(scale: float, config: QConfig) -> float:
    """The float32 nearest to `scale`; 1 for a range of nothing, the least normal for too little.

    Where accumulators are scaled by shifts, the next power of two.
    """
    if scale == 0:
        return 1.0
    held = float(np.float32(max(scale, float(np.finfo(np.float32).tiny))))
    return power_of_two(held) if config.requantize == "shift" else held


def power_of_two(scale: float) -> float:
    """The least power of two that is not below a positive number."""
    fraction, exponent = np.frexp(scale)
    return float(np.ldexp(1.0, int(exponent) - (fraction == 0.5)))


def whole_range(config: QConfig) -> ValueParams:
    """The integers that `config` gives activations, with scale 1 and zero point 0."""
    dtype = config.activation_dtype if config.activation_bits <= 8 else "int16"
    restricted = config.activation_range == "restricted"
    return ValueParams(1.0, 0, dtype, config.activation_bits, restricted)


def value_params(low: float, high: float, config: QConfig, floor: float = 0.0) -> ValueParams:
    """Parameters that cover [low, high] and 0, with a scale of at least `floor`.

    Asymmetric: the zero point is the integer nearest to where 0 falls. Symmetric: the middle. The
    scale is a power of two if `config.calibrate` is that.
    """

    def scaled(scale: float) -> float:
        found = exact(max(scale, floor), config)
        return power_of_two(found) if config.calibrate == "power_of_two" else found

    whole = whole_range(config)
    low, high = min(low, 0.0), max(high, 0.0)
    if config.activation_symmetric:
        scale = scaled(max(-low, high) / (whole.qmax - whole.middle))
        return replace(whole, scale=scale, zero_point=whole.middle)
    scale = scaled((high - low) / (whole.qmax - whole.qmin))
    zero = int(np.clip(np.rint(whole.qmin - low / scale), whole.qmin, whole.qmax))
    return replace(whole, scale=scale, zero_point=zero)


def weight_params(
    weight: Array, bias: Array | None, data: ValueParams, config: QConfig
) -> WeightParams:
    """Scales (of each channel) as `config.weight_calibrate` chooses them, that let the bias fit
    30 bits (unless sums have 64)."""
    bits, kind = config.weight_bits, config.weight_range
    found = WeightParams((), bits)
    rows = weight.reshape(weight.shape[0], -1)
    if config.weight_granularity == "tensor":
        rows = rows.reshape(1, -1)
    search = least_error if config.weight_calibrate == "mse" else largest
    scales = search(rows, bits, kind)
    if kind != "restricted":
        found = replace(found, zero_points=tuple(map(int, zeros(rows, bits, kind))))
    if bias is not None and not found.is_wide(data):
        scales = np.maximum(scales, np.abs(bias.astype(np.float64)) / (data.scale * 2.0**30))
    if config.weight_granularity == "tensor":
        scales = scales.max(keepdims=True)
    return replace(found, scales=tuple(exact(float(s), config) for s in scales))


def weight_only_params(weight: Array, config: QConfig) -> WeightParams:
    """Scales of a layer's weights, the output channel first, as `config` chooses them."""
    group = config.weight_group_size if config.weight_granularity == "group" else 0
    bits, kind = config.weight_bits, config.weight_range
    rows = weight.reshape(1 if config.weight_granularity == "tensor" else len(weight), -1)
    if group:
        rows = in_groups(rows, group)
    search = least_error if config.weight_calibrate == "mse" else largest
    scales = tuple(exact(float(s), config) for s in search(rows, bits, kind))
    zero = () if kind == "restricted" else tuple(map(int, zeros(rows, bits, kind)))
    found = WeightParams(scales, bits, zero_points=zero, group=group)
    return _with_real_zeros(found, rows) if config.weight_rounding == "hqq" else found


def _with_real_zeros(params: WeightParams, rows: Array) -> WeightParams:
    """The parameters with the zero points of HQQ: the nearest integers, and offsets for the rest.
    Rows that are filled up with zeros count these."""
    scale, half = np.asarray(params.scales), 1 << (params.bits - 1)
    best = half_quadratic(rows, scale, np.asarray(params.zero_points), -half, half - 1)
    zero = np.rint(best)
    offsets = tuple(map(float, ((zero - best) * scale).astype(np.float32)))
    return replace(params, zero_points=tuple(map(int, zero)), offsets=offsets)
