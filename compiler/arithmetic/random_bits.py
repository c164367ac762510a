"""Random bits as hashes of integers, of arrays and as expressions: equal arguments get equal bits,
however work is split over threads, tiles and vectors."""

from __future__ import annotations

from functools import partial

import numpy as np

from compiler.tensor.expr import Expr, cast, const, let
from compiler.types.dtypes import Array, DType

UINT32 = DType("uint", 32)
GOLDEN = 0x9E3779B9
"""2**32 divided by the golden ratio, odd: spreads small integers over 32 bits."""

MIX = ((16, 0x21F0AAAD), (15, 0xD35A2D97), (15, None))
"""A shift to the right and a factor, in turn; found by search (C. Wellons, "Prospecting for Hash
Functions", 2018, and the list in the repository hash-prospector)."""


def mix(x: Array) -> Array:
    """A permutation of the 32-bit integers that looks random, of a uint32 array."""
    for shift, factor in MIX:
        x = x ^ (x >> np.uint32(shift))
        if factor is not None:
            x = x * np.uint32(factor)
    return x


def mixed(x: Expr) -> Expr:
    """`mix` of a uint32 expression."""
    for shift, factor in MIX:
        x = let(x, partial(_folded, shift))
        if factor is not None:
            x = x * factor
    return x


def _folded(shift: int, x: Expr) -> Expr:
    return x ^ (x >> shift)


def node_key(seed: int, node: int) -> int:
    """What positions and counts are mixed into, for one operation of a program."""
    key = mix(np.uint32(seed & 0xFFFFFFFF) + np.array([GOLDEN], np.uint32))
    return int(mix(key + np.uint32(node & 0xFFFFFFFF))[0])


def drawn_bits(key: int, index: Array, draw: int) -> Array:
    """uint32 random bits of a draw, an array of the shape of `index`.

    Args:
        key: see `node_key`.
        index: positions, an integer array, of which the lowest 32 bits count.
        draw: its number, an int64: all 64 bits count.
    """
    low, high = (np.array([draw >> k & 0xFFFFFFFF], np.uint32) for k in (0, 32))
    at = mix(np.uint32(key) ^ (np.asarray(index).astype(np.uint32) * np.uint32(GOLDEN)).reshape(-1))
    bits = mix(mix(at + low * np.uint32(GOLDEN)) + high * np.uint32(GOLDEN))
    return bits.reshape(np.shape(index))


def drawn_bits_at(key: int, index: Expr, draw: Expr) -> Expr:
    """`drawn_bits` of int64 expressions."""
    at = mixed(const(key, UINT32) ^ cast(index, UINT32) * GOLDEN)
    first = mixed(at + cast(draw, UINT32) * GOLDEN)
    return mixed(first + cast(draw >> 32, UINT32) * GOLDEN)
