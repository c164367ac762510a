"""AdaRound: whether a weight is rounded up or down is learned.

Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization, 2020. Each weight is
floor + h, where h in [0, 1] is a stretched sigmoid of a variable. Adam minimizes the layer's error
plus a regularizer 1 - |2h - 1|^beta that drives every h to 0 or 1 while beta falls. The error is
the quadratic function of `problem`, so a step costs no pass over data and its gradient is exact.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.types.dtypes import Array
from quantize.calibration.rounding.problem import Problem

LOW, HIGH = -0.1, 1.1
"""What the sigmoid is stretched to, so that 0 and 1 are reached."""
BETA = (20.0, 2.0)
"""First and last exponent of the regularizer."""
WARM = 0.2
"""Share of the steps without the regularizer."""
WEIGHT = 0.3
"""Weight of the regularizer, where the error is in units of the scale."""
RATE = 0.05
"""Step size of Adam."""


def adaround(problem: Problem, steps: int) -> Array:
    """Integers [G, O, K], as float64, that are no worse than the nearest for any output.

    Args:
        problem: the layer's.
        steps: of Adam; 500 and more.
    """
    unit = problem.scale
    wanted = np.clip(problem.target / unit, problem.low, problem.high)
    floor = np.minimum(np.floor(wanted), problem.high - 1)
    # Rows are independent of each other: each is measured in units of its own scale.
    relative = (unit / np.sqrt(np.square(unit).mean(axis=2, keepdims=True))).astype(np.float32)
    size = np.einsum("gkk->g", problem.moment) / unit.shape[2]
    moment = (problem.moment / size[:, None, None]).astype(np.float32)
    below = (floor - problem.target / unit).astype(np.float32)
    start = np.clip((wanted - floor - LOW) / (HIGH - LOW), 1e-4, 1 - 1e-4)
    v = np.log(start / (1 - start)).astype(np.float32)
    first, second = np.zeros_like(v), np.zeros_like(v)
    warm = int(WARM * steps)
    for step in range(1, steps + 1):
        sigmoid = 1 / (1 + np.exp(-v))
        stretched = sigmoid * np.float32(HIGH - LOW) + np.float32(LOW)
        h = np.clip(stretched, 0, 1)
        slope = 2 * relative * ((relative * (below + h)) @ moment)
        if step > warm:
            slope -= _pull(h, _beta((step - warm) / (steps - warm)))
        # The clipping to [0, 1] is seen by the error too: weights that rest there stay.
        slope *= (stretched == h) * (sigmoid * (1 - sigmoid) * np.float32(HIGH - LOW))
        first += np.float32(0.1) * (slope - first)
        second += np.float32(0.001) * (slope * slope - second)
        rate = RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        v -= np.float32(rate) * first / (np.sqrt(second) + np.float32(1e-8))
    return problem.better(floor + (h >= 0.5))


def _beta(done: float) -> float:
    """The exponent after a share `done` of the steps: half a cosine."""
    first, last = BETA
    return last + 0.5 * (first - last) * (1 + math.cos(done * math.pi))


def _pull(h: Array, beta: float) -> Array:
    """Minus the gradient of WEIGHT (1 - |2h - 1|^beta)."""
    side = 2 * h - 1
    pull: Array = (
        np.float32(2 * WEIGHT * beta) * np.sign(side) * np.abs(side) ** np.float32(beta - 1)
    )
    return pull
