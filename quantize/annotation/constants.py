"""Constant operands of integer sums and products: more bits than activations, so that the nearest
integers lose next to nothing."""

from __future__ import annotations

import numpy as np

from compiler.types.dtypes import Array
from quantize.plan.params import ValueParams, power_of_two

SUMMAND, FACTOR = 24, 16
"""Bits, sign included: of what is added, which float32 then holds; of what 8 bits are multiplied
by, so that products have 24."""


def summand_bits(requantize: str) -> int:
    """Bits of constants that are added by an arithmetic: gemmlowp's sums shift them to the left."""
    return 16 if requantize == "gemmlowp" else SUMMAND


def constant_grid(data: Array, bits: int) -> tuple[Array, ValueParams]:
    """int32 integers nearest to `data`, and their grid: the finest of a power of two that holds
    them all in `bits` bits."""
    largest = float(np.abs(data).max(initial=0.0))
    step = largest / ((1 << (bits - 1)) - 1)
    scale = power_of_two(max(step, float(np.finfo(np.float32).tiny)))
    q = np.rint(data.astype(np.float64) / scale).astype(np.int32)
    return q, ValueParams(scale, 0, "int32", bits)
