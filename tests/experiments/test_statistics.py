"""Intervals and p-values of paired accuracy differences."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import InputError
from experiments.statistics import Z95, holm, mcnemar, paired_difference, paired_figures


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


def test_the_interval_of_bonett_and_price_by_hand() -> None:
    # 12 lost, 4 gained of 100: p = 13 / 102, q = 5 / 102, and the Wald interval of p - q.
    reference = np.array([True] * 12 + [False] * 4 + [True] * 84)
    variant = np.array([False] * 12 + [True] * 4 + [True] * 84)
    found = paired_difference(reference, variant)
    middle, spread = 8 / 102, math.sqrt((18 / 102 - (8 / 102) ** 2) / 102)
    assert found.drop == pytest.approx(0.08)
    assert found.low == pytest.approx(middle - Z95 * spread)
    assert found.high == pytest.approx(middle + Z95 * spread)
    # The exact binomial test: 2 P(at most 4 of 16) = 2 * 2517 / 65536.
    assert found.p_value == pytest.approx(2 * 2517 / 65536)


def test_a_mean_is_resampled_as_theory_says() -> None:
    def mean(means: np.ndarray) -> np.ndarray:
        return means[..., 0]

    rng = np.random.default_rng(3)
    n = 400
    before = rng.normal(0, 1, (n, 1))
    delta = rng.normal(0.05, 0.5, (n, 1))
    found = paired_figures(mean, before, before - delta)
    half = Z95 * delta.std(ddof=1) / math.sqrt(n)
    assert found.drop == pytest.approx(delta.mean())
    assert found.low == pytest.approx(delta.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(delta.mean() + half, abs=0.1 * half)
    z = abs(delta.mean()) / math.sqrt(np.mean(delta**2) / n)
    assert found.p_value == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.03)


def test_exchanges_of_few_inputs_are_as_likely_as_coins() -> None:
    # Eight equal losses: only exchanging all of them or none is as far apart, 2 of 256.
    before = np.ones((8, 1))
    found = paired_figures(lambda means: means[..., 0], before, before - 1)
    assert found.p_value == pytest.approx(2 / 256, abs=0.006)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=9))
def test_holm_keeps_the_order_and_is_between_raw_and_bonferroni(p: list[float]) -> None:
    found = holm(p)
    for raw, adjusted in zip(p, found, strict=True):
        assert raw <= adjusted <= 1
        assert adjusted <= min(1.0, len(p) * max(raw, max(q for q in p if q <= raw))) + 1e-12
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [found[k] for k in order] == sorted(found)
