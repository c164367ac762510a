"""The benchmark of long searches: its sample, what it takes for the best, and its rows. The clock
of most tests is made up."""

from __future__ import annotations

import itertools
import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.tuning.measure import Comparison
from compiler.tuning.session import Session, Settings
from compiler.tuning.tasks import tasks_of
from compiler.tuning.trials import Journal, Trial
from compiler.tuning.tuner import MeasuringMachine
from experiments.benchmarks import tuned_long
from experiments.benchmarks.__main__ import main
from experiments.benchmarks.row_files import read_rows

HOST = compiler.Target.parse("llvm")
ROW = tuned_long.LongRow(
    "tcn", "conv2d of float32", "k0", "conv2d(x0: float32[1])", 4, 16, 16, 0.2, 0.11, 0.1, 0.91,
    0.9, 0.92, 7, "[[1, 1.0], [16, 0.5]]", 2.5, "", "a cpu", "abc", "2026-01-01T00:00:00Z",
)  # fmt: skip


def net(dtype: str = "float32", width: int = 32) -> IRModule:
    rng, b = np.random.default_rng(0), FunctionBuilder()
    weight = rng.normal(size=(32, width)).astype(dtype)
    attrs = {"out_dtype": "int32"} if dtype == "int8" else {}
    y = b.call("nn.dense", b.param("x", (4, width), dtype), b.const(weight), **attrs)
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


NETS = {"a": lambda files: net(), "b": lambda files: net("int8"), "c": lambda files: net(width=48)}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three networks, and searches that only note whose they are."""
    searched: list[str] = []

    def found(name: str, task: Any, target: Any, first: int, trials: int, *rest: Any) -> Any:
        searched.append(name)
        about = {"network": name, "workload": task.key, "kind": tuned_long.kind_of(task)}
        return replace(ROW, **about, first=first, trials=trials)

    monkeypatch.setattr(tuned_long, "NETWORKS", NETS)
    monkeypatch.setattr(tuned_long, "default_ms", lambda task: 1.0)
    monkeypatch.setattr(tuned_long, "_searched", found)
    return searched


def test_every_network_gives_a_kernel_before_one_gives_two(made_up: list[str]) -> None:
    tuned_long.run([], 4, 16, 3, True, None, {})
    assert sorted(made_up) == ["a", "b", "c"]
    made_up.clear()
    tuned_long.run(["a", "b"], 4, 16, 3, True, None, {})
    assert len(made_up) >= 2
    assert set(made_up[:2]) == {"a", "b"}


def test_kernels_are_of_different_kinds_where_there_are_some(made_up: list[str]) -> None:
    first = tuned_long.sampled("a", net(), HOST, [])
    assert first is not None
    kind = tuned_long.kind_of(first)
    assert kind.endswith("of float32")
    done = [replace(ROW, kind=kind, workload="")]
    others = {tuned_long.kind_of(t) for t in tasks_of(compiler.optimize(net("int8")), HOST)}
    second = tuned_long.sampled("b", net("int8"), HOST, done)
    assert second is not None
    assert tuned_long.kind_of(second) in others - {kind}
    again = tuned_long.sampled("a", net(), HOST, [])
    assert again is not None
    assert again.key == first.key


def test_kernels_that_are_too_short_or_too_long_are_not_sampled(
    made_up: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuned_long, "default_ms", lambda task: 0.001)
    assert not tuned_long.run([], 4, 16, 3, True, None, {})
    assert made_up == []
    monkeypatch.setattr(tuned_long, "default_ms", lambda task: 1e3)
    assert tuned_long.sampled("a", net(), HOST, []) is None


def test_rows_are_kept_and_not_searched_again(made_up: list[str], tmp_path: Path) -> None:
    out = tmp_path / "long.csv"
    args = ["tuned", "--long", "16", "--trials", "4", "-o", str(out), "--tasks"]
    first = CliRunner().invoke(main, [*args, "2"])
    assert first.exit_code == 1, first.output  # rows are short of what is asked for
    assert len(made_up) == 2
    more = CliRunner().invoke(main, [*args, "3"])
    assert sorted(made_up) == ["a", "b", "c"]
    assert "0.000 of 3" in more.output
    assert [r.network for r in read_rows(out, tuned_long.LongRow)] == made_up
    wrong = CliRunner().invoke(main, ["tuned", "--long", "16", "--trials", "16"])
    assert wrong.exit_code == 2
    assert "has more trials than the 16 of the short one" in wrong.output


def test_a_kernel_short_of_the_best_fails() -> None:
    good = replace(ROW, share=0.995)
    assert [r.passed for r in tuned_long.summary_rows([good, good])] == [True, True, True]
    figures = tuned_long.summary_rows([good, ROW])
    assert [r.passed for r in figures] == [False, True, True]
    assert [r.value for r in figures[:2]] == [1, 0.91]
    assert tuned_long.summary_rows([]) == []


# ---- searches ------------------------------------------------------------------------------------
def trials(limit: int, log: Path, monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    (task, *_) = tasks_of(compiler.optimize(net()), HOST)
    settings = Settings(HOST, "a cpu", math.inf, 0, limit, 0.0)
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.99))
    with closing(Journal(log)) as journal:
        session = Session([task], MeasuringMachine(HOST, None), settings, journal)
        session.search(())
    return session.subjects[0].trials


@pytest.mark.thorough
def test_the_first_trials_of_a_long_search_are_those_of_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = trials(8, tmp_path / "a", monkeypatch)
    long = trials(24, tmp_path / "b", monkeypatch)
    assert (len(short), len(long)) == (8, 24)
    assert [t.choice for t in short] == [t.choice for t in long[:8]]


@pytest.mark.thorough
def test_a_search_is_judged_by_what_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real clock; the log's times are one of a kind, and say that all is quicker."""
    (task, *_) = tasks_of(compiler.optimize(net(width=256)), HOST)
    row = tuned_long._searched("a", task, HOST, 4, 12, True, tmp_path / "log.jsonl")
    assert (row.first, row.trials, row.measured) == (4, 12, 12)
    assert 0.5 < row.share <= 1.1
    assert row.low <= row.share <= row.high
    points = json.loads(row.curve)
    assert [n for n, _ in points] == [1, 2, 4, 8, 12]
    assert all(a >= b for (_, a), (_, b) in itertools.pairwise(points))
    more = tuned_long._searched("a", task, HOST, 4, 16, True, tmp_path / "log.jsonl")
    assert more.measured == 16  # of which the log had 12
    assert json.loads(more.curve)[:4] == points[:4]


@pytest.mark.thorough
def test_what_is_no_quicker_when_it_is_measured_again_is_left_to_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a tuner does: the clock says that all is quicker, but not in the careful measurement."""
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.9))
    monkeypatch.setattr(Session, "careful", lambda *runs: Comparison(2.0, 1.98, 0.99, 0.98, 1.0))
    (task, *_) = tasks_of(compiler.optimize(net(width=256)), HOST)
    row = tuned_long._searched("a", task, HOST, 4, 12, True, tmp_path / "log.jsonl")
    assert row.measured == 12
    assert row.default_ms == row.first_ms == row.best_ms
    assert (row.share, row.within) == (1.0, 0)
