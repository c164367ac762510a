"""The least time that a loop nest can take on one core: that of its arithmetic at the peak of the
multiply-add unit, or that of reading what it reads and writing what it writes, each byte once.

A multiply and an add that meet count as one operation of the unit. So does every other addition,
multiplication, division (which takes longer), minimum or maximum, and functions count as what they
are made of. Casts and choices between values count as nothing. Of custom datatypes, whose roundings
are most of the work, the loops as they were lowered to integers and floats count, each operation of
a statement once.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    Expr,
    Gather,
    LetVar,
    Load,
    Select,
    walk,
)
from compiler.tensor.stmt import Attempt, For, PrimFunc, Store, walk_stmts
from compiler.types.dtypes import FLOAT32
from experiments.benchmarks.bandwidth import reader
from experiments.benchmarks.peak import peak, peak_float32

SIZES = (32 << 10, 256 << 10, 3 << 19, 16 << 20, 128 << 20)
"""Bytes of the arrays whose reading is timed: those that fit the caches, and one that does not."""
FETCHED = 16 << 20
"""Bytes of an array that is read as what lies beyond a core's own caches is."""
ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max"})
_MOST_CASES = 100_000
"""Values of outer indices that extents which depend on them are averaged over."""
_SAMPLES = 15
_READ = 16 << 20
"""Bytes that a sample reads at least."""


@dataclass(frozen=True)
class Machine:
    """What one core does in a millisecond.

    Attributes:
        float32: float32 operations; a multiply-add is two.
        int8: operations of its best dot product of bytes.
        bytes: (size of an array, bytes of it that are read), smallest first.
    """

    float32: float
    int8: float
    bytes: tuple[tuple[int, float], ...]

    @staticmethod
    def measured(target: Target) -> Machine:
        """This machine, on the core that the process is pinned to.

        Raises:
            UnsupportedError: its CPU has no fused multiply-add.
        """
        floats, every = peak_float32(target), peak(target)
        rates = []
        for size in SIZES:
            times = max(1, _READ // size)
            rates.append((size, size * times / _least_ms(reader(size, 1, target, times))))
        return Machine(
            floats.operations / _least_ms(floats.call),
            every.operations / _least_ms(every.call),
            tuple(rates),
        )

    def rate(self, size: int) -> float:
        """Bytes a millisecond of arrays of so many bytes in all; those that are a third larger than
        a measured one may still be where that one was."""
        fits = (rate for most, rate in self.bytes if size <= most + most // 3)
        return next(fits, self.bytes[-1][1])

    def least_ms(self, work: Work, fetched: int = 0) -> float:
        """Milliseconds that so much work takes at least; so many bytes come from beyond the core's
        own caches."""
        arithmetic = work.float32 / self.float32 + work.int8 / self.int8
        beyond = fetched / self.rate(max(fetched, FETCHED))
        return max(arithmetic, work.bytes / self.rate(work.bytes), beyond)


@dataclass(frozen=True)
class Work:
    """Operations on floats and other numbers, on bytes multiplied and added up as int32, and bytes
    that are read or written."""

    float32: float
    int8: float
    bytes: int


def work_of(f: PrimFunc) -> Work:
    """The work of a loop nest before it is scheduled; symbolic dimensions are 1."""
    floats = narrow = 0.0
    touched: dict[Buffer, float] = {}
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, Store):
            continue
        n = iterations(path)
        fused = s.update in ("Add", "Fma") and isinstance(s.value, BinOp) and s.value.op == "Mul"
        if fused and _of_bytes(s):
            narrow += 2 * n
        else:
            floats += 2 * n * (_operations(s.value) + (bool(s.update) and not fused))
        for e in walk(s.value):
            if isinstance(e, Load | Gather):
                touched[e.buffer] = touched.get(e.buffer, 0) + n
        touched[s.buffer] = touched.get(s.buffer, 0) + n
    moved = 0
    for b in f.params:
        size = math.prod(int(Index.of(d).value(_ones(Index.of(d)))) for d in b.shape)
        moved += int(min(size, touched.get(b, 0))) * b.dtype.nbytes
    return Work(floats, narrow, moved)


def lowered_operations(f: PrimFunc) -> float:
    """Operations of a nest that is scheduled, and lowered to built-in dtypes; a multiply-add is
    two, and so is any other operation, since it takes its place. What is computed again where a
    quick way was not sure does not count, nor do reinterpretations of bits and casts."""
    total, again = 0.0, set()
    for s, path, _ in walk_stmts(f.body):
        if isinstance(s, Attempt):
            again |= {id(x) for x, _, _ in walk_stmts(s.again)}
        elif isinstance(s, Store) and id(s) not in again:
            every = {id(e) for e in walk(s.value) if _is_work(e)}
            total += 2 * iterations(path) * (len(every) + bool(s.update))
    return total


def _is_work(e: Expr) -> bool:
    if isinstance(e, Call):
        return e.fn != "bits"
    return isinstance(e, BinOp | Select | Gather)


def iterations(path: Sequence[For]) -> float:
    """How often what stands in these loops runs; extents that depend on outer indices are
    averaged."""
    n = 1.0
    for k, loop in enumerate(path):
        outer = {f.var: f for f in path[:k]}
        used = [outer[v] for v in loop.extent.vars() if v in outer]
        sizes = [int(f.extent.constant() or 1) for f in used]
        if used and math.prod(sizes) <= _MOST_CASES:
            values = [
                loop.extent.value(
                    _ones(loop.extent) | dict(zip((f.var for f in used), at, strict=True))
                )
                for at in itertools.product(*map(range, sizes))
            ]
            n *= float(np.mean(values)) if values else 0.0
        else:
            n *= int(loop.extent.value(_ones(loop.extent)))
    return n


def _ones(index: Index) -> dict[Var, int]:
    return dict.fromkeys(index.vars(), 1)


def _of_bytes(s: Store) -> bool:
    """Whether what is added up as integers are products of bytes, less their zero points."""
    reads = [e for e in walk(s.value) if isinstance(e, Load | Gather)]
    return s.buffer.dtype.is_integer and all(e.dtype.nbytes == 1 for e in reads)


def _operations(value: Expr) -> int:
    total = 0
    for e in {id(e): e for e in walk(value)}.values():
        if isinstance(e, BinOp):
            total += e.op in ARITHMETIC
        elif isinstance(e, Call):
            total += _of_function(e.fn)
    return total


@cache
def _of_function(name: str) -> int:
    """Operations of a function of float32, 1 if it is not made of others."""
    known = FUNCTIONS.get(name)
    body = known.body(FLOAT32) if known is not None else None
    return _operations(body(LetVar("x", FLOAT32))) if body is not None else int(name != "bits")


def _least_ms(call: Callable[[], object]) -> float:
    """Least milliseconds of a call, of several samples: the machine undisturbed."""
    call()
    best = math.inf
    for _ in range(_SAMPLES):
        start = time.perf_counter_ns()
        call()
        best = min(best, (time.perf_counter_ns() - start) / 1e6)
    return best
