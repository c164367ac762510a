"""The least squares problem whose integer solution is a layer's quantized weights.

A layer multiplies inputs x, and once quantized x', by its weights. The integers Q, at scales S, are
to keep E |W x - (S Q) x'|^2 small: a quadratic function of Q of which H = E[x' x'^T] and
C = E[x x'^T] are all that it takes from the data (Frantar et al., Optimal Brain Compression, 2022,
section 3; with x' != x it is the asymmetric reconstruction of Nagel et al., Up or Down?, 2020,
section 3.3). With a ridge that keeps the weights where the data says nothing, its real minimum is
T = (W C + r W) (H + r I)^-1, and Q is to be near T as H + r I measures it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.types.dtypes import Array


@dataclass(frozen=True, eq=False)
class Problem:
    """Integers q within [low, high] that make sum((scale q - target) H (scale q - target)) small.

    Attributes:
        weight: float64 [G, O, K], a layer's weights: groups, outputs of each, inputs of each.
        target: float64 [G, O, K], the best real weights.
        moment: float64 [G, K, K], positive definite.
        scale: float64 [G, O, K], positive.
        low, high: the same, the integers' ends.
    """

    weight: Array
    target: Array
    moment: Array
    scale: Array
    low: Array
    high: Array

    def loss(self, q: Array) -> Array:
        """What the integers `q` [G, O, K] add to the error of each output: float64 [G, O]."""
        error = self.scale * q - self.target
        total: Array = np.einsum("gok,gok->go", error @ self.moment, error)
        return total

    def nearest(self) -> Array:
        """Integers nearest to the weights, as float64 [G, O, K]: the solution without data."""
        q: Array = np.clip(np.rint(self.weight / self.scale), self.low, self.high)
        return q

    def better(self, q: Array) -> Array:
        """For each output, `q` if it is no worse than `nearest`, else `nearest`."""
        nearest = self.nearest()
        kept: Array = self.loss(q) <= self.loss(nearest)
        return np.where(kept[..., None], q, nearest)


def problem(
    weight: Array,
    moment: Array,
    cross: Array,
    scale: Array,
    ends: tuple[Array | float, Array | float],
    damping: float,
) -> Problem:
    """The problem of a layer.

    Args:
        weight: [G, O, K].
        moment: H, [G, K, K].
        cross: C, [G, K, K].
        scale: real value of an integer's unit, broadcastable to the weight's shape.
        ends: the least and the largest integer, broadcastable to the weight's shape.
        damping: the ridge, in units of the mean of H's diagonal.
    """
    w = np.asarray(weight, np.float64)
    size = np.einsum("gkk->g", moment) / moment.shape[-1]
    # A layer whose inputs are all zero in the data keeps its weights.
    ridge = np.where(size > 0, damping * size, 1.0)[:, None, None]
    damped = moment + ridge * np.eye(moment.shape[-1])
    wanted = w @ cross + ridge * w
    target: Array = np.linalg.solve(damped, wanted.transpose(0, 2, 1)).transpose(0, 2, 1)
    spread, low, high = (
        np.broadcast_to(np.asarray(a, np.float64), w.shape) for a in (scale, *ends)
    )
    return Problem(w, target, damped, spread, low, high)
