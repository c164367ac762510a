"""Elementwise nests that read along another axis than they store along: by squares that go through
shared memory, so that neighbouring threads read neighbours, and store neighbours.
(Ruetsch and Micikevicius, Optimizing Matrix Transpose in CUDA, 2009.)
"""

from __future__ import annotations

from compiler.scheduling.grids.products import even_step, positions, total
from compiler.symbolic import Index, IntLike, Var, imin
from compiler.tensor.expr import Buffer, Expr, Gather, IndexValue, Load, loads, rewrite, subst, walk
from compiler.tensor.stmt import Barrier, For, Stmt, Store

SIDE, ROWS = 32, 8
"""Of a square, and rows that the threads of a block load and store at once."""
LEAST = 16
"""Elements along each of the two axes from which on it is worth it."""


def transposed(s: Stmt) -> Stmt | None:
    """The grid of a nest, if it is elementwise and reads one tensor along another axis than it
    stores along; None of others."""
    loops: list[For] = []
    while isinstance(s, For) and s.kind in ("serial", "parallel") and len(s.body) == 1:
        loops.append(s)
        s = s.body[0]
    if not isinstance(s, Store) or s.update or s.init is not None:
        return None
    every = [n for n in walk(s.value) if isinstance(n, (Gather, IndexValue))]
    known = [f for f in loops if f.extent.constant() is not None]
    if every or len(known) < len(loops) or not _elementwise(s, loops):
        return None
    there = Load(s.buffer, s.idx)
    along = _fastest(there, loops)
    across = {x: _fastest(x, loops) for x in loads(s.value)}
    turned = [x for x, f in across.items() if f is not None and f is not along]
    if along is None or len({(x.buffer, x.idx) for x in turned}) != 1:
        return None
    read = across[turned[0]]
    if read is None or min(along.extent.const, read.extent.const) < LEAST:
        return None
    return _Squares(s, loops, along, read, turned[0]).grid()


def _elementwise(s: Store, loops: list[For]) -> bool:
    """Whether every iteration stores an element of its own: all loops are axes of the result."""
    own = [i for i in s.idx if i.terms]
    variables = {f.var for f in loops if f.extent != 1}
    return (
        {v for i in own for v in i.vars()} >= variables
        and all(len(i.terms) == 1 and isinstance(next(iter(i.terms)), Var) for i in own)
        and len(own) == len({v for i in own for v in i.vars()})
    )


def _fastest(x: Load, loops: list[For]) -> For | None:
    """The loop whose iterations read (or store) neighbours."""
    return next((f for f in loops if f.extent != 1 and even_step(x, [f]) == 1), None)


class _Squares:
    """Writes the grid of one nest."""

    def __init__(self, s: Store, loops: list[For], along: For, read: For, source: Load):
        self.s, self.along, self.read, self.source = s, along, read, source
        self.rest = [f for f in loops if f not in (along, read) and f.extent != 1]
        self.single = {f.var: 0 for f in loops if f.extent == 1}
        tiles = [(f.extent + SIDE - 1) // SIDE for f in (read, along)]
        self.block = Var("block", total(self.rest) * tiles[0] * tiles[1])
        self.thread = Var("thread", SIDE * ROWS)
        number = Index() if self.block.extent == 1 else Index.of(self.block)
        self.first = {
            along.var: number % tiles[1] * SIDE,
            read.var: number // tiles[1] % tiles[0] * SIDE,
        }
        self.others = positions(self.rest, number // (tiles[0] * tiles[1]))
        shape = (Index.of(SIDE), Index.of(SIDE + 1))
        self.square = Buffer(f"{source.buffer.name}_square", shape, source.dtype, "shared")

    def grid(self) -> Stmt:
        """The grid."""
        fast, slow = self.thread % SIDE, self.thread // SIDE
        k, m = (Var("k", SIDE // ROWS) for _ in range(2))
        row, column = k * ROWS + slow, m * ROWS + slow
        x = self.source
        given = self._at(x, fast, row)
        load = Store(f"{self.s.stage}.square", self.square, (row, fast), given)

        def put(e: Expr) -> Expr | None:
            same = isinstance(e, Load) and e.buffer is x.buffer and e.idx == x.idx
            return Load(self.square, (fast, column)) if same else None

        value = self._at(rewrite(self.s.value, put), column, fast)
        there = self._at(Load(self.s.buffer, self.s.idx), column, fast)
        assert isinstance(there, Load)
        store = Store(self.s.stage, there.buffer, there.idx, value)
        body: list[Stmt] = [
            For(k, [self._inside(load, fast, row)], "unroll"),
            Barrier(),
            For(m, [self._inside(store, column, fast)], "unroll"),
        ]
        return For(self.block, [For(self.thread, body, "threadIdx.x")], "blockIdx.x")

    def _at(self, e: Expr, read: Index, along: Index) -> Expr:
        """An expression at a place of the square."""
        at: dict[Var, IntLike] = {
            **self.single,
            **self.others,
            self.read.var: self.first[self.read.var] + read,
            self.along.var: self.first[self.along.var] + along,
        }
        return subst(e, at)

    def _inside(self, s: Stmt, read: Index, along: Index) -> Stmt:
        """A statement, if that is in the tensor."""
        for f, at in ((self.read, read), (self.along, along)):
            if not f.extent.multiple_of(SIDE):
                s = For(Var("inside", imin(1, f.extent - self.first[f.var] - at)), [s])
        return s


__all__ = ["transposed"]
