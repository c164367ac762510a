"""Figures that say how far a network's outputs moved, and what that did to its answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.errors import InputError
from quantize.search.energies import decibels, energies

Float64 = NDArray[np.float64]


def top1(scores: ArrayLike, labels: ArrayLike) -> float:
    """Share of rows whose largest score is at the label: a fraction from 0 to 1.

    `scores` is [images, classes] of any real dtype, `labels` [images] of integers. Ties go to the
    lowest class, as `numpy.argmax` does. A row that holds a NaN counts as wrong.

    Raises:
        InputError: the shapes do not fit, or there are no rows.
    """
    return float(np.mean(right(scores, labels)))


def right(scores: ArrayLike, labels: ArrayLike) -> NDArray[np.bool_]:
    """Which rows have their largest score at the label: [images], as `top1` counts them.

    Raises:
        InputError: the shapes do not fit, or there are no rows.
    """
    table = _scores(scores)
    wanted = np.asarray(labels)
    if wanted.shape != table.shape[:1]:
        raise InputError(
            f"top-1 needs one label for each of {table.shape[0]} rows, got shape {wanted.shape}"
        )
    valid = ~np.isnan(table).any(axis=1)
    found: NDArray[np.bool_] = valid & (table.argmax(axis=1) == wanted)
    return found


def top1_agreement(scores: ArrayLike, reference: ArrayLike) -> float:
    """Share of rows where both score tables [images, classes] put the same class first (0 to 1).

    A row that holds a NaN on either side counts as disagreement.

    Raises:
        InputError: the shapes differ, or there are no rows.
    """
    left, right = _scores(scores), _scores(reference)
    _same_shape(left, right)
    valid = ~(np.isnan(left) | np.isnan(right)).any(axis=1)
    return float(np.mean(valid & (left.argmax(axis=1) == right.argmax(axis=1))))


def not_finite(outputs: ArrayLike) -> int:
    """How many inputs have a NaN or an infinity anywhere in their outputs [n, ...]."""
    values = np.asarray(outputs)
    if values.dtype.kind != "f":
        return 0
    return int(np.sum(~np.isfinite(values.reshape(len(values), -1)).all(axis=1)))


def farthest(values: NDArray[Any], reference: NDArray[Any]) -> float:
    """The largest magnitude of a difference between arrays of one shape, 0 of empty ones; equal
    infinities, as masks are made of, do not differ. NaN if a NaN is in either."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(values == reference, 0, np.abs(values - reference))
    return float(apart.max(initial=0))


def sqnr_db(values: ArrayLike, reference: ArrayLike) -> float:
    """Signal to quantization noise ratio in decibels: 10 log10(sum r^2 / sum (v - r)^2).

    Both arrays have one shape and any real dtype; the sums are float64. Equal arrays give +inf, a
    zero reference with some noise -inf, and a NaN or an infinity in either array NaN.

    Raises:
        InputError: the shapes differ, or the arrays are empty.
    """
    v, r = _pair(values, reference)
    if not (np.isfinite(v).all() and np.isfinite(r).all()):
        return math.nan
    # Scaling by the largest magnitude keeps the squares of posit32's extremes inside float64.
    scale = max(float(np.abs(v).max()), float(np.abs(r).max()))
    if scale == 0.0 or np.array_equal(v, r):
        return math.inf
    return decibels(*energies(v / scale, r / scale))


def cosine(values: ArrayLike, reference: ArrayLike) -> float:
    """Cosine of the angle between two arrays of one shape, seen as vectors (-1 to 1), in float64.

    Two zero arrays give 1, one zero array gives 0, a NaN or an infinity gives NaN.

    Raises:
        InputError: the shapes differ, or the arrays are empty.
    """
    v, r = _pair(values, reference)
    if not (np.isfinite(v).all() and np.isfinite(r).all()):
        return math.nan
    largest_v, largest_r = float(np.abs(v).max()), float(np.abs(r).max())
    if largest_v == 0.0 or largest_r == 0.0:
        return 1.0 if largest_v == largest_r else 0.0
    v, r = v / largest_v, r / largest_r
    value = float(v @ r) / math.sqrt(float(v @ v) * float(r @ r))
    return min(1.0, max(-1.0, value))


def _scores(values: ArrayLike) -> Float64:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise InputError(
            f"top-1 needs a score table [images, classes] with rows, got shape {table.shape}"
        )
    return table


def _pair(values: ArrayLike, reference: ArrayLike) -> tuple[Float64, Float64]:
    v, r = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    _same_shape(v, r)
    if v.size == 0:
        raise InputError("cannot compare empty arrays; give at least one value")
    return v.ravel(), r.ravel()


def _same_shape(left: Float64, right: Float64) -> None:
    if left.shape != right.shape:
        raise InputError(f"cannot compare arrays of shapes {left.shape} and {right.shape}")
