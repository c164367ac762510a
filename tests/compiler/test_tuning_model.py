"""Features of loops, the model that ranks candidates, the search, and who gets the next trials."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.codegen.backend import backend_of
from compiler.errors import ScheduleError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import KernelSource
from compiler.scheduling.choices import Choice
from compiler.target.registry import Target
from compiler.tuning import cost_model, measure
from compiler.tuning.allocation import Progress, next_task
from compiler.tuning.cost_model import FAR_OFF, CostModel, hopeless
from compiler.tuning.features import NAMES, Report, estimated, report_of, with_report
from compiler.tuning.measure import Turns, compared
from compiler.tuning.proposals import Search
from compiler.tuning.space import Space
from compiler.tuning.tasks import Task, tasks_of
from compiler.tuning.tuner import tune
from compiler.types.dtypes import Array

HOST = Target.parse("llvm")


def task(channels: int = 32, size: int = 14) -> Task:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (1, channels, size, size))
    weight = b.const(rng.normal(size=(32, channels, 3, 3)).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))})
    found = tasks_of(compiler.optimize(mod), HOST)
    return max(found, key=lambda t: t.work)


def value(features: Array, name: str) -> float:
    return float(features[NAMES.index(name)])


def test_features_of_a_convolution() -> None:
    t = task()
    _, features = t.default
    assert len(features) == len(NAMES)
    products = 32 * 32 * 9 * 14 * 14
    assert t.demand.float_products == products
    # Every product is a multiplication and an addition; guards of the padding leave some out.
    assert math.log2(products) < value(features, "operations") < math.log2(3 * products)
    assert value(features, "custom") == 0
    kept = 32 * 32 * 9 * 4 + 2 * 32 * 14 * 14 * 4
    assert value(features, "bytes") >= math.log2(kept)
    held = 2 ** value(features, "registers") - 1
    assert 1 < held <= 2 * HOST.vector_registers
    known = [k for k in range(len(NAMES)) if NAMES[k] not in ("reloads", "frame")]
    assert np.isfinite(features[known]).all()


def test_features_tell_choices_apart_and_are_finite() -> None:
    t = task()
    rng, seen = random.Random(0), {}
    for _ in range(12):
        try:
            program, features = t.seen(t.space.sample(rng))
        except ScheduleError:
            continue
        seen[program] = tuple(features[:-2])
        assert np.isfinite(features[:-2]).all()
    assert len(seen) > 5
    assert len(set(seen.values())) > len(seen) / 2


def test_half_vectors_take_twice_the_instructions() -> None:
    """The estimate follows: it ranks without having learned."""
    t = task()
    lanes = HOST.vector_bytes // 4
    near = t.space.neighbours()
    halves = [c for c in near if any(getattr(x, "lanes", 0) == lanes // 2 for x in c.values())]
    if not halves:
        pytest.skip("vectors of this CPU are not halved")
    _, rule = t.default
    _, half = t.seen(halves[0])
    assert value(half, "vector_operations") > value(rule, "vector_operations") + 0.8
    assert estimated(half) > estimated(rule)


def test_llvms_report_of_registers() -> None:
    text = """
\tsubq\t$120, %rsp
\tmovq\t8(%rsp), %rax                 # 8-byte Reload
.LBB0_1:                                # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_2 Depth 2
.LBB0_2:                                #   Parent Loop BB0_1 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
\tvmovups\t64(%rsp), %zmm0               # 64-byte Reload
\tvaddps\t128(%rsp), %zmm0, %zmm0        # 64-byte Folded Reload
.LBB0_3:
\tmovq\t(%rsp), %rcx                   # 8-byte Reload
"""
    assert report_of(text) == Report(1 + 2 * 64 + 1, 120)
    assert report_of("") == Report(0, 0)
    features = with_report(np.zeros(len(NAMES)), Report(7, 0))
    assert (value(features, "reloads"), value(features, "frame")) == (3.0, 0.0)


def test_what_is_measured_is_what_a_build_would_run() -> None:
    """Candidates are compiled by way of their assembly, so that LLVM generates code but once."""
    import llvmlite.binding as llvm

    def content(made: bytes) -> tuple[bytes, dict[str | None, bytes]]:
        needs, _, data = made.partition(b"\n")
        sections = llvm.ObjectFileRef.from_data(data).sections()
        names = {s.name() and s.name().decode(): bytes(s.data()) for s in sections}
        # Relocations name entries of the table of symbols, which are in another order.
        apart = (".rela", ".symtab", ".strtab")
        return needs, {n: d for n, d in names.items() if not (n or "").startswith(apart)}

    t, backend = task(), backend_of(HOST)
    for choice in [{}, *t.space.neighbours()[:2]]:
        code = KernelSource(legalize(t.function), HOST, choice).scheduled().code(HOST)
        made, assembly = backend.object_and_assembly(code, HOST)
        assert content(made) == content(backend.object(code, HOST))
        assert code.symbols[0] in assembly


def rows(n: int, seed: int) -> tuple[list[Array], list[float]]:
    """Candidates whose time follows one feature, of no use to the analysis."""
    rng = np.random.default_rng(seed)
    features = [np.abs(rng.normal(size=len(NAMES))) * 4 for _ in range(n)]
    return features, [2.0 ** (value(f, "strided_loads") / 4 - 1) for f in features]


@pytest.mark.thorough
def test_the_model_learns_and_ranks_what_it_has_not_seen() -> None:
    pytest.importorskip("lightgbm")
    model, default = CostModel(), np.zeros(len(NAMES))
    assert model.kind == "analysis"
    for f, ratio in zip(*rows(300, 0), strict=True):
        model.add(f, default, ratio)
    unseen, truth = rows(100, 1)
    predicted = model.predict(unseen, default)
    assert model.kind == "lightgbm"
    assert np.corrcoef(predicted, np.log2(truth))[0, 1] > 0.9
    forests = [t.predict(np.stack([cost_model._row(f, default) for f in unseen])) for t in
               model._trees]  # fmt: skip
    for k, one in enumerate(forests):  # each has seen another part
        assert not any(np.array_equal(one, other) for other in forests[:k])
        assert np.corrcoef(one, np.log2(truth))[0, 1] > 0.7


def test_what_is_near_the_best_of_its_kernel_counts_for_more() -> None:
    """A half of the rules' time may be the best of one kernel, and poor of another."""
    model = CostModel()
    good, poor = np.zeros(len(NAMES)), np.ones(len(NAMES))
    for default, ratios in ((good, (1.0, 0.5, 2.0)), (poor, (0.25, 0.5, 0.26))):
        for ratio in ratios:
            model.add(default + ratio, default, ratio)
    weights = model._weights(np.array(model._ratios))
    order = [1, 0, 2], [3, 5, 4]
    for places in order:
        ranked = weights[places]
        assert (np.diff(ranked) < 0).all()
        assert ranked[0] == pytest.approx(1 + FAR_OFF)
    assert weights[1] > 2 * weights[4]  # the same share of the rules' time
    assert (weights > FAR_OFF).all()


def test_without_lightgbm_an_analysis_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "learns", lambda: False)
    model, default = CostModel(), np.zeros(len(NAMES))
    for f, ratio in zip(*rows(100, 0), strict=True):
        model.add(f, default, ratio)
    unseen, _ = rows(5, 1)
    assert model.predict(unseen, default).tolist() == [estimated(f) for f in unseen]
    assert model.kind == "analysis"


def test_an_estimate_knows_of_registers_loads_and_caches() -> None:
    """Each costs, whatever else there is; what the cycles hold of memory counts for half."""

    def guess(**counts: float) -> float:
        """Cycles of a body of so many of each, on 16 registers."""
        known = dict.fromkeys(NAMES, 0.0) | {"cycles": 1000.0, "vector_operations": 2000.0}
        known |= {"accumulators": 8.0, "registers": 12.0} | counts
        found = np.array([math.log2(1 + known[k]) for k in NAMES])
        found[NAMES.index("spare")] = 1 - known["registers"] / 16
        return 2.0 ** estimated(found) - 1

    assert guess() == pytest.approx(1000)
    assert guess(accumulators=12, registers=16) == pytest.approx(1000)
    assert guess(accumulators=16, registers=20) == pytest.approx(1000 + 4 / 16 * 2000)
    assert guess(vector_loads=100, broadcasts=300) == pytest.approx(1200)
    assert guess(far_bytes=800) == pytest.approx(950)
    assert guess(next_bytes=10**6) == pytest.approx(0)  # less than there is, if counts disagree


def test_what_is_hopeless() -> None:
    default = np.zeros(len(NAMES))
    slow, large = default.copy(), default.copy()
    slow[NAMES.index("cycles")] = 3.1
    large[NAMES.index("unrolled")] = 13.1
    assert [hopeless(f, default) for f in (default, slow, large)] == [False, True, True]
    assert not hopeless(large, large)


@pytest.mark.thorough
def test_a_search_proposes_every_program_once_and_good_ones_again() -> None:
    t = task()
    first = t.space.neighbours()[-1]
    search = Search(t, random.Random(1), first=[first], near=t.space.neighbours())
    model, seen = CostModel(learning=False), []
    for k in range(3):
        batch = search.propose(4, model)
        assert len(batch) <= 4
        for c in batch:
            search.measured(c.choice, 1.0 - 0.01 * len(seen))
            seen.append(c)
        if k == 0:
            assert batch[0].choice == first
    programs = [c.program for c in seen]
    assert len(set(programs)) == len(programs) >= 8
    assert t.default[0] not in programs
    assert search.ratios[0][0] == min(r for r, _ in search.ratios)


class Few:
    """Three choices of another space."""

    def __init__(self, space: Space):
        self.choices = space.neighbours()[:3]

    def sample(self, rng: random.Random) -> Choice:
        return rng.choice(self.choices)

    def mutate(self, c: Choice, rng: random.Random) -> Choice:
        return self.sample(rng)

    def cross(self, a: Choice, b: Choice, rng: random.Random) -> Choice:
        return rng.choice((a, b))

    def neighbours(self) -> list[Choice]:
        return []


def test_a_space_that_is_used_up_says_so() -> None:
    t = replace(task(), space=Few(task().space))
    search, found = Search(t, random.Random(1)), []
    while batch := search.propose(2, CostModel(False)):
        assert not search.exhausted
        found += batch
        for c in batch:
            search.measured(c.choice, 1.0)
    assert search.exhausted
    assert 1 <= len(found) == len({c.program for c in found}) <= 3


def of(count: int, ms: float, curve: list[tuple[int, float]], structure: str = "") -> Progress:
    trials = curve[-1][0] if curve else 0
    return Progress(count, 1000, structure or str(id(curve)), ms, curve, trials)


def test_trials_go_where_the_network_gains() -> None:
    fresh = Progress(1, 1000, "a")
    flat, falling = of(1, 2.0, [(32, 2.0)]), of(1, 2.0, [(16, 2.0), (32, 1.0)])
    assert next_task([flat, fresh]) == 1  # each has its first batch
    assert next_task([of(1, 1.0, [(8, 1.0)]), of(5, 1.0, [(8, 1.0)])]) == 1  # runs more often
    assert next_task([of(1, 1.0, [(8, 1.0)]), of(1, 9.0, [(8, 9.0)])]) == 1  # takes longer
    assert next_task([of(1, 2.0, [(8, 2.0)]), of(1, 2.0, [(800, 2.0)])]) == 0  # had many already
    assert next_task([of(1, 2.0, [(16, 2.0), (800, 2.0)]), of(1, 2.0, [(784, 2.0), (800, 1.5)])])
    done = of(9, 9.0, [(8, 9.0)])
    done.exhausted = True
    assert next_task([done, flat]) == 1
    assert next_task([done]) is None
    # Its like is ten times as quick for the same work: there is more to gain.
    slow, quick, other = (of(1, ms, [(8, ms)], s) for ms, s in ((1, "s"), (0.1, "s"), (1.0, "t")))
    assert next_task([quick, slow]) == 1
    assert next_task([of(1, 1.0, [(8, 1.0)], "s"), other, of(1, 1.9, [(8, 1.9)], "s")]) == 2
    assert falling.best_ms == 1.0


@pytest.fixture
def _ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a millisecond goes by whenever the clock is read, however busy the machine is."""
    ticks = count()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: 1e-4 * next(ticks))


def turns(ratio: float, noise: float, seed: int = 0) -> tuple[list[int], Turns]:
    rng, calls = random.Random(seed), list[int]()

    def timed(rounds: int) -> tuple[float, float]:
        calls.append(rounds)
        return 2.0, 2.0 * ratio * math.exp(rng.gauss(0, noise))

    return calls, timed


@pytest.mark.parametrize(("ratio", "noise"), [(1.03, 0.01), (0.8, 0.01), (1.0, 0.002), (0.9, 0.05)])
def test_a_comparison_goes_on_until_it_knows(ratio: float, noise: float) -> None:
    calls, timed = turns(ratio, noise)
    found = compared(timed)
    assert len(calls) >= 3
    assert found.low <= found.ratio <= found.high
    sure = found.high < 1 or found.low > 1 or found.high / found.low < 1.0205
    assert sure or len(calls) == 16
    assert abs(found.ratio / ratio - 1) < 3 * noise


@pytest.mark.usefixtures("_ticking")
def test_a_comparison_may_go_on_until_it_knows_by_how_much() -> None:
    hasty, patient = turns(0.9, 0.05), turns(0.9, 0.05)
    compared(hasty[1])
    found = compared(patient[1], least_s=0.01)
    assert len(hasty[0]) <= 16 < len(patient[0])
    assert abs(found.ratio / 0.9 - 1) < 0.02
    assert found.high / found.low < 1.05


@pytest.mark.usefixtures("_ticking")
def test_what_is_of_no_use_is_measured_no_longer() -> None:
    """Whether it is a little slower or a little quicker than the first does not matter then."""
    curious, content = turns(0.99, 0.01), turns(0.99, 0.01)
    compared(curious[1], least_s=0.01)
    found = compared(content[1], least_s=0.01, poor=0.9)
    assert 3 <= len(content[0]) <= 5 < len(curious[0])
    assert found.low > 0.9
    wanted = turns(0.8, 0.01)  # what may be of use is measured as long as ever
    compared(wanted[1], least_s=0.01, poor=0.9)
    assert len(wanted[0]) > 5


def test_where_it_is_noisy_what_is_of_no_use_takes_few_batches() -> None:
    """Batches are 3 % off."""
    spent, lost = list[int](), 0
    for seed in range(200):
        useless, useful = turns(1.0, 0.03, seed), turns(0.95, 0.03, seed)
        compared(useless[1], poor=0.98)
        spent.append(len(useless[0]))
        lost += compared(useful[1], poor=0.98).ratio > 0.98
    assert statistics.fmean(spent) < 6
    assert lost <= 4


@pytest.mark.usefixtures("_ticking")
def test_an_interval_is_as_narrow_as_it_is_to_be() -> None:
    hasty, careful = turns(1.0, 0.005), turns(1.0, 0.005)
    assert compared(hasty[1]).high < 1.0105**2
    found = compared(careful[1], least_s=0.5, narrow=0.0005)
    assert found.high / found.low < 1.0011
    assert len(careful[0]) > len(hasty[0])


def test_what_is_plainly_slower_is_measured_once() -> None:
    calls, timed = turns(2.0, 0.01)
    found = compared(timed)
    assert len(calls) == 1
    assert found.low == found.ratio == found.high > 1.3


def test_what_is_slower_twice_is_measured_twice() -> None:
    calls, timed = turns(1.1, 0.005)
    found = compared(timed)
    assert len(calls) == 2
    assert found.low < found.ratio < found.high
    assert found.ratio > 1.05


def test_what_makes_no_difference_is_rarely_called_faster() -> None:
    wrong = 0
    for seed in range(200):
        found = compared(turns(1.0, 0.02, seed)[1])
        wrong += found.high < 1 and found.ratio < 0.98
    assert wrong < 20


def test_the_tuner_says_what_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "learns", lambda: False)
    b = FunctionBuilder()
    weight = b.const(np.ones((16, 16), np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (1, 16)), weight))})
    assert tune(mod, budget_s=300, log=tmp_path / "t", trials=1).model == "analysis"
