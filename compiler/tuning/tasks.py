"""What there is to tune in a network: its distinct kernels."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.errors import ScheduleError
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.lowering.legalize import Legalized, legalize
from compiler.passes.pipeline import run
from compiler.runtime.nests import Nest
from compiler.scheduling.choices import Choice
from compiler.scheduling.tuning_log import structure_key, summary, workload_key
from compiler.scheduling.user_schedules import arranged
from compiler.symbolic import Index
from compiler.target.intrinsics.emission import program_text
from compiler.target.registry import Target
from compiler.tensor.expr import BinOp, Buffer, loads
from compiler.tensor.stmt import For, PrimFunc, Store, walk_stmts
from compiler.tuning.features import features_of
from compiler.tuning.kernel_run import SYMBOLIC_SIZE, second_cache, shape_of, times_cold
from compiler.tuning.space import Space, space_of
from compiler.types.dtypes import Array
from compiler.types.names import digest

Look = tuple[str, Array] | None
"""What is seen of a candidate: a digest of its loops and their features; None: it does not fit."""


@dataclass(frozen=True)
class Demand:
    """What loops cannot do without: multiply-adds of bytes and of float32, and bytes of their
    inputs, constants and results."""

    byte_products: int = 0
    float_products: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Task:
    """A workload: the first primitive function that has it.

    Attributes:
        key, structure: of its loop nest (see `tuning_log`).
        function: the function.
        target: what it is compiled for.
        text: its parameters and results, for people.
        work: innermost iterations of its loop nest.
        space: what may be chosen.
        count: how often the network runs it.
        demand: what it cannot do without.
        cold: whether its constants have left the caches of a core when the network runs it again.
    """

    key: str
    structure: str
    function: Function
    target: Target
    text: str
    work: int
    space: Space
    demand: Demand
    count: int = 1
    cold: bool = False

    def scheduled(self, choice: Choice) -> PrimFunc:
        """Its loop nest as a choice schedules it, on the datatypes it is written in.

        Raises:
            ScheduleError: the choice does not fit.
        """
        legal = legalize(self.function)
        own = arranged(legal.func)
        nest = Nest(legal.func, self.target, own, _constants(legal), dict(choice))
        done: Nest = run(nest, "schedule")
        return done.func

    def seen(self, choice: Choice) -> tuple[str, Array]:
        """A digest of its scheduled loops, equal for choices that do the same, and their features.

        Raises:
            ScheduleError: the choice does not fit.
        """
        func = self.scheduled(choice)
        return digest(program_text(func)), features_of(func, self.target)

    def look(self, choice: Choice) -> Look:
        """The same, or None."""
        try:
            return self.seen(choice)
        except ScheduleError:
            return None

    @cached_property
    def default(self) -> tuple[str, Array]:
        """The same of what the rules do."""
        return self.seen({})


def tasks_of(mod: IRModule, target: Target) -> list[Task]:
    """The tunable workloads of an optimized module, those with most work first."""
    tasks: dict[str, Task] = {}
    others: set[str] = set()
    nests = legalized(mod)
    cold = outgrows_caches([legal for _, legal in nests])
    for function, legal in nests:
        key = workload_key(legal.func, target)
        if key in others:
            continue
        if key in tasks:
            tasks[key] = replace(tasks[key], count=tasks[key].count + 1)
            continue
        space = space_of(legal.func, target, _constants(legal))
        if space is None:
            others.add(key)
            continue
        about = summary(legal.func), _work(legal.func), space, _demand(legal.func)
        name = key, structure_key(legal.func), function, target
        tasks[key] = Task(*name, *about, cold=cold)
    return sorted(tasks.values(), key=lambda t: (-t.work * t.count, t.key))


def legalized(mod: IRModule) -> list[tuple[Function, Legalized]]:
    """The kernels of an optimized module, in the order in which they run, and their loop nests."""
    values = [b.value for b in mod.main.bindings]
    functions = [v.op for v in values if isinstance(v, Call) and isinstance(v.op, Function)]
    return [(f, legalize(f)) for f in functions]


def outgrows_caches(nests: Iterable[Legalized]) -> bool:
    """Whether the constants of all kernels of a network and what they write do not fit into a
    core's own caches: a kernel that runs again finds no more there than the kernels just before it
    wrote. False where kernels cannot be timed so."""
    total, seen = 0, set()
    for legal in nests:
        arrays = [a.data for a in legal.inputs if isinstance(a, Constant)]
        total += sum(a.nbytes for a in arrays if id(a) not in seen)
        seen |= {id(a) for a in arrays}
        results = legal.func.params[len(legal.inputs) :][: legal.func.outputs]
        total += sum(math.prod(shape_of(r.shape)) * r.dtype.nbytes for r in results)
    return times_cold() and total > second_cache()


def _constants(legal: Legalized) -> Collection[Buffer]:
    """The parameters whose arrays are known at build time."""
    pairs = zip(legal.func.params, legal.inputs, strict=False)
    return {p for p, a in pairs if isinstance(a, Constant)}


def _work(f: PrimFunc) -> int:
    """Innermost iterations of a loop nest."""
    return sum(_rounds(path) for s, path, _ in walk_stmts(f.body) if not isinstance(s, For))


def _rounds(path: tuple[For, ...]) -> int:
    return math.prod(_size(loop.extent) for loop in path)


def _size(i: Index) -> int:
    return int(i.value(dict.fromkeys(i.vars(), SYMBOLIC_SIZE)))


def _demand(f: PrimFunc) -> Demand:
    products = {1: 0, 4: 0}
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, Store) or not s.update.startswith(("Add", "Fma")):
            continue
        value = s.value
        plain = isinstance(value, BinOp) and value.op == "Mul" and not value.dtype.is_custom
        sizes = {n.dtype.nbytes for n in loads(value)}
        if plain and len(sizes) == 1 and (size := sizes.pop()) in products:
            products[size] += _rounds(path)
    moved = sum(math.prod(_size(n) for n in b.shape) * b.dtype.nbytes for b in f.params)
    return Demand(products[1], products[4], moved)
