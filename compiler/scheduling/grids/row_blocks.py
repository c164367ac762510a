"""Rows by blocks of threads: neighbouring threads do neighbouring elements of a row, and all that
is computed of a row stays with its block, in one kernel.

What may be reduced in any order (see `in_any_order`) each thread reduces for every so manieth
element, in a register; one thread of each row then reduces what the others have found. All other
sums keep their order, which is part of their meaning: all threads compute the terms, side by side,
and put them into shared memory, where one thread of each row adds them up, one after another;
several rows are added up at a time. What the stages leave for each other is in shared memory, as
far as that is large enough. If it is not, terms go by parts of a row, and elements through memory,
in which each thread reads what it has stored itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.scheduling.grids.consumers import contracted
from compiler.scheduling.grids.products import even_step
from compiler.scheduling.grids.row_places import ZERO, Kept, Place
from compiler.scheduling.grids.rows import RowNest, Rows, assumed
from compiler.scheduling.grids.tiles import MULTIPROCESSORS
from compiler.scheduling.tile import is_product
from compiler.symbolic import Index, IntLike, Var, imin
from compiler.target.cuda import WARP
from compiler.target.registry import Target
from compiler.tensor.expr import (
    Buffer,
    Gather,
    IndexValue,
    Load,
    Select,
    const,
    loads,
    walk,
)
from compiler.tensor.stmt import Barrier, For, Stmt, Store, accesses

MOST_ROWS = 32
"""Rows of a block: a warp adds up so many at a time."""
THREADS, MOST_THREADS, MANY = 128, 256, 2048
"""Threads of a block, and those where it has many elements."""
KEPT, SHARED = 24 << 10, 48 << 10
"""Bytes of shared memory for rows, and all that a block may have."""
PART = 2048
"""Elements of rows whose terms are in shared memory at once, of rows that are too long for it."""
TOGETHER, WORD = 4, 4
"""Neighbours that a thread loads together, where they are of so many bytes at most."""
UNROLLED = 8
"""Steps of a sum that are written out."""


def in_any_order(store: Store, target: Target) -> bool:
    """Whether a reduction may take its elements in any order: the largest or smallest, integers,
    and sums of products of float32, which are added in one rounding, too."""
    dtype = store.buffer.dtype
    if dtype.is_custom:
        return False
    if store.update in ("Max", "Min"):
        return True
    exact = store.update in ("Add", "Mul") and dtype.is_integer
    return exact or (is_product(store) and contracted(store, target) == "Fma")


def row_grid(rows: Rows, local: set[Buffer], target: Target) -> tuple[Stmt, set[Buffer]] | None:
    """The grid of some nests, and those of the buffers `local`, which nothing else reads, that it
    does not need. None: rows are too long for shared memory, and a stage reads elements of them
    that other threads compute."""
    return _Grid(rows, local, target).grid()


@dataclass(frozen=True)
class _Size:
    """A block: its rows, its threads, and how many of these do a row together."""

    rows: int
    threads: int
    lanes: int

    @property
    def at_once(self) -> int:
        """Rows that the threads do at once."""
        return self.threads // self.lanes

    @property
    def rounds(self) -> int:
        """How often they do so."""
        return -(-self.rows // self.at_once)


def _size(count: int, most: int, longest: int) -> _Size:
    """Blocks for so many rows in all, of which a block may have `most`, of so many elements."""
    rows = min(MOST_ROWS, most, _power(count // MULTIPROCESSORS))
    threads = MOST_THREADS if rows * longest >= MANY else THREADS
    lanes = min(max(WARP, threads // rows), max(WARP, _power(longest // TOGETHER)))
    return _Size(rows, min(threads, lanes * rows), lanes)


def _power(n: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << max(n, 1).bit_length() - 1


class _Grid:
    def __init__(self, rows: Rows, local: set[Buffer], target: Target):
        self.rows, self.local, self.target = rows, local, target
        read = {x.buffer for n in rows.nests for x in n.loads}
        own = [b for b in rows.axes if b in read]
        self.elements = [b for b in own if rows.row_length(b) != 1]
        self.free = {n for n in rows.nests if n.reduces and in_any_order(n.store, target)}
        bytes_of = [self._bytes(staged=True), self._bytes(staged=False)]
        fit = [n is not None and n <= KEPT for n in bytes_of]
        self.staged, self.kept = fit[0], set(self.elements if any(fit) else ())
        row = bytes_of[0] if fit[0] else bytes_of[1] if fit[1] else None
        most = _power(KEPT // row) if row else MOST_ROWS
        self.size = _size(assumed(rows.count), most, rows.longest)
        self.block = Var("block", (rows.count + self.size.rows - 1) // self.size.rows)
        self.thread = Var("thread", self.size.threads)
        self.first = (Index() if self.block.extent == 1 else self.block) * self.size.rows
        self.here = Index.of(self.size.rows)  # rows of this block
        if not rows.count.multiple_of(self.size.rows):
            self.here = imin(self.size.rows, rows.count - self.first)
        self.homes = {b: self._home(b) for b in own if b in self.kept or b not in self.elements}
        self.kept_rows = Kept(self.first, self.homes, local)

    def _bytes(self, staged: bool) -> int | None:
        """Shared memory of the elements of a row that stages leave for others; of the terms of
        sums, too, if they are `staged` whole. None: that is not known."""
        lengths = [(self.rows.row_length(b), b) for b in self.elements]
        nests = [n for n in self.rows.nests if n.reduces and n not in self.free]
        lengths += [(n.length, n.store.buffer) for n in nests if staged and not self._source(n)]
        known = [(n.constant(), b) for n, b in lengths]
        sizes = [(n + 1) * b.dtype.nbytes for n, b in known if n is not None]
        return sum(sizes) if len(sizes) == len(known) else None

    def _source(self, n: RowNest) -> Buffer | None:
        """The buffer whose elements a reduction takes as they are, one after another."""
        x = n.store.value
        if not isinstance(x, Load) or x.buffer not in self.elements:
            return None
        return x.buffer if self._in_order(n, x) else None

    def _in_order(self, n: RowNest, x: Load) -> bool:
        """Whether a nest takes elements of a row in the order in which they lie."""
        wanted, step = Index(), Index.of(1)
        for f in reversed([f for f in n.inner if f.extent != 1]):
            wanted, step = wanted + step * f.var, step * f.extent
        at = self.rows.in_row(x.buffer, x.idx).subst(n.single)
        return at == wanted and step == self.rows.row_length(x.buffer)

    def _home(self, b: Buffer) -> Buffer:
        """Shared memory for the rows of a block, which begin in different banks."""
        n = self.rows.row_length(b).const
        shape = (self.size.rows,) if n == 1 else (self.size.rows, n | 1)
        return Buffer(f"{b.name}_rows", tuple(map(Index.of, shape)), b.dtype, "shared")

    # ---- the whole -------------------------------------------------------------------------------
    def grid(self) -> tuple[Stmt, set[Buffer]] | None:
        """See `row_grid`."""
        if not self._own():
            return None
        body, since = list[Stmt](), list[Stmt]()
        for phase in (x for n in self.rows.nests for x in self._nest(n)):
            if _meet(since, phase):
                body.append(Barrier())
                since = []
            body += phase
            since += phase
        used = {b for b, *_ in accesses(body) if b.scope == "shared"}
        if sum(b.size.const * b.dtype.nbytes for b in used) > SHARED:
            return None
        grid = For(self.block, [For(self.thread, body, "threadIdx.x")], "blockIdx.x")
        return grid, {b for b in self.local if b in self.homes}

    def _own(self) -> bool:
        """Whether each thread reads of memory only what it has stored itself."""
        far = [b for b in self.elements if b not in self.kept]
        every = [
            (n, x)
            for n in self.rows.nests
            for x in (Load(n.store.buffer, n.store.idx), *n.loads)
            if x.buffer in far
        ]
        return all(self._in_order(n, x) for n, x in every)

    def _nest(self, n: RowNest) -> list[list[Stmt]]:
        """The phases of a nest; between those that meet in memory there are barriers."""
        if n.reduces:
            return self._split(n) if n in self.free else self._in_turn(n)
        if n.length == 1:
            return [self._by_row(self._at(n, Index.of(self.thread)).stored(n.store.value))]
        return [self._by_element(n, lambda at: at.stored(n.store.value))]

    def _at(self, n: RowNest, row: Index, element: Index = ZERO[0], lane: Index = ZERO[0]) -> Place:
        return Place(self.rows, n, self.kept_rows, row, element, lane)

    # ---- who does what ---------------------------------------------------------------------------
    def _by_row(self, body: list[Stmt]) -> list[Stmt]:
        """Statements that the first threads do, each for one row."""
        return [For(Var("mine", imin(1, self.here - self.thread)), body)]

    def _rows(self, body: Callable[[Index], list[Stmt]]) -> list[Stmt]:
        """Statements that the threads of each row do together."""
        r, rounds = Var("r", self.size.rounds), self.size.rounds
        row = (r if rounds > 1 else Index()) * self.size.at_once + self.thread // self.size.lanes
        made = body(row)
        if self.here != self.size.rows:
            made = [For(Var("inside", imin(1, self.here - row)), made)]
        return [For(r, made)] if rounds > 1 else made

    def _row(
        self,
        length: Index,
        body: Callable[[Index], list[Stmt]],
        most: int = 0,
        each: int = 1,
    ) -> list[Stmt]:
        """What a thread does for its elements of a row, `each` at a time; there are `length` of
        them, and never more than `most`, if that is known."""
        lanes = self.size.lanes
        step = lanes * each
        e = Var("e", most // step if most else (length + step - 1) // step)
        element = (Index() if e.extent == 1 else e) * step + self.thread % lanes * each
        made = body(element)
        if not length.multiple_of(step):
            made = [For(Var("inside", imin(1, length - element)), made)]
        return made if e.extent == 1 else [For(e, made)]

    def _by_element(self, n: RowNest, body: Callable[[Place], list[Stmt]]) -> list[Stmt]:
        """Statements for each element of each row."""
        return self._rows(
            lambda row: self._row(n.length, lambda element: body(self._at(n, row, element)))
        )

    # ---- reductions ------------------------------------------------------------------------------
    def _split(self, n: RowNest) -> list[list[Stmt]]:
        """A reduction in any order: each thread reduces some elements, then one those of all."""
        store, lanes = n.store, self.size.lanes
        shape = (Index.of(self.size.rows), Index.of(lanes | 1))
        found = Buffer(f"{store.buffer.name}_found", shape, store.buffer.dtype, "shared")
        each = self._together(n)
        acc, lane = _register(store.buffer, "part", each), Var("lane", each)
        own, zero = (Index.of(lane),) if each > 1 else ZERO, Index()
        update, neutral = contracted(store, self.target), {"Add": 0, "Mul": 1}.get(store.update)
        assert store.init is not None

        def all_of(s: Stmt) -> Stmt:
            return For(lane, [s], "vector") if each > 1 else s

        def steps(row: Index) -> list[Stmt]:
            first = self._at(n, row)
            begin = first.value(n.init) if neutral is None else const(neutral, acc.dtype)

            def step(element: Index) -> list[Stmt]:
                at = self._at(n, row, element, own[0] if each > 1 else zero)
                return [all_of(Store(store.stage, acc, own, at.value(store.value), update))]

            there = (row, self.thread % lanes)
            return [
                all_of(Store(f"{store.stage}.begin", acc, own, begin)),
                *self._row(n.length, step, each=each),
                *_joined(n, acc, each),
                Store(f"{store.stage}.found", found, there, Load(acc, ZERO)),
            ]

        return [self._rows(steps), self._by_row(self._summed(n, found, Index.of(lanes)))]

    def _together(self, n: RowNest) -> int:
        """Neighbours that a thread takes at a time: those that it loads together."""
        inner = [f for f in n.inner if f.extent != 1]
        plain = not any(isinstance(e, (Gather, IndexValue, Select)) for e in walk(n.store.value))
        even = all(
            x.buffer not in self.homes
            and x.dtype.nbytes <= WORD
            and not x.dtype.is_custom
            and even_step(x, inner) == 1
            for x in loads(n.store.value)
        )
        length = n.length.constant() or 0
        fits = length % TOGETHER == 0 and length >= TOGETHER * self.size.lanes
        return TOGETHER if plain and even and fits and n.store.buffer.dtype.nbytes <= WORD else 1

    def _in_turn(self, n: RowNest) -> list[list[Stmt]]:
        """A reduction in order, of what is in shared memory, or is put there."""
        source, length = self._source(n), n.length.constant()
        if source is not None and source in self.homes:
            return [self._by_row(self._summed(n, self.homes[source], n.length))]
        if not self.staged or length is None:
            return [self._by_parts(n)]
        terms = self._terms(n, length)
        put = f"{n.store.stage}.term"
        return [
            self._by_element(
                n,
                lambda at: [Store(put, terms, (at.row, at.element), at.value(n.store.value))],
            ),
            self._by_row(self._summed(n, terms, n.length)),
        ]

    def _terms(self, n: RowNest, length: int) -> Buffer:
        shape = (Index.of(self.size.rows), Index.of(length | 1))
        return Buffer(f"{n.store.buffer.name}_terms", shape, n.store.buffer.dtype, "shared")

    def _summed(self, n: RowNest, source: Buffer, length: Index) -> list[Stmt]:
        """One thread reduces the elements of its row that are in shared memory, in their order."""
        acc, own = _register(n.store.buffer, "sum"), self._at(n, Index.of(self.thread))
        return [
            Store(f"{n.store.stage}.init", acc, ZERO, own.value(n.init)),
            *self._steps(n, acc, source, length),
            *own.stored(Load(acc, ZERO), ".out"),
        ]

    def _steps(self, n: RowNest, acc: Buffer, source: Buffer, length: Index) -> list[Stmt]:
        """The elements of the thread's row of `source` are added to a register."""

        def step(k: IntLike) -> Stmt:
            value = Load(source, (Index.of(self.thread), Index.of(k)))
            return Store(n.store.stage, acc, ZERO, value, n.store.update)

        if length.multiple_of(UNROLLED) and not n.store.buffer.dtype.is_custom:
            k, u = Var("k", length // UNROLLED), Var("u", UNROLLED)
            return [For(k, [For(u, [step(k * UNROLLED + u)], "unroll")])]
        k = Var("k", length)
        return [For(k, [step(k)])]

    def _by_parts(self, n: RowNest) -> list[Stmt]:
        """A reduction in order whose terms go through shared memory a part of the row at a time."""
        store, size = n.store, max(self.size.lanes, PART // self.size.rows)
        terms, part = self._terms(n, size), Var("part", (n.length + size - 1) // size)
        own = self._at(n, Index.of(self.thread))
        acc, idx = _register(store.buffer, "sum"), (Index.of(self.thread),)
        shape = (Index.of(self.size.rows),)
        sums = Buffer(f"{store.buffer.name}_sums", shape, store.buffer.dtype, "shared")
        left = n.length - part * size
        if not n.length.multiple_of(size):
            left = imin(size, left)

        def put(row: Index) -> list[Stmt]:
            def term(element: Index) -> list[Stmt]:
                value = self._at(n, row, part * size + element).value(store.value)
                return [Store(f"{store.stage}.term", terms, (row, element), value)]

            return self._row(left, term, size)

        add: list[Stmt] = [
            Store(f"{store.stage}.before", acc, ZERO, Load(sums, idx)),
            *self._steps(n, acc, terms, left),
            Store(f"{store.stage}.so_far", sums, idx, Load(acc, ZERO)),
        ]
        body: list[Stmt] = [*self._rows(put), Barrier(), *self._by_row(add), Barrier()]
        return [
            *self._by_row([Store(f"{store.stage}.init", sums, idx, own.value(n.init))]),
            For(part, body),
            *self._by_row(own.stored(Load(sums, idx), ".out")),
        ]


def _joined(n: RowNest, acc: Buffer, many: int) -> list[Stmt]:
    """The elements of a register, reduced to its first."""
    update = "Add" if n.store.update == "Fma" else n.store.update
    name = f"{n.store.stage}.joined"
    return [Store(name, acc, ZERO, Load(acc, (Index.of(k),)), update) for k in range(1, many)]


def _register(b: Buffer, what: str, many: int = 1) -> Buffer:
    """What a thread reduces in; sums that may be tried again would be where barriers are."""
    scope = "local" if b.dtype.is_custom else "register"
    return Buffer(f"{b.name}_{what}", (Index.of(many),), b.dtype, scope)


def _meet(before: list[Stmt], after: list[Stmt]) -> bool:
    """Whether statements store to shared memory that others read or store to."""
    sides = [
        {(b, stored) for b, _, stored, _ in accesses(body) if b.scope == "shared"}
        for body in (before, after)
    ]
    return any(b is c and (x or y) for b, x in sides[0] for c, y in sides[1])


__all__ = ["in_any_order", "row_grid"]
