"""GPTQ: one input after the other is rounded, and those that follow make up for the error.

Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers,
2022. Rounding input j of a weight row by an error e is best answered, in least squares, by moving
the inputs not yet rounded by -e U[j, j+1:] / U[j, j], where U is the upper Cholesky factor of H^-1.
Inputs with the largest H[j, j] come first ("act-order" in the authors' code).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from compiler.types.dtypes import Array
from quantize.calibration.rounding.problem import Problem

BLOCK = 64
"""Inputs after which the rest of the row is moved, in one matrix product."""


def gptq(problem: Problem) -> Array:
    """Integers [G, O, K], as float64, that are no worse than the nearest for any output."""
    order = np.argsort(-np.einsum("gkk->gk", problem.moment), axis=1, kind="stable")
    columns = order[:, None, :]
    target = np.take_along_axis(problem.target, columns, axis=2)
    scale, low, high = (
        np.take_along_axis(a, columns, axis=2) for a in (problem.scale, problem.low, problem.high)
    )
    moment = np.take_along_axis(problem.moment, order[:, :, None], axis=1)
    moment = np.take_along_axis(moment, columns, axis=2)
    answer = np.empty_like(target)
    q = rounded_in_order(target.copy(), moment, scale, low, high)
    np.put_along_axis(answer, np.broadcast_to(columns, q.shape), q, axis=2)
    return problem.better(answer)


def rounded_in_order(work: Array, moment: Array, scale: Array, low: Array, high: Array) -> Array:
    """Integers [G, O, K], rounded in the order of the inputs; `work`, the real weights, is
    overwritten."""
    size = work.shape[2]
    q = np.empty_like(work)

    def rounded(j: int, column: Array) -> Array:
        nearest = np.rint(column / scale[:, :, j])
        q[:, :, j] = np.clip(nearest, low[:, :, j], high[:, :, j])
        return np.asarray(q[:, :, j] * scale[:, :, j])

    compensated(work, moment, [*range(0, size, BLOCK), size], rounded)
    return q


def compensated(
    work: Array,
    moment: Array,
    cuts: Sequence[int],
    rounded: Callable[[int, Array], Array],
    opened: Callable[[int, int, Array], None] = lambda start, end, part: None,
) -> None:
    """Round the inputs of a layer in order, those that follow making up for the error of each.

    Args:
        work: float64 [G, O, K], the real weights; overwritten.
        moment: float64 [G, K, K], positive definite.
        cuts: from 0 to K, between which inputs the rest of the rows is moved at once.
        rounded: from the place of an input and its weights as they are by then, float64 [G, O], to
            the real numbers that stand for them.
        opened: called with two cuts and the weights between them before the first of these.
    """
    factor = _inverse_factor(moment)
    for start, end in pairwise(cuts):
        opened(start, end, work[:, :, start:end])
        errors = np.empty_like(work[:, :, start:end])
        for j in range(start, end):
            error = work[:, :, j] - rounded(j, work[:, :, j])
            error /= factor[:, None, j, j]
            errors[:, :, j - start] = error
            work[:, :, j + 1 : end] -= error[:, :, None] * factor[:, None, j, j + 1 : end]
        work[:, :, end:] -= errors @ factor[:, start:end, end:]


def _inverse_factor(moment: Array) -> Array:
    """Upper triangular U [G, K, K] with U^T U = H^-1."""
    inverse = np.linalg.inv(moment)
    # Rounding makes the inverse a little asymmetric.
    lower: Array = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2)
    return lower.transpose(0, 2, 1)
