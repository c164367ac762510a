"""GPTQ: one input after the other is rounded, and those that follow make up for the error.

Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers,
2022. Rounding input j of a weight row by an error e is best answered, in least squares, by moving
the inputs not yet rounded by -e U[j, j+1:] / U[j, j], where U is the upper Cholesky factor of H^-1.
Inputs with the largest H[j, j] come first ("act-order" in the authors' code).
"""

from __future__ import annotations

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
    factor = _inverse_factor(moment)
    size = work.shape[2]
    q = np.empty_like(work)
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        errors = np.empty_like(work[:, :, start:end])
        for j in range(start, end):
            nearest = np.rint(work[:, :, j] / scale[:, :, j])
            q[:, :, j] = np.clip(nearest, low[:, :, j], high[:, :, j])
            error = work[:, :, j] - q[:, :, j] * scale[:, :, j]
            error /= factor[:, None, j, j]
            errors[:, :, j - start] = error
            work[:, :, j + 1 : end] -= error[:, :, None] * factor[:, None, j, j + 1 : end]
        work[:, :, end:] -= errors @ factor[:, start:end, end:]
    return q


def _inverse_factor(moment: Array) -> Array:
    """Upper triangular U [G, K, K] with U^T U = H^-1."""
    inverse = np.linalg.inv(moment)
    # Rounding makes the inverse a little asymmetric.
    lower: Array = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2)
    return lower.transpose(0, 2, 1)
