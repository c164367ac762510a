"""Intervals and p-values of paired accuracy differences."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.errors import InputError
from experiments.measure import statistics
from experiments.measure.statistics import (
    Z95,
    holm,
    mcnemar,
    one_sided_loss,
    paired_difference,
    paired_figures,
)


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


def tail_above(n: int, lost: int, p: float) -> float:
    """P(X >= lost) of a binomial X, exactly."""
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(lost, n + 1))


@given(st.integers(1, 60), st.data())
def test_one_sided_bounds_are_clopper_and_pearsons(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    found = one_sided_loss(np.arange(n) >= lost)
    assert found.drop == lost / n
    assert 0 <= found.low <= found.drop <= found.high <= 1
    assert math.isnan(found.p_value)
    # So many losses or more have 5 % at the lower bound, so many or fewer at the upper one.
    if lost:
        assert tail_above(n, lost, found.low) == pytest.approx(0.05)
    else:
        assert found.low == 0
    if lost < n:
        assert 1 - tail_above(n, lost + 1, found.high) == pytest.approx(0.05)
    else:
        assert found.high == 1
    # One loss at least has 95 % at what n inputs detect.
    assert tail_above(n, 1, found.detectable) == pytest.approx(0.95)


def test_no_losses_bound_the_share_by_the_rule_of_three() -> None:
    found = one_sided_loss(np.ones(1000, bool))
    assert (found.low, found.drop) == (0, 0)
    assert found.high == pytest.approx(1 - 0.05 ** (1 / 1000)) == pytest.approx(3 / 1000, rel=0.01)
    with pytest.raises(InputError, match="answers need a length"):
        one_sided_loss(np.ones(0, bool))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("true", [0.002, 0.05, 0.4])
def test_each_one_sided_bound_holds_95_times_in_100_at_least(true: float) -> None:
    random, n = np.random.default_rng(1), 300
    found = [one_sided_loss(random.random(n) >= true) for _ in range(400)]
    assert np.mean([f.low <= true for f in found]) >= 0.93
    assert np.mean([true <= f.high for f in found]) >= 0.93


@pytest.mark.parametrize("n", [5, 6, 60, 1000])
def test_what_shares_detect_is_the_least_significant_loss(n: int) -> None:
    reference = np.ones(n, bool)
    found = paired_difference(reference, reference)
    if n < 6:
        assert math.isnan(found.detectable)
        return
    lost = round(found.detectable * n)
    assert found.detectable == lost / n
    for k in (lost, lost - 1):
        p = paired_difference(reference, np.arange(n) >= k).p_value
        assert (p < 0.05) == (k == lost)


@pytest.mark.thorough
def test_what_figures_detect_is_found_in_80_of_100_cases() -> None:
    random, n, found = np.random.default_rng(2), 100, 0
    reference = random.normal(1.0, 0.1, size=(n, 1))

    def value(means: np.ndarray) -> np.ndarray:
        return means[..., 0]

    noise = random.normal(0, 0.3, size=(60, n, 1))
    effect = paired_figures(value, reference, reference + noise[0]).detectable
    assert effect == pytest.approx(2.8 * 0.3 / math.sqrt(n), rel=0.2)
    for k in range(60):
        found += paired_figures(value, reference, reference - effect + noise[k]).p_value < 0.05
    assert 0.65 <= found / 60 <= 0.93


def test_draws_are_the_same_however_many_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    before, after = random.normal(size=(2, 37, 2))
    found = []
    for most in (2**22, 37 * 300, 1):
        monkeypatch.setattr(statistics, "_DRAWN", most)
        found.append(statistics.paired_figures(lambda m: m[..., 0] - m[..., 1], before, after))
    for other in found[1:]:
        np.testing.assert_allclose(astuple(other), astuple(found[0]), rtol=1e-9)
