"""Scales of weights: how much of their range the integers cover, and where 0 is among them."""

from __future__ import annotations

import numpy as np

from compiler.types.dtypes import Array

RATIOS = np.linspace(1.0, 0.3, 71)
"""Shares of the largest weight that `least_error` tries."""


def ends(kind: str, bits: int, zero: Array) -> tuple[Array, Array]:
    """The least and the largest integer, counted from that of 0, in the shape of `zero`.

    Args:
        kind: `restricted` to as many integers on either side of 0, `full` or `asymmetric`.
        zero: the integer that stands for 0, among -2^(bits-1) to 2^(bits-1) - 1.
    """
    half = 1 << (bits - 1)
    return -half + (kind == "restricted") - zero, half - 1 - zero


def zeros(rows: Array, bits: int, kind: str) -> Array:
    """int64 [N]: the integer that stands for 0 in each row of [N, K]; 0 unless asymmetric."""
    if kind != "asymmetric":
        return np.zeros(len(rows), np.int64)
    scale = largest(rows, bits, kind)
    half = 1 << (bits - 1)
    above = np.maximum(-rows.min(axis=1).astype(np.float64), 0) / np.where(scale > 0, scale, 1.0)
    nearest: Array = np.clip(np.rint(above) - half, -half, half - 1)
    return nearest.astype(np.int64)


def largest(rows: Array, bits: int, kind: str) -> Array:
    """float64 [N]: the least scales by which the integers cover each row of [N, K], and 0."""
    half = 1 << (bits - 1)
    low = np.maximum(-rows.min(axis=1).astype(np.float64), 0)
    high = np.maximum(rows.max(axis=1).astype(np.float64), 0)
    if kind == "asymmetric":
        return np.asarray((low + high) / (2 * half - 1))
    below = half if kind == "full" else half - 1
    covering: Array = np.maximum(low / below, high / (half - 1))
    return covering


def least_error(rows: Array, bits: int, kind: str) -> Array:
    """float64 [N]: scales with the least squared rounding error of each row of [N, K].

    Of those that clip up to 70 % of the range (the search of Banner et al., Post Training 4-bit
    Quantization of Convolutional Networks, 2019, by trial); the largest of equally good ones.
    """
    w = rows.astype(np.float64)
    full = largest(rows, bits, kind)
    low, high = ends(kind, bits, zeros(rows, bits, kind)[:, None])
    best, least = full, np.full(len(w), np.inf)
    for ratio in RATIOS:
        scale = full * ratio
        unit = np.where(scale > 0, scale, 1.0)[:, None]
        error = np.square(np.clip(np.rint(w / unit), low, high) * unit - w).sum(axis=1)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best


def in_groups(rows: Array, size: int) -> Array:
    """Rows [N, K] as those of groups [N * ceil(K / size), size], filled up with zeros."""
    filled = np.pad(rows, ((0, 0), (0, -rows.shape[1] % size)))
    return filled.reshape(-1, size)
