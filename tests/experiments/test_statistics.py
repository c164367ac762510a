"""Intervals and p-values of paired accuracy differences."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import InputError
from experiments.statistics import mcnemar, paired_difference


def test_known_values() -> None:
    # Fair coins: P(at most 2 of 12) = 79 / 4096, twice that.
    assert mcnemar(10, 2) == pytest.approx(158 / 4096)
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(5, 0) == pytest.approx(2 / 32)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_symmetric_and_a_probability(lost: int, gained: int) -> None:
    assert mcnemar(lost, gained) == mcnemar(gained, lost)
    assert 0 < mcnemar(lost, gained) <= 1


def test_the_interval_covers_the_true_drop_about_95_times_in_100() -> None:
    rng = np.random.default_rng(0)
    n, lose, gain = 400, 0.05, 0.02
    covered = 0
    for _ in range(2000):
        kind = rng.choice(4, size=n, p=[0.9 - lose, lose, gain, 0.1 - gain])
        found = paired_difference(kind <= 1, (kind == 0) | (kind == 2))
        covered += found.low <= lose - gain <= found.high
    assert 0.93 <= covered / 2000 <= 0.98


def test_the_drop_is_the_difference_of_the_shares() -> None:
    reference = np.array([True, True, True, False])
    variant = np.array([True, False, False, True])
    found = paired_difference(reference, variant)
    assert found.drop == 0.25
    assert found.low < 0.25 < found.high
    assert found.p_value == 1.0


def test_no_change_at_all_is_no_proof_of_equality() -> None:
    same = np.ones(100, bool)
    found = paired_difference(same, same)
    assert found.drop == 0
    assert found.p_value == 1
    assert found.low == pytest.approx(-found.high)
    assert 0.01 < found.high < 0.05
    assert math.isfinite(found.high)


@pytest.mark.parametrize("n", [0, 3])
def test_lengths_must_fit(n: int) -> None:
    with pytest.raises(InputError, match="two equal lengths"):
        paired_difference(np.ones(n, bool), np.ones(0, bool))
