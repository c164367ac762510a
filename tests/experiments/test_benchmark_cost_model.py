"""Rank statistics of the benchmark of the tuner's model of time."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks.cost_model import CASES
from experiments.benchmarks.cost_ranks import rank
from experiments.benchmarks.tuned_networks import NETWORKS


def test_cases_are_networks() -> None:
    assert set(CASES) <= set(NETWORKS)


def test_ranks_of_a_pick() -> None:
    times = np.array([1.0, 1.01, 1.5, 0.995, 2.0])
    perfect = rank(np.log(times), times)
    assert (perfect.position, perfect.strict, perfect.loss) == (0, 0, 1)
    assert perfect.order == pytest.approx(1)
    near = rank(np.array([0.0, 1, 2, 3, 4]), times)  # picks 1.0: 0.995 is within noise
    assert (near.position, near.strict) == (0.0, 0.2)
    assert (near.within, near.strictly) == (1.0, 0.0)
    assert near.loss == pytest.approx(1 / 0.995)
    worst = rank(-times, times)
    assert (worst.position, worst.strict) == (0.8, 0.8)
    assert worst.order == pytest.approx(-1)
    assert rank(np.zeros(5), times).order == 0  # tells nothing apart
