"""Statements of loop nests: For / Store / Intrin / Attempt / When / Pick / Barrier / Commit / Wait,
and the PrimFunc that holds them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import Buffer, Expr, Gather, Load, loads, subst, walk
from compiler.tensor.packed_arrays import IndexMap

if TYPE_CHECKING:
    from compiler.tensor.intrinsic import Intrinsic


SLACK = 256
"""Bytes after the end of a buffer that kernels may read (and multiply by zero)."""


@dataclass(eq=False)
class For:
    """`for var in range(extent)`. `kind`: serial, unroll, vector (becomes lanes), parallel
    (threads may share its iterations), or an axis of a grid (see AXES): each iteration is a block
    of threads, or a thread of its block.

    `whole`: iterations [0, whole) run a full inner tile (set by split). `opaque`: buffers whose
    pointer LLVM must not see through in each iteration; with `fence`, loads may not cross
    iterations either.
    """

    var: Var
    body: list[Stmt]
    kind: str = "serial"
    opaque: frozenset[Buffer] = frozenset()
    whole: Index | None = None
    fence: bool = False

    @property
    def extent(self) -> Index:
        """Number of iterations."""
        assert self.var.extent is not None
        return self.var.extent


AXES = tuple(f"{of}.{axis}" for of in ("blockIdx", "threadIdx") for axis in "xyz")
"""Kinds of loops over the blocks of a grid, and over the threads of a block."""


def family(loop: For) -> str:
    """`blockIdx` or `threadIdx`; empty for a loop that is no axis of a grid."""
    return loop.kind.partition(".")[0] if loop.kind in AXES else ""


@dataclass(eq=False)
class Store:
    """`buffer[idx] = value`; with `update` (Add, Mul, Max, Min, Fma, or `Add<bits>`, see
    `range_of`) `buffer[idx] = buffer[idx] update value`, starting from `init` where
    it is given (decompose_reduction makes it a nest of its own)."""

    stage: str
    buffer: Buffer
    idx: tuple[Index, ...]
    value: Expr
    update: str = ""
    init: Expr | None = None


@dataclass(eq=False)
class Intrin:
    """A tensorized Store: `store` with its tile loops removed; `vars` are the tile's lane
    variables."""

    intrin: Intrinsic
    store: Store
    vars: dict[str, Var]
    leaves: dict[str, Expr]


@dataclass(eq=False)
class Attempt:
    """`body`, then `rest`; but if `body` left a NaN in any of the buffers `watched`, `again`
    instead of `rest`.

    `body` is quick and gives NaN where it is not sure of a result. `again` computes everything that
    `body` and `rest` compute, and is always right.
    """

    body: list[Stmt]
    watched: tuple[Buffer, ...]
    rest: list[Stmt]
    again: list[Stmt]

    @property
    def parts(self) -> tuple[list[Stmt], ...]:
        """The three lists of statements."""
        return (self.body, self.rest, self.again)


@dataclass(eq=False)
class When:
    """`body`, if the boolean `condition` holds; else nothing. It is looked at before the body."""

    condition: Expr
    body: list[Stmt]


@dataclass(eq=False)
class Pick:
    """`body` with the index `var` at a position that is computed at run time, if there is such a
    position: 0 <= at < extent of `var`; else nothing. `at`, an int64, is looked at before the body.

    This is how a statement stores where data says.
    """

    var: Var
    at: Expr
    body: list[Stmt]


@dataclass(eq=False)
class Barrier:
    """The threads of a block wait for each other; then each sees what the others have stored."""


@dataclass(eq=False)
class Commit:
    """What the thread has begun to copy since its last one (see `Intrinsic.late`) is a group."""


@dataclass(eq=False)
class Wait:
    """The thread waits for all groups of its copies but the newest `left`, and sees what they
    stored; after the next barrier the other threads of its block see it too."""

    left: int = 0


Sync = Barrier | Commit | Wait
"""Statements that store nothing: they say when what was stored is seen."""
Stmt = For | Store | Intrin | Attempt | When | Pick | Sync


@dataclass(frozen=True)
class Packed:
    """A parameter whose array is laid out, at build time, in the order in which the kernel walks
    it."""

    source: Buffer
    vars: tuple[Var, ...]
    idx: tuple[Index, ...]

    @property
    def order(self) -> IndexMap:
        """How the array is laid out, without the buffers."""
        return IndexMap(self.vars, self.idx)


@dataclass(eq=False)
class PrimFunc:
    """Loop nests over buffers.

    Attributes:
        params: inputs then outputs, in call order.
        outputs: how many of the params, at the end, are written.
        temps: intermediate buffers, passed after the params; their content does not outlive a call.
        dims: symbolic dimensions, passed as int64 after the temps.
        packed: packed parameter -> its source and index map.
        attrs: what else is known; "operators": stage -> name of the graph operator it belongs to.
    """

    name: str
    params: list[Buffer]
    outputs: int
    body: list[Stmt] = field(default_factory=list)
    temps: list[Buffer] = field(default_factory=list)
    dims: list[Var] = field(default_factory=list)
    packed: dict[Buffer, Packed] = field(default_factory=dict)
    prefetch: dict[Buffer, int] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        from compiler.tensor.printer import primfunc_text

        return primfunc_text(self)


def walk_stmts(
    body: list[Stmt], path: tuple[For, ...] = ()
) -> Iterator[tuple[Stmt, tuple[For, ...], list[Stmt]]]:
    """Yield (statement, enclosing loops, the list that holds it), in program order.

    A list is taken as it is when the walk comes to it: what was just yielded may be given another
    body, or another place.
    """
    # Not recursive: schedules walk all the time, and every level would pass every statement on.
    stack: list[tuple[list[Stmt], tuple[For, ...], Iterator[Stmt] | None]] = []
    home, left = body, iter(body[:])
    while True:
        for s in left:
            yield s, path, home
            if isinstance(s, For):
                stack.append((home, path, left))
                home, path, left = s.body, (*path, s), iter(s.body[:])
                break
            if isinstance(s, Store):
                continue
            if isinstance(s, (Attempt, When, Pick)):
                inner = list(s.parts) if isinstance(s, Attempt) else [s.body]
                stack.append((home, path, left))
                stack += [(part, path, None) for part in reversed(inner)]
                left = iter(())
                break
        else:
            if not stack:
                return
            home, path, rest = stack.pop()
            left = iter(home[:]) if rest is None else rest


def stores(body: list[Stmt]) -> Iterator[Store]:
    """Every Store below `body`, also inside tensorized statements."""
    for s, _, _ in walk_stmts(body):
        if not isinstance(s, For | Attempt | When | Pick | Sync):
            yield s.store if isinstance(s, Intrin) else s


def accesses(
    body: list[Stmt],
) -> Iterator[tuple[Buffer, tuple[Index, ...] | None, bool, tuple[For, ...]]]:
    """Yield (buffer, indices, is a store, enclosing loops); indices None: a run-time position."""
    for s, path, _ in walk_stmts(body):
        if isinstance(s, For | Attempt | Sync):
            continue
        if isinstance(s, When):
            read: tuple[Expr | None, ...] = (s.condition,)
        elif isinstance(s, Pick):
            read = (s.at,)
        else:
            st = s.store if isinstance(s, Intrin) else s
            yield st.buffer, st.idx, True, path
            read = (st.value, st.init)
        for e in read:
            for n in walk(e) if e is not None else ():
                if isinstance(n, Load):
                    yield n.buffer, n.idx, False, path
                elif isinstance(n, Gather):
                    yield n.buffer, None, False, path


def innermost_work(s: Stmt) -> Index:
    """Iterations of the innermost statements of `s`, its symbolic dimensions included; what is
    computed again does not count. Loops that get shorter in terms of symbolic dimensions count as
    in their first round."""
    out = Index()
    spare = {id(y) for x, _, _ in walk_stmts([s]) if isinstance(x, Attempt) for y in x.again}
    for x, path, _ in walk_stmts([s]):
        if not isinstance(x, For | Attempt | When | Pick | Sync) and not spare & {
            id(y) for y in (*path, x)
        }:
            n = Index.of(1)
            first: dict[Var, IntLike] = {loop.var: 0 for loop in path}
            for loop in path:
                n = n * (loop.extent.range()[1] or loop.extent.subst(first))
            if isinstance(x, Intrin):
                n = n * math.prod(x.intrin.loops.values())
            out = out + n
    return out


def clone(s: Stmt, m: Mapping[Var, IntLike]) -> Stmt:
    """Copy a statement, replacing index variables by `m`; loops below get fresh variables."""
    if isinstance(s, For):
        v = Var(s.var.name, s.extent.subst(m))
        inner: dict[Var, IntLike] = {**m, s.var: 0 if v.extent == 1 else v}
        whole = s.whole.subst(m) if s.whole is not None else None
        return For(v, [clone(x, inner) for x in s.body], s.kind, s.opaque, whole, s.fence)
    if isinstance(s, Intrin):
        fresh = {n: Var(v.name, v.extent) for n, v in s.vars.items()}
        inner = {**m, **{s.vars[n]: v for n, v in fresh.items()}}
        store = clone(s.store, inner)
        assert isinstance(store, Store)
        return Intrin(s.intrin, store, fresh, {n: subst(e, inner) for n, e in s.leaves.items()})
    if isinstance(s, Attempt):
        body, rest, again = ([clone(x, m) for x in part] for part in s.parts)
        return Attempt(body, s.watched, rest, again)
    if isinstance(s, When):
        return When(subst(s.condition, m), [clone(x, m) for x in s.body])
    if isinstance(s, Pick):
        v = Var(s.var.name, s.var.extent and s.var.extent.subst(m))
        return Pick(v, subst(s.at, m), [clone(x, {**m, s.var: v}) for x in s.body])
    if isinstance(s, Sync):
        return replace(s)
    init = None if s.init is None else subst(s.init, m)
    idx = tuple(i.subst(m) for i in s.idx)
    return Store(s.stage, s.buffer, idx, subst(s.value, m), s.update, init)


__all__ = [
    "AXES", "SLACK", "Attempt", "Barrier", "Buffer", "Commit", "For", "Intrin", "Packed", "Pick",
    "PrimFunc", "Stmt", "Store", "Sync", "Wait", "When", "accesses", "clone", "family",
    "innermost_work", "loads", "stores", "walk_stmts",
]  # fmt: skip


@cache
def range_of(update: str) -> tuple[int, int] | None:
    """(least, largest) sum of an update `Add<bits>`, a sum of integers that stops at the ends of
    a range; None for every other update.

    The buffer's dtype must hold every sum before it is limited.
    """
    found = re.fullmatch(r"Add(\d+)", update)
    if found is None:
        return None
    half = 1 << (int(found[1]) - 1)
    return -half, half - 1
