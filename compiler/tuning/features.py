"""What a scheduled loop nest looks like to a processor, as numbers, before it is compiled.

A model of time learns from them (see `cost_model`), as Ansor's does (Zheng et al., OSDI 2020,
appendix B); `cycles` is a rough estimate by hand, which needs nothing to learn from. Counts are of
one call, on one thread, with symbolic dimensions at 1; sizes that depend on loops around them are
those in the middle of these loops.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    CallExtern,
    Cast,
    Expr,
    Gather,
    Load,
    Select,
    walk,
)
from compiler.tensor.stmt import Attempt, For, Intrin, Pick, PrimFunc, Stmt, Store, When
from compiler.types.dtypes import Array

VERSION = 1
"""Changed when features change: those kept in logs are of their version."""
FAR = 32
"""A third cache, in terms of the second: bytes that cores share."""
NAMES = (
    "operations", "vector_operations", "scalar_operations", "instructions", "slow", "custom",
    "vector_loads", "broadcasts", "strided_loads", "gathers", "vector_stores", "other_stores",
    "loop_rounds", "loops", "unrolled", "code", "parallel", "accumulators", "registers", "spare",
    "lanes", "steps", "inner_extent", "bytes", "near_bytes", "next_bytes", "far_bytes",
    "near_share", "next_share", "temporaries", "packed", "prefetched", "cycles", "reloads",
    "frame",
)  # fmt: skip
"""`reloads` and `frame` are of LLVM's report (see `report_of`); NaN without one."""
_SHARES = frozenset(("spare", "lanes", "near_share", "next_share"))


_RATES = {"near_bytes": 64, "next_bytes": 24, "far_bytes": 8}
"""Bytes a cycle that pass between the caches."""
OPERANDS = 4
"""Registers for what is added to sums."""
_COUNTED = (
    *_RATES, "cycles", "vector_loads", "broadcasts", "registers", "accumulators",
    "vector_operations", "instructions",
)  # fmt: skip


def features_of(func: PrimFunc, target: Target) -> Array:
    """The features of a scheduled loop nest: float64 of len(NAMES), counts as log2(1 + count)."""
    found = _Walk(target)
    for nest in func.body:
        found.nest(nest)
    numbers = dict.fromkeys(NAMES, 0.0) | found.totals
    numbers["temporaries"] = float(sum(_bytes(b) for b in func.temps))
    numbers["packed"] = float(sum(_bytes(b) for b in func.packed))
    numbers["prefetched"] = float(sum(func.prefetch.values()))
    numbers["reloads"] = numbers["frame"] = math.nan
    return np.array([v if k in _SHARES else math.log2(1 + v) for k, v in numbers.items()])


@dataclass(frozen=True)
class Report:
    """What LLVM says of registers: reloads from the stack, each weighted by 8 a loop around it, and
    bytes of the largest stack frame."""

    reloads: float
    frame: int


def report_of(assembly: str) -> Report:
    """Read it from assembly with LLVM's comments (x86-64 and AArch64 have them)."""
    reloads, frame, depth = 0.0, 0, 0
    for line in assembly.splitlines():
        if "Depth" in line or "Depth=" in line:
            depth = int(line.rsplit("Depth=", 1)[1].split()[0]) if "Depth=" in line else depth
        elif line and not line[0].isspace() and ":" in line:
            depth = 0
        if "Reload" in line:
            reloads += 8.0 ** min(depth, 6)
        elif found := _FRAME.search(line):
            frame = max(frame, int(found[1]))
    return Report(reloads, frame)


_FRAME = re.compile(r"\bsub[lq]?\s+(?:\$(\d+), %rsp|sp, sp, #\d+)")


def with_report(features: Array, report: Report) -> Array:
    """The features, with what LLVM says."""
    out = features.copy()
    out[NAMES.index("reloads")] = math.log2(1 + report.reloads)
    out[NAMES.index("frame")] = math.log2(1 + report.frame)
    return out


def estimated(features: Array) -> float:
    """log2 of the cycles that an analysis without measurements expects: those that were added up,
    half of which what comes from the caches overlaps with; operands that are read go beside
    arithmetic only in part; and sums without a register are read and written each time."""
    known = dict(zip(NAMES, features.tolist(), strict=True))
    count = {k: 2.0 ** known[k] - 1 for k in _COUNTED}
    traffic = sum(count[k] / rate for k, rate in _RATES.items())
    loads = count["vector_loads"] + count["broadcasts"]
    limit = count["registers"] / max(1e-9, 1 - known["spare"])
    sums = count["accumulators"]
    spilled = max(0.0, sums + OPERANDS - limit) / max(1.0, sums)
    work = count["vector_operations"] + count["instructions"]
    return math.log2(1 + max(0.0, count["cycles"] - traffic / 2) + loads / 2 + spilled * work)


def _bytes(b: Buffer) -> int:
    size = 1
    for n in b.shape:
        size *= _value(n, {})
    return size * b.dtype.nbytes


def _value(i: Index, env: dict[Var, int]) -> int:
    known = i.constant()
    if known is not None:
        return int(known)
    return int(i.value({v: env.get(v, 1) for v in i.vars()}))


@dataclass
class _Access:
    """One read or write of a statement, with the loops around it, outermost first."""

    buffer: Buffer
    flat: Index | None  # None: a position that data say
    idx: tuple[Index, ...]
    stored: bool
    path: tuple[tuple[Var, int], ...]


@dataclass
class _Walk:
    """Adds up the features of loop nests."""

    target: Target
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, n: float) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + n

    def most(self, name: str, n: float) -> None:
        self.totals[name] = max(self.totals.get(name, 0.0), n)

    def nest(self, s: Stmt) -> None:
        """Add a statement of the function's body."""
        accesses: list[_Access] = []
        cycles, heaviest = 0.0, -1.0
        registers: set[Buffer] = set()
        for leaf, path in _leaves(s, (), {}):
            store = leaf.store if isinstance(leaf, Intrin) else leaf
            spent = self.leaf(leaf, store, path, accesses, registers)
            cycles += spent
            if spent > heaviest:
                heaviest = spent
                serial = [n for loop, n in path if loop.kind not in ("unroll", "vector")]
                self.most("inner_extent", serial[-1] if serial else 1)
        self.loops(s, {})
        limit = self.target.vector_registers
        held = sum(self._vectors(b) for b in registers)
        self.most("accumulators", held)
        cycles += self.memory(accesses)
        self.add("cycles", cycles)
        needed = self.totals.get("registers", 0.0)
        self.totals["spare"] = (limit - needed) / limit

    def _vectors(self, b: Buffer) -> int:
        """Vector registers of a buffer that stays in them: its last axis is the lanes."""
        row = _value(b.shape[-1], {}) * b.dtype.nbytes if b.shape else b.dtype.nbytes
        rows = _bytes(b) // max(1, row)
        return rows * -(-row // self.target.vector_bytes)

    def leaf(
        self,
        leaf: Store | Intrin,
        store: Store,
        path: Sequence[tuple[For, int]],
        accesses: list[_Access],
        registers: set[Buffer],
    ) -> float:
        """Add one statement; the cycles that its arithmetic and its operands take."""
        wide = self.target.vector_bytes
        own = {} if isinstance(leaf, Store) else {v: _value(v.extent or Index.of(1), {})
                                                  for v in leaf.vars.values()}  # fmt: skip
        lanes_of = {loop.var: n for loop, n in path if loop.kind == "vector"} | own
        lanes = math.prod(lanes_of.values())
        around = [(loop, n) for loop, n in path if loop.kind != "vector"]
        rounds = math.prod(n for _, n in around)
        cut = len(around)
        while cut and around[cut - 1][0].kind == "unroll":
            cut -= 1
        outer = math.prod(n for _, n in around[:cut])
        region = {loop.var: n for loop, n in around[cut:]}
        loops = tuple((loop.var, n) for loop, n in path) + tuple(own.items())
        used: set[Var] = set().union(*(i.vars() for i in store.idx)) if store.idx else set()
        nodes = [n for e in (store.value, store.init) if e is not None for n in walk(e)]
        size = max([store.buffer.dtype.nbytes, *(n.dtype.nbytes for n in nodes)])
        parts = 1 if isinstance(leaf, Intrin) else max(1, -(-lanes * size // wide))
        operations = [n for n in nodes if isinstance(n, (BinOp, Cast, Call, CallExtern, Select))]
        done = len(operations) + bool(store.update)
        slow = sum(_slow(n) for n in operations)
        custom = sum(n.dtype.is_custom for n in operations)
        self.add("operations", rounds * lanes * done)
        work = float(rounds) if isinstance(leaf, Intrin) else float(rounds * parts * done)
        self.add("instructions" if isinstance(leaf, Intrin) else
                 "vector_operations" if lanes > 1 else "scalar_operations", work)  # fmt: skip
        self.add("slow", rounds * parts * slow)
        self.add("custom", rounds * parts * custom)
        self.most("lanes", min(1.0, lanes * size / wide))
        loaded = 0.0
        distinct = 0
        for n in nodes:
            if not isinstance(n, (Load, Gather)):
                continue
            b = n.buffer
            if b.scope == "register":
                registers.add(b)
                continue
            if isinstance(n, Gather):
                self.add("gathers", rounds * lanes)
                loaded += rounds * lanes
                accesses.append(_Access(b, None, (), False, loops))
                continue
            flat = b.flat(n.idx)
            moves = flat.vars()
            times = math.prod(k for v, k in region.items() if v in moves)
            kind, vectors = self._kind(flat, b, lanes_of, moves)
            self.add(kind, outer * times * vectors)
            loaded += outer * times * vectors
            distinct = max(distinct, times * (1 if kind == "broadcasts" else vectors))
            accesses.append(_Access(b, flat, n.idx, False, loops))
        at = store.buffer
        stored = 0.0
        if at.scope == "register":
            registers.add(at)
        else:
            flat = at.flat(store.idx)
            kind, vectors = self._kind(flat, at, lanes_of, flat.vars())
            sums = bool(store.update)
            self.add("vector_stores" if kind == "vector_loads" else "other_stores",
                     rounds * vectors)  # fmt: skip
            stored = rounds * vectors * (2 if sums else 1)
            accesses.append(_Access(at, flat, store.idx, True, loops))
        held = sum(self._vectors(b) for b in registers)
        self.most("registers", held + min(distinct, 4) + 1)
        unrolled = math.prod(region.values()) * parts * max(1, done)
        self.most("unrolled", unrolled)
        self.add("code", unrolled)
        steps = math.prod(k for v, k in region.items() if v not in used) if store.update else 1
        if store.update:
            self.most("steps", steps)
        # A sum waits for its last addition: as many as there are sums go on at a time.
        waits = 0.0
        if store.update:
            sums_at_once = max(1, math.prod(k for v, k in region.items() if v in used))
            waits = 4.0 * rounds * parts / min(sums_at_once * parts, 8)
        spilled = max(0, held + 2 - self.target.vector_registers)
        ports = max((work + 12 * rounds * parts * slow + 20 * rounds * parts * custom) / 2,
                    loaded / 2, stored)  # fmt: skip
        return max(ports, waits) + (outer * spilled if store.update else 0.0)

    def _kind(
        self, flat: Index, b: Buffer, lanes: dict[Var, int], moves: set[Var]
    ) -> tuple[str, int]:
        """How lanes find their elements, and in how many reads."""
        along = [v for v in lanes if v in moves and lanes[v] > 1]
        if not along:
            return "broadcasts", 1
        wide = math.prod(lanes[v] for v in along)
        direct = any(flat.terms.get(v) == 1 for v in along)
        if not direct:
            return "strided_loads", wide
        row = max(lanes[v] for v in along if flat.terms.get(v) == 1)
        dense: int = row
        covered = {v for v in along if flat.terms.get(v) == 1}
        for v in sorted(set(along) - covered, key=lambda v: flat.terms.get(v, 0)):
            if flat.terms.get(v) != dense:
                return "strided_loads", max(1, wide // dense)
            dense *= lanes[v]
        return "vector_loads", max(1, -(-wide * b.dtype.nbytes // self.target.vector_bytes))

    def loops(self, s: Stmt, env: dict[Var, int], rounds: float = 1.0) -> None:
        """Add the loops that run as loops."""
        if isinstance(s, For):
            n = max(0, _value(s.extent, env))
            inner = {**env, s.var: n // 2}
            if s.kind not in ("unroll", "vector"):
                self.add("loops", 1)
                rounds *= n
                self.add("loop_rounds", rounds)
                if s.kind == "parallel":
                    self.most("parallel", rounds)
            for x in s.body:
                self.loops(x, inner, rounds)
        elif isinstance(s, (When, Pick)):
            for x in s.body:
                self.loops(x, env, rounds)
        elif isinstance(s, Attempt):
            for x in (*s.body, *s.rest):
                self.loops(x, env, rounds)

    def memory(self, accesses: Sequence[_Access]) -> float:
        """Add what passes between the caches; the cycles that takes."""
        near, far = self.target.architecture.caches
        traffic = [0.0, 0.0, 0.0]
        whole = {a.buffer: _bytes(a.buffer) for a in accesses}
        self.add("bytes", sum(whole.values()))
        for a in accesses:
            if a.buffer.scope == "register":
                continue
            depth = len(a.path)
            sizes = _spans(a, whole[a.buffer])
            for level, room in enumerate((near, far, far * FAR)):
                # From the outermost loops whose data of this buffer fit into half of the cache:
                fits = next((k for k in range(depth + 1) if sizes[k] <= room / 2), depth)
                moves = a.flat.vars() if a.flat is not None else {v for v, _ in a.path}
                times = 1.0
                for k, (v, n) in enumerate(a.path[:fits]):
                    # What a loop does not move stays, if it is all there was to keep.
                    stays = v not in moves and sizes[k + 1] <= room / 2
                    times *= 1 if stays else n
                traffic[level] += times * sizes[fits]
                if level < 2:
                    self.most(("near_share", "next_share")[level], min(4.0, sizes[fits] / room))
        for name, moved in zip(_RATES, traffic, strict=True):
            self.add(name, moved)
        return sum(n / rate for n, rate in zip(traffic, _RATES.values(), strict=True))


def _spans(a: _Access, whole: int) -> list[float]:
    """Bytes of a buffer, whole lines of a cache, that all loops touch, those but for the outermost,
    and so on; the last: no loop."""
    if a.flat is None:
        inner = [math.prod(n for _, n in a.path[k:]) for k in range(len(a.path) + 1)]
        return [float(min(whole, 64 * n)) for n in inner]
    strides: list[dict[Var, int]] = []  # of each axis: how far a loop's iterations are apart
    for i in a.idx:
        strides.append({})
        for atom, c in i.terms.items():
            for v in atom.leaves():
                strides[-1][v] = strides[-1].get(v, 0) + (abs(c) if atom is v else 1)
    most = [max(1, _value(n, {})) for n in a.buffer.shape]
    line = 64 // a.buffer.dtype.nbytes
    spans = [1] * len(most)

    def size() -> float:
        covered = [min(span, n) for span, n in zip(spans, most, strict=True)]
        lines = [*covered[:-1], *(max(n, line) for n in covered[-1:])]
        return min(float(whole), float(math.prod(lines)) * a.buffer.dtype.nbytes)

    found = [size()]
    for v, n in reversed(a.path):
        for k, axis in enumerate(strides):
            spans[k] += (n - 1) * axis.get(v, 0)
        found.append(size())
    return found[::-1]


def _slow(e: Expr) -> bool:
    """Whether an operation takes many cycles: a division, a function."""
    return isinstance(e, (Call, CallExtern)) or (isinstance(e, BinOp) and e.op in ("Div", "Mod"))


def _leaves(
    s: Stmt, path: tuple[tuple[For, int], ...], env: dict[Var, int]
) -> Iterator[tuple[Store | Intrin, tuple[tuple[For, int], ...]]]:
    """Statements that compute, with the loops around them and these loops' extents; those that only
    run after a failed attempt are left out."""
    if isinstance(s, For):
        n = max(0, _value(s.extent, env))
        inner = {**env, s.var: n // 2}
        for x in s.body:
            yield from _leaves(x, (*path, (s, n)), inner)
    elif isinstance(s, Attempt):
        for x in (*s.body, *s.rest):
            yield from _leaves(x, path, env)
    elif isinstance(s, (When, Pick)):
        for x in s.body:
            yield from _leaves(x, path, env)
    elif isinstance(s, (Store, Intrin)):
        yield s, path
