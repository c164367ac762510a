"""Speed-ups on a machine whose clocks, and whose load, the tests say."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.measure import disturbance
from experiments.measure.disturbance import Usage, others_load
from experiments.measure.speedup import (
    Instruments,
    Protocol,
    Speedup,
    measure_speedup,
    median_interval,
)

US = 1000


@dataclass
class Machine:
    """Calls take what they say of this thread's time; `taken` says how much longer the clock runs.

    `others` processors are busy with something else.
    """

    taken: Callable[[Machine], int] = lambda machine: 0
    others: float = 0.0
    wall: int = 0
    worked: int = 0
    calls: list[str] = field(default_factory=list)

    def call(self, name: str, nanoseconds: Callable[[], int]) -> Callable[[], object]:
        def made() -> None:
            self.calls.append(name)
            work = nanoseconds()
            self.worked += work
            self.wall += work + self.taken(self)

        return made

    def usage(self) -> Usage:
        process = self.worked / 1e9
        return Usage(self.wall / 1e9, process + self.others * self.wall / 1e9, process)

    @property
    def instruments(self) -> Instruments:
        return Instruments(lambda: self.wall, lambda: self.worked, self.usage)


def measured(
    machine: Machine,
    protocol: Protocol,
    fast: Callable[[], int] = lambda: 50 * US,
    slow: Callable[[], int] = lambda: 150 * US,
    **options: Any,
) -> Speedup:
    calls = machine.call("fast", fast), machine.call("slow", slow)
    return measure_speedup(*calls, protocol, instruments=machine.instruments, **options)


def half_width(found: Speedup) -> float:
    """Of the interval, as a share of what is in it."""
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.ratio <= found.high
    return (found.high - found.low) / 2 / found.ratio


def jittered(mean_us: float, spread: float, seed: int = 0) -> Callable[[], int]:
    """Times around a mean, `spread` of it wide."""
    rng = random.Random(seed)
    return lambda: int(mean_us * US * max(0.1, rng.gauss(1, spread)))


def test_it_stops_at_the_first_look_when_the_interval_is_tight() -> None:
    machine = Machine()
    found = measured(machine, Protocol(warmup=2, runs=30), jittered(50, 0.03), jittered(150, 0.03))
    assert machine.calls[:4] == ["fast"] * 2 + ["slow"] * 2
    assert 0.2 <= machine.wall / 1e9 < 0.21
    assert found.latency.runs == (len(machine.calls) - 4) / 2
    assert found.ratio == pytest.approx(3, rel=0.01)
    assert half_width(found) <= 0.02
    assert found.noise == ()


def test_it_goes_on_until_the_interval_is_as_tight_as_wanted() -> None:
    lengths = []
    for precision in (0.1, 0.03, 0.015):
        machine = Machine()
        found = measured(
            machine, Protocol(0, 10, precision, 60.0), jittered(500, 0.3, 1), jittered(900, 0.3, 2)
        )
        lengths.append(machine.wall)
        assert found.noise == ()
        assert half_width(found) <= precision
    assert 0.2e9 < lengths[0] < lengths[1] < lengths[2] < 20e9


def test_it_stops_when_the_budget_is_used_up_and_says_that_it_is_imprecise() -> None:
    machine = Machine()
    found = measured(
        machine, Protocol(0, 10, 0.001, 1.0), jittered(500, 0.9, 1), jittered(900, 0.9, 2)
    )
    assert 0.99 < machine.wall / 1e9 < 1.01
    assert found.noise == ("imprecise",)


def test_no_round_begins_that_would_not_end_within_the_budget() -> None:
    machine = Machine()
    found = measured(machine, Protocol(0, 3, 0.0, 2.0), lambda: 40_000 * US, lambda: 360_000 * US)
    assert found.latency.runs == 5
    assert found.noise == ("imprecise",)  # fewer than six rounds have no interval


@pytest.mark.parametrize("budget_s", [0.0, 2.0])
def test_the_rounds_asked_for_are_made_whatever_the_budget(budget_s: float) -> None:
    machine = Machine()
    found = measured(machine, Protocol(1, 7, 0.02, budget_s), lambda: 10**9, lambda: 3 * 10**9)
    assert found.latency.runs == 7
    assert len(machine.calls) == 16
    assert (found.ratio, found.low, found.high) == (3, 3, 3)


def test_without_a_baseline_the_ratio_is_one_and_the_time_must_be_tight() -> None:
    machine = Machine()
    call = machine.call("alone", jittered(50, 0.02))
    found = measure_speedup(call, None, Protocol(0, 5), instruments=machine.instruments)
    assert (found.ratio, found.low, found.high, found.noise) == (1, 1, 1, ())
    assert found.latency.median == pytest.approx(0.05, rel=0.01)


def test_time_that_others_take_is_flagged_and_does_not_change_the_speedup() -> None:
    """Whoever shares the processor takes it every 3 ms for as long: from the longer call mostly."""

    def turns(machine: Machine) -> int:
        before, machine_turns = machine.worked - 150 * US, machine.worked // (3000 * US)
        return 3000 * US if before // (3000 * US) < machine_turns else 0

    machine = Machine(turns)
    found = measured(machine, Protocol(0, 30), lambda: 2000 * US, lambda: 6000 * US)
    assert found.noise == ("preempted",)
    assert found.lost is not None
    assert 0.1 < found.lost < 0.6
    assert found.ratio == pytest.approx(3, rel=0.001)
    assert found.latency.median >= 2  # latency is what the clock showed


def test_waiting_for_other_threads_is_not_taken_for_preemption() -> None:
    machine = Machine(lambda _machine: 40 * US)
    found = measured(machine, Protocol(0, 30), threads=2)
    assert (found.lost, found.noise) == (None, ())
    assert found.ratio == pytest.approx(190 / 90)


def test_a_thread_clock_of_ticks_is_not_believed_about_single_calls() -> None:
    machine = Machine()
    tick = 10_000 * US
    tools = Instruments(lambda: machine.wall, lambda: machine.worked // tick * tick, machine.usage)
    calls = machine.call("fast", lambda: 50 * US), machine.call("slow", lambda: 150 * US)
    found = measure_speedup(*calls, Protocol(0, 30), instruments=tools)
    assert (found.ratio, found.noise) == (3, ())


@pytest.mark.parametrize(("others", "noise"), [(0.0, ()), (0.1, ()), (1.0, ("loaded",))])
def test_a_busy_process_beside_it_is_flagged(
    others: float, noise: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    found = measured(Machine(others=others), Protocol(0, 30))
    assert found.load == pytest.approx(others)
    assert found.noise == noise


def test_what_keeps_little_of_a_large_machine_busy_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert measured(Machine(others=1.0), Protocol(0, 30)).noise == ()
    assert measured(Machine(others=4.0), Protocol(0, 30)).noise == ("loaded",)


def test_bursts_widen_the_interval_as_independent_noise_of_their_size_does_not() -> None:
    """Two rounds in five take twice as long: scattered, that is jitter; in bursts, it is load."""

    def scattered() -> Callable[[], int]:
        rng = random.Random(3)
        return lambda: 50 * US * (2 if rng.random() < 0.4 else 1)

    def bursts() -> Callable[[], int]:
        state = iter(range(10**9))
        return lambda: 50 * US * (2 if next(state) % 500 < 200 else 1)

    widths = []
    for fast in (scattered(), bursts()):
        found = measured(Machine(), Protocol(0, 1000, 0.02, 0.0), fast)
        widths.append(half_width(found))
    assert widths[0] < 0.02 < widths[1]


def test_load_is_what_others_used_and_unknown_over_short_times() -> None:
    start = Usage(10.0, 100.0, 5.0)
    assert others_load(start, Usage(11.0, 101.5, 6.0)) == pytest.approx(0.5)
    assert others_load(start, Usage(11.0, 100.9, 6.0)) == 0
    assert others_load(start, Usage(10.05, 101.0, 5.0)) is None
    assert others_load(start, Usage(11.0, None, 6.0)) is None


def test_this_system_tells_what_it_uses() -> None:
    before, after = Usage.now(), Usage.now()
    assert before.everybody is not None
    assert after.everybody is not None
    assert before.everybody <= after.everybody
    assert before.wall < after.wall


def test_intervals_of_the_median_are_those_of_the_sign_test() -> None:
    """Ranks from the tables: n = 6 first and last, 10 second, 20 sixth, 25 eighth."""
    assert median_interval(range(5)) is None
    for n, rank in ((6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (25, 8)):
        assert median_interval([float(k) for k in range(1, n + 1)]) == (rank, n + 1 - rank)


@given(st.integers(6, 60))
def test_the_interval_covers_at_least_95_percent_and_the_next_narrower_one_less(n: int) -> None:
    interval = median_interval(range(1, n + 1))
    assert interval is not None
    rank = int(interval[0])
    tails = [2 * sum(math.comb(n, k) for k in range(r)) / 2**n for r in (rank, rank + 1)]
    assert tails[0] <= 0.05 < tails[1]


def test_95_of_100_intervals_hold_the_true_speedup() -> None:
    held = 0
    for seed in range(100):
        fast, slow = jittered(50, 0.2, 2 * seed), jittered(150, 0.2, 2 * seed + 1)
        found = measured(Machine(), Protocol(0, 200, 1.0, 0.0), fast, slow)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 3 <= found.high
    assert held >= 90


def test_noise_is_read_as_it_is_written() -> None:
    for reasons in ((), (disturbance.LOADED,), tuple(disturbance.MEANINGS)):
        assert disturbance.read(disturbance.written(reasons)) == reasons
    assert disturbance.written(()) == "none"
    assert disturbance.read("") == disturbance.read(math.nan) == disturbance.read(None) == ()


def test_rounds_change_their_order() -> None:
    machine = Machine()
    measured(machine, Protocol(0, 50, 0.02, 0.0))
    rounds = list(pairwise(machine.calls))[::2]
    assert {tuple(sorted(r)) for r in rounds} == {("fast", "slow")}
    assert len(set(rounds)) == 2
