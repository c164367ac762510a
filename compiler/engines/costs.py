"""Which regions are worth handing over: measured on this machine, in turns with our own code.

Every region is timed alone, as its engine computes it and as we do. That says nothing of the
borders (layouts, what fusion would have joined), so whole programs decide: ours alone, all regions
handed over, those that are quicker alone, and those of the composites that are quicker alone. The
quickest is taken, and where two are as quick as each other, the one that hands less over.

Quicker is what takes less by more than noise with all of the interval that its share of the other's
time lies in. What is not clear is not handed over.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise

import numpy as np

from compiler.engines.engine import get_engine
from compiler.engines.turns import Turns
from compiler.errors import InputError
from compiler.ir.equal import structural_equal
from compiler.ir.expr import (
    Binding,
    Call,
    Function,
    GlobalVar,
    IRModule,
    TupleGetItem,
    Var,
    atom_type,
    nested,
)
from compiler.ir.outside import ENGINE
from compiler.ir.regions import (
    DECISIONS,
    REGION,
    Decision,
    composite_of,
    engine_of,
    regions,
)
from compiler.ir.substitution import substitute
from compiler.runtime.clock import Clock, thread_time
from compiler.runtime.executable import Executable
from compiler.symbolic import Index
from compiler.symbolic import Var as Dim
from compiler.transform.instantiate import sizes_in
from compiler.transform.partition_graph import without_composites
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType, Type

Build = Callable[[IRModule], Executable]
Pass = Callable[[IRModule], IRModule]
NOISE = 0.98
"""A region that is handed over takes less than this share of our time alone."""
PROGRAM_NOISE = 0.99
"""A program that is taken takes less than this share of the time of one that hands less over."""
SAMPLE_NS = 200_000
"""Nanoseconds that a timed sample should last: what is quicker is called several times."""
SECONDS, PROGRAM_SECONDS = 0.25, 1.0
"""Seconds for a pair of regions, and for a program of those that are compared."""
PATIENCE = 4.0
"""How many times as long programs are timed, while it is not clear which to take."""
ROUNDS, MOST_ROUNDS = 9, 200
"""Rounds at least, and those after which the time need not be used up."""
CLEAR = 1.3
"""What takes so many times as long as another is known to be slower."""


@dataclass(frozen=True)
class Measurer:
    """Measures parts of a program and whole programs.

    Attributes:
        build: compiles a module, with its regions as calls of engines.
        sizes: of open dimensions, by name.
        seconds: for a pair of regions; a whole program gets more.
        clock: nanoseconds; see `clock_of`.
    """

    build: Build
    sizes: Mapping[str, int]
    seconds: float = SECONDS
    clock: Clock = time.perf_counter_ns

    def region(self, f: Function, engine: str) -> Turns:
        """A function as we compute it, and as the engine does."""
        plain, marked = replace(f, attrs={}), replace(f, attrs={ENGINE: engine})
        params = tuple(Var(p.name, p.type) for p in f.params)
        call, results = _called(marked, params)
        caller = Function(params, call, results)
        ours = self.build(IRModule({"main": plain}))
        theirs = self.build(IRModule({"main": caller, "region": marked}))
        return in_turns([self.call(ours, f), self.call(theirs, f)], self.seconds, self.clock)

    def programs(self, mods: Sequence[IRModule]) -> Turns:
        """Whole programs that compute the same."""
        seconds = self.seconds / SECONDS * PROGRAM_SECONDS * len(mods)
        calls = [self.call(self.build(m), m.main) for m in mods]
        return in_turns(calls, seconds, self.clock, _clear)

    def call(self, exe: Executable, f: Function) -> Callable[[], object]:
        """A call of an executable on random arrays for the parameters of `f`."""
        known = {Dim(n): s for n, s in self.sizes.items()}
        arrays = []
        for k, p in enumerate(f.params):
            t = atom_type(p)
            if not isinstance(t, TensorType):
                raise InputError(f"costs='measured' takes tensors, and {p!r} is {t}")
            if missing := sorted(d.name for d in _dims(t) - known.keys()):
                raise InputError(
                    f"costs='measured' needs the size of dimension {missing[0]!r}: give "
                    f"sizes={{{missing[0]!r}: 1}}, or import the model with shapes"
                )
            arrays.append(_random(t, known, k))
        dims = {d: known[d] for d in sizes_in(f) if d in known}
        return partial(exe.run, arrays, dims)


def _called(f: Function, params: tuple[Var, ...]) -> tuple[tuple[Binding, ...], tuple[Var, ...]]:
    types = tuple(map(atom_type, f.results))
    call = Call(GlobalVar("region", f.type), params)
    if len(types) == 1:
        out = Var("out", types[0])
        return (Binding(out, call),), (out,)
    whole = Var("out", TupleType(types))
    parts = [Var(f"out_{k}", t) for k, t in enumerate(types)]
    taken = [Binding(v, TupleGetItem(whole, k)) for k, v in enumerate(parts)]
    return (Binding(whole, call), *taken), tuple(parts)


def _dims(t: Type) -> set[Dim]:
    assert isinstance(t, TensorType)
    return set().union(*(d.vars() for d in t.shape if isinstance(d, Index)))


def _random(t: TensorType, sizes: Mapping[Dim, int], seed: int) -> Array:
    """Standard normal floats and bytes over their whole range; wider integers, which may be
    positions, are zeros."""
    shape = tuple(d.value(sizes) if isinstance(d, Index) else d for d in t.shape)
    storage, rng = t.dtype.storage, np.random.default_rng(seed)
    if storage.kind == "f":
        return np.ascontiguousarray(rng.standard_normal(shape).astype(storage))
    if storage.itemsize == 1 and storage.kind in "iu":
        info = np.iinfo(storage)
        return rng.integers(info.min, info.max + 1, shape, storage)
    return np.zeros(shape, storage)


def clock_of(names: Sequence[str], threads: int) -> Clock:
    """What programs with regions of these engines are timed by: this thread's time, if all that
    they compute is computed on it, so that what else runs on the machine is not counted."""
    here = threads == 1 and all(get_engine(name).on_caller for name in names)
    return thread_time if here else time.perf_counter_ns


def _always(_: Turns) -> bool:
    return True


def in_turns(
    calls: Sequence[Callable[[], object]],
    seconds: float,
    clock: Clock = time.perf_counter_ns,
    enough: Callable[[Turns], bool] = _always,
) -> Turns:
    """What `calls` take by a clock, in turns whose order chance says, for about `seconds` in all,
    and up to PATIENCE times as long while that is not `enough`; or until it is plain how they
    compare."""
    repeats = []
    for call in calls:
        call()
        start = clock()
        call()
        repeats.append(max(1, SAMPLE_NS // max(1, clock() - start)))
    rounds: list[tuple[float, ...]] = []
    order, shuffled = list(range(len(calls))), random.Random(0)
    begin, look = time.perf_counter(), ROUNDS
    while True:
        if len(rounds) >= look:  # ever more seldom, since there is ever more to look at
            look += 1 + len(rounds) // ROUNDS
            spent, known = time.perf_counter() - begin, Turns(tuple(rounds))
            times = sorted(known.medians())
            plain = all(a * CLEAR < b for a, b in pairwise(times))
            most = spent > seconds or len(rounds) >= MOST_ROUNDS
            if plain or spent > PATIENCE * seconds or (most and enough(known)):
                return known
        shuffled.shuffle(order)
        took = [0.0] * len(calls)
        for k in order:
            call, repeat = calls[k], repeats[k]
            start = clock()
            for _ in range(repeat):
                call()
            took[k] = (clock() - start) / 1e6 / repeat
        rounds.append(tuple(took))


def _clear(turns: Turns) -> bool:
    """Whether it is, of any two programs, that one is quicker by more than noise, or is not."""
    times = turns.medians()
    pairs = combinations(sorted(range(len(times)), key=times.__getitem__), 2)
    ratios = [turns.ratio(quick, slow) for quick, slow in pairs]
    return not any(r.low <= PROGRAM_NOISE <= r.high for r in ratios)


def cheapest(
    annotated: IRModule, number: Pass, divide: Pass, measurer: Measurer, whole: bool
) -> IRModule:
    """The quickest division of an annotated module, with what was measured as its attribute
    `engine_decisions` (see `compiler.ir.regions.decisions`).

    Args:
        annotated: typed, with composites.
        number, divide: MergeCompilerRegions and PartitionGraph.
        measurer: what compiles and times.
        whole: whether whole programs can be timed: those without control flow.
    """
    numbered = number(annotated)
    every = divide(numbered)
    kept, found = _worth(numbered, divide, measurer)
    told = {"quicker regions": found}
    candidates = {"ours": without_composites(annotated), "quicker regions": kept}
    candidates["all regions"] = every
    if any(len(_composites(every[d.region])) > 1 for d in found):
        quick = _quicker(annotated, measurer)
        parts = number(without_composites(annotated, quick.__getitem__))
        candidates["quicker composites"], told["quicker composites"] = _worth(
            parts, divide, measurer
        )
    distinct: dict[str, IRModule] = {}
    for name, mod in candidates.items():
        if not any(structural_equal(mod, other) for other in distinct.values()):
            distinct[name] = mod
    if not whole or len(distinct) == 1:
        return _noted(kept, found, {})
    mods = list(distinct.values())
    turns = measurer.programs(mods)
    times = dict(zip(distinct, turns.medians(), strict=True))
    order = sorted(range(len(mods)), key=lambda k: _handed(mods[k]))
    best = list(distinct)[_quickest(turns, order)]  # the one that hands less over, if in doubt
    chosen = distinct[best]
    there = {r.name for r in regions(chosen)}
    decided = [replace(d, handed=d.region in there) for d in told.get(best, found)]
    return _noted(chosen, decided, times)


def best_of(mods: Sequence[IRModule], measurer: Measurer, whole: bool) -> IRModule:
    """The quickest of the divisions of a module for engines in several orders, the first unless
    another is quicker; of programs that cannot be timed, the first."""
    if len(mods) == 1 or not whole:
        return mods[0]
    return mods[_quickest(measurer.programs(mods), range(len(mods)))]


def _quickest(turns: Turns, order: Iterable[int]) -> int:
    """Which of some programs to take: the first in `order`, unless a later one is quicker."""
    first, *rest = order
    for k in rest:
        if turns.ratio(k, first).high < PROGRAM_NOISE:
            first = k
    return first


def _worth(numbered: IRModule, divide: Pass, measurer: Measurer) -> tuple[IRModule, list[Decision]]:
    """The division of a module with those of its regions that are quicker alone, and what was
    measured of all."""
    every = divide(numbered)
    found = []
    for r in regions(every):
        if r.name not in numbered.functions:
            turns = measurer.region(every[r.name], r.engine)
            (ours, theirs), ratio = turns.medians(), turns.ratio(1, 0)
            quicker, between = ratio.high < NOISE, (ratio.low, ratio.high)
            found.append(Decision(r.name, r.engine, r.nodes, ours, theirs, quicker, between))
    slow = {d.region for d in found if not d.handed}
    quick = without_composites(numbered, lambda c: f"{engine_of(c)}_{c.attrs[REGION]}" not in slow)
    return divide(quick), found


def _composites(f: Function) -> list[Function]:
    out = []
    for b in f.bindings:
        if (c := composite_of(b.value)) is not None:
            out.append(c)
        for g in nested(b.value):
            out += _composites(g)
    return out


def _quicker(annotated: IRModule, measurer: Measurer) -> dict[Function, bool]:
    """Composite -> whether its engine computes it quicker; those of one text are alike."""
    known: dict[str, bool] = {}
    out = {}
    for f in annotated.functions.values():
        for c in _composites(f) if isinstance(f, Function) else ():
            key = _text(c)
            if key not in known:
                known[key] = measurer.region(_alone(c), engine_of(c)).ratio(1, 0).high < NOISE
            out[c] = known[key]
    return out


def _alone(c: Function) -> Function:
    """A region of one composite."""
    params = tuple(Var(p.name, p.type) for p in c.params)
    (result,) = c.results
    out = Var("out", atom_type(result))
    if not isinstance(out.type, TupleType):
        return Function(params, (Binding(out, Call(c, params)),), (out,))
    parts = [Var(f"out_{k}", t) for k, t in enumerate(out.type.fields)]
    taken = [Binding(v, TupleGetItem(out, k)) for k, v in enumerate(parts)]
    return Function(params, (Binding(out, Call(c, params)), *taken), tuple(parts))


def _text(c: Function) -> str:
    """A composite as text, in which names do not count, nor what constants hold."""
    values = (*c.params, *(b.var for b in c.bindings))
    new = {v: Var(f"v{k}", v.type) for k, v in enumerate(values)}
    bindings = [Binding(new[b.var], substitute(b.value, {**new})) for b in c.bindings]
    results = [new[r] for r in c.results if isinstance(r, Var)]
    return str(Function(tuple(new[p] for p in c.params), tuple(bindings), tuple(results), c.attrs))


def _handed(mod: IRModule) -> int:
    return sum(len(mod[r.name].bindings) for r in regions(mod))


def _noted(mod: IRModule, told: Sequence[Decision], times: Mapping[str, float]) -> IRModule:
    rows = [d.row() for d in told]
    return replace(mod, attrs={**mod.attrs, DECISIONS: {"regions": rows, "programs": dict(times)}})
