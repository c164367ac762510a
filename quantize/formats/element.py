"""What scaling must know of a scalar format: its range, and how to round to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.errors import ConfigError, DtypelabError
from compiler.types.dtypes import Array, DType, custom

_ENUMERATED = 16
"""Codes of formats of up to so many bits are looked at one by one."""
_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Element:
    """A registered format, within the range of float32.

    Attributes:
        dtype: its dtype.
        low, high: the least and the largest finite value.
        least: the smallest positive value.
        target: the largest value of which the distance to the one below it is, relative to it, at
            most twice the smallest such distance: `high` of formats of even precision, less of
            tapered ones (posits).
    """

    dtype: DType
    low: float
    high: float
    least: float
    target: float

    def rounded(self, values: Array) -> Array:
        """float64 values nearest to `values`, saturating; NaN as the format has it."""
        kind = custom(self.dtype.name)
        codes = kind.encode(np.clip(values, self.low, self.high), self.dtype)
        return np.asarray(kind.decode(codes, self.dtype), np.float64)

    @property
    def step(self) -> float:
        """The distance from the value below `target` up to `target`."""
        nearer = self.target * (1 - 2.0 ** -np.arange(1, 41))
        below = self.rounded(nearer)
        return self.target - float(below[below < self.target].max())


def element(name: str) -> Element:
    """The format called `name` (or written `custom[NAME]BITS`).

    Raises:
        ConfigError: there is none, or it has no positive numbers.
    """
    try:
        dtype = DType.parse(name)
    except DtypelabError as e:
        raise ConfigError(str(e)) from None
    if not dtype.is_custom:
        raise ConfigError(f"{name!r} is no number format; choose a registered one")
    kind = custom(dtype.name)
    if dtype.bits > _ENUMERATED:
        lowest = np.asarray([kind.lowest(dtype)], dtype.storage)
        high = min(-float(kind.decode(lowest, dtype)[0]), _MOST)
        return Element(dtype, -high, high, float(np.finfo(np.float32).tiny), min(high, 256.0))
    codes = np.arange(1 << dtype.bits).astype(dtype.storage)
    with np.errstate(all="ignore"):
        decoded = np.asarray(kind.decode(codes, dtype), np.float64)
    values = np.unique(np.clip(decoded[np.isfinite(decoded)], -_MOST, _MOST))
    positive = values[values > 0]
    if not positive.size:
        raise ConfigError(f"{name!r} has no positive numbers: nothing can be scaled to it")
    gaps = np.diff(positive) / positive[1:]
    precise = positive[1:][gaps <= 2 * gaps.min()] if gaps.size else positive
    return Element(
        dtype, float(values[0]), float(positive[-1]), float(positive[0]), float(precise[-1])
    )
