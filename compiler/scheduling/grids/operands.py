"""An operand of a product on a grid: its tile, and how it comes from memory to the registers of the
threads that multiply (see `compiler.scheduling.grids.tiled`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.scheduling.grids.products import At, Side, even_step, numbered
from compiler.scheduling.grids.stages import copies_as_is
from compiler.scheduling.grids.tiles import APART
from compiler.scheduling.grids.words import LANES
from compiler.symbolic import Index, IntLike, Var, imax, imin
from compiler.tensor.expr import (
    Buffer,
    Expr,
    Load,
    Select,
    binary,
    const,
    index_value,
    select,
    subst,
    walk,
)
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Intrin, Stmt, Store

if TYPE_CHECKING:
    from compiler.scheduling.grids.tiled import TiledProduct

VECTOR = 4
"""Neighbours that a thread loads and stores together: 16 bytes."""


@dataclass(frozen=True)
class Part:
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


class Operand:
    """An operand on its way: from memory to registers, to shared memory, to registers.

    Attributes:
        copy: what copies it from memory to shared memory without waiting, if something does.
        turns: parts of it that shared memory holds.
    """

    def __init__(self, whole: TiledProduct, part: Part):
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
        ends = ends and not p.leaves_out
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
        return [unrolled(k, [self._stored("fetch", self.held, at, value, (lane, "vector"))])]

    def share(self, part: Index) -> list[Stmt]:
        """Store that in shared memory."""
        n = self.lanes
        k, lane = Var("k", self.count // n), Var("lane", n)
        value = self._held(self.held, [k * n + (Index.of(lane) if n > 1 else Index())])
        kind, at = "unroll" if self.along_sum else "vector", self._there(part, k, lane)
        return [unrolled(k, [self._stored("share", self.shared, at, value, (lane, kind))])]

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
        return [unrolled(k, [self._copied(self.copy, part, k)])]

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
        return [unrolled(k, [self._stored("take", self.own, [k * n + inner], value, (lane, kind))])]


def unrolled(v: Var, body: list[Stmt]) -> Stmt:
    """A loop whose iterations are written one after another."""
    return For(v, body, "unroll")


__all__ = ["VECTOR", "Operand", "Part", "unrolled"]
