"""Which regions are handed over where costs are measured: by stated costs, and by the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.engines import costs, decisions, program_times, regions
from compiler.engines.costs import Measurer, best_of, cheapest
from compiler.engines.engine import Engine, register_engine, remove_engine
from compiler.engines.turns import Turns
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function, IRModule
from compiler.ir.regions import composite_of
from compiler.pattern import CompositePattern, is_op
from compiler.runtime.clock import thread_time
from compiler.symbolic import IntLike, Var
from compiler.transform import AnnotateTarget, InferType, MergeCompilerRegions, PartitionGraph
from compiler.types.dtypes import Array

SIZE = 8
TABLE = (CompositePattern("dense", is_op("nn.dense")), CompositePattern("exp", is_op("exp")))
OURS = {"nn.dense": 10.0, "exp": 1.0}


def network(rows: IntLike = SIZE) -> IRModule:
    """dense, exp, dense, exp: of all this, an engine may be handed everything."""
    b = FunctionBuilder()
    x = b.param("x", (rows, SIZE))
    w = np.random.default_rng(0).normal(0, 0.1, (SIZE, SIZE)).astype(np.float32)
    for k in range(2):
        x = b.call("nn.dense", x, b.const(w), name=f"d{k}", origins=[f"dense{k}"])
        x = b.call("exp", x, name=f"e{k}", origins=[f"exp{k}"])
    return IRModule({"main": b.finish(x)})


@pytest.fixture(autouse=True)
def _engine() -> Iterator[None]:
    """`timed`, which interprets its regions."""

    def compile_(f: Function, name: str) -> Any:
        mod = IRModule({"main": f})

        def run(x: Array, y: Array) -> None:
            np.copyto(y, evaluate(mod, x))

        return run

    register_engine(Engine("timed", TABLE, compile_))
    yield
    remove_engine("timed")


@dataclass(frozen=True)
class Stated(Measurer):
    """Says what things take: `theirs` an operator, and `border` a call of an engine."""

    theirs: Mapping[str, float] | None = None
    border: float = 0.0

    def stated(self, f: Function, engine: str) -> tuple[float, float]:
        ops = [str(b.value.op) for b in opened(f)]
        assert self.theirs is not None
        return sum(OURS[o] for o in ops), self.border + sum(self.theirs[o] for o in ops)

    def region(self, f: Function, engine: str) -> Turns:
        return Turns.of(*self.stated(f, engine))

    def programs(self, mods: Sequence[IRModule]) -> Turns:
        out = []
        for mod in mods:
            inside = [self.stated(mod[r.name], r.engine)[1] for r in regions(mod)]
            ours = [str(getattr(b.value, "op", "")) for b in mod.main.bindings]
            out.append(sum(inside) + sum(OURS.get(o, 0) for o in ours))
        return Turns.of(*out)


def opened(f: Function) -> list[Any]:
    found = []
    for b in f.bindings:
        c = composite_of(b.value)
        found += [b] if c is None else list(c.bindings)
    return found


def chosen(theirs: Mapping[str, float], border: float = 0.0) -> IRModule:
    measurer = Stated(compiler.build, {}, theirs=theirs, border=border)
    annotated = AnnotateTarget("timed")(InferType()(network()))
    return cheapest(annotated, MergeCompilerRegions(), PartitionGraph(), measurer, True)


def names(mod: IRModule) -> list[str]:
    return [
        str(c.attrs["composite"])
        for r in regions(mod)
        for b in mod[r.name].bindings
        if (c := composite_of(b.value)) is not None
    ]


def test_a_slow_engine_is_handed_nothing() -> None:
    mod = chosen({"nn.dense": 11.0, "exp": 1.0})
    assert not regions(mod)
    (d,) = decisions(mod)
    assert (d.handed, d.engine, d.region) == (False, "timed", "timed_0")
    assert d.nodes == ("dense0", "exp0", "dense1", "exp1")
    assert (d.ours_ms, d.engine_ms) == (22, 24)
    assert str(d) == "@timed_0: ours (timed 24.0000 ms, ours 22.0000 ms)"
    assert program_times(mod) == {"ours": 22, "all regions": 24}
    assert str(mod.main) == str(InferType()(network()).main)


def test_an_engine_must_be_quicker_by_more_than_noise() -> None:
    assert not regions(chosen({"nn.dense": 9.9, "exp": 1.0}))
    assert regions(chosen({"nn.dense": 9.6, "exp": 1.0}))


def test_a_quick_engine_is_handed_everything_and_a_file_says_so() -> None:
    mod = chosen({"nn.dense": 1.0, "exp": 0.5}, border=1.0)
    assert names(mod) == ["timed.dense", "timed.exp"] * 2
    (d,) = decisions(mod)
    assert (d.handed, d.ours_ms, d.engine_ms) == (True, 22, 4)
    assert program_times(mod) == {"ours": 22, "quicker regions": 4, "quicker composites": 6}
    again = compiler.parse(mod.astext(show_meta_data=True))
    assert decisions(again) == (d,)
    exe = compiler.build(again)
    assert exe.decisions == (d,)
    assert [r.name for r in exe.regions] == ["timed_0"]


def test_of_an_engine_that_is_quick_at_some_things_these_are_taken() -> None:
    mod = chosen({"nn.dense": 1.0, "exp": 30.0}, border=1.0)
    assert names(mod) == ["timed.dense", "timed.dense"]
    assert [(d.handed, d.ours_ms, d.engine_ms) for d in decisions(mod)] == [(True, 10, 2)] * 2
    assert program_times(mod) == {"ours": 22, "all regions": 63, "quicker composites": 6}


def test_of_several_engines_the_quicker_one_is_taken() -> None:
    """Stated costs go by engine here: `other` is quicker, and comes second."""

    @dataclass(frozen=True)
    class ByEngine(Stated):
        def stated(self, f: Function, engine: str) -> tuple[float, float]:
            ours, theirs = super().stated(f, engine)
            return ours, theirs / 2 if engine == "other" else theirs

    measurer = ByEngine(compiler.build, {}, theirs={"nn.dense": 4.0, "exp": 0.4})
    register_engine(Engine("other", TABLE, lambda f, name: print))
    try:
        found = []
        for order in (("timed", "other"), ("other", "timed")):
            annotated = AnnotateTarget(order)(InferType()(network()))
            number, divide = MergeCompilerRegions(), PartitionGraph()
            found.append(cheapest(annotated, number, divide, measurer, True))
        assert [program_times(m)["quicker regions"] for m in found] == [8.8, 4.4]
        best = best_of(found, measurer, True)
        assert [r.engine for r in regions(best)] == ["other"]
        assert best_of(found, measurer, False) is found[0]  # nothing could be timed
    finally:
        remove_engine("other")


class Ticking:
    """A clock that goes on by 0.1 ms whenever it is read, and by `slow` ms for every region that
    `timed` computes."""

    def __init__(self, slow: float):
        self.ns, self.slow = 0, slow

    def __call__(self) -> int:
        self.ns += 100_000
        return self.ns

    def compile(self, f: Function, name: str) -> Any:
        mod = IRModule({"main": f})

        def run(x: Array, y: Array) -> None:
            self.ns += round(self.slow * 1e6)
            np.copyto(y, evaluate(mod, x))

        return run


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slow", [0.0, 5.0])
@pytest.mark.parametrize("on_caller", [False, True])
def test_the_clock_decides(slow: float, on_caller: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that compute on the thread that calls them are timed by its time, if one thread is
    all that a program may use; the others, which may compute anywhere, by the wall's."""
    clock = Ticking(slow)
    engine = Engine("timed", TABLE, clock.compile, on_caller=on_caller)
    register_engine(engine, override=True)
    assert costs.clock_of(["timed"], 2) is time.perf_counter_ns
    assert (costs.clock_of(["timed"], 1) is thread_time) == on_caller
    monkeypatch.setattr(costs, "ROUNDS", 3)
    monkeypatch.setattr(costs, "MOST_ROUNDS", 3)
    monkeypatch.setattr(costs, "clock_of", lambda names, threads: clock)
    mod = compiler.partition(network(), ["timed"], costs="measured")
    assert not regions(mod)
    (d,) = decisions(mod)
    assert (d.ours_ms, d.engine_ms) == (0.05, 5.1 if slow else 0.05)
    x = np.ones((SIZE, SIZE), np.float32)
    np.testing.assert_array_equal(compiler.build(mod)(x), compiler.build(network())(x))


def test_open_sizes_must_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "MOST_ROUNDS", 3)
    mod = network(Var("N"))
    with pytest.raises(compiler.InputError, match=r"the size of dimension 'N': give sizes="):
        compiler.partition(mod, ["timed"], costs="measured")
    exe = compiler.build(mod, engines=["timed"], costs="measured", sizes={"N": SIZE})
    assert not exe.decisions[0].handed


def test_other_costs_are_refused() -> None:
    with pytest.raises(compiler.InputError, match="costs are 'measured' or None, not 'guessed'"):
        compiler.partition(network(), [], costs="guessed")
