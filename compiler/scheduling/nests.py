"""Loop nests that primitives build, copy and rewrite, and the regions that accesses reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from compiler.errors import ScheduleError
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import Buffer, Expr, Load, rewrite
from compiler.tensor.stmt import For, Pick, Stmt, Store, When, clone, walk_stmts


def register_like(like: Buffer, extent: Sequence[Index]) -> Buffer:
    """A buffer in registers of the dtype of `like`, as large as `extent` can be.

    Raises:
        ScheduleError: an extent has no bound.
    """
    shape = tuple(Index.of(upper(e)) for e in extent)
    return Buffer(like.name + ".reg", shape, like.dtype, "register")


def loop_vars(body: list[Stmt]) -> set[Var]:
    """The variables of the loops and picked positions in `body`."""
    return {s.var for s, _, _ in walk_stmts(body) if isinstance(s, (For, Pick))}


def upper(e: Index) -> int:
    """The largest value of an extent.

    Raises:
        ScheduleError: it has no bound.
    """
    hi = e.range()[1]
    if hi is None:
        raise ScheduleError(f"the extent {e} of a register buffer has no bound")
    return hi


def index_sums(base: Sequence[Index], vs: Sequence[Var]) -> tuple[Index, ...]:
    """Indices `base` moved by `vs`."""
    return tuple(b + v for b, v in zip(base, vs, strict=True))


def nest(vs: Sequence[Var], node: Stmt) -> Stmt:
    """`node` in loops over `vs`, the first of them outermost."""
    for v in reversed(vs):
        node = For(v, [node])
    return node


def copied(node: Stmt, m: Mapping[Var, IntLike], ending: str = "") -> Stmt:
    """A clone in which loops of one iteration keep their variables, as a tile's axes; `ending` is
    added to the names of loops."""
    if not isinstance(node, For):
        return clone(node, m)
    v = Var(node.var.name + ending, node.extent.subst(m))
    body = [copied(x, {**m, node.var: v}, ending) for x in node.body]
    return For(v, body, node.kind, node.opaque, node.whole, node.fence)


def refreshed(node: Stmt, shift: Mapping[Var, IntLike]) -> Stmt:
    """Substitute outer variables in the extents of the loops that were moved (trimmed kernels)."""
    if isinstance(node, For) and node.extent.vars() & set(shift):
        fresh = Var(node.var.name, node.extent.subst(shift))
        return For(
            fresh, [refreshed(clone(x, {node.var: fresh}), shift) for x in node.body], node.kind
        )
    if isinstance(node, For):
        node.body = [refreshed(x, shift) for x in node.body]
    return node


def bodies(body: list[Stmt]) -> Iterator[list[Stmt]]:
    """Every list of statements in `body`, itself first."""
    yield body
    for s in body:
        if isinstance(s, (For, When, Pick)):
            yield from bodies(s.body)


def redirect(body: list[Stmt], old: Buffer, new: Buffer, base: Sequence[Index]) -> None:
    """Make every load of `old` below `body` read `new` at indices relative to `base`."""

    def put(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer is old:
            return Load(new, tuple(i - b for i, b in zip(e.idx, base, strict=True)))
        return None

    map_values(body, lambda e: rewrite(e, put))


def map_values(body: list[Stmt], f: Callable[[Expr], Expr]) -> None:
    """Apply `f` to all values that statements below `body` store, in place."""
    for stmts in bodies(body):
        for s in stmts:
            if isinstance(s, Store):
                s.value = f(s.value)
                s.init = None if s.init is None else f(s.init)


def region(
    all_idx: Sequence[tuple[Index, ...]], inner: set[Var]
) -> tuple[list[Index], list[Index]]:
    """Bounding box of accesses over the `inner` variables: (base, extent) per dimension.

    Raises:
        ScheduleError: there is none.
    """
    base: list[Index] = []
    extent: list[Index] = []
    for dim in zip(*all_idx, strict=True):
        outs, rests = [], []
        for e in dim:
            out = Index({a: c for a, c in e.terms.items() if not (a.leaves() & inner)})
            outs.append(out)
            rests.append(e - out)
        if any(o != outs[0] for o in outs):
            raise ScheduleError(f"accesses {dim} have no common base")
        ranges = [r.range() for r in rests]
        lows, highs = [r[0] for r in ranges], [r[1] for r in ranges]
        if any(x is None for x in [*lows, *highs]):
            raise ScheduleError(f"the region of {dim} has no bound")
        lo, hi = min(x for x in lows if x is not None), max(x for x in highs if x is not None)
        size = Index.of(hi - lo + 1)
        if len(rests) == 1 and len(rests[0].terms) == 1 and rests[0].const == 0:
            # One loop alone: the region is as long as the loop, also where that is min(...).
            ((atom, c),) = rests[0].terms.items()
            if (
                c == 1
                and isinstance(atom, Var)
                and atom.extent is not None
                and not atom.extent.vars() & inner
            ):
                size = atom.extent
        base.append(outs[0] + lo)
        extent.append(size)
    return base, extent
