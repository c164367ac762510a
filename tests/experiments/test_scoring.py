"""Metrics by name against their definitions, and the tests of their differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import experiments
from compiler.errors import ConfigError, InputError
from experiments.measure.scoring import edit_distance, find, greedy_text
from experiments.measure.statistics import paired_figures

ALPHABET = ("", *"abc", " ")


def ctc(*paths: str) -> np.ndarray:
    """Outputs [n, steps, classes] whose best classes spell `paths`; - is the blank."""
    steps = max(map(len, paths))
    out = np.zeros((len(paths), steps, len(ALPHABET)), np.float32)
    for i, path in enumerate(paths):
        for j, letter in enumerate(path.ljust(steps, "-")):
            out[i, j, 0 if letter == "-" else ALPHABET.index(letter)] = 1
    return out


def test_greedy_text_leaves_out_blanks_repetitions_and_outer_spaces() -> None:
    assert greedy_text(ctc("aa-ab", "-c-c-", "a b", " ab ", "---"), ALPHABET).tolist() == [
        *("aab", "cc", "a b", "ab", ""),
    ]
    with pytest.raises(InputError, match="a text for each class"):
        greedy_text(np.zeros((1, 2, 9)), ALPHABET)


words = st.text("abc", max_size=7)


@given(words, words, words)
def test_edit_distance_is_a_metric(a: str, b: str, c: str) -> None:
    ab = edit_distance(a, b)
    assert (ab == 0) == (a == b)
    assert ab == edit_distance(b, a)
    assert abs(len(a) - len(b)) <= ab <= max(len(a), len(b))
    assert edit_distance(a, c) <= ab + edit_distance(b, c)


@given(words, st.integers(0, 6), st.sampled_from("abc"))
def test_one_edit_is_at_distance_one(a: str, place: int, letter: str) -> None:
    at = min(place, len(a))
    assert edit_distance(a, a[:at] + letter + a[at:]) == 1


def test_text_metrics_count_whole_texts_and_characters() -> None:
    outputs, labels = ctc("abc", "abb", "c"), np.array(["abc", "acb", "cc"], dtype=object)
    assert find("ctc_exact", ALPHABET)(outputs, labels) == 1 / 3
    # "abb" reads "ab" (the repetition is one), an edit from "acb"; "c" is one from "cc".
    assert find("ctc_cer", ALPHABET)(outputs, labels) == 2 / 8
    assert not find("ctc_cer", ALPHABET).higher_is_better


def test_regression_metrics_are_those_of_the_textbook() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(3, 2, (50, 1))
    got = (y + rng.normal(0, 0.5, y.shape)).astype(np.float32)
    error = float(np.sqrt(np.mean((got - y) ** 2)))
    assert find("rmse")(got, y[:, 0]) == pytest.approx(error)
    assert find("r2")(got, y) == pytest.approx(1 - error**2 / y.var())
    assert find("r2")(y, y) == 1
    with pytest.raises(InputError, match="do not fit"):
        find("rmse")(got, y[:9])


def test_embeddings_are_compared_by_the_cosine_of_every_row() -> None:
    a, b = np.array([[1.0, 0], [1, 1]]), np.array([[2.0, 0], [1, -1]])
    assert find("cosine")(a, b) == pytest.approx(0.5)


def test_top1_takes_scores_in_place_of_labels_and_outer_dimensions_of_one() -> None:
    scores = np.array([[0.0, 2, 1], [5, 4, 3]])
    assert find("top1")(scores.reshape(2, 3, 1, 1), np.array([1, 1])) == 0.5
    assert find("top1")(scores, scores[::-1]) == 0
    with pytest.raises(InputError):
        find("top1")(scores, np.array([1]))


def test_a_users_metric_is_a_number_of_every_input() -> None:
    experiments.register_metric("halves", lambda out, labels: out[:, 0] / 2, higher_is_better=False)
    metric = find("halves")
    assert metric(np.array([[2.0], [4]]), np.zeros(2)) == 1.5
    assert not metric.higher_is_better
    experiments.register_metric("sum", lambda out, labels: out.sum())
    with pytest.raises(InputError, match="one number for each of 2 inputs"):
        find("sum")(np.ones((2, 1)), np.zeros(2))
    with pytest.raises(ConfigError, match="ships with dtypelab"):
        experiments.register_metric("top1", lambda out, labels: out)
    with pytest.raises(ConfigError, match="unknown metric 'rmsd'; did you mean 'rmse'"):
        find("rmsd")


def mean(means: np.ndarray) -> np.ndarray:
    return np.asarray(means[..., 0])


@pytest.mark.thorough
def test_the_interval_of_a_figure_covers_the_true_difference_as_often_as_it_says() -> None:
    """Coverage over 200 drawn experiments of 60 inputs: 95 %, within four standard errors."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        before = rng.normal(1.0, 1.0, (60, 1))
        after = before - 0.3 + rng.normal(0, 0.8, before.shape)
        found = paired_figures(mean, before, after)
        assert found.drop == pytest.approx(float(before.mean() - after.mean()))
        covered += found.low <= 0.3 <= found.high
    assert 190 - 4 * math.sqrt(200 * 0.05 * 0.95) <= covered


@pytest.mark.thorough
def test_p_values_of_a_figure_are_small_only_where_there_is_a_difference() -> None:
    rng = np.random.default_rng(2)
    p_same, p_other = [], []
    for _ in range(200):
        before = rng.normal(0, 1, (40, 1))
        noise = rng.normal(0, 0.5, before.shape)
        p_same.append(paired_figures(mean, before, before + noise).p_value)
        p_other.append(paired_figures(mean, before, before + noise + 0.5).p_value)
    assert np.mean(np.array(p_same) < 0.05) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 200)
    assert np.mean(np.array(p_other) < 0.05) > 0.95
    same = paired_figures(mean, before, before)
    assert (same.drop, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    with pytest.raises(InputError, match="equal tables"):
        paired_figures(mean, before, before[:3])
