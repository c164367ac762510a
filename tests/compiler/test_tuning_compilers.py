"""Which process does what with a candidate: the one that will be the first to have done it. And
that what comes back belongs to what was given, whatever happens to a process."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.scheduling.choices import Choice
from compiler.scheduling.tile_config import TileChoice
from compiler.target.registry import Target
from compiler.tuning import processes
from compiler.tuning.compilation import Outcome
from compiler.tuning.processes import Compilers, compiling_cores
from compiler.tuning.tasks import Task, tasks_of


class Clock:
    """Seconds that pass as the test says, and the processes that work meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[Process] = []

    def perf_counter(self) -> float:
        return self.now

    def wait(self, at_work: list[Process], timeout: float) -> list[Process]:
        """Go on until one of the processes has compiled something."""
        before = [p.outcomes for p in at_work]
        while before == [p.outcomes for p in at_work]:
            self.go_on(min(p._left[0] for p in self.processes if p._left), waiting=True)
        return at_work

    def go_on(self, seconds: float, waiting: bool) -> None:
        """Let time pass, in which the process that measures waits, or does not."""
        self.now += seconds
        for p in self.processes:
            if p.own or waiting:
                p.work(seconds)


class Process:
    """Stands for one that takes a second for every candidate that it compiles. `own`: it has a core
    of its own, and not the one that is measured on, where it works while the other end waits."""

    def __init__(self, clock: Clock, own: bool):
        self.clock, self.own, self.given, self.outcomes = clock, own, 0, 0
        self._left: deque[float] = deque()
        clock.processes.append(self)

    def give(self, job: Any) -> None:
        self.given += 1
        self._left.append(job.cost)

    @property
    def pipe(self) -> Process:
        return self

    def take(self) -> Outcome:
        self.outcomes -= 1
        return Outcome()

    def work(self, seconds: float) -> None:
        while self._left and seconds > 0:
            spent = min(self._left[0], seconds)
            self._left[0] -= spent
            seconds -= spent
            if self._left[0] <= 1e-9:
                self._left.popleft()
                self.outcomes += 1

    @property
    def left(self) -> float:
        return sum(self._left)


def searched(monkeypatch: pytest.MonkeyPatch, cores: int, measuring_s: float) -> Clock:
    """A search of 400 candidates, each of which takes so long to be measured."""
    clock = Clock()
    monkeypatch.setattr(processes, "time", clock)
    monkeypatch.setattr(processes, "forks", lambda: True)
    monkeypatch.setattr(connection, "wait", clock.wait)
    monkeypatch.setattr(processes, "_Worker", lambda _, core, seed: Process(clock, core < cores))
    compilers = Compilers([], range(1, cores + 1))
    given = 0
    for taken in range(400):
        while given - taken < 12:
            compilers.submit(0, {})
            given += 1
        compilers.take()
        clock.go_on(measuring_s, waiting=False)
    return clock


@pytest.mark.parametrize("cores", [2, 4])
def test_the_core_that_is_measured_on_compiles_nothing_while_it_is_busy(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    clock = searched(monkeypatch, cores, measuring_s=1.0)
    assert clock.processes[-1].given < 40
    assert clock.now < 1.1 * 400  # hardly more than measuring


def test_it_compiles_what_it_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where candidates are measured in no time, half of them."""
    first, last = searched(monkeypatch, 2, measuring_s=0.001).processes
    assert 0.8 < first.given / last.given < 1.6


@pytest.mark.parametrize("measuring_s", [0.1, 0.3, 0.5, 0.7])
def test_both_cores_are_busy(monkeypatch: pytest.MonkeyPatch, measuring_s: float) -> None:
    """What is measured and what is compiled takes both cores, about half of the time each."""
    clock = searched(monkeypatch, 2, measuring_s)
    assert clock.now < 1.12 * 400 * (1 + measuring_s) / 2


def test_one_core_compiles_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    (only,) = searched(monkeypatch, 1, measuring_s=1.0).processes
    assert only.given == 411


# ---- what comes back -----------------------------------------------------------------------------
NO_FORKS = pytest.mark.skipif(not processes.forks(), reason="candidates run in forks")
MISFIT: Choice = {"mac": TileChoice(3, 1, (), 0, 1, False)}


@pytest.fixture
def task() -> Task:
    rng, b = np.random.default_rng(0), FunctionBuilder()
    weight = b.const(rng.normal(size=(32, 32)).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (4, 32)), weight))})
    (found,) = tasks_of(compiler.optimize(mod), Target.parse("llvm"))
    return found


def answers(task: Task, choices: Sequence[Choice], cores: Sequence[int] = ()) -> list[Any]:
    compilers = Compilers([task], cores)
    try:
        compilers.ask(0, choices)
        return compilers.answers()
    finally:
        compilers.close()


def named(*numbers: int) -> list[Any]:
    """What stands for choices where nothing looks into them."""
    return [{"k": number} for number in numbers]


@NO_FORKS
def test_processes_see_what_this_one_sees(task: Task) -> None:
    choices = [{}, MISFIT, *task.space.neighbours()[:6]]
    found = answers(task, choices, compiling_cores())
    assert found[1] is None
    for look, choice in zip(found, choices, strict=True):
        if (here := task.look(choice)) is not None:
            assert look[0] == here[0]
            np.testing.assert_array_equal(look[1], here[1])


def test_without_forks_this_process_does_it(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "forks", lambda: False)
    choices = [MISFIT, *task.space.neighbours()[:2]]
    assert compiling_cores() == ()
    assert [look and look[0] for look in answers(task, choices)] == [
        look and look[0] for look in map(task.look, choices)
    ]
    compilers = Compilers([task], ())
    numbers = [compilers.submit(0, choice) for choice in choices]
    taken = [compilers.take() for _ in numbers]
    assert [n for n, _ in taken] == numbers
    assert [bool(outcome.code) for _, outcome in taken] == [False, True, True]


@NO_FORKS
def test_a_fault_in_a_look_is_raised_here(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "look", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        answers(task, [{}])


@NO_FORKS
@pytest.mark.parametrize("how", [lambda: os._exit(3), lambda: time.sleep(60)], ids=["dead", "late"])
def test_a_look_that_ends_its_process_is_no_candidate(
    task: Task, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    """What the process was to do after it is done by the next one."""
    monkeypatch.setattr(processes, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(Task, "look", lambda _, choice: how() if choice else ("seen", choice))
    assert answers(task, [{}, MISFIT, {}, MISFIT, {}]) == [("seen", {}), None] * 2 + [("seen", {})]


@NO_FORKS
@pytest.mark.parametrize("cores", [(), compiling_cores()], ids=["one", "all"])
def test_each_outcome_is_of_its_candidate(
    task: Task, monkeypatch: pytest.MonkeyPatch, cores: tuple[int, ...]
) -> None:
    """In whatever order they come, with looks between them, and some that end their process."""

    def compiled(task: Task, choice: Any) -> Outcome:
        time.sleep(0.02 * (choice["k"] % 3))
        return os._exit(1) if choice["k"] == 5 else Outcome(error=f"number {choice['k']}")

    monkeypatch.setattr(processes, "compiled", compiled)
    monkeypatch.setattr(Task, "look", lambda _, choice: choice["k"])
    compilers = Compilers([task], cores)
    given: dict[int, int] = {}
    try:
        for k in range(20):
            choice, *others = named(k, 100 + k, 200 + k)
            given[compilers.submit(0, choice)] = k
            if k % 4 == 0:
                compilers.ask(0, others)
                seen: list[Any] = compilers.answers()
                assert seen == [100 + k, 200 + k]
                assert compilers.answered()
        taken = [compilers.take() for _ in given]
    finally:
        compilers.close()
    assert sorted(n for n, _ in taken) == sorted(given)
    for number, outcome in taken:
        k = given[number]
        assert outcome.error == ("the compiler died of it" if k == 5 else f"number {k}")
