"""Test examples that show the same thing count together: intervals are over groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_qat import FOUR, spec_of
from test_qat_layers import unlabelled

import experiments
from compiler.errors import ConfigError
from experiments.layers.answers import (
    Answers,
    AnswersFile,
    Gain,
    answers_path,
    gains,
    read_answers,
)
from experiments.training.data import examples

ROWS = pd.DataFrame(
    {"model": "m", "system": ["qat a", "qat a", "post-training b"], "status": "ok",
     "config_hash": list("xyz")}
)  # fmt: skip


def of(
    right: NDArray[np.bool_], kl: NDArray[np.float64], groups: NDArray[np.int64] | None
) -> list[Gain]:
    """What training gains, of arrays [3 runs, n]."""
    found = {h: Answers(r, k, groups) for h, r, k in zip("xyz", right, kl, strict=True)}
    return gains(ROWS, found)


def drawn(seed: int, count: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Answers of three runs."""
    random = np.random.default_rng(seed)
    return random.random((3, count)) < 0.7, random.random((3, count))


@pytest.mark.thorough
@given(st.integers(0, 999), st.integers(2, 12), st.integers(1, 5))
def test_views_that_say_nothing_new_change_nothing(seed: int, count: int, views: int) -> None:
    right, kl = drawn(seed, count)
    shuffled = np.random.default_rng(seed).permutation(np.repeat(np.arange(count), views))
    numbers = 7 * shuffled - 3  # any numbers tell groups apart
    for once, often in zip(
        of(right, kl, None), of(right[:, shuffled], kl[:, shuffled], numbers), strict=True
    ):
        for name in ("gain", "low", "high", "mean", "reached"):
            assert getattr(often, name) == pytest.approx(getattr(once, name), abs=1e-12)


def test_an_interval_is_of_means_of_groups() -> None:
    right, kl = drawn(1, 12)
    groups = np.array([5] * 6 + [2] * 4 + [9] * 2)
    _, found = of(right, kl, groups)
    less = kl[2] - kl[:2].mean(axis=0)
    means = np.array([less[groups == g].mean() for g in (5, 2, 9)])
    half = 4.30265 * means.std(ddof=1) / 3**0.5
    assert found.gain == pytest.approx(means.mean())
    assert (found.low, found.high) == pytest.approx((means.mean() - half, means.mean() + half))


def grouped(folder: Path, groups: Any) -> dict[str, Any]:
    """A specification whose test examples have these groups."""
    spec = unlabelled(folder)
    with np.load(spec["dataset"]) as arrays:
        held = dict(arrays)
    np.savez(spec["dataset"], **held, group_test=groups)
    return spec


def test_trainings_write_the_groups_of_their_examples(tmp_path: Path) -> None:
    out, groups = tmp_path / "x.csv", np.arange(30) // 3
    spec = grouped(tmp_path, groups) | {"qat": [FOUR | {"train": False}], "n_test": 29}
    rows = experiments.train(spec, out)
    (found,) = read_answers(answers_path(out)).values()
    assert found.groups is not None
    np.testing.assert_array_equal(found.groups, groups[:29])
    assert len(found.each("kl")) == 10
    assert found.each("top1").mean() == pytest.approx(
        np.mean([found.right[groups[:29] == g].mean() for g in range(10)])
    )
    assert list(rows["status"]) == ["ok"]


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (np.zeros(30, int), "must tell two groups or more apart"),
        (np.arange(29), "a whole number for each of the 30 inputs"),
        (np.arange(30.0), "not float64 of shape"),
    ],
)
def test_groups_that_are_none_are_refused(tmp_path: Path, groups: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        examples(grouped(tmp_path, groups)["dataset"])


def test_files_of_earlier_versions_have_no_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.answers.csv"
    path.write_text("run_id,config_hash,right,kl\nr,a,r01,0.5 0.25\n")
    assert read_answers(path)["a"].groups is None
    right = np.array([True, False, True])
    new = Answers(right, np.array([1.0, 2.0, 3.0]), np.array([-4, -4, 7]))
    AnswersFile(path, resume=True).put("b", [new.line("r", "b")])
    again = read_answers(path)
    assert again["a"].groups is None
    assert again["b"].groups is not None
    assert again["b"].groups.tolist() == [-4, -4, 7]
    assert again["b"].each("kl").tolist() == [1.5, 3.0]


def test_examples_without_groups_are_each_for_itself(tmp_path: Path) -> None:
    assert examples(spec_of(tmp_path)["dataset"]).group_test is None
