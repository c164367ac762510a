"""Products of bytes by instructions on registers that hold matrices: two by two of them are summed
up over the whole reduction, then stored to a small array, from which what follows reads vectors.

Two rows of tiles share what is loaded of the weights, two columns what is loaded of the data. Rows
that are left over are computed once more with some before them, and only they are used; columns
that are left over are filled up with what is stored behind them, and not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from compiler.errors import ScheduleError
from compiler.scheduling import Schedule
from compiler.scheduling.matrix_choice import MatrixChoice
from compiler.scheduling.matrix_copies import laid_out
from compiler.scheduling.matrix_products import (
    SIDE,
    Product,
    factors_of,
    product_of,
    worth_copies,
)
from compiler.scheduling.nests import nest
from compiler.scheduling.select import consumer
from compiler.scheduling.tile import index_vars_of, read_once
from compiler.symbolic import Index, IntLike, Var
from compiler.target.intrinsics import registered_for
from compiler.target.registry import Target
from compiler.tensor.expr import (
    BinOp,
    Cast,
    Expr,
    IntImm,
    Load,
    binary,
    index_value,
    rewrite,
    subst,
)
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import Buffer, For, Intrin, Packed, Stmt, Store, When, clone


def schedule_matrices(
    s: Schedule,
    stage: str,
    target: Target,
    constants: Collection[Buffer],
    choice: MatrixChoice,
) -> frozenset[str]:
    """Schedule `stage`, if it is a product of matrices for which the target has such instructions,
    and what follows it, as `choice` says; the stages that are done.

    Raises:
        ScheduleError: weights that are not known at build time are to be fetched ahead.
    """
    ((store, path, _), *more) = s.stage_stores(stage)
    factors = None if more else factors_of(store)
    found = None if factors is None else product_of(store, path, *factors, target)
    if found is None or not found.by.product.computes(store.value):
        return frozenset()
    if any(i.steps and i.computes(store.value) for i in registered_for(target)):
        return frozenset()  # which goes before the compiler's own
    weight = found.weight.buffer
    known = weight in constants
    if weight not in read_once(s.func.body, constants) if known else not worth_copies(found):
        return frozenset()
    reader = consumer(s, store)
    if reader is not None and store.buffer not in s.func.params:
        ((_, around, _),) = s.stage_stores(reader.stage)
        if [*reader.idx] != [f.var for f in around]:
            return frozenset()
    found = laid_out(s, stage, found, path, target)
    if found is None:
        return frozenset()
    if choice.ahead is not None and not known:
        raise ScheduleError(f"{stage}: weights that are computed, and copied, are near anyway")
    if store.buffer in s.func.params or reader is None:
        s.accumulate_apart(stage)
    ((store, _, _),) = s.stage_stores(stage)
    reader = consumer(s, store)
    assert reader is not None
    _Nest(s, found, stage, reader, target, choice).put(known)
    return frozenset({stage, reader.stage})


AHEAD = 4096
"""Bytes by which weights are fetched ahead: two steps of a pair of tiles, as measured (networks of
bytes are 1.01 to 1.2 times as quick, the more the busier the memory is)."""
TOGETHER = 4
"""Rows of sums that what follows takes at once: an operation waits for the one before it in its own
row, and a processor looks only so far ahead (of GELU 0.88 to 0.95 of the kernel's time with AMX,
of what takes few operations 0.97 to 1.0; two rows gain less, and eight no more)."""

_At = Callable[[dict[str, Var]], tuple[IntLike, ...]]
_Value = Callable[[dict[str, Var]], Expr]
"""From the variables of an instruction's loops to where it stores, and to what it stores."""


@dataclass(frozen=True)
class _Span:
    """Tiles along an axis, one `step` elements after the other, from `base` on; of their elements,
    so many from the one numbered `first` on are used."""

    loop: Var
    base: Index
    first: int
    used: int
    tiles: int
    step: int

    def height(self, size: int) -> int:
        """Elements of all tiles, of which each has `size`, from the first to the last."""
        return (self.tiles - 1) * self.step + size


class _Nest:
    """The loops that take the place of a product and its reader."""

    def __init__(
        self,
        s: Schedule,
        found: Product,
        stage: str,
        reader: Store,
        target: Target,
        choice: MatrixChoice,
    ):
        self.choice = choice
        self.s, self.by, self.stage, self.reader = s, found.by, stage, reader
        self.target, self.found, self.own = target, found, found.own
        ((self.store, _, _),) = s.stage_stores(stage)
        ((_, around, _),) = s.stage_stores(reader.stage)
        self.around, self.columns = [f.var for f in around], len(self.own) - 1
        held = [k for k in range(self.columns) if k not in found.axes]
        self.outer = {k: Var(self.around[k].name, self.around[k].extent) for k in held}

    def put(self, constant: bool) -> None:
        """Put them there; `constant`: whether the weights are known at build time."""
        found = self.found
        if constant:
            self._pack()
        else:
            self._copy()
        tile_rows, tile_columns, _ = self.by.size
        rows = [*_spans(self.around[found.axes[-1]].name, found.rows, tile_rows)]
        columns = [*_filled(self.around[self.columns].name, found.columns, tile_columns)]
        columns_first = self.choice.columns_first
        if columns_first is None:
            columns_first = self._weights_once()
        first, second = (columns, rows) if columns_first else (rows, columns)
        new: list[Stmt] = []
        for a in first:
            body: list[Stmt] = []
            for b in second:
                across, down = (a, b) if first is columns else (b, a)
                body.append(For(b.loop, self._tiles(down, across)))
            new.append(For(a.loop, body))
        for v in reversed(self.outer.values()):
            new = [For(v, new)]
        ((_, (root, *_), _),) = self.s.stage_stores(self.stage)
        ((_, (last, *_), _),) = self.s.stage_stores(self.reader.stage)
        home = self.s.func.body
        home[:] = [x for old in home if old is not root for x in (new if old is last else [old])]
        self.s.func.temps = [b for b in self.s.func.temps if b is not self.store.buffer]

    def _weights_once(self) -> bool:
        """Whether all rows walk a part of the weights before the next: where that moves fewer bytes
        than fetching all weights for each part of the rows. Where the cache holds both, rows go
        first if there are more results than data, and are written one after another (0.93 to 1.03
        of the time)."""
        m, n, k = self.found.rows, self.found.columns, self.found.terms
        next_cache = self.target.architecture.caches.next
        if max(m, n) * k <= next_cache:
            return n < k
        weights = n * k * -(-m // (SIDE * self.by.size[0]) - 1) if n * k > next_cache else 0
        data = m * k * -(-n // (SIDE * self.by.size[1]) - 1) if m * k > next_cache else 0
        return weights >= data

    def _pack(self) -> None:
        """Lay constant weights out as tiles, in the order in which they are walked."""
        weight, (_, columns, group) = self.found.weight, self.by.size
        used = index_vars_of(weight)
        lead = [Var(v.name, v.extent) for j, v in self.outer.items() if self.own[j] in used]
        moved = [self.own[j] for j in self.outer if self.own[j] in used]
        parts, steps = -(-self.found.columns // (SIDE * columns)), self.found.depth // self.by.steps
        sizes = {"part": parts, "step": steps, "side": SIDE, "k": self.by.steps // group,
                 "n": columns, "i": group}  # fmt: skip
        part, step, side, kk, nn, ii = (Var(name, x) for name, x in sizes.items())
        taps = {v: Var(v.name, v.extent) for v in self.found.taps}
        m: dict[Var, IntLike] = {**taps, **dict(zip(moved, lead, strict=True))}
        m[self.own[-1]] = part * (SIDE * columns) + side * columns + nn
        m[self.found.term] = step * self.by.steps + kk * group + ii
        order = (*lead, part, step, *taps.values(), side, kk, nn, ii)
        shape = tuple(v.extent or Index.of(1) for v in order)
        new = Buffer(f"{weight.buffer.name}_packed", shape, weight.dtype, align=64)
        f = self.s.func
        f.params[f.params.index(weight.buffer)] = new
        f.packed[new] = Packed(weight.buffer, order, tuple(i.subst(m) for i in weight.idx))
        nbytes, ahead = (new.size.constant() or 0) * new.dtype.nbytes, self.choice.ahead
        if ahead is None:
            ahead = AHEAD if nbytes > self.target.architecture.caches.near else 0
        if ahead:
            self.s.prefetch(new, ahead)
        self.tiles_of, self.lead, self.walked = new, moved, True

    def _copy(self) -> None:
        """Copy other weights in blocks that are tiles, one after another."""
        _, columns, group = self.by.size
        used = index_vars_of(self.found.weight)
        self.lead = [self.own[j] for j in self.outer if self.own[j] in used]
        self.tiles_of = self.s.copy_in_blocks(
            self.stage, self.found.weight.buffer, self.columns, columns, group
        )
        self.walked = False

    def _tiles(self, down: _Span, across: _Span) -> list[Stmt]:
        """Some tiles of sums, and what is made of them."""
        by, (rows, columns, _) = self.by, self.by.size
        name, dtype = self.store.buffer.name, self.store.buffer.dtype
        shape = (Index.of(down.tiles * rows), Index.of(across.tiles * columns))
        acc = Buffer(name, shape, dtype, "register")
        shape = (Index.of(down.height(rows)), shape[1])
        kept = Buffer(f"{name}_tiles", shape, dtype, "local", align=64)
        p, q = Var("p", down.tiles), Var("q", across.tiles)

        def at(v: dict[str, Var]) -> tuple[Index, ...]:
            return p * rows + v["m"], q * columns + v["n"]

        def to(v: dict[str, Var]) -> tuple[Index, ...]:
            return p * down.step + v["m"], at(v)[1]

        zero = self._instruction(by.zero, ".init", acc, at, lambda v: by.zero.pattern.value)
        last = self._instruction(by.store, ".store", kept, to, lambda v: Load(acc, at(v)))
        step = Var(self.found.term.name, self.found.depth // by.steps)
        taps = [Var(v.name, v.extent) for v in self.found.taps]
        inner = self._step(down, across, [step, *taps], acc, p, q)
        for v in reversed(taps):
            inner = [For(v, inner)]
        sums = For(step, inner)
        parts: list[Stmt] = [_unrolled([p, q], zero), sums, _unrolled([p, q], last)]
        return [*parts, *self._after(down, across, kept)]

    def _step(
        self, down: _Span, across: _Span, loops: Sequence[Var], acc: Buffer, p: Var, q: Var
    ) -> list[Stmt]:
        """One step of the reduction."""
        by, (rows, columns, group) = self.by, self.by.size
        depth, (step, *taps) = by.steps // group, loops
        x, w = self.found.data, self.found.weight
        sizes = tuple(map(Index.of, (rows, depth, group)))
        data = Buffer(f"{x.buffer.name}.tile", sizes, x.dtype, "register")
        sizes = tuple(map(Index.of, (across.tiles, depth, columns, group)))
        weights = Buffer(f"{w.buffer.name}.tile", sizes, w.dtype, "register")
        outer: dict[Var, IntLike] = {self.own[k]: v for k, v in self.outer.items()}
        outer |= dict(zip(self.found.taps, taps, strict=True))
        lead = [v for k, v in self.outer.items() if self.own[k] in self.lead]

        def read(v: dict[str, Var]) -> Expr:
            m = {**outer, self.found.term: step * by.steps + v["c"] * group + v["i"]}
            return self.found.read(down.base + p * down.step + v["r"], m)

        def fetched(v: dict[str, Var]) -> Expr:
            tile = (v["r"], v["c"], v["i"])
            if self.walked:
                part: tuple[IntLike, ...] = (across.base // (SIDE * columns), step, *taps, q, *tile)
            else:
                part = (across.base // columns + q, step * depth + v["r"], *tile[1:])
            return Load(self.tiles_of, tuple(map(Index.of, (*lead, *part))))

        def factors(v: dict[str, Var]) -> Expr:
            a = Load(data, (Index.of(v["m"]), Index.of(v["k"]), Index.of(v["i"])))
            b = Load(weights, tuple(map(Index.of, (q, v["k"], v["n"], v["i"]))))
            kind = self.store.buffer.dtype
            return BinOp("Mul", Cast(a, kind), Cast(b, kind), kind)

        load_data, load_weights = by.load
        one = self._instruction(
            load_data, ".data", data, lambda v: tuple(map(Index.of, v.values())), read
        )
        two = self._instruction(
            load_weights, ".weight", weights,
            lambda v: tuple(map(Index.of, (q, *v.values()))), fetched,
        )  # fmt: skip
        three = self._instruction(
            by.product, "", acc,
            lambda v: (p * rows + v["m"], q * columns + v["n"]), factors,
        )  # fmt: skip
        again = Var(q.name, q.extent)
        return [
            _unrolled([q], two),
            For(p, [one, _unrolled([again], clone(three, {q: again}))], "unroll"),
        ]

    def _instruction(
        self, it: Intrinsic, ending: str, out: Buffer, at: _At, value: _Value
    ) -> Intrin:
        """One of the instructions, from its loops' variables to where it stores, and what."""
        v = {n: Var(n, extent) for n, extent in it.loops.items()}
        idx = tuple(map(Index.of, at(v)))
        store = Store(self.stage + ending, out, idx, value(v), it.pattern.update)
        leaves = it.match(store, v)
        assert not isinstance(leaves, str), leaves
        return Intrin(it, store, v, leaves)

    def _after(self, down: _Span, across: _Span, kept: Buffer) -> list[Stmt]:
        """What the reader makes of the sums, as vectors along columns."""
        lanes = math.gcd(self.by.size[1], self.target.vector_bytes // 4)
        together = math.gcd(down.used, TOGETHER)
        rows = Var(self.around[self.found.axes[-1]].name, down.used // together)
        near = Var("near", together)
        row = rows * together + near
        at = self.found.place(down.base + down.first + row)
        whole, left = divmod(across.used, lanes)
        new: list[Stmt] = []
        for count, width, begin in ((whole, lanes, 0), (1, left, whole * lanes)):
            if not count or not width:
                continue
            several, lane = Var(self.around[self.columns].name, count), Var("lane", width)
            column = several * lanes + begin + lane
            here: dict[int, IntLike] = {**self.outer, **at, self.columns: across.base + column}
            body = clone(self.reader, {self.around[k]: i for k, i in here.items()})
            assert isinstance(body, Store)
            found: Expr = Load(kept, (Index.of(row + down.first), Index.of(column)))
            start = self.store.init
            if start is not None and not (isinstance(start, IntImm) and not start.value):
                found = found + subst(start, {self.own[k]: i for k, i in here.items()})
            body.value = rewrite(body.value, _instead(self.store.buffer, found))
            new.append(For(several, [For(lane, [body], "vector")], "unroll"))
        if self.found.used is not None:
            inside = index_value(at[self.found.axes[-1]])
            new = [When(binary("LT", inside, self.found.used), new)]
        return [For(rows, [For(near, new, "unroll")])]


def _instead(b: Buffer, value: Expr) -> Callable[[Expr], Expr | None]:
    """For `rewrite`: what is read of a buffer becomes `value`."""
    return lambda e: value if isinstance(e, Load) and e.buffer is b else None


def _unrolled(loops: Sequence[Var], body: Stmt) -> Stmt:
    fresh = {v: Var(v.name, v.extent) for v in loops}
    node = nest([*fresh.values()], clone(body, dict(fresh)))
    inner = node
    while isinstance(inner, For):
        inner.kind = "unroll"
        (inner,) = inner.body
    return node


def _spans(name: str, n: int, size: int) -> Iterator[_Span]:
    """Tiles of rows: pairs of them, and a pair that overlaps, one, or one that overlaps what is
    before it."""
    pairs, left = divmod(n, SIDE * size)
    if pairs:
        v = Var(f"{name}o", pairs)
        yield _Span(v, v * (SIDE * size) if pairs > 1 else Index(), 0, SIDE * size, SIDE, size)
    if left > size:
        yield _Span(Var(f"{name}o_t", 1), Index.of(n - left), 0, left, SIDE, left - size)
    elif left:
        yield _Span(Var(f"{name}o_t", 1), Index.of(n - size), size - left, left, 1, size)


def _filled(name: str, n: int, size: int) -> Iterator[_Span]:
    """Tiles of columns: pairs of them, and what is left, in tiles that are not full."""
    pairs, left = divmod(n, SIDE * size)
    if pairs:
        v = Var(f"{name}o", pairs)
        yield _Span(v, v * (SIDE * size) if pairs > 1 else Index(), 0, SIDE * size, SIDE, size)
    if left:
        tiles = -(-left // size)
        yield _Span(Var(f"{name}o_t", 1), Index.of(n - left), 0, left, tiles, size)
