"""Arrays of random numbers: ordinary ones, wide ranges, and those that break arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ml_dtypes import finfo

from random_graphs.oracle import BFLOAT16, Array

FLAVOURS = ("normal", "normal", "normal", "whole", "wide", "special")
"""What an array of floats holds: normal values, small whole numbers and halves, values of many
magnitudes, normal ones among NaN, infinities, denormals, zeros of both signs and extremes."""
FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BFLOAT16)


def is_float(dtype: np.dtype) -> bool:
    """Whether it is one of the floats; numpy does not count bfloat16 among its own."""
    return dtype in FLOATS


def draw(
    rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype, flavour: str = "normal"
) -> Array:
    """An array; of integers, mostly small ones."""
    shape = tuple(shape)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if not is_float(dtype):
        return _integers(rng, shape, dtype, flavour)
    values = rng.normal(0, 1, shape)
    if flavour == "whole":
        values = rng.integers(-8, 9, shape) / 2
    elif flavour == "wide":
        widest = 4 if dtype == np.float16 else 12
        values = values * 10.0 ** rng.uniform(-widest, widest, shape)
    out = values.astype(dtype)
    if flavour == "special":
        odd = rng.choice(specials(dtype), shape) if out.size else out
        out = np.where(rng.random(shape) < 0.25, odd, out)
    return np.asarray(out, dtype).reshape(shape)


def specials(dtype: np.dtype) -> Array:
    """Numbers at the edges of a float type."""
    info = finfo(dtype)
    tiny, least, most = (
        float(v) for v in (info.smallest_normal, info.smallest_subnormal, info.max)
    )
    some = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5]
    some += [tiny, -tiny, least, -least, tiny * 0.75, most, -most, most / 2, float(info.eps)]
    return np.array(some, np.float64).astype(dtype)


def _integers(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, flavour: str
) -> Array:
    info = np.iinfo(dtype)
    low, high = (max(info.min, -9), min(info.max, 9))
    out = rng.integers(low, high + 1, shape).astype(dtype)
    if flavour in ("wide", "special"):
        odd = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
        edge = rng.choice(np.array([info.min, info.max], dtype), shape) if out.size else out
        out = np.where(rng.random(shape) < 0.5, out, np.where(rng.random(shape) < 0.7, odd, edge))
    return np.asarray(out, dtype).reshape(shape)
