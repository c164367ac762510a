"""The least time that a loop nest can take on one core, whichever is longest:
- that of its arithmetic at the peak of the multiply-add unit;
- that of its divisions and square roots, of which there is a unit of its own;
- that of its longest sum: an addition begins when the one before it has ended, since the order of
  additions is part of what a sum means, and what reads a sum begins when that is done;
- that of reading what it reads and writing what it writes, each byte once: no less than reading as
  much, than copying what is both read and written, and than filling what is written;
- that of fetching those of its constants that it reads from where cold ones are.

A multiply and an add that meet count as one operation of the unit. So does every other addition,
multiplication, division (which takes longer), minimum or maximum, and functions count as what they
are made of. Casts and choices between values count as nothing. Of custom datatypes, whose roundings
are most of the work, the loops as they were lowered to integers and floats count, each operation of
a statement once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.runtime.clock import thread_time
from compiler.symbolic import Index, IntLike, Var
from compiler.target.registry import Target
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    Expr,
    FloatImm,
    Gather,
    LetVar,
    Load,
    Select,
    walk,
)
from compiler.tensor.stmt import Attempt, For, PrimFunc, Store, walk_stmts
from compiler.types.dtypes import FLOAT32
from experiments.benchmarks.bandwidth import mover, reader
from experiments.benchmarks.peak import operation, peak, peak_float32

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


Rates = tuple[tuple[int, float], ...]
"""(size in bytes, bytes a millisecond), smallest first."""


@dataclass(frozen=True)
class Machine:
    """What one core does in a millisecond.

    Attributes:
        float32: float32 operations; a multiply-add is two.
        int8: operations of its best dot product of bytes.
        bytes: (size of an array, bytes of it that are read), smallest first.
        copied: (size of two arrays, bytes of both, as one is copied to the other).
        filled: (size of an array, bytes of it that are written).
        divisions: float32 divisions.
        addition_ms: milliseconds from one addition to the next that needs its result.
    """

    float32: float
    int8: float
    bytes: Rates
    copied: Rates = ()
    filled: Rates = ()
    divisions: float = math.inf
    addition_ms: float = 0.0

    @staticmethod
    def measured(target: Target) -> Machine:
        """This machine, on the core that the process is pinned to.

        Raises:
            UnsupportedError: its CPU has no fused multiply-add.
        """
        floats, every = peak_float32(target), peak(target)

        def rates(make: Callable[[int, int], Callable[[], object]]) -> Rates:
            taken = ((size, max(1, _READ // size)) for size in SIZES)
            return tuple((size, size * n / _least_ms(make(size, n))) for size, n in taken)

        def moved(copy: bool) -> Rates:
            """The quicker of two ways to store: beyond the caches, or into them."""
            within = rates(lambda size, n: mover(size, target, n, copy, past=False))
            beyond = rates(lambda size, n: mover(size, target, n, copy, past=True))
            return tuple(max(pair) for pair in zip(within, beyond, strict=True))

        lanes = target.vector_bytes // 4
        quotient = operation("fdiv", lanes, 8, target)
        sums = [operation("fadd", n, 1, target) for n in (1, lanes // 2, lanes)]
        return Machine(
            floats.operations / _least_ms(floats.call),
            every.operations / _least_ms(every.call),
            rates(lambda size, n: reader(size, 1, target, n)),
            moved(copy=True),
            moved(copy=False),
            quotient.operations * lanes / _least_ms(quotient.call),
            min(_least_ms(x.call) / x.operations for x in sums),
        )

    def rate(self, size: int) -> float:
        """Bytes a millisecond of arrays of so many bytes in all, as they are read."""
        return _rate(self.bytes, size)

    def least_ms(self, work: Work, fetched: int = 0) -> float:
        """Milliseconds that so much work takes at least; so many bytes come from beyond the core's
        own caches."""
        arithmetic = work.float32 / self.float32 + work.int8 / self.int8
        beyond = fetched / self.rate(max(fetched, FETCHED))
        both = 2 * min(work.written, work.bytes - work.written)
        return max(
            arithmetic,
            work.divisions / self.divisions,
            work.chain * self.addition_ms,
            work.bytes / self.rate(work.bytes),
            both / _rate(self.copied, work.bytes),
            work.written / _rate(self.filled, work.written),
            beyond,
        )


def _rate(rates: Rates, size: int) -> float:
    """That of the next larger size; arrays that are a third larger than one may still be where that
    was."""
    fits = (rate for most, rate in rates if size <= most + most // 3)
    return next(fits, rates[-1][1] if rates else math.inf)


@dataclass(frozen=True)
class Work:
    """What a loop nest does.

    Attributes:
        float32: operations on floats and other numbers.
        int8: operations on bytes that are multiplied and added up as int32.
        bytes: of what is read or written.
        written: of what is written.
        constants: of what is read of constants.
        divisions: quotients and square roots of floats.
        chain: additions of which each waits for the one before.
    """

    float32: float
    int8: float
    bytes: int
    written: int = 0
    constants: int = 0
    divisions: float = 0.0
    chain: float = 0.0


def work_of(f: PrimFunc, constants: Collection[Buffer] = ()) -> Work:
    """The work of a loop nest before it is scheduled; symbolic dimensions are 1. `constants`: the
    parameters whose arrays are known at build time."""
    floats = narrow = divisions = 0.0
    touched: dict[Buffer, float] = {}
    longest: dict[Buffer, float] = {}
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, Store):
            continue
        n = iterations(path)
        fused = s.update in ("Add", "Fma") and isinstance(s.value, BinOp) and s.value.op == "Mul"
        if fused and _of_bytes(s):
            narrow += 2 * n
        else:
            floats += 2 * n * (_operations(s.value) + (bool(s.update) and not fused))
        divisions += n * _divisions(s.value, constants)
        reads = [e.buffer for e in walk(s.value) if isinstance(e, Load | Gather)]
        for b in reads:
            touched[b] = touched.get(b, 0) + n
        touched[s.buffer] = touched.get(s.buffer, 0) + n
        before = max((longest.get(b, 0.0) for b in reads), default=0.0)
        longest[s.buffer] = max(longest.get(s.buffer, 0.0), before + _steps(s, path))
    moved = {
        b: int(min(math.prod(map(_size, b.shape)), touched.get(b, 0))) * b.dtype.nbytes
        for b in f.params
    }
    written = sum(moved[b] for b in f.params[len(f.params) - f.outputs :])
    fixed = sum(moved[b] for b in constants)
    chain = max(longest.values(), default=0.0)
    return Work(floats, narrow, sum(moved.values()), written, fixed, divisions, chain)


def _size(n: IntLike) -> int:
    return int(Index.of(n).value(_ones(Index.of(n))))


def _steps(s: Store, path: Sequence[For]) -> float:
    """Additions or products of floats that one sum of a statement does one after another."""
    if s.update not in ("Add", "Fma", "Mul") or not s.buffer.dtype.is_float:
        return 0.0
    own = set[Var]().union(*(i.vars() for i in s.idx))
    return iterations([loop for loop in path if loop.var not in own])


def _divisions(value: Expr, constants: Collection[Buffer] = ()) -> int:
    """Quotients and square roots of floats. One by a constant number may be a product."""
    total = 0
    for e in {id(e): e for e in walk(value)}.values():
        if isinstance(e, BinOp) and e.op == "Div" and e.dtype.is_float:
            by = e.b
            single = isinstance(by, Load) and by.buffer in constants and by.buffer.size == 1
            total += not (single or isinstance(by, FloatImm))
        elif isinstance(e, Call) and e.dtype.is_float:
            total += e.fn == "sqrt" or _divisions_of_function(e.fn)
    return total


@cache
def _divisions_of_function(name: str) -> int:
    known = FUNCTIONS.get(name)
    body = known.body(FLOAT32) if known is not None else None
    return _divisions(body(LetVar("x", FLOAT32))) if body is not None else 0


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
    """Least milliseconds that the thread works in a call, of several samples: the machine
    undisturbed."""
    call()
    best = math.inf
    for _ in range(_SAMPLES):
        start = thread_time()
        call()
        best = min(best, (thread_time() - start) / 1e6)
    return best
