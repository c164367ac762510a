"""A session of a tuner, on a machine whose clock is made up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_tuning import HOST, net

import compiler
from compiler.tuning.proposals import Candidate
from compiler.tuning.session import Progress, Session, Settings
from compiler.tuning.tasks import tasks_of
from compiler.tuning.trials import Journal


class Clock:
    """A machine whose kernels are the texts of their choices, and write nothing; `times` gives the
    milliseconds of two of them, in so many rounds."""

    def __init__(self, times: Callable[[str, str, int], tuple[float, float]]):
        self._times = times

    def kernel(self, task: Any, inputs: Any, choice: Any) -> str:
        return str(choice)

    def linked(self, task: Any, inputs: Any, choice: Any, outcome: Any) -> str:
        return str(choice)

    def result(self, run: Any) -> bytes:
        return b""

    def turns(self, first: str, second: str) -> Callable[[int], tuple[float, float]]:
        return lambda rounds: self._times(first, second, rounds)


def test_what_only_seemed_best_loses_to_what_is() -> None:
    """The log's times are what they were by chance; measured again, the third is the best."""
    task = tasks_of(compiler.optimize(net()), HOST)[0]
    choices = task.space.neighbours()[:4]
    true = dict(zip(map(str, [{}, *choices]), (2.0, 1.9, 1.8, 1.2, 3.0), strict=True))

    settings: Any = SimpleNamespace(target=HOST, seed=0, limit=4)
    machine = Clock(lambda first, second, rounds: (true[first], true[second]))
    session = Session([task], cast(Any, machine), settings, cast(Any, None))
    trials: Any = [
        SimpleNamespace(choice=c, ratio=ratio, high=high)
        for c, ratio, high in zip(choices, (0.5, 0.6, 0.7, 0.4), (0.6, 0.7, 0.8, 1.1), strict=True)
    ]
    s = session.subjects[0]
    assert session.settled(s, trials) == (choices[2], str(choices[2]))
    assert session.settled(s, trials, 2) == (choices[1], str(choices[1]))
    assert session.settled(s, trials[3:]) is None  # not surely quicker than the rules


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_of_no_use_is_measured_as_exactly_as_is_asked_for(
    exact: bool, tmp_path: Path
) -> None:
    """A candidate that is as quick as the rules, by a clock that is 2 % off now and then."""
    (task, *_) = tasks_of(compiler.optimize(net(), HOST), HOST)
    rng, rounds = random.Random(0), list[int]()

    def timed(first: str, second: str, n: int) -> tuple[float, float]:
        rounds.append(n)
        return 1.0, math.exp(rng.gauss(0, 0.02))

    settings = Settings(HOST, "a", math.inf, 0, 4, 0.0, least_s=0.02, exact=exact)
    with closing(Journal(tmp_path / "log.jsonl")) as journal:
        session = Session([task], cast(Any, Clock(timed)), settings, journal)
        (s,) = session.subjects
        program, features = task.default
        session.measure(s, Candidate(task.space.neighbours()[0], program, features), None)
    assert (len(rounds) > 12) == exact
    assert 0.97 < (session.trials[0].ratio or 0.0) < 1.03


def test_what_is_used_up_leaves_its_trials_to_nobody() -> None:
    """A kernel of five choices, and one of many: this one has its share, and no more."""
    tasks = tasks_of(compiler.optimize(net()), HOST)[:2]
    seen: list[Progress] = []
    settings: Any = SimpleNamespace(
        target=HOST, seed=0, limit=40, start=0.0, budget_s=1e9, progress=seen.append
    )
    session = Session(tasks, cast(Any, None), settings, cast(Any, None))
    few, many = (s.state for s in session.subjects)
    assert session._room(0) == 40
    few.trials, few.exhausted = 5, True
    session.trials += cast(Any, [None] * 5)
    assert session._room(0) == 20
    assert session._room(8) == 12
    many.trials = 20
    session.trials += cast(Any, [None] * 20)
    assert session._room(0) == 0
    session._tell(session.subjects[1])
    assert (seen[0].tried, seen[0].limit) == (25, 25)
    few.trials = 30  # of a log: more than its share
    session.resumed = 25
    assert session._room(0) == -10
