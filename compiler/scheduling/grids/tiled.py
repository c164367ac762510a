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
sum does not change by that, not even in its sign if it is zero. Sums of custom dtypes end where
they end (see `Product.leaves_out`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from compiler.scheduling import Schedule
from compiler.scheduling.grids.consumers import contracted
from compiler.scheduling.grids.operands import VECTOR, Operand, Part, unrolled
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
from compiler.scheduling.grids.stages import late_copies, pipelined
from compiler.scheduling.grids.steps import step_of
from compiler.scheduling.grids.tiles import Tile, choose_tile, in_groups
from compiler.scheduling.grids.words import LANES, dot_store, in_words, lay_out
from compiler.symbolic import Index, IntLike, Var, imin
from compiler.target.registry import Target
from compiler.tensor.expr import (
    Buffer,
    Expr,
    Load,
    binary,
    rewrite,
    subst,
    walk,
)
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Intrin, Stmt, Store


def tile_products(s: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Make grids of the products in a function that are large enough for tiles."""
    for stage in s.stages():
        p = product_of(s, stage) if stage in s.stages() else None
        if p is None:
            continue
        p, update = in_words(p, target), contracted(p.store, target)
        tile = choose_tile(p, step_of(p, update, target))
        if tile is None:
            continue
        laid = lay_out(s, p, constants)
        copies = late_copies(target)
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
        self.rows = Part(p.rows, "rows", t.rows, per_row, at_row, mine[0])
        self.columns = Part(p.columns, "columns", t.columns, per_column, at_column, mine[1])
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

    def _staged(self, part: Part) -> Operand:
        return Operand(self, part)

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
        return [unrolled(i, [unrolled(j, [one(i, j)])])]

    def _at(self, i: IntLike, j: IntLike) -> Index:
        return Index.of(i) * self.columns.each + j

    def _multiply(self, parts: Sequence[Operand], part: Index) -> list[Stmt]:
        """Add the products of the `part`-th part of the sum."""
        t, p, (a, b) = self.t, self.p, parts
        left = Index.of(min(t.steps, p.steps)) if p.steps <= t.steps else p.steps - part * t.steps
        whole = not p.leaves_out or p.steps % t.steps == 0
        k = Var("k", t.steps if whole else imin(t.steps, left))
        i, j = Var("i", self.rows.each), Var("j", self.columns.each)
        mac = [self._mac(a.own, i, b.own, j)]
        by_row, by_both = list[Index](), list[Index]()
        for guard in p.guards:
            column = bool(guard.vars() & {f.var for f in p.columns.axes})
            at = self._step_at(guard, i, j, part * t.steps + k)
            (by_both if column else by_row).append(at)
        columns = unrolled(j, _guarded(by_both, mac))
        body = [*a.take(part, k), *b.take(part, k), unrolled(i, _guarded(by_row, [columns]))]
        flat = t.unrolled and k.extent is not None and k.extent.constant() is not None
        return [For(k, body, "unroll" if flat else "serial")]

    def _step_at(self, e: Index, i: Var, j: Var, step: Index) -> Index:
        """An index over the loops of an element (i, j) of the thread, and of a step."""
        m: dict[Var, IntLike] = {}
        row, column = self.rows.at(self.rows.place(i)), self.columns.at(self.columns.place(j))
        for at in self.everywhere(row, column, At(self.p.sums, step)):
            m.update(positions(at.loops, at.number + at.lane))
        return e.subst(m)

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
            node = unrolled(o, [node])
        return [node]


def _neighbours(load: Load, part: Part) -> bool:
    """Whether a thread's neighbours along a side are neighbours in memory."""
    last = At(part.side.axes, Index()).last
    return (
        part.stored_together
        and even_step(load, [last]) == 1
        and last.extent.multiple_of(part.vector)
    )


def _guarded(guards: Sequence[Index], body: list[Stmt]) -> list[Stmt]:
    """Statements that are done if all of some indices are 1, and not if one is less."""
    for guard in guards:
        body = [For(Var("inside", guard), body)]
    return body


__all__ = ["TiledProduct", "tile_products"]
