"""Products of matrices of bytes on a grid, by the threads of a warp together.

As in `compiler.scheduling.grids.tiled`, a block of threads computes a tile of the result, and parts
of both operands go through shared memory. There the steps of a sum lie side by side, and each warp
multiplies small matrices of them (see `compiler.target.intrinsics.nvptx_matrices`), whose sums
are spread over its threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.scheduling import Schedule
from compiler.scheduling.grids.consumers import contracted
from compiler.scheduling.grids.operands import Operand, Part
from compiler.scheduling.grids.products import At, Product, Side, even_step, numbered, product_of
from compiler.scheduling.grids.stages import late_copies
from compiler.scheduling.grids.tiled import TiledProduct, along_rows, replace_nest
from compiler.scheduling.grids.warp_tiles import TOGETHER, WarpTile, choose_warp_tile, large_enough
from compiler.scheduling.grids.words import LANES, lay_out, over_words
from compiler.symbolic import Index, IntLike, Var, imax, imin
from compiler.target.cuda import WARP
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import (
    Buffer,
    Cast,
    Expr,
    Load,
    Select,
    binary,
    const,
    index_value,
    index_vars,
    rewrite,
    select,
    subst,
    walk,
)
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Intrin, Stmt, Store
from compiler.types.dtypes import INT32


def tile_by_warps(s: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Make grids of the products in a function that warps have instructions for."""
    for stage in s.stages():
        p = product_of(s, stage) if stage in s.stages() else None
        multiply = _instruction(p, target) if p is not None else None
        if p is None or multiply is None:
            continue
        it, turned = multiply
        p = _by_groups(over_words(p, it))
        if p.dot is None or not large_enough(p):
            continue
        laid, copies = lay_out(s, p, constants, along_sum=True), late_copies(target)
        late = bool(copies) and all(_together(laid, x) for x in (laid.rows, laid.columns))
        tile, update = choose_warp_tile(p, turned, late), contracted(p.store, target)
        replace_nest(s, laid, WarpProduct(laid, tile, update, copies).grid())


def _instruction(p: Product, target: Target) -> tuple[Intrinsic, bool] | None:
    """What multiplies, and whether it takes the columns first; None: nothing does."""
    sides = (p.rows.value, p.columns.value)
    if p.store.buffer.dtype != INT32 or p.store.update != "Add" or p.steps < LEAST_BYTES:
        return None
    if not all(isinstance(x, Cast) and x.value.dtype.nbytes == 1 for x in sides):
        return None
    turned = along_rows(p)
    dtypes = [x.value.dtype for x in sides if isinstance(x, Cast)]
    wanted = dtypes[::-1] if turned else dtypes
    offered = (i for i in for_target(target) if i.emitter("ptx") is not None)
    found = next((i for i in offered if i.operand_dtypes == wanted), None)
    return None if found is None else (found, turned)


def _by_groups(p: Product) -> Product:
    """The product, whose words go by groups that a thread brings at once, if there are only whole
    ones: those of a block of channels lie together."""
    word = p.sums[-1]
    if p.dot is None or not word.extent.multiple_of(TOGETHER):
        return p
    group = Var(f"{word.var.name}.group", word.extent // TOGETHER)
    within = Var(word.var.name, TOGETHER)
    m: dict[Var, IntLike] = {word.var: group * TOGETHER + within}
    rows, columns = (Side(subst(x.value, m), x.axes) for x in (p.rows, p.columns))
    sums = (*p.sums[:-1], For(group, []), For(within, []))
    return replace(p, rows=rows, columns=columns, sums=sums)


def _together(p: Product, side: Side) -> bool:
    """Whether the words of a group are neighbours in memory, and lie all in the data or all in the
    padding."""
    inner = p.sums[-1]
    chosen = {inner.var} | ({p.dot.lane} if p.dot is not None else set())
    conditions = [e.cond for e in walk(side.value) if isinstance(e, Select)]
    alike = not any(index_vars(c) & chosen for c in conditions)
    return alike and even_step(side.load, [inner]) == LANES and inner.extent == TOGETHER


def _if(e: Select, m: Mapping[Var, IntLike]) -> Select:
    """A selection, in whose condition variables are replaced."""
    return Select(subst(e.cond, m), e.a, e.b)


LEAST_BYTES = 32
"""Steps of a sum from which on warps multiply: those of an instruction."""


@dataclass(frozen=True)
class _OfWarp(Part):
    """An operand in a block.

    Attributes:
        pairs: whether a thread has pairs of neighbours, as of the instruction's columns.
    """

    pairs: bool = False

    @property
    def vector(self) -> int:
        """Neighbours of a thread."""
        return 2 if self.pairs else 1

    @property
    def stored_together(self) -> bool:
        """See Part."""
        return self.pairs

    def place(self, k: IntLike) -> Index:
        """Where in the tile the k-th of a thread is."""
        k, lane = Index.of(k), self.mine % WARP
        warp = self.mine // WARP
        if self.pairs:
            return warp * (self.each * 4) + k // 2 * 8 + lane % 4 * 2 + k % 2
        return warp * (self.each * 8) + k * 8 + lane // 4


class WarpProduct(TiledProduct):
    """Writes the grid of one product."""

    t: WarpTile

    def __init__(self, p: Product, t: WarpTile, update: str, copies: Sequence[Intrinsic] = ()):
        super().__init__(p, t, update, copies)
        along, lane = t.warps[1], self.thread % WARP
        warp = self.thread // WARP
        mine = [(warp // along) * WARP + lane, (warp % along) * WARP + lane]
        (self.rows, self.columns) = (
            _OfWarp(x.side, x.name, x.size, x.each, x.tile, of, pairs)
            for x, of, pairs in zip(
                (self.rows, self.columns), mine, (t.turned, not t.turned), strict=True
            )
        )

    def _staged(self, part: Part) -> Operand:
        return _Lines(self, part)

    def _spot(self, x: Operand, part: Index, place: Index, byte: Index) -> tuple[Index, ...]:
        """Where a byte of a row is in shared memory."""
        return (part % x.turns, place, self.t.swizzled(place, byte))

    def _multiply(self, parts: Sequence[Operand], part: Index) -> list[Stmt]:
        assert self.p.dot is not None
        it = self.p.dot.intrinsic
        m, n, depth = it.loops.values()
        first, second = parts[::-1] if self.t.turned else parts
        k = Var("k", self.t.steps * LANES // depth)
        i, j = Var("i", first.part.each // m), Var("j", second.part.each // n)
        own = {x: Var(x, size) for x, size in it.loops.items()}
        row, column = i * m + own["m"], j * n + own["n"]
        at = self._at(column, row) if self.t.turned else self._at(row, column)
        step = k * depth + own["k"]
        a, b = (
            Load(x.shared, self._spot(x, part, x.part.place(of), step)).astype(INT32)
            for x, of in ((first, row), (second, column))
        )
        store = Store(self.p.store.stage, self.sum, (at,), binary("Mul", a, b), "Add")
        leaves = it.match(store, own)
        assert isinstance(leaves, dict), leaves
        node: Stmt = Intrin(it, store, own, leaves)
        for v in (j, i, k):
            node = For(v, [node], "unroll")
        return [node]


class _Lines(Operand):
    """An operand on its way: from memory to registers, to shared memory. A thread brings groups of
    neighbouring words of a row."""

    def __init__(self, whole: WarpProduct, part: Part):
        self.tile = whole.t
        super().__init__(whole, part)

    def _layout(self) -> tuple[int, ...]:
        """See Operand."""
        whole, load = self.whole, self.part.side.load
        self.lanes = TOGETHER
        self.together = _together(whole.p, self.part.side)
        # Neighbouring threads bring neighbouring groups of a row, or else rows.
        several = [f for f in whole.p.sums[-2:] if f.extent != 1]
        rows = len(several) > 1 and even_step(load, several) == LANES
        self.along_sum = self.together and rows
        return (self.part.size, whole.t.steps * LANES)

    def _moves(self, it: Intrinsic) -> bool:
        return self.together and super()._moves(it)

    def _where(self, k: IntLike) -> tuple[Index, Index]:
        """(step, place) of the k-th group of neighbours that a thread loads."""
        t, n = self.whole.t, self.lanes
        number = Index.of(k) * t.threads + self.whole.thread
        if self.along_sum:
            row = t.steps // n
            return (number % row) * n, number // row
        return (number // self.part.size) * n, number % self.part.size

    def _brought(self, part: Index, k: IntLike, lane: IntLike) -> Expr:
        p, n, steps = self.whole.p, self.lanes, self.whole.t.steps
        step, place = self._where(k)
        step = part * steps + step
        inner = Index.of(lane)
        if not self.together:
            step, inner = step + lane, Index()
        clamped, ends = step, p.steps % steps != 0
        if ends:
            clamped = imin(step, p.steps - (n if self.together else 1))
        where = [self.part.at(place), At(p.sums, clamped, inner)]
        value = numbered(self.part.side.value, self.whole.everywhere(*where))
        if self.together:  # no condition tells the words of a group apart
            first = dict.fromkeys(Index.of(lane).vars(), 0)
            value = rewrite(value, lambda e: _if(e, first) if isinstance(e, Select) else None)
        if ends:
            inside = imin(imax(p.steps - step, 0), 1)
            zero = const(0, self.dtype)
            value = select(binary("NE", index_value(inside), 0), value, zero)
        return value

    def _there(self, part: Index, k: IntLike, lane: IntLike) -> list[Index]:
        step, place = self._where(k)
        row = self.tile.swizzled(place, (step + lane) * LANES)
        return [part % self.turns, place, row]

    def _byte(self, at: Sequence[Index], byte: IntLike) -> list[Index]:
        return [*at[:-1], at[-1] + byte]

    def fetch(self, part: Index) -> list[Stmt]:
        """See Operand."""
        n = self.lanes
        k, lane = Var("k", self.count // n), Var("lane", n)
        kind = "vector" if self.together else "unroll"
        value = self._brought(part, k, lane)
        return [
            For(
                k, [self._stored("fetch", self.held, [k * n + lane], value, (lane, kind))], "unroll"
            )
        ]

    def share(self, part: Index) -> list[Stmt]:
        """See Operand."""
        n = self.lanes
        k, lane, byte = Var("k", self.count // n), Var("lane", n), Var("byte", LANES)
        value = Load(self.held, ((k * n + lane) * LANES + byte,))
        at = tuple(self._byte(self._there(part, k, lane), byte))
        node: Stmt = Store(f"{self.part.name}.share", self.shared, at, value)
        node = For(lane, [For(byte, [node], "vector")], "vector")
        return [For(k, [node], "unroll")]


__all__ = ["WarpProduct", "tile_by_warps"]
