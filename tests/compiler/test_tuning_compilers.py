"""Which process compiles a candidate: the one that will be the first to have done so."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from compiler.tuning import processes
from compiler.tuning.compilation import Outcome
from compiler.tuning.processes import Compilers


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
    monkeypatch.setattr(processes.connection, "wait", clock.wait)
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
