"""Rows that all stages of some loop nests compute one apart from another: what one tile of them may
compute from the first stage to the last, before the next tile begins."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer, Expr, Gather, Load, walk
from compiler.tensor.stmt import For, PrimFunc, Stmt, Store


@dataclass(frozen=True, eq=False)
class RowStage:
    """A perfect nest that stores into the rows of one buffer.

    Attributes:
        loops: the loops, outermost first.
        store: the statement inside them.
        rows: the loop along each axis of the rows; None where there is but one.
    """

    loops: tuple[Var, ...]
    store: Store
    rows: tuple[Var | None, ...]


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Loop nests whose rows are the elements of the leading axes of the result.

    Attributes:
        extents: how many rows there are along each of these axes.
        stages: the nests, in order.
    """

    extents: tuple[int, ...]
    stages: tuple[RowStage, ...]


def shared_rows(f: PrimFunc) -> SharedRows | str:
    """The rows of `f`: all axes of its result but the last; or why it has none.

    A row of a temporary is what its leading axes say, and is read by statements for the same row
    only. Inputs are read anywhere.
    """
    if f.dims:
        return f"the size {f.dims[0]} is known only when it runs"
    if f.outputs != 1 or len(f.params[-1].shape) < 2:
        return "it has several results, or one without rows"
    out = f.params[-1]
    extents = tuple(n.const for n in out.shape[:-1])
    own = {out, *f.temps}
    for b in own:
        if tuple(b.shape[: len(extents)]) != tuple(out.shape[:-1]):
            return f"{b.name} has other rows than the result"
    stages: list[RowStage] = []
    for s in f.body:
        loops, store = _nest(s)
        if store is None:
            return "a stage is no plain nest of loops"
        rows = _rows(store, loops, extents)
        if rows is None or _crosses(store, own, rows, extents):
            return f"stage {store.stage} works on several rows at once"
        stages.append(RowStage(tuple(loops), store, rows))
    return SharedRows(extents, tuple(stages))


def _nest(s: Stmt) -> tuple[list[Var], Store | None]:
    loops: list[Var] = []
    while isinstance(s, For) and s.kind == "serial" and len(s.body) == 1:
        loops.append(s.var)
        (s,) = s.body
    plain = not any(v.extent is None or v.extent.vars() for v in loops)
    return loops, s if plain and isinstance(s, Store) else None


def _rows(
    store: Store, loops: list[Var], extents: tuple[int, ...]
) -> tuple[Var | None, ...] | None:
    """The loop along each axis of the rows that `store` writes; None: it is not so simple."""
    found: list[Var | None] = []
    for at, n in zip(store.idx, extents, strict=False):
        (v,) = at.vars() if len(at.vars()) == 1 else (None,)
        if v is not None and (at != v or v not in loops or v.extent != n or v in found):
            return None
        if v is None and (at != 0 or n != 1):
            return None
        found.append(v)
    return tuple(found)


def _crosses(
    store: Store, own: set[Buffer], rows: tuple[Var | None, ...], extents: tuple[int, ...]
) -> bool:
    """Whether a statement reads another row than it writes."""
    wanted = [Index.of(0 if v is None else v) for v in rows]

    def other(e: Expr) -> bool:
        if isinstance(e, Gather):
            return e.buffer in own
        if not isinstance(e, Load) or e.buffer not in own:
            return False
        pairs = zip(e.idx, wanted, extents, strict=False)
        return any(n != 1 and i != w for i, w, n in pairs)

    given = [store.value] if store.init is None else [store.value, store.init]
    return any(other(e) for x in given for e in walk(x))
