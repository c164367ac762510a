"""Greedy by sensitivity, the usual way without an integer program: what a search must not be worse
than."""

from __future__ import annotations

import numpy as np

from .assignment import Array, Chosen


def path(costs: Array, noises: Array) -> tuple[Chosen, ...]:
    """The assignments that greedy goes through, from the cheapest up.

    Every layer begins in its cheapest candidate; then, again and again, the layer that adds the
    most noise takes the next candidate by cost that adds less, until no layer has one (as H. Wu and
    others choose layers: Integer Quantization for Deep Learning Inference, 2020, section 5.2).

    Args:
        costs, noises: as `assignment.cheapest` takes them.
    """
    ladders = [_ladder(c, n) for c, n in zip(costs, noises, strict=True)]
    if not all(ladders):
        return ()
    steps = [0] * len(ladders)
    found = [tuple(ladder[0] for ladder in ladders)]
    while True:
        left = [k for k, ladder in enumerate(ladders) if steps[k] + 1 < len(ladder)]
        if not left:
            return tuple(found)
        noisiest = max(left, key=lambda k: noises[k, ladders[k][steps[k]]])
        steps[noisiest] += 1
        found.append(tuple(ladder[s] for ladder, s in zip(ladders, steps, strict=True)))


def _ladder(costs: Array, noises: Array) -> list[int]:
    """The candidates of a layer that none beats in cost and noise, the cheapest first."""
    kept: list[int] = []
    for k in sorted(np.flatnonzero(np.isfinite(noises)), key=lambda k: (costs[k], noises[k])):
        if not kept or noises[k] < noises[kept[-1]]:
            kept.append(int(k))
    return kept
