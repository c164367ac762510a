"""Trials in the log: read again, resumed, and handed on to similar loops and other CPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.scheduling.choices import Choice
from compiler.scheduling.tile_config import TileChoice
from compiler.scheduling.tuning_log import append_records, read_log, structure_key
from compiler.target.registry import Target, host_cpu
from compiler.tensor.stmt import PrimFunc
from compiler.tuning.tasks import Task, tasks_of
from compiler.tuning.trials import Journal, Trial, bests, read_trials
from compiler.tuning.tuner import tune

HOST = Target.parse("llvm")
Clock = Callable[[object, object, int], tuple[float, float]]


@pytest.fixture(autouse=True)
def _networks_are_not_timed_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks here are made up, and this one would be real."""
    monkeypatch.setattr("compiler.tuning.tuner.shares_in_network", lambda *given: {})


def net(size: int = 10, taps: int = 3, stride: int = 1) -> IRModule:
    """One convolution."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (1, 8, size, size))
    weight = b.const(rng.normal(size=(16, 8, taps, taps)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.conv2d", x, weight, strides=(stride, stride)))})


def task(mod: IRModule) -> Task:
    return tasks_of(compiler.optimize(mod), HOST)[0]


def trial(**change: Any) -> Trial:
    t = task(net())
    made = Trial(
        workload=t.key, structure=t.structure, program="p", target="llvm", isa=HOST.isa,
        cpu=host_cpu(), choice=t.space.neighbours()[0], default_ms=2.0, ms=1.0, low=0.4, high=0.6,
        reason="", cold=False, seed=0, features=(1.0, math.nan),
    )  # fmt: skip
    return replace(made, **change)


def always(ms: float) -> Clock:
    return lambda a, b, rounds: (2.0, ms)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock for which every candidate takes half of the rules' time."""
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", always(1.0))


def test_trials_round_trip(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    given = [trial(), trial(ms=None, default_ms=0.0, reason="its results differ"), trial(choice={})]
    journal = Journal(log)
    for t in given:
        journal.append(t.to_line())
        assert read_trials(log)[-1] == t  # at once
    journal.close()
    assert read_trials(log) == given
    assert [t.ratio for t in given] == [0.5, None, 0.5]
    assert read_log(log) == []  # they are no records, and the file is a log
    assert read_trials(log)[0].features == ()  # as many as features of this version there are


def test_a_journal_goes_on_after_half_a_line(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    line = trial().to_line()
    log.write_text(line + line[: len(line) // 2])
    journal = Journal(log)
    journal.append(line)
    journal.close()
    assert len(read_trials(log)) == 2


Change = Callable[[dict[str, Any]], object]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("cpu"), "line 2: fields missing or unknown: cpu"),
        (lambda t: t.update(more=1), "line 2: fields missing or unknown: more"),
        (lambda t: t.update(ms="1"), "line 2: ms must be a number"),
        (lambda t: t.update(low=None), "line 2: low must be a number"),
        (lambda t: t.update(isa=5), "line 2: isa must be a string"),
        (lambda t: t.update(features={}), "line 2: features must be a list of numbers"),
        (lambda t: t.update(features=["x"]), "line 2: features must be a list of numbers"),
        (lambda t: t.update(choice=[]), "line 2: choice must be an object"),
        (lambda t: t.update(choice={"mac": {"lanes": 1}}), "line 2: a tile choice has exactly"),
    ],
)
def test_a_damaged_trial_is_named(tmp_path: Path, change: Change, message: str) -> None:
    log = tmp_path / "tune.jsonl"
    content = json.loads(trial().to_line())
    change(content)
    log.write_text(trial().to_line() + json.dumps(content) + "\n")
    with pytest.raises(ConfigError, match=message):
        read_trials(log)


def test_trials_of_other_versions_are_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    log.write_text(json.dumps({"trial": 3, "anything": 1}) + "\n")
    assert read_trials(log) == []
    assert read_log(log) == []


def test_the_curve_of_the_best() -> None:
    assert list(bests([1.2, 0.8, None, 0.9, 0.5])) == [1.0, 0.8, 0.8, 0.8, 0.5]


@pytest.mark.usefixtures("quick")
def test_what_a_log_has_is_not_measured_again(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    first = tune(net(), budget_s=300, log=log, trials=2)
    again = tune(net(), budget_s=300, log=log, trials=2)
    more = tune(net(), budget_s=300, log=log, trials=3)
    n = first.workloads
    assert (first.resumed, again.resumed, more.resumed) == (0, 2 * n, 2 * n)
    assert (len(first.trials), len(again.trials), len(more.trials)) == (2 * n, 0, n)
    programs = [(t.workload, t.program) for r in (first, more) for t in r.trials]
    assert len(set(programs)) == 3 * n
    assert [r.choice for r in again.records] == [r.choice for r in first.records]  # confirmed again
    assert {len(t.curve) for t in again.tasks} == {2}


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_a_winner_of_the_log_that_no_longer_fits_is_left_out(tmp_path: Path) -> None:
    """As the compiler may have changed."""
    log = tmp_path / "tune.jsonl"
    ((stage, tile), *_) = trial().choice.items()
    assert isinstance(tile, TileChoice)
    journal = Journal(log)
    journal.append(trial(choice={stage: replace(tile, lanes=3)}, ms=0.1, high=0.1).to_line())
    journal.close()
    done = tune(net(), budget_s=300, log=log, trials=1)
    assert done.resumed == 0
    assert {t.ratio for t in done.trials if t.workload == trial().workload} == {0.5}


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_what_was_measured_elsewhere_is_measured_here(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    journal = Journal(log)
    journal.append(trial(cpu="another").to_line())
    journal.close()
    assert tune(net(), budget_s=300, log=log, trials=2).resumed == 0


def wanted(t: Task) -> Choice:
    """A choice that is not among the first that a tuner tries by itself."""
    return t.space.neighbours()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["record", pytest.param("trial", marks=pytest.mark.thorough)])
def test_a_log_of_another_cpu_is_tried_first_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is measured here: what is slower here is not kept."""
    monkeypatch.setattr("compiler.tuning.processes.forks", lambda: False)  # each in its turn
    other, log = tmp_path / "other.jsonl", tmp_path / "tune.jsonl"
    choice = wanted(task(net()))
    if kind == "trial":
        journal = Journal(other)
        journal.append(trial(cpu="another", choice=choice).to_line())
        journal.close()
    else:
        monkeypatch.setattr("compiler.tuning.tuner.in_turns", always(1.0))
        made = tune(net(), budget_s=300, log=tmp_path / "mine.jsonl", trials=1).records[0]
        append_records(other, [replace(made, cpu="another", choice=choice)])
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", always(3.0))
    done = tune(net(), budget_s=300, log=log, trials=2, transfer=[other])
    assert done.trials[0].choice == choice
    assert done.records == ()
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", always(1.0))
    done = tune(net(), budget_s=300, log=tmp_path / "b.jsonl", trials=1, transfer=[other])
    assert [r.choice for r in done.records if r.workload == task(net()).key] == [choice]
    assert {r.cpu for r in done.records} == {host_cpu()}


def test_loops_of_other_extents_have_the_same_structure() -> None:
    def key(mod: IRModule) -> str:
        return task(mod).structure

    assert key(net()) == key(net(size=12)) == key(net(taps=1)) != key(net(stride=2))
    a, b = PrimFunc("f", [], 0), PrimFunc("g", [], 0)
    assert structure_key(a) != structure_key(b)


@pytest.mark.thorough
def test_similar_shapes_are_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.tuning.processes.forks", lambda: False)  # each in its turn
    log = tmp_path / "tune.jsonl"
    choice = wanted(task(net()))
    journal = Journal(log)
    journal.append(trial(choice=choice).to_line())
    journal.close()
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", always(1.0))
    done = tune(net(size=12), budget_s=300, log=log, trials=2)
    assert done.trials[0].choice == choice
    assert done.resumed == 0


def test_a_transferred_log_must_be_one(tmp_path: Path) -> None:
    bad = tmp_path / "notes.txt"
    bad.write_text("mine\n")
    with pytest.raises(ConfigError, match="is no tuning log"):
        tune(net(), log=tmp_path / "tune.jsonl", trials=1, transfer=[bad])
    with pytest.raises(ConfigError, match="would not end"):
        tune(net(), budget_s=math.inf, log=tmp_path / "tune.jsonl")
    assert not (tmp_path / "tune.jsonl").exists()
