"""Elementwise stages that read what data says: where a stage copies what lies at picked positions,
the one stage that reads the copy, element by element, is computed in its place."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compiler.scheduling import Schedule
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import Buffer, Expr, Gather, Load, rewrite, subst, walk
from compiler.tensor.stmt import For, Pick, Stmt, Store, stores, walk_stmts


def read_where_picked(s: Schedule, apart: Collection[str] = ()) -> None:
    """Let the readers of picked copies take the place of the copies, which no memory holds then;
    not of stages that are to stay `apart`."""
    for root in list(s.func.body):
        copy = _perfect(root)
        if copy is None or copy.stage in apart or not _picks([root]):
            continue
        reader = _reader(s, copy)
        if reader is None:
            continue
        nest, store, at = reader
        b = copy.buffer

        def put(e: Expr, b: Buffer = b, value: Expr = copy.value) -> Expr | None:
            return value if isinstance(e, Load) and e.buffer is b else None

        copy.stage, copy.buffer = store.stage, store.buffer
        copy.idx = tuple(i.subst(at) for i in store.idx)
        # What is read there is substituted last: its indices are those of the copy already.
        copy.value = rewrite(subst(store.value, at), put)
        body = [x for x in s.func.body if x is not root]
        body[next(k for k, x in enumerate(body) if x is nest)] = root
        s.func.body[:] = body
        s.func.temps = [x for x in s.func.temps if x is not b]


def _picks(body: list[Stmt]) -> bool:
    return any(isinstance(x, Pick) for x, _, _ in walk_stmts(body))


def _perfect(root: Stmt) -> Store | None:
    """The one statement of a nest of serial loops and picked positions, if it stores at once."""
    while isinstance(root, For | Pick):
        if len(root.body) != 1 or (isinstance(root, For) and root.kind != "serial"):
            return None
        root = root.body[0]
    plain = isinstance(root, Store) and not root.update and root.init is None
    return root if plain and isinstance(root, Store) else None


def _reader(s: Schedule, copy: Store) -> tuple[Stmt, Store, Mapping[Var, IntLike]] | None:
    """(nest, statement, loop -> index) of the only stage that reads what a stage stores, if each
    iteration of it reads one element, another each, and it reads all of them; with its loops in
    terms of those of the copy."""
    b = copy.buffer
    own = [_alone(i) for i in copy.idx]
    every = [x for x in stores(s.func.body) if x.buffer is b]
    if b not in s.func.temps or len(every) != 1 or None in own or len({*own}) < len(own):
        return None
    nests = [x for x in s.func.body if any(_reads(r, b) for r in stores([x]))]
    if len(nests) != 1 or (store := _perfect(nests[0])) is None or not isinstance(nests[0], For):
        return None
    if _picks(nests):
        return None
    reads = {x.idx for x in walk(store.value) if isinstance(x, Load) and x.buffer is b}
    gathered = any(isinstance(x, Gather) and x.buffer is b for x in walk(store.value))
    if len(reads) != 1 or gathered or store.buffer is b:
        return None
    at: dict[Var, IntLike] = {}
    for i, v in zip(reads.pop(), own, strict=True):
        w = _alone(i)
        if w is not None and w not in at and v is not None and w.extent == v.extent:
            at[w] = v
        elif i != 0 or v is None or v.extent != 1:
            return None
    loops = [x.var for x, _, _ in walk_stmts(nests) if isinstance(x, For)]
    if any(v not in at and v.extent != 1 for v in loops):
        return None
    return nests[0], store, {**dict.fromkeys(loops, 0), **at}


def _alone(i: Index) -> Var | None:
    """The loop that an index is."""
    v = next(iter(i.vars()), None)
    return v if v is not None and i == v else None


def _reads(s: Store, b: Buffer) -> bool:
    exprs = [s.value] if s.init is None else [s.value, s.init]
    return any(getattr(n, "buffer", None) is b for e in exprs for n in walk(e))
