"""A product of matrices on a grid: tiles of the result by blocks, operands through shared memory.

Each block of threads computes a tile of the result. For some steps of the sum at a time, all of its
threads load the parts of both operands into shared memory; each thread then multiplies what its
rows and columns need, from registers. While it does, what the next steps need is on its way, in
registers; there are two parts of shared memory in turn, so that one barrier for each part does.
(Volkov and Demmel, Benchmarking GPUs to Tune Dense Linear Algebra, 2008; NVIDIA, CUTLASS.)

Where chips copy to shared memory without waiting, an operand that is loaded as it is goes through
no registers, and several parts of it are on their way (see `compiler.scheduling.grids.stages`).

The steps of a sum stay in their order. Beyond the edges of the result, threads load what is at the
edge and store nothing; beyond the end of the sum, they multiply zeros, of which one is negative: a
sum does not change by that, not even in its sign if it is zero.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compiler.scheduling import Schedule
from compiler.scheduling.grids.consumers import contracted
from compiler.scheduling.grids.products import (
    At,
    Product,
    Side,
    even_step,
    evenly,
    numbered,
    positions,
    product_of,
    total,
)
from compiler.scheduling.grids.stages import copies_as_is, late_copies, pipelined
from compiler.scheduling.grids.tiles import APART, Tile, choose_tile, in_groups
from compiler.scheduling.grids.words import LANES, dot_store, in_words, lay_out
from compiler.symbolic import Index, IntLike, Var, imax, imin
from compiler.target.registry import Target
from compiler.tensor.expr import (
    Buffer,
    Expr,
    Load,
    Select,
    binary,
    const,
    index_value,
    rewrite,
    select,
    subst,
    walk,
)
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Intrin, Stmt, Store

VECTOR = 4
"""Neighbours that a thread loads and stores together: 16 bytes."""


def tile_products(s: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Make grids of the products in a function that are large enough for tiles."""
    for stage in s.stages():
        p = product_of(s, stage) if stage in s.stages() else None
        p = in_words(p, target) if p is not None else None
        tile = choose_tile(p) if p is not None else None
        if p is None or tile is None:
            continue
        laid = lay_out(s, p, constants)
        update, copies = contracted(p.store, target), late_copies(target)
        replace_nest(s, laid, TiledProduct(laid, tile, update, copies).grid())


def replace_nest(s: Schedule, p: Product, grid: Stmt) -> None:
    """Put a grid in the place of a product's loops, and of those that read it."""
    home, body = p.root, s.func.body
    if p.reader is not None:
        home = s.stage_stores(p.reader.stage)[0][1][0]
        s.func.temps = [b for b in s.func.temps if b is not p.store.buffer]
    body[:] = [grid if x is home else x for x in body if x is home or x is not p.root]


def stored_of(p: Product) -> Store:
    """What is stored, over the loops of the result; it reads the sum at their positions."""
    if p.reader is None:
        whole = Load(p.store.buffer, p.axes)
        return Store(f"{p.store.stage}.out", p.store.buffer, p.axes, whole)
    (position,) = {
        e.idx for e in walk(p.reader.value) if isinstance(e, Load) and e.buffer is p.store.buffer
    }
    m: dict[Var, IntLike] = {}
    for i, at in zip(position, p.axes, strict=True):
        (v,) = i.vars()  # see `consumer`: the reader's own loop
        m[v] = at
    idx = tuple(i.subst(m) for i in p.reader.idx)
    return Store(p.reader.stage, p.reader.buffer, idx, subst(p.reader.value, m))


def along_rows(p: Product) -> bool:
    """Whether neighbouring rows, not columns, are neighbours in what is stored."""
    out = stored_of(p)

    def step(side: Side) -> int:
        """Elements from one row (or column) to the one `VECTOR` further on in what is stored."""
        places = [positions(side.axes, k) for k in (0, VECTOR)]
        flats = [out.buffer.flat(tuple(i.subst(m) for i in out.idx)) for m in places]
        return abs((flats[1] - flats[0]).constant() or 1 << 60)

    return step(p.rows) < step(p.columns)


@dataclass(frozen=True)
class _Part:
    """An operand in a block: its tile, and who computes what of it.

    Attributes:
        side: the operand.
        name: what its buffers are called.
        size: rows (or columns) of the tile.
        each: those of a thread.
        tile: the number of the tile.
        mine: the number of the thread along this side, of `size // each`.
    """

    side: Side
    name: str
    size: int
    each: int
    tile: Index
    mine: Index

    @property
    def vector(self) -> int:
        """Neighbours that a thread reads from shared memory together."""
        return min(VECTOR, self.each)

    @property
    def stored_together(self) -> bool:
        """Whether these are stored together, where they are neighbours in memory."""
        return self.vector == VECTOR

    def place(self, k: IntLike) -> Index:
        """Where in the tile the k-th of a thread is: groups of neighbours, apart by those of the
        other threads."""
        k = Index.of(k)
        v = self.vector
        return (k // v) * (self.size // self.each * v) + self.mine * v + k % v

    @property
    def ends_within(self) -> bool:
        """Whether the last tile is not whole."""
        return not self.side.length.multiple_of(self.size)

    def at(self, place: IntLike, group: int = 1, lane: IntLike = 0) -> At:
        """Where an element of the tile is; that of the last one beyond the end. `group`: as many
        lie together, of which it is the `lane`-th."""
        number = self.tile * self.size + place
        if self.ends_within:
            number = imin(number, self.side.length - group)
        return At(self.side.axes, number, Index.of(lane))


class TiledProduct:
    """Writes the grid of one product."""

    def __init__(self, p: Product, t: Tile, update: str, copies: Sequence[Intrinsic] = ()):
        self.p, self.t, self.update, self.copies = p, t, update, copies
        self.dtype = p.store.buffer.dtype
        self.out = stored_of(p)
        swap = along_rows(p)  # neighbouring threads: neighbours there
        self.swap = swap
        row_tiles, column_tiles = (
            (side.length + n - 1) // n for side, n in ((p.rows, t.rows), (p.columns, t.columns))
        )
        self.block = Var("block", total(p.both) * row_tiles * column_tiles)
        self.thread = Var("thread", t.threads)
        number = Index() if self.block.extent == 1 else Index.of(self.block)
        of_one = row_tiles * column_tiles
        self.which = number // of_one if p.both else Index()
        tile = number % of_one if p.both else number
        at_row, at_column = in_groups(tile, row_tiles, column_tiles)
        per_row, per_column = t.each
        fast = (t.rows // per_row) if swap else (t.columns // per_column)
        first, second = self.thread % fast, self.thread // fast
        mine = (first, second) if swap else (second, first)
        self.rows = _Part(p.rows, "rows", t.rows, per_row, at_row, mine[0])
        self.columns = _Part(
            p.columns, "columns", t.columns, per_column, at_column, mine[1]
        )
        size = Index.of(per_row * per_column)
        self.sum = Buffer(f"{p.store.buffer.name}_sum", (size,), self.dtype, "register")

    # ---- the whole -------------------------------------------------------------------------------
    def grid(self) -> Stmt:
        """The grid."""
        both = [self._staged(part) for part in (self.rows, self.columns)]
        body = [
            *self._start(),
            *pipelined(both, self.parts, self.stages, lambda part: self._multiply(both, part)),
            *self._finish(),
        ]
        return For(self.block, [For(self.thread, body, "threadIdx.x")], "blockIdx.x")

    def _staged(self, part: _Part) -> _Staged:
        return _Staged(self, part)

    @property
    def parts(self) -> int:
        """Parts of the sum."""
        return -(-self.p.steps // self.t.steps)

    @property
    def stages(self) -> int:
        """Parts that shared memory holds of an operand that is copied there."""
        return min(self.t.stages, self.parts)

    def everywhere(self, *where: At) -> list[At]:
        """Where the loops of the result are; of those that both operands follow, the block says."""
        return [*where, *([At(self.p.both, self.which)] if self.p.both else [])]

    # ---- sums ------------------------------------------------------------------------------------
    def _start(self) -> list[Stmt]:
        init = self.p.store.init
        assert init is not None

        def one(i: Index, j: Index) -> Stmt:
            row = self.rows.at(self.rows.place(i))
            column = self.columns.at(self.columns.place(j))
            value = numbered(init, self.everywhere(row, column))
            return Store(f"{self.p.store.stage}.init", self.sum, (self._at(i, j),), value)

        i, j = Var("i", self.rows.each), Var("j", self.columns.each)
        return [_unrolled(i, [_unrolled(j, [one(i, j)])])]

    def _at(self, i: IntLike, j: IntLike) -> Index:
        return Index.of(i) * self.columns.each + j

    def _multiply(self, parts: Sequence[_Staged], part: Index) -> list[Stmt]:
        """Add the products of the `part`-th part of the sum."""
        k = Var("k", self.t.steps)
        (a, b) = parts
        i, j = Var("i", self.rows.each), Var("j", self.columns.each)
        mac = self._mac(a.own, i, b.own, j)
        body = [*a.take(part, k), *b.take(part, k), _unrolled(i, [_unrolled(j, [mac])])]
        return [_unrolled(k, body)]

    def _mac(self, a: Buffer, i: Var, b: Buffer, j: Var) -> Stmt:
        at, dot = self._at(i, j), self.p.dot
        if dot is None:
            value = binary("Mul", Load(a, (Index.of(i),)), Load(b, (Index.of(j),)))
            return Store(self.p.store.stage, self.sum, (at,), value, self.update)
        lanes = {n: Var(n, size) for n, size in dot.intrinsic.loops.items()}
        words = (Load(x, (k * LANES + lanes["i"],)) for x, k in ((a, i), (b, j)))
        store = dot_store(self.p, self.sum, at + lanes["o"], *words)
        leaves = dot.intrinsic.match(store, lanes)
        assert isinstance(leaves, dict)
        return Intrin(dot.intrinsic, store, lanes, leaves)

    # ---- results ---------------------------------------------------------------------------------
    def _finish(self) -> list[Stmt]:
        """Everything of the thread is stored: neighbours together, where they lie together."""
        sides = (self.rows, self.columns)
        load = Load(self.out.buffer, self.out.idx)
        wide = next((x for x in sides if _neighbours(load, x)), None)
        vs = [x.vector if x is wide else 1 for x in sides]
        outer = [Var(n, x.each // v) for n, x, v in zip("ij", sides, vs, strict=True)]
        lane = Var("lane", max(vs))
        ks = [o * v for o, v in zip(outer, vs, strict=True)]
        lanes = [Index.of(lane) if v > 1 else Index() for v in vs]
        numbers = [x.tile * x.size + x.place(k) for x, k in zip(sides, ks, strict=True)]
        where = self.everywhere(
            *(At(x.side.axes, at, n) for x, at, n in zip(sides, numbers, lanes, strict=True))
        )
        here = self._at(*(k + n for k, n in zip(ks, lanes, strict=True)))

        def put(e: Expr) -> Expr | None:
            mine = isinstance(e, Load) and e.buffer is self.p.store.buffer
            return Load(self.sum, (here,)) if mine else None

        there = evenly(load, where)
        value = numbered(rewrite(self.out.value, put), where)
        node: Stmt = Store(self.out.stage, self.out.buffer, there.idx, value)
        if max(vs) > 1:
            node = For(lane, [node], "vector")
        for o, x, first in reversed([*zip(outer, sides, numbers, strict=True)]):
            if x.ends_within:
                node = For(Var("inside", imin(1, x.side.length - first)), [node])
            node = _unrolled(o, [node])
        return [node]


class _Staged:
    """An operand on its way: from memory to registers, to shared memory, to registers.

    Attributes:
        copy: what copies it from memory to shared memory without waiting, if something does.
        turns: parts of it that shared memory holds.
    """

    def __init__(self, whole: TiledProduct, part: _Part):
        self.whole, self.part = whole, part
        self.dtype = part.side.value.dtype
        dot = whole.p.dot
        self.lane = None if dot is None else dot.lane
        self.word = 1 if dot is None else LANES
        self.count = part.size * whole.t.steps // whole.t.threads
        self._in_shared(self._layout())
        self.held = self._buffer("held", (self.count * self.word,), "register")
        self.own = self._buffer("own", (part.each * self.word,), "register")

    def _layout(self) -> tuple[int, ...]:
        """Choose the neighbours that a thread loads together; returns the shape of a part in shared
        memory."""
        whole, part, side, word = self.whole, self.part, self.part.side, self.word
        load, dot = side.load, whole.p.dot
        steps = even_step(load, whole.p.sums)
        last = At(side.axes, Index()).last
        own = even_step(load, [last])
        self.along_sum = steps == word or (
            own != word and abs(steps or 1 << 60) < abs(own or 1 << 60)
        )
        plain = not any(isinstance(e, Select) for e in walk(side.value))
        lies = whole.p.steps if self.along_sum else last.extent
        even = steps == word if self.along_sum else own == word
        fits = plain and even and Index.of(lies).multiple_of(VECTOR)
        self.lanes = min(VECTOR, self.count) if fits and not (dot and self.along_sum) else 1
        pad = APART if self.along_sum else 0
        shape = (whole.t.steps, part.size + pad, word)
        return shape if dot else shape[:-1]

    def _in_shared(self, shape: Sequence[int]) -> None:
        """Choose how a part of this shape comes to shared memory, and how many are there."""
        whole = self.whole
        self.copy: Intrinsic | None = None
        part, k = Index.of(Var("part", whole.parts)), Var("k", self.count // self.lanes)
        if whole.stages > 1:
            self.turns = whole.stages
            self.shared = self._buffer("shared", (self.turns, *shape), "shared")
            wanted = [i for i in whole.copies if self._moves(i)]
            self.copy = next((i for i in wanted if copies_as_is(self._copied(i, part, k))), None)
        self.turns = min(2, whole.stages) if self.copy is None else whole.stages
        self.shared = self._buffer("shared", (self.turns, *shape), "shared")

    def _buffer(self, name: str, shape: Sequence[int], scope: str) -> Buffer:
        return Buffer(f"{self.part.name}_{name}", tuple(map(Index.of, shape)), self.dtype, scope)

    def _stored(
        self, what: str, there: Buffer, at: Sequence[IntLike], value: Expr, lanes: tuple[Var, str]
    ) -> Stmt:
        """A statement over neighbours and, of words, over their bytes: the last of the indices are
        of words, where a buffer is in registers."""
        lane, kind = lanes
        word = Var("byte", LANES)
        idx = tuple(map(Index.of, at))
        if self.lane is not None:
            idx = (idx[0] * LANES + word,) if there.scope == "register" else (*idx, Index.of(word))
            value = subst(value, {self.lane: word})
        node: Stmt = Store(f"{self.part.name}.{what}", there, idx, value)
        if self.lane is not None:
            node = For(word, [node], "vector")
        return For(lane, [node], kind) if lane.extent != 1 else node

    def _held(self, b: Buffer, at: Sequence[IntLike]) -> Load:
        """What is in a buffer; of words, a byte."""
        idx = tuple(map(Index.of, at))
        if self.lane is not None:
            many = b.scope == "register"
            idx = (idx[0] * LANES + self.lane,) if many else (*idx, Index.of(self.lane))
        return Load(b, idx)

    def _where(self, k: IntLike) -> tuple[Index, Index]:
        """(step, place) of the k-th group of neighbours that a thread loads."""
        t, n = self.whole.t, self.lanes
        number = Index.of(k) * t.threads + self.whole.thread
        row = t.steps if self.along_sum else self.part.size
        along, across = (number % (row // n)) * n, number // (row // n)
        return (along, across) if self.along_sum else (across, along)

    def _brought(self, part: Index, k: IntLike, lane: IntLike) -> Expr:
        """What a thread brings of the `part`-th part of the sum: the `lane`-th of the neighbours
        that it loads as the k-th."""
        p, n, steps = self.whole.p, self.lanes, self.whole.t.steps
        step, place = self._where(k)
        step = part * steps + step
        inner = Index.of(lane) if n > 1 else Index()
        clamped, ends = step, p.steps % steps != 0
        if ends:
            clamped = imin(step, p.steps - (n if self.along_sum else 1))
        if self.along_sum:
            where = [self.part.at(place), At(p.sums, clamped, inner)]
        else:
            where = [self.part.at(place, n, inner), At(p.sums, clamped)]
        value = numbered(self.part.side.value, self.whole.everywhere(*where))
        if ends:
            inside = imin(imax(p.steps - step, 0), 1)
            zero = const(0, self.dtype)
            if self.dtype.is_float and self.part is self.whole.columns:
                zero = const(-0.0, self.dtype)
            value = select(binary("NE", index_value(inside), 0), value, zero)
        return value

    def _there(self, part: Index, k: IntLike, lane: IntLike) -> list[Index]:
        """Where in shared memory that is; of words, where they are."""
        step, place = self._where(k)
        inner = Index.of(lane) if self.lanes > 1 else Index()
        at = (step + inner, place) if self.along_sum else (step, place + inner)
        return [part % self.turns, *at]

    def fetch(self, part: Index) -> list[Stmt]:
        """Load what the thread brings of the `part`-th part of the sum."""
        n = self.lanes
        k, lane = Var("k", self.count // n), Var("lane", n)
        value, at = self._brought(part, k, lane), [k * n + (Index.of(lane) if n > 1 else Index())]
        return [_unrolled(k, [self._stored("fetch", self.held, at, value, (lane, "vector"))])]

    def share(self, part: Index) -> list[Stmt]:
        """Store that in shared memory."""
        n = self.lanes
        k, lane = Var("k", self.count // n), Var("lane", n)
        value = self._held(self.held, [k * n + (Index.of(lane) if n > 1 else Index())])
        kind, at = "unroll" if self.along_sum else "vector", self._there(part, k, lane)
        return [_unrolled(k, [self._stored("share", self.shared, at, value, (lane, kind))])]

    def _moves(self, it: Intrinsic) -> bool:
        """Whether an instruction copies such neighbours as a thread loads."""
        return it.operand_dtypes == [self.dtype] and [*it.loops.values()] == [self.lanes, self.word]

    def _copied(self, it: Intrinsic, part: Index, k: Var) -> Intrin:
        """The k-th copy of a thread."""
        own = {x: Var(x, size) for x, size in it.loops.items()}
        word, byte = own.values()
        at, value = self._there(part, k, word), self._brought(part, k, word)
        if self.lane is not None:
            at, value = self._byte(at, byte), subst(value, {self.lane: byte})
        store = Store(f"{self.part.name}.copy", self.shared, tuple(at), value)
        leaves = it.match(store, own)
        assert isinstance(leaves, dict), leaves
        return Intrin(it, store, own, leaves)

    def copies(self, part: Index) -> list[Stmt]:
        """Begin to copy what the thread brings of the `part`-th part of the sum."""
        assert self.copy is not None
        k = Var("k", self.count // self.lanes)
        return [_unrolled(k, [self._copied(self.copy, part, k)])]

    def _byte(self, at: Sequence[Index], byte: IntLike) -> list[Index]:
        """Where a byte of a word is in shared memory."""
        return [*at, Index.of(byte)]

    def take(self, part: Index, step: Index) -> list[Stmt]:
        """Load what the thread multiplies in a step."""
        n = self.part.vector
        k, lane = Var("k", self.part.each // n), Var("lane", n)
        inner = Index.of(lane) if n > 1 else Index()
        value = self._held(self.shared, [part % self.turns, step, self.part.place(k * n) + inner])
        kind = "vector" if self.lane is None else "unroll"  # words are read one by one
        return [
            _unrolled(k, [self._stored("take", self.own, [k * n + inner], value, (lane, kind))])
        ]


def _neighbours(load: Load, part: _Part) -> bool:
    """Whether a thread's neighbours along a side are neighbours in memory."""
    last = At(part.side.axes, Index()).last
    return (
        part.stored_together
        and even_step(load, [last]) == 1
        and last.extent.multiple_of(part.vector)
    )


def _unrolled(v: Var, body: list[Stmt]) -> Stmt:
    return For(v, body, "unroll")


__all__ = ["TiledProduct", "tile_products"]
