"""Rows that all stages of some loop nests compute one apart from another: what one tile of them may
compute from the first stage to the last, before the next tile begins."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer, Expr, Gather, Load, rewrite, walk
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
        stages: the nests, in order, but for those that only move elements.
        result: what the last one stores into: the result, or a temporary whose axes are in another
            order there.
        order: for each axis of the result, which one of `result` it is.
    """

    extents: tuple[int, ...]
    stages: tuple[RowStage, ...]
    result: Buffer
    order: tuple[int, ...]

    @property
    def buffers(self) -> list[Buffer]:
        """What the stages store into, each once."""
        return list(dict.fromkeys(s.store.buffer for s in self.stages))


def shared_rows(f: PrimFunc) -> SharedRows | str:
    """The rows of `f`: all axes of its result but the last; or why it has none.

    A row of a temporary is what its leading axes say, and is read by statements for the same row
    only. Inputs are read anywhere, and as they are where stages only change the order of axes but
    the last. If the last stage does so, its operand is what has the rows.
    """
    if f.dims:
        return f"the size {f.dims[0]} is known only when it runs"
    if f.outputs != 1 or len(f.params[-1].shape) < 2:
        return "it has several results, or one without rows"
    nests = [_nest(s) for s in f.body]
    if any(store is None for _, store in nests):
        return "a stage is no plain nest of loops"
    plain = [(loops, store) for loops, store in nests if store is not None]
    out, order = f.params[-1], tuple(range(len(f.params[-1].shape)))
    *before, (_, last) = plain
    turned = _turned(last)
    if turned is not None and before and turned[0] is before[-1][1].buffer:
        plain, (out, order) = before, turned
    given = {*f.params[:-1]}
    plain = _without_moves(plain, given, out)
    extents = tuple(n.const for n in out.shape[:-1])
    own = {store.buffer for _, store in plain}
    for b in own:
        if tuple(b.shape[: len(extents)]) != tuple(out.shape[:-1]):
            return f"{b.name} has other rows than the result"
    stages: list[RowStage] = []
    for loops, store in plain:
        rows = _rows(store, loops, extents)
        if rows is None or _crosses(store, own, rows, extents):
            return f"stage {store.stage} works on several rows at once"
        stages.append(RowStage(tuple(loops), store, rows))
    return SharedRows(extents, tuple(stages), out, order)


def _turned(store: Store) -> tuple[Buffer, tuple[int, ...]] | None:
    """The one buffer that `store` reads, and which of its axes each axis is of what it fills; None:
    it does something else, or moves the last axis."""
    x = store.value
    if not isinstance(x, Load) or store.update or store.init is not None:
        return None
    own = [next(iter(i.vars()), None) for i in store.idx]
    if any(v is None or v != i for v, i in zip(own, store.idx, strict=True)):
        return None
    order = tuple(x.idx.index(i) if i in x.idx else -1 for i in store.idx)
    whole = sorted(order) == [*range(len(x.idx))]
    same = all(x.buffer.shape[k] == n for k, n in zip(order, store.buffer.shape, strict=True))
    last = len(order) - 1
    return (x.buffer, order) if whole and same and order[last] == last else None


def _without_moves(
    nests: list[tuple[list[Var], Store]], given: set[Buffer], out: Buffer
) -> list[tuple[list[Var], Store]]:
    """The nests without those that only change the order of axes of what is given: it is read as
    it is."""
    moves: dict[Buffer, tuple[Buffer, tuple[int, ...]]] = {}

    def put(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer not in moves:
            return None
        source, order = moves[e.buffer]
        at = dict(zip(order, e.idx, strict=True))
        return Load(source, tuple(at[k] for k in range(len(order))))

    kept: list[tuple[list[Var], Store]] = []
    for loops, store in nests:
        turned = _turned(store)
        if turned is not None and turned[0] in given and store.buffer is not out:
            moves[store.buffer] = turned
            continue
        init = None if store.init is None else rewrite(store.init, put)
        kept.append((loops, replace(store, value=rewrite(store.value, put), init=init)))
    return kept


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
