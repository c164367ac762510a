"""Operands that proofs are made with: extremes, ties, and everything where that is not too much."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from compiler.types.dtypes import Array
from datatypes.formats import Format, decode, encode

ALL_PAIRS_BITS = 8
ALL_CODES_BITS = 16
_TIES_EACH = 3
_INVERSE: dict[str, tuple[np.ufunc, np.ufunc]] = {
    "Add": (np.subtract, np.add), "Sub": (np.add, np.subtract),
    "Mul": (np.divide, np.multiply), "Div": (np.multiply, np.divide),
}  # fmt: skip
"""Operation -> how its first operand follows from result and second operand, and itself."""
_FACTORS = np.array([1, *range(3, 128, 2)], np.float64)


def codes(fmt: Format, rng: np.random.Generator, count: int = 20_000) -> Array:
    """Every code of a format of up to 16 bits; else `count` or so, extremes included."""
    if fmt.nbits <= ALL_CODES_BITS:
        return np.arange(fmt.mask + 1).astype(fmt.storage)
    half = count // 2
    return np.concatenate([extremes(fmt), ordinary(fmt, rng, half), anything(fmt, rng, half)])


def extremes(fmt: Format) -> Array:
    """NaN, infinities, zeros, the largest and smallest numbers, those around 1: of both signs."""
    one = fmt.order(fmt.encode_exact(1))
    near = (0, 1, 2, one - 1, one, one + 1, fmt.highest - 1, fmt.highest)
    orders = {sign * k for k in near for sign in (1, -1)} | {fmt.lowest}
    found = {fmt.code(k) for k in orders if fmt.lowest <= k <= fmt.highest}
    beyond = fmt.highest + 1 & fmt.mask
    found |= {fmt.nan_code, fmt.sign_bit, fmt.mask, beyond, beyond ^ fmt.sign_bit}
    return np.array(sorted(found), fmt.storage)


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers that are hard to round to a format: boundaries, values and their neighbours in either
    float, any bits, and integers of any size."""

    float64: Array
    float32: Array
    int32: Array
    int64: Array
    uint8: Array

    @staticmethod
    def of(fmt: Format, rng: np.random.Generator) -> Numbers:
        """Those for a format."""
        edges = np.concatenate(boundaries(fmt))
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e308, -1e308])
        with np.errstate(all="ignore"):
            near = edges.astype(np.float32)
            wide = rng.integers(-(2**63), 2**63, 1000, dtype=np.int64).view(np.float64)
            short = rng.integers(0, 2**32, 1000, dtype=np.uint32).view(np.float32)
            whole = rng.integers(-(2**31), 2**31, 1000)
            return Numbers(
                np.concatenate([*_neighbours(edges), wide, short, special]),
                np.concatenate([*_neighbours(near), short, special.astype(np.float32)]),
                np.concatenate([whole, np.arange(-600, 600)]).astype(np.int32),
                rng.integers(-(2**63), 2**63, 1000, dtype=np.int64),
                np.arange(256, dtype=np.uint8),
            )


def _neighbours(values: Array) -> tuple[Array, Array, Array]:
    up, down = (np.asarray(end, values.dtype) for end in (np.inf, -np.inf))
    return values, np.nextafter(values, up), np.nextafter(values, down)


def ordinary(fmt: Format, rng: np.random.Generator, count: int) -> Array:
    """Numbers around 1, as networks have them."""
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-6, 5, count)
    return encode(fmt, values)


def anything(fmt: Format, rng: np.random.Generator, count: int) -> Array:
    """Any codes at all."""
    return rng.integers(0, fmt.mask + 1, count).astype(fmt.storage)


def pairs(fmt: Format, op: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """Two arrays of codes: all pairs up to 8 bits; above, a stratified sample.

    It has every extreme with every code, every tie of `op` that `ties` finds and its neighbours,
    ordinary numbers, and numbers of any two codes.
    """
    if fmt.nbits <= ALL_PAIRS_BITS:
        every = np.arange(fmt.mask + 1).astype(fmt.storage)
        return np.repeat(every, every.size), np.tile(every, every.size)
    ends, every = extremes(fmt), codes(fmt, rng)
    end, other = np.repeat(ends, every.size), np.tile(every, ends.size)
    columns = [(end, other), (other, end), around(fmt, *ties(fmt, op))]
    columns += [(make(fmt, rng, 400_000), make(fmt, rng, 400_000)) for make in (ordinary, anything)]
    first, second = zip(*columns, strict=True)
    return np.concatenate(first), np.concatenate(second)


def around(fmt: Format, a: Array, b: Array) -> tuple[Array, Array]:
    """Pairs, and those with the neighbours of the second operand."""
    steps = np.array([0, 1, fmt.mask], fmt.storage)
    return np.repeat(a, 3), ((b[:, None] + steps) & fmt.storage.type(fmt.mask)).ravel()


@lru_cache(maxsize=32)
def boundaries(fmt: Format) -> tuple[Array, Array]:
    """(float64 boundaries between neighbours, the value below each): all up to 16 bits, else
    2000 of them."""
    if fmt.nbits <= ALL_CODES_BITS:
        every: Array = np.arange(fmt.lowest, fmt.highest)
    else:
        every = np.random.default_rng(0).integers(fmt.lowest, fmt.highest, 2000)
    exact = [(fmt.boundary(k), fmt.value(k)) for k in every.tolist()]
    between, below = np.array([(float(b), float(v)) for b, v in exact]).T
    return between, below


@lru_cache(maxsize=16)
def ties(fmt: Format, op: str) -> tuple[Array, Array]:
    """Pairs whose exact result lies on a boundary between two numbers, for Add, Sub, Mul and Div.

    Sums: a number and half its distance to the next. Products and quotients: for every boundary and
    64 short factors, in two sizes, the other operand if there is such a number; three pairs each at
    most. A product's shorter significand is among these factors where the boundaries of the format
    have up to 14 bits.
    """
    between, below = boundaries(fmt)
    inner = between != 0
    between, below = between[inner], below[inner]
    if op not in _INVERSE:
        return np.empty(0, fmt.storage), np.empty(0, fmt.storage)
    if op in ("Add", "Sub"):
        half = between - below
        sign = 1.0 if op == "Add" else -1.0
        second = [sign * np.stack([half, -half], 1)]
    else:
        middle = 2.0 ** np.rint(np.log2(np.abs(between)) / 2)
        scales = [middle, np.full_like(middle, 0.125)]
        second = [_FACTORS * (s if op == "Mul" else 1 / s)[:, None] for s in scales]
    found = [_hits(fmt, op, between[:, None], b) for b in second]
    first, other = zip(*found, strict=True)
    return np.concatenate(first), np.concatenate(other)


def _hits(fmt: Format, op: str, between: Array, b: Array) -> tuple[Array, Array]:
    """Pairs (a, b) of numbers of the format with `a op b` = between, at most three a row."""
    inverse, forward = _INVERSE[op]
    with np.errstate(all="ignore"):
        a = inverse(between, b)
        hit = forward(a, b) == between
        x, y = encode(fmt, a), encode(fmt, b)
        hit &= (decode(fmt, x) == a) & (decode(fmt, y) == b)
    hit &= np.cumsum(hit, 1) <= _TIES_EACH
    return x[hit], y[hit]
