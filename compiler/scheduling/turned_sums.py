"""Sums of rows, several rows as the lanes of vectors: squares of neighbouring rows and columns are
read row by row, as they lie in memory, turned in registers, and added up a column at a time. Each
row adds its elements in its own order, in one lane; one by one, every element would take an
instruction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from compiler.scheduling import Schedule
from compiler.scheduling.tile import guards, index_vars_of, is_product, reads_of, stride_of
from compiler.symbolic import Index, IntLike, Var
from compiler.target.registry import Target
from compiler.tensor.expr import (
    Buffer,
    Call,
    Expr,
    Gather,
    IndexValue,
    Load,
    Select,
    loads,
    rewrite,
    subst,
    walk,
)
from compiler.tensor.stmt import For, Store, stores, walk_stmts

SIDES = {16: 0.6, 8: 0.85}
"""Rows of a square, and what its elements take of the time that they take one by one, about. With
fewer rows, sums wait for each other's additions."""
BESIDE = 2.0
"""The same of an element of a column that is in no whole square."""
WORTH = 0.95
"""The share of the time that all elements may take at most, to be worth it."""
REGISTERS = 32
"""Vector registers that a square needs: with half as many, it was ten percent slower."""
UPDATES = ("Add", "Mul", "Max", "Min")
"""Reductions that go so, of numbers of built-in dtypes."""


MOST_TERMS = 4
"""Operations that are done in a square, of which all values are in registers at once."""


def row_axis(store: Store, path: Sequence[For]) -> int | None:
    """The last output axis of a reduction that is known to have several elements; else the last
    whose extent is not known at build time."""
    if guards(path) or len(path) == len(store.idx):
        return None
    extents = [f.extent.constant() for f in path[: len(store.idx)]]
    several = [k for k, n in enumerate(extents) if n is not None and n > 1]
    unknown = [k for k, n in enumerate(extents) if n is None]
    return next(reversed(several or unknown), None)


def side_of_square(store: Store, path: Sequence[For], axis: int, target: Target) -> int:
    """Rows, along an output axis, and columns of the squares in which a reduction goes; 0: in none.

    The last loop of the reduction goes along all data that moves with it, element by element."""
    dtype, last = store.buffer.dtype, path[-1]
    n, rows = last.extent.constant(), path[axis].extent.constant()
    if n is None or rows is None or store.update not in UPDATES or guards(path):
        return 0
    if dtype.is_custom or dtype.nbytes < 4 or any(isinstance(e, _ODD) for e in walk(store.value)):
        return 0
    data = [x for x in reads_of(store) if last.var in index_vars_of(x)]
    if is_product(store) and not all(_of_one_output(x, path, len(store.idx)) for x in data):
        return 0
    along = all(stride_of(x, last.var) == 1 for x in data)
    apart = [k for x in data if (k := stride_of(x, path[axis].var)) != 0]
    if not along or not apart or any(x.dtype.is_custom or x.dtype.nbytes < 4 for x in data):
        return 0
    if target.vector_registers < REGISTERS:
        return 0
    most = min(target.vector_bytes // dtype.nbytes, n, rows, *(k or 0 for k in apart))
    shares = {_share(side, rows, n): side for side in SIDES if side <= most}
    return shares[min(shares)] if shares and min(shares) <= WORTH else 0


def _share(side: int, rows: int, columns: int) -> float:
    """The share of the time one by one that sums take in squares, of which the last ones of the
    rows overlap those before."""
    beside = columns % side
    mean = (SIDES[side] * (columns - beside) + BESIDE * beside) / columns
    return mean * -(-rows // side) * side / rows


def _of_one_output(x: Load, path: Sequence[For], rank: int) -> bool:
    """Whether no two outputs of a reduction read the same element of `x`."""
    return all(f.extent == 1 or f.var in index_vars_of(x) for f in path[:rank])


_ODD = (Gather, IndexValue, Select)


def with_terms(s: Schedule, target: Target, apart: Collection[str] = ()) -> None:
    """Compute what sums in squares add, if that is little, where they add it, but for the stages
    `apart`: it need not be stored, and each element is read once."""
    for stage in s.stages():
        ((store, path, _), *more) = s.stage_stores(stage)
        axis = row_axis(store, path) if not more and path and store.init is not None else None
        if axis is None or not side_of_square(store, path, axis, target):
            continue
        for b in dict.fromkeys(x.buffer for x in loads(store.value)):
            term = _computed_for(s, b, store)
            if term is None or term.stage in apart:
                continue
            value = _with(store.value, b, term)
            if side_of_square(replace(store, value=value), path, axis, target):
                s.compute_inline(term.stage)
                ((store, path, _),) = s.stage_stores(stage)


def _with(value: Expr, b: Buffer, term: Store) -> Expr:
    """A value with what `term` computes in place of what it reads of `b`."""

    def put(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer is not b:
            return None
        own = (v for i in term.idx for v in i.vars())
        m: dict[Var, IntLike] = dict(zip(own, e.idx, strict=True))
        return subst(term.value, m)

    return rewrite(value, put)


def _computed_for(s: Schedule, b: Buffer, reader: Store) -> Store | None:
    """The one statement that computes a temporary for `reader` alone, by few operations."""
    every = list(stores(s.func.body))
    written = [x for x in every if x.buffer is b]
    others = [x for x in every if x is not reader and any(r.buffer is b for r in reads_of(x))]
    if b not in s.func.temps or len(written) != 1 or others:
        return None
    (term,) = written
    ((_, path, home), *more) = s.stage_stores(term.stage)
    own = [next(iter(i.vars()), None) for i in term.idx]
    plain = not more and not term.update and term.init is None and len(home) == 1
    if not plain or any(v is None or v != i for v, i in zip(own, term.idx, strict=True)):
        return None
    if {*own} != {f.var for f in path} or any(f.kind != "serial" for f in path):
        return None
    few = sum(not isinstance(e, Load) for e in {*walk(term.value)}) <= MOST_TERMS
    return term if few and not any(isinstance(e, Call) for e in walk(term.value)) else None


def rows_may_repeat(store: Store, reader: Store, axis: int) -> bool:
    """Whether the last square may have rows of the one before: `reader` reads nothing else that is
    of a row, whose memory may be that of what it stores."""
    along = reader.idx[axis].vars()
    return not any(
        along & index_vars_of(x) for x in reads_of(reader) if x.buffer is not store.buffer
    )


def turn_terms(s: Schedule, stage: str, step: str, block: str, lane: str, side: int) -> None:
    """Let `stage`, in registers, read what it adds in whole squares of the loops `step` and `lane`
    from a register that the stage `<stage>.terms` fills before, for all of `block`."""
    for loop, _, home in s.find(step):
        inside = list(walk_stmts([loop]))
        found = [(x, path) for x, path, _ in inside if isinstance(x, Store) and x.stage == stage]
        if loop.extent != side or len(found) != 1:
            continue
        ((store, path),) = found
        named = {f.var.name: f for f in path}
        rows, blocks = named[lane], named[block]
        others = [f.var for f in path if f not in (loop, rows, blocks)]
        if rows.extent != side or any(v.extent != 1 for v in others):
            continue
        own = [
            Var(f"{stage}.{n}", f.extent)
            for n, f in zip(("block", "column", "row"), (blocks, loop, rows), strict=True)
        ]
        m: dict[Var, IntLike] = {blocks.var: own[0], loop.var: own[1], rows.var: own[2]}
        m |= dict.fromkeys(others, 0)
        shape = tuple(v.extent or Index.of(1) for v in own)
        terms = Buffer(f"{store.buffer.name}_terms", shape, store.value.dtype, "register")
        put = Store(f"{stage}.terms", terms, tuple(map(Index.of, own)), subst(store.value, m))
        square = For(own[1], [For(own[2], [put], "vector")], "vector")
        at = next(k for k, x in enumerate(home) if x is loop)
        home.insert(at, For(own[0], [square], "unroll"))
        store.value = Load(terms, tuple(Index.of(f.var) for f in (blocks, loop, rows)))


__all__ = ["row_axis", "rows_may_repeat", "side_of_square", "turn_terms", "with_terms"]
