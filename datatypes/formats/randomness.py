"""The random bits of stochastic rounding: a hash of where in a program a rounding happens.

Equal places get equal bits, however work is split over threads, tiles and vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.arithmetic.random_bits import GOLDEN, mix, node_key

Array = npt.NDArray[Any]


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
