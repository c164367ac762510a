"""Lanes for loops over elements that are computed one by one: how many a vector has, which loops
they are of, and how many vectors stand in a body."""

from __future__ import annotations

from compiler.lowering.custom_dtypes import works_on_codes
from compiler.scheduling import Schedule
from compiler.scheduling.lines import fuse_short_rows, one_line
from compiler.scheduling.turned import turn_squares
from compiler.symbolic import Index, Quasi, Var
from compiler.target.registry import Target
from compiler.tensor.expr import CallExtern, Cast, Expr, Gather, IndexValue, Load, walk
from compiler.tensor.stmt import For, Store
from compiler.types.dtypes import DType

FEW = 64
"""Nodes of an expression that is computed for several vectors at once."""


def vectorize_elements(s: Schedule, stage: str, target: Target) -> None:
    """Vectorize an elementwise stage (a perfect nest of serial loops) along its last axis, or its
    last two if the last is that short."""
    found = s.stage_stores(stage)
    ((store, path, home), *more) = found
    if more or store.update or not path or any(f.kind != "serial" for f in path) or len(home) != 1:
        return
    last = path[-1]
    if (
        works_on_codes(store) or last.body is not home
    ):  # in a condition, which all lanes would share
        return
    widest = _widest(store, target)
    lanes = target.vector_bytes // min(4, widest)
    if not _is_line(store, path, widest) and _vectorize_pair(s, store, path, target):
        return
    if turn_squares(s, store, path, target):
        return
    ((store, path, home),) = s.stage_stores(stage)  # its loops may have been cut
    if not any(_hinders_lanes(e) for e in walk(store.value)):
        store, path = fuse_short_rows(s, store, path, lanes, target.vectors_at_once)
    last = path[-1]
    n = last.extent.constant()
    whole = n is not None and n <= 2 * lanes
    if n is not None and n < 2:
        return
    if not _contiguous(store, last.var, whole, lanes) and not _picked(store, last.var, target):
        return
    if whole:
        s.vectorize(last.var.name)
        return
    plain = _moves_plainly(store, last.var)
    outer, inner = s.split(last.var.name, lanes)
    s.peel(outer)
    few = n is not None and sum(1 for _ in walk(store.value)) <= FEW
    several = min(target.vectors_at_once, (n or 0) // lanes) if few else 1
    if several > 1:
        outer, beside = s.split(outer, several)
        s.peel(outer)
        (s.vectorize if plain else s.unroll)(beside)
    for loop, _, _ in s.find(inner):
        # What is left of an extent that is known at run time only goes one by one.
        loop.kind = "serial" if loop.extent.constant() is None else "vector"


def _widest(store: Store, target: Target) -> int:
    """Bytes of the widest element that a statement computes with; integers alone, and what is
    looked up in tables of bytes, count as less than 4, and without vectors only the latter."""
    nodes = list(walk(store.value))
    looked_up = any(isinstance(e, Gather) for e in nodes)
    dtypes = [e.dtype for e in nodes if not (looked_up and isinstance(e, Cast))]

    def width(d: DType) -> int:
        narrow = d.nbytes == 1 if looked_up else d.is_integer or d.kind == "bool"
        return d.nbytes if narrow and (looked_up or not target.scalar) else max(4, d.nbytes)

    return max(width(d) for d in [store.buffer.dtype, *dtypes])


def _is_line(store: Store, path: tuple[For, ...], widest: int) -> bool:
    """Whether the two innermost loops go along one line in all that a statement reads and writes,
    elements of one width: they are better one loop than a vector of a few rows."""
    return len(path) > 1 and store.buffer.dtype.nbytes == widest and one_line(store, path[-2:])


def _moves_plainly(store: Store, v: Var) -> bool:
    """Whether all data is read as `v` goes, or not moved by it: other patterns, and rows that are
    looked up, are recognized in one loop of lanes, not in two."""
    nodes = list(walk(store.value))
    flats = [e.buffer.flat(e.idx) for e in nodes if isinstance(e, Load)]
    odd = any(isinstance(e, Gather | IndexValue) for e in nodes)
    return not odd and all(x.terms.get(v, 0) in (0, 1) and not _hides(x, v) for x in flats)


def _vectorize_pair(s: Schedule, store: Store, path: tuple[For, ...], target: Target) -> bool:
    """Vectorize a short last axis together with the one before it, where the result is contiguous
    over both, and so is the data, or (for the shortest) neighbours along the latter are neighbours
    in the data."""
    if len(path) < 3 or path[-1] not in path[-2].body:
        return False
    x, last = path[-2:]
    n, wide = last.extent.constant(), x.extent.constant()
    step = target.vector_bytes // store.buffer.dtype.nbytes // (n or 1)
    out = store.buffer.flat(store.idx)
    fits = n is not None and wide is not None and n >= 2 and 2 <= step <= wide
    if n is None or not fits or out.terms.get(x.var) != n:
        return False
    for e in walk(store.value):
        if isinstance(e, Load):
            flat = e.buffer.flat(e.idx)
            odd = [a for a in flat.terms if not isinstance(a, Var) and a.leaves() - {last.var}]
            contiguous = (flat.terms.get(x.var), flat.terms.get(last.var)) == (n, 1)
            if odd or not (contiguous or (n <= 4 and flat.terms.get(x.var) == 1)):
                return False
        elif _hinders_lanes(e):
            return False
    if out.terms.get(last.var) != 1 or _hides(out, x.var) or _hides(out, last.var):
        return False
    outer, inner = s.split(x.var.name, step)
    s.vectorize(inner, last.var.name)
    s.peel(outer)
    return True


def _contiguous(store: Store, v: Var, whole: bool, lanes: int) -> bool:
    """Whether neighbours along `v` are neighbours in memory, or their distances are known at build
    time, as all of `v` becomes the lanes of one vector (`whole`), or vectors of `lanes` hold whole
    pieces in which several read the same, or every so manieth."""
    out = store.buffer.flat(store.idx)
    if out.terms.get(v) != 1 or _hides(out, v):
        return False
    rows = [n for n in walk(store.value) if isinstance(n, Gather) and n.row(v) is not None]
    apart = {id(e) for n in rows for e in walk(n)}
    for n in walk(store.value):
        if id(n) in apart:
            continue
        if isinstance(n, Load):
            flat = n.buffer.flat(n.idx)
            hiding = [a for a in flat.terms if not isinstance(a, Var) and v in a.leaves()]
            alone = all(a.leaves() == {v} if whole else _in_pieces(a, v, lanes) for a in hiding)
            if flat.terms.get(v, 0) not in (0, 1) or (_hides(flat, v) and not alone):
                return False
        elif _hinders_lanes(n):
            return False
    return True


def _picked(store: Store, v: Var, target: Target) -> bool:
    """Whether neighbours along `v` are neighbours in the result, and what they are made of can be
    picked out of the data, lane by lane: that is quicker than to compute them one by one."""
    out = store.buffer.flat(store.idx)
    nodes = list(walk(store.value))
    return (
        target.vector_bytes >= 32
        and out.terms.get(v) == 1
        and not _hides(out, v)
        and not any(isinstance(e, CallExtern) for e in nodes)
        and not any(isinstance(e, Load) and e.dtype.nbytes < 4 for e in nodes)
    )


def _in_pieces(a: Quasi, v: Var, lanes: int) -> bool:
    """Whether a position is v // n or v % n, and n divides `lanes`."""
    return a.op in ("//", "%") and a.a == v and lanes % (a.b.constant() or lanes + 1) == 0


def _hinders_lanes(e: Expr) -> bool:
    """Whether lanes do `e` one by one, other than a look-up in a table for every byte (or in a row,
    see `_contiguous`)."""
    return isinstance(e, (CallExtern, Gather, IndexValue)) and not (
        isinstance(e, Gather) and e.byte is not None
    )


def _hides(flat: Index, v: Var) -> bool:
    return any(v in a.leaves() for a in flat.terms if not isinstance(a, Var))
