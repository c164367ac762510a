"""The random bits of stochastic rounding: a hash of where in a program a rounding happens.

Equal places get equal bits, however work is split over threads, tiles and vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

GOLDEN = 0x9E3779B9
"""2**32 divided by the golden ratio, odd: spreads small integers over 32 bits."""

MIX = ((16, 0x21F0AAAD), (15, 0xD35A2D97), (15, None))
"""A shift to the right and a factor, in turn; found by search (C. Wellons, "Prospecting for Hash
Functions", 2018, and the list in the repository hash-prospector)."""


def random_bits(seed: int, node: int, index: npt.ArrayLike, step: npt.ArrayLike) -> Array:
    """uint32 random bits of roundings.

    Args:
        seed: of the format.
        node: number of the operation in the program.
        index: flat position in the operation's output, an integer array.
        step: how many roundings of this output element came before, an integer array.

    Returns:
        uint32 array of the shape that `index` and `step` broadcast to.
    """
    key = np.array([node_key(seed, node)], np.uint32)
    at = mix(key ^ (np.asarray(index).astype(np.uint32) * np.uint32(GOLDEN)))
    bits = mix(at + np.asarray(step).astype(np.uint32) * np.uint32(GOLDEN))
    return bits.reshape(np.broadcast_shapes(np.shape(index), np.shape(step)))


def node_key(seed: int, node: int) -> int:
    """What `random_bits` mixes positions and steps into."""
    key = mix(np.uint32(seed & 0xFFFFFFFF) + np.array([GOLDEN], np.uint32))
    return int(mix(key + np.uint32(node & 0xFFFFFFFF))[0])


def mix(x: Array) -> Array:
    """A permutation of the 32-bit integers that looks random."""
    for shift, factor in MIX:
        x = x ^ (x >> np.uint32(shift))
        if factor is not None:
            x = x * np.uint32(factor)
    return x
