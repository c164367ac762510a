"""No point of a search's front is worse than greedy by sensitivity or a uniform format, which are
computed here in another way: of tables with whatever interaction, and of networks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.errors import ConfigError
from experiments.cheapest.assignment import Chosen
from experiments.cheapest.bound import Bound
from experiments.cheapest.exploring import MOST_MEASURED, Explorer

Array = NDArray[np.float64]


def greedily(costs: Array, noises: Array, most: float) -> Chosen | None:
    """The noisiest layer that can do better does, by its next candidate in cost that is less noisy;
    the last state that costs at most so much."""
    now = []
    for layer, own in enumerate(noises):
        now.append(min(np.flatnonzero(own < np.inf), key=lambda k: (costs[layer, k], own[k])))
    last: Chosen | None = None
    while True:
        if sum(c[k] for c, k in zip(costs, now, strict=True)) <= most + 1e-9:
            last = tuple(map(int, now))
        ways = []
        for layer, k in enumerate(now):
            better = [j for j in range(costs.shape[1]) if noises[layer, j] < noises[layer, k]]
            if better:
                ways.append((-noises[layer, k], layer))
        if not ways:
            return last
        layer = min(ways)[1]
        better = [j for j in range(costs.shape[1]) if noises[layer, j] < noises[layer, now[layer]]]
        now[layer] = min(better, key=lambda j: (costs[layer, j], noises[layer, j]))


@settings(max_examples=12)
@given(
    st.integers(1, 7), st.integers(1, 5), st.integers(0, 10**6), st.floats(0, 6), st.floats(-5, 60)
)
def test_no_point_of_the_front_is_worse_than_greedy_or_a_uniform_choice(
    layers: int, kinds: int, seed: int, interaction: float, least: float
) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.integers(1, 60, (layers, kinds)).astype(np.float64)
    noises = 10 ** rng.uniform(-6, 0, (layers, kinds))
    noises[rng.random((layers, kinds)) < 0.05] = np.inf
    if not np.isfinite(noises).any(axis=1).all():
        return

    def measured(chosen: Chosen) -> Mapping[str, float]:
        # Layers do to each other what nobody could predict, the same every time.
        off = np.random.default_rng(zlib.crc32(repr((seed, chosen)).encode())).normal()
        noise = sum(noises[layer, k] for layer, k in enumerate(chosen))
        return {"sqnr": -10 * math.log10(noise) + interaction * off}

    explorer, bound = Explorer(costs, noises, measured), Bound("sqnr", True, least)
    try:
        explorer.within([bound])
        refused = ""
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert f"sqnr {max(p.figures['sqnr'] for p in explorer.points.values()):.4g}" in refused
    explorer.fill_front()
    front = explorer.front()
    assert len(explorer.points) <= MOST_MEASURED
    assert all(p.figures == measured(p.chosen) for p in front)
    for p in front:
        other = greedily(costs, noises, p.cost)
        assert other is None or measured(other)["sqnr"] <= p.figures["sqnr"]
    for k in range(kinds):
        if np.isfinite(noises[:, k]).all():
            spent, sqnr = costs[:, k].sum(), measured((k,) * layers)["sqnr"]
            assert any(p.cost <= spent and p.figures["sqnr"] >= sqnr for p in front)
    good = [p.cost for p in explorer.points.values() if p.figures["sqnr"] >= least]
    assert not good or explorer.best([bound]).cost == min(good)
