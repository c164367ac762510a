"""Rows by single threads: what all stages compute of a row, one thread does, in one kernel.

For rows that are short, or whose neighbours in memory are those of other rows, so that neighbouring
threads read neighbours anyway. What a row is reduced to stays in registers, and so do its elements
where there are few.
"""

from __future__ import annotations

from compiler.scheduling.grids.consumers import contracted
from compiler.scheduling.grids.rows import RowNest, Rows
from compiler.symbolic import Index, IntLike, Var
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Expr, Load, rewrite, subst
from compiler.tensor.stmt import For, Stmt, Store

MOST_HELD = 16
"""Elements of a row that are held in registers."""


def row_threads(rows: Rows, local: set[Buffer], target: Target) -> tuple[Stmt, set[Buffer]]:
    """The nest of some nests over their rows, whose loops are parallel, and those of the buffers
    `local`, which nothing else reads, that it does not need."""
    lengths = {b: rows.row_length(b).constant() for b in rows.axes if b in local}
    held = {
        b: Buffer(f"{b.name}_row", (Index.of(n),), b.dtype, "register")
        for b, n in lengths.items()
        if n == 1 or (n is not None and n <= MOST_HELD and not b.dtype.is_custom)
    }
    last = rows.nests[-1].rows
    around = [Var(f.var.name, f.extent) for f in last] or [Var("row", 1)]
    body = [s for n in rows.nests for s in _of_row(rows, n, around, held, target)]
    for v in reversed(around):
        body = [For(v, body, "parallel")]
    return body[0], set(held)


def _of_row(
    rows: Rows, n: RowNest, around: list[Var], held: dict[Buffer, Buffer], target: Target
) -> list[Stmt]:
    """What a nest computes of one row."""
    own = {f.var: Var(f.var.name, f.extent) for f in n.inner if f.extent != 1}
    m: dict[Var, IntLike] = {**n.single, **own}
    m |= {f.var: v for f, v in zip(n.rows, around, strict=False)}
    touched = (n.store.buffer, *(x.buffer for x in n.loads))
    unrolled = any(b in held and held[b].size != 1 for b in touched)

    def kept(x: Load) -> Load:
        at = rows.in_row(x.buffer, x.idx)
        return Load(held[x.buffer], (at if held[x.buffer].size != 1 else Index(),))

    def there(e: Expr) -> Expr:
        def put(x: Expr) -> Expr | None:
            return kept(x) if isinstance(x, Load) and x.buffer in held else None

        return subst(rewrite(e, put), m)

    def over(s: Stmt) -> Stmt:
        for v in reversed([*own.values()]):
            s = For(v, [s], "unroll" if unrolled else "serial")
        return s

    store = n.store
    place = Load(store.buffer, store.idx)
    place = kept(place) if store.buffer in held else place
    idx = tuple(i.subst(m) for i in place.idx)
    if not n.reduces:
        return [over(Store(store.stage, place.buffer, idx, there(store.value)))]
    acc = Buffer(f"{store.buffer.name}_sum", (Index.of(1),), store.buffer.dtype, "register")
    zero = (Index(),)
    return [
        Store(f"{store.stage}.init", acc, zero, there(n.init)),
        over(Store(store.stage, acc, zero, there(store.value), contracted(store, target))),
        Store(f"{store.stage}.out", place.buffer, idx, Load(acc, zero)),
    ]


__all__ = ["row_threads"]
