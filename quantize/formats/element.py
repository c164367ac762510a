"""What scaling must know of a scalar format: its range, and how to round to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from compiler.errors import ConfigError, DtypelabError
from compiler.types.dtypes import Array, CustomDType, DType, RevisedDType, custom

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


INTEGERS = re.compile(r"int([2-8])")
"""Names of integers that are elements: int<N> has as many numbers on either side of 0, from
-(2**(N-1) - 1) to 2**(N-1) - 1."""
UNSIGNED = re.compile(r"uint([2-8])")
"""Names of integers with a zero point: uint<N> has those from 0 to 2**N - 1."""
_BUILT_IN = {"float16": "float16_e5m10"}
"""Formats that the compiler has as dtypes of its own, and what they are as registered ones."""


def element(name: str) -> Element:
    """The format called `name` (or written `custom[NAME]BITS`), or the integers `int<N>`, of 2 to 8
    bits.

    Raises:
        ConfigError: there is none, or it has no positive numbers.
    """
    if found := INTEGERS.fullmatch(name):
        return _integers(int(found[1]))
    try:
        dtype = DType.parse(_BUILT_IN.get(name, name))
    except DtypelabError as e:
        raise ConfigError(str(e)) from None
    if not dtype.is_custom:
        raise ConfigError(f"{name!r} is no number format; choose a registered one")
    kind = custom(dtype.name)
    if isinstance(kind, RevisedDType):
        return _kept(name, dtype, kind, kind.revision)
    return _described(name, dtype, kind)


@lru_cache(maxsize=256)
def _kept(name: str, dtype: DType, kind: CustomDType, revision: int) -> Element:
    """The description of a datatype, until something is registered: scales are searched by many
    questions, and numbers of 16 bits are many."""
    return _described(name, dtype, kind)


def _described(name: str, dtype: DType, kind: CustomDType) -> Element:
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


@cache
def _integers(bits: int) -> Element:
    most = float((1 << (bits - 1)) - 1)
    return Element(DType.parse(f"fixed{bits}_0"), -most, most, 1.0, most)


def unsigned_bits(name: str) -> int:
    """N of `uint<N>`; 0 if `name` is none."""
    found = UNSIGNED.fullmatch(name)
    return int(found[1]) if found else 0
