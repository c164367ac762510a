"""What comparisons in turns tell, and what is made of it where nothing is clear."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
from compiler.engines import Decision, costs, decisions, program_times, regions
from compiler.engines.costs import Measurer, _clear, best_of, cheapest, in_turns
from compiler.engines.engine import Engine, register_engine, remove_engine
from compiler.engines.turns import Turns
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function, IRModule
from compiler.pattern import CompositePattern, is_op
from compiler.transform import AnnotateTarget, InferType, MergeCompilerRegions, PartitionGraph

MS = st.floats(0.01, 100)


@given(st.lists(st.tuples(MS, MS), min_size=1, max_size=70))
def test_the_middle_lies_between_the_bounds(rounds: list[tuple[float, float]]) -> None:
    turns = Turns(tuple(rounds))
    there, back = turns.ratio(1, 0), turns.ratio(0, 1)
    assert there.low <= there.middle <= there.high
    assert back.low == pytest.approx(1 / there.high)
    assert back.high == pytest.approx(1 / there.low)
    assert turns.medians() == [statistics.median(t) for t in zip(*rounds, strict=True)]
    assert turns.ratio(1, 1).low == turns.ratio(1, 1).high == 1


@given(st.floats(0.1, 10), st.lists(MS, min_size=1, max_size=70))
def test_what_both_bear_does_not_count(factor: float, load: list[float]) -> None:
    found = Turns(tuple((ms, factor * ms) for ms in load)).ratio(1, 0)
    assert (found.low, found.high) == pytest.approx((factor, factor))


@pytest.mark.parametrize("count", [6, 9, 14, 20, 100])
def test_intervals_hold_as_often_as_they_say(count: int) -> None:
    """Noise is skewed here, as that of times is; its median is 1."""
    rng, held = random.Random(count), 0
    for _ in range(1000):
        noise = [2 * rng.random() ** 3 + 0.75 for _ in range(2 * count)]
        found = Turns(tuple(zip(noise[:count], noise[count:], strict=True))).ratio(1, 0)
        held += found.low <= 1 <= found.high
    assert held >= 925  # of blocks of rounds the median is 1, too: both have the same noise


def test_some_disturbed_rounds_do_not_widen_an_interval() -> None:
    rounds = [(1.0, 0.9 if k % 5 else 40.0) for k in range(20)]
    assert Turns(tuple(rounds)).ratio(1, 0).high == 0.9
    burst = [(1.0, 40.0 if k < 20 else 0.9) for k in range(100)]
    assert Turns(tuple(burst)).ratio(1, 0).high == 0.9


def test_all_rounds_are_kept() -> None:
    now = 0

    def clock() -> int:
        return now

    def takes(ms: float) -> None:
        nonlocal now
        now += round(ms * 1e6)

    turns = in_turns([lambda: takes(1.0), lambda: takes(1.1)], 0.0, clock)
    assert len(turns.rounds) == 9
    assert turns.medians() == [1.0, 1.1]


class Machine:
    """One whose clock goes on as programs run, which take their time, give or take some part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noise: float):
        self.now, self.noise, self.rng = 0, noise, random.Random(1)
        monkeypatch.setattr(costs.time, "perf_counter", lambda: self.now / 1e9)

    def rounds(self, times: tuple[float, float], enough: Callable[[Turns], bool]) -> int:
        """How many rounds two programs of so many milliseconds take turns for, of one second."""
        calls = [partial(self._takes, ms) for ms in times]
        return len(in_turns(calls, 1.0, lambda: self.now, enough).rounds)

    def _takes(self, ms: float) -> None:
        self.now += round(ms * self.rng.gauss(1, self.noise) * 1e6)


@pytest.mark.parametrize(
    ("ratio", "rounds"),
    [
        (0.9, range(9, 13)),  # clear at once
        (0.97, range(13, 41)),  # clear once there are enough
        (0.99, range(40, 46)),  # never
    ],
)
def test_programs_take_turns_until_it_is_clear_which_to_take(
    monkeypatch: pytest.MonkeyPatch, ratio: float, rounds: range
) -> None:
    """A second is given, and four at most."""
    machine = Machine(monkeypatch, 0.03)
    assert machine.rounds((50.0, 50.0 * ratio), _clear) in rounds
    assert machine.rounds((50.0, 50.0 * ratio), lambda turns: True) <= 12


def test_programs_of_microseconds_take_turns_until_it_is_clear_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which 200 rounds are through in no time."""
    machine = Machine(monkeypatch, 0.2)
    assert 200 < machine.rounds((0.2, 0.2 * 0.97), _clear) < 10_000
    assert 200 <= machine.rounds((0.2, 0.2 * 0.97), lambda turns: True) < 230


# ---- what is handed over where it is not clear what is quicker -----------------------------------
SIZE = 8


def network() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (SIZE, SIZE))
    return IRModule({"main": b.finish(b.call("exp", b.call("tanh", x)))})


@pytest.fixture(autouse=True)
def _engine() -> Iterator[None]:
    table = (CompositePattern("exp", is_op("exp")), CompositePattern("tanh", is_op("tanh")))
    register_engine(Engine("timed", table, lambda f, name: print))
    yield
    remove_engine("timed")


@dataclass(frozen=True)
class Noisy(Measurer):
    """Says what the rounds gave: of a region, ours and the engine's; of programs, by how many
    operators they hand over."""

    alone: tuple[tuple[float, float], ...] = ((1.0, 0.5),)
    together: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def region(self, f: Function, engine: str) -> Turns:
        return Turns(self.alone)

    def programs(self, mods: Sequence[IRModule]) -> Turns:
        handed = [sum(len(m[r.name].bindings) for r in regions(m)) for m in mods]
        return Turns(tuple(zip(*(self.together[n] for n in handed), strict=True)))


def chosen(
    alone: Sequence[tuple[float, float]], together: Mapping[int, Sequence[float]]
) -> IRModule:
    times = {k: tuple(v) for k, v in together.items()}
    measurer = Noisy(compiler.build, {}, alone=tuple(alone), together=times)
    annotated = AnnotateTarget("timed")(InferType()(network()))
    return cheapest(annotated, MergeCompilerRegions(), PartitionGraph(), measurer, True)


QUICK = [(1.0, 0.5)] * 9
OURS = [5.59, 5.61, 5.6, 5.58, 5.6, 5.62, 5.6, 5.59, 5.61]


def test_of_programs_that_are_as_quick_ours_is_taken() -> None:
    theirs = [5.5, 5.65, 5.4, 5.7, 5.52, 5.5, 5.48, 5.66, 5.5]  # the median is 0.98 of ours
    mod = chosen(QUICK, {0: OURS, 2: theirs})
    assert not regions(mod)
    assert program_times(mod) == {"ours": 5.6, "quicker regions": 5.5}
    (d,) = decisions(mod)
    assert not d.handed
    clear = [0.97 * ms for ms in OURS]
    assert len(regions(chosen(QUICK, {0: OURS, 2: clear}))) == 1


def test_what_is_slower_alone_is_handed_over_where_the_whole_is_clearly_quicker() -> None:
    """Borders count: the region alone says otherwise."""
    slow = [(1.0, 1.1)] * 9
    assert len(regions(chosen(slow, {0: OURS, 2: [0.9 * ms for ms in OURS]}))) == 1
    assert not regions(chosen(slow, {0: OURS, 2: [0.992 * ms for ms in OURS]}))


def test_a_region_must_be_quicker_with_all_of_its_interval() -> None:
    wide = [(1.0, ms) for ms in (0.8, 0.9, 1.2, 0.85, 0.7, 1.3, 0.9, 1.1, 0.9)]
    mod = chosen(wide, {0: OURS, 2: OURS})
    (d,) = decisions(mod)
    assert d.between == (0.8, 1.2)
    assert str(d) == "@timed_0: ours (timed 0.9000 ms, ours 1.0000 ms, 0.80 to 1.20 of ours)"
    assert set(program_times(mod)) == {"ours", "all regions"}
    again = compiler.parse(mod.astext(show_meta_data=True))
    assert decisions(again) == (d,)


def test_the_first_order_of_engines_is_taken_unless_another_is_clearly_quicker() -> None:
    mod = network()

    @dataclass(frozen=True)
    class ByPosition(Measurer):
        rounds: tuple[tuple[float, ...], ...] = ()

        def programs(self, mods: Sequence[IRModule]) -> Turns:
            return Turns(self.rounds)

    mods = [replace(mod), replace(mod), replace(mod)]
    for factors, best in [((1, 0.995, 0.995), 0), ((1, 0.98, 0.975), 1), ((1, 1.1, 0.9), 2)]:
        rounds = tuple(tuple(f * ms for f in factors) for ms in OURS)
        measurer = ByPosition(compiler.build, {}, rounds=rounds)
        assert best_of(mods, measurer, True) is mods[best]


def test_decisions_are_read_from_what_was_written_before_there_were_intervals() -> None:
    row = {"region": "r", "engine": "e", "nodes": ["n"], "ours_ms": 2.0, "engine_ms": 1.0,
           "handed": True}  # fmt: skip
    d = Decision.of(row)
    assert d == Decision("r", "e", ("n",), 2.0, 1.0, True, None)
    assert Decision.of({**row, "between": [0.5, 0.5]}).between == (0.5, 0.5)
    assert Decision.of(d.row()) == d
    for bad in ([0.5], 3, ["a", "b"]):
        with pytest.raises((TypeError, ValueError)):
            Decision.of({**row, "between": bad})
