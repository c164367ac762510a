"""Loop nests that compute the same rows one apart from another: what one grid can do of them from
the first to the last.

A row is a position of some axes of the last result (of softmax, all but the one it sums along).
Each nest has a loop along each of these; what it stores belongs to its row, and of what the others
store it reads its own row only. See `compiler.tensor.shared_rows` for the same of CPUs, which wants
leading axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.scheduling.grids.products import even_step, total
from compiler.scheduling.grids.tiles import ASSUMED
from compiler.scheduling.tile import guards
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import At, Buffer, Expr, Gather, Load, walk
from compiler.tensor.stmt import For, Stmt, Store, family

OPEN = 256
"""Elements of a row of which the length is known at run time only."""


@dataclass(frozen=True, eq=False)
class RowNest:
    """A perfect nest.

    Attributes:
        store: the statement in it.
        rows: the loop along each axis of the rows.
        inner: its other loops, outermost first: over the elements of a row, or over what is reduced
            to the one that there is.
    """

    store: Store
    rows: tuple[For, ...]
    inner: tuple[For, ...]

    @property
    def reduces(self) -> bool:
        """Whether it reduces a row."""
        return self.store.init is not None

    @property
    def length(self) -> Index:
        """Elements of a row."""
        return total(self.inner)

    @property
    def init(self) -> Expr:
        """What a reduction starts from."""
        assert self.store.init is not None
        return self.store.init

    @property
    def single(self) -> dict[Var, IntLike]:
        """Loops of one iteration: where they are."""
        return {f.var: 0 for f in (*self.rows, *self.inner) if f.extent == 1}

    @property
    def values(self) -> list[Expr]:
        """What it computes with."""
        return [self.store.value, *([self.store.init] if self.store.init is not None else [])]

    @property
    def loads(self) -> list[Load]:
        """What it reads."""
        return [e for x in self.values for e in walk(x) if isinstance(e, Load)]


@dataclass(frozen=True, eq=False)
class Rows:
    """Nests over the same rows, in order.

    Attributes:
        nests: the nests; one of them reduces at least.
        axes: for each buffer that they store into, which of its axes those of the rows are.
    """

    nests: tuple[RowNest, ...]
    axes: Mapping[Buffer, tuple[int, ...]]

    @property
    def count(self) -> Index:
        """How many rows there are."""
        return total(self.nests[-1].rows)

    @property
    def longest(self) -> int:
        """Elements of the longest rows; see `OPEN`."""
        return max(n.length.constant() or OPEN for n in self.nests)

    def in_row(self, b: Buffer, idx: Sequence[Index]) -> Index:
        """Which element of its row is at `idx` of a buffer."""
        at = Index()
        for k, (i, n) in enumerate(zip(idx, b.shape, strict=True)):
            if k not in self.axes[b]:
                at = at * n + i
        return at

    def row_length(self, b: Buffer) -> Index:
        """Elements that a buffer has of each row."""
        out = Index.of(1)
        for k, n in enumerate(b.shape):
            if k not in self.axes[b]:
                out = out * n
        return out

    @property
    def along(self) -> bool | None:
        """Whether elements of rows, not of one column, are neighbours in what the reductions read
        (or, if all of that is computed here, in what the nests read); None: neither are."""
        every = [(n, x) for n in self.nests for x in n.loads if x.buffer not in self.axes]
        found = [(n, x) for n, x in every if n.reduces] or every
        steps = [(_step(x, n.inner), _step(x, n.rows)) for n, x in found if n.inner]
        if any(row == 1 for _, row in steps):
            return False
        return True if any(element == 1 for element, _ in steps) else None


def assumed(n: Index) -> int:
    """How many that are, if every size that is known at run time only is `ASSUMED`."""
    return int(n.value(dict.fromkeys(n.vars(), ASSUMED)))


def _step(x: Load, loops: Sequence[For]) -> int | None:
    """Elements from one iteration of the innermost of some loops to the next; None: not known."""
    several = [f for f in loops if f.extent != 1]
    return even_step(x, several[-1:])


def rows_of(body: Sequence[Stmt]) -> Rows | None:
    """The rows that all statements share, the most there are; None: they share none, or one of them
    is no plain nest, or none reduces rows."""
    nests = [_nest(s) for s in body]
    plain = [x for x in nests if x is not None]
    if len(plain) < len(nests) or not any(s.init is not None for _, s in plain):
        return None
    last, store = plain[-1]
    own = {f.var: f for f in last}
    wanted = [k for k, i in enumerate(store.idx) if (v := _var(i)) in own and own[v].extent != 1]
    written = {s.buffer for _, s in plain}
    while True:
        found = _axes(plain, store.buffer, wanted, written)
        if not isinstance(found, int):
            break
        wanted = [k for k in wanted if k != found]
    if found is None:
        return None
    made = []
    for loops, s in plain:
        by_var = {f.var: f for f in loops}
        rows = tuple(by_var[_needed(s.idx[k])] for k in found[s.buffer])
        inner = tuple(f for f in loops if f not in rows)
        stored: set[Var] = set().union(*(i.vars() for i in s.idx))
        kept = any(f.var in stored and f.extent != 1 for f in inner)
        if kept if s.init is not None else any(f.var not in stored for f in inner):
            return None
        made.append(RowNest(s, rows, inner))
    return Rows(tuple(made), found)


def _nest(s: Stmt) -> tuple[list[For], Store] | None:
    """The loops and the one statement of a nest that is plain."""
    loops: list[For] = []
    while isinstance(s, For) and s.kind in ("serial", "parallel") and len(s.body) == 1:
        loops.append(s)
        s = s.body[0]
    if not isinstance(s, Store) or guards(loops) or any(family(f) for f in loops) or not loops:
        return None
    if bool(s.update) != (s.init is not None) or s.update == "Fma" or isinstance(s.value, At):
        return None  # a step takes more than a term: two factors, or random bits
    return loops, s


def _var(i: Index) -> Var | None:
    """The variable that an index is."""
    found = next(iter(i.vars()), None)
    return found if found is not None and i == found else None


def _needed(i: Index) -> Var:
    v = _var(i)
    assert v is not None
    return v


def _axes(
    nests: Sequence[tuple[list[For], Store]],
    result: Buffer,
    wanted: Sequence[int],
    written: set[Buffer],
) -> dict[Buffer, tuple[int, ...]] | int | None:
    """Which axes of each buffer are those that the rows have in the last result: `wanted` of it; or
    one of these that is none of all buffers. None: a buffer is no row's."""
    axes: dict[Buffer, tuple[int, ...]] = {result: tuple(wanted)}
    for loops, s in reversed(nests):
        if s.buffer not in axes:
            return None  # nothing later reads it
        extents = {f.var: f.extent for f in loops}
        own = [_var(s.idx[k]) for k in axes[s.buffer]]
        for v, k, n in zip(own, wanted, axes[s.buffer], strict=True):
            if v is None or extents.get(v) != s.buffer.shape[n] or own.count(v) > 1:
                return k
        for e in (e for x in (s.value, s.init) if x is not None for e in walk(x)):
            if isinstance(e, Gather) and e.buffer in written:
                return None
            if not isinstance(e, Load) or e.buffer not in written:
                continue
            here = axes.get(e.buffer)
            if here is None:
                places = [_place(e.idx, v) for v in own]
                lost = next((k for k, p in zip(wanted, places, strict=True) if p is None), None)
                if lost is not None:
                    return lost
                axes[e.buffer] = tuple(p for p in places if p is not None)
            else:
                for v, k, n in zip(own, wanted, here, strict=True):
                    if e.idx[n] != v:
                        return k
    return axes


def _place(idx: Sequence[Index], v: Var | None) -> int | None:
    return next((k for k, i in enumerate(idx) if v is not None and i == v), None)


__all__ = ["RowNest", "Rows", "assumed", "rows_of"]
