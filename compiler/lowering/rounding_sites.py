"""Numbers the stochastic roundings of a loop nest, before schedules rearrange it.

Every operation that rounds stochastically is wrapped in an `At` of loop variables. Schedules
replace these as they do in accesses, so that a rounding keeps its place wherever it is computed.
The numbers are those that `compiler.arithmetic.rounding_sites` gives in the operator's reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.arithmetic.rounding_sites import not_numbered
from compiler.arithmetic.stochastic import PLACED, random_dtype
from compiler.errors import UnsupportedError
from compiler.op.opdef import OpDef
from compiler.symbolic import Index
from compiler.tensor.expr import At, BinOp, Cast, Expr, IndexValue, index_value, walk
from compiler.tensor.stmt import For, Stmt, Store, walk_stmts

_UPDATES = ("Add", "Mul", "Fma")


def place_roundings(stages: Sequence[Stmt], op: OpDef, node: int, draw: Expr | None = None) -> None:
    """Wrap the stochastic roundings of one operator's stages, in place.

    Args:
        stages: perfect nests in the order of the reference, each over the positions of its buffer,
            then over what it sums up.
        op: the operator.
        node: number of the binding.
        draw: what is added to all counts, an int64 (`compiler.ir.draws`).

    Raises:
        UnsupportedError: the operator does not number its roundings.
    """
    first = Index()
    for store, path, _ in walk_stmts(list(stages)):
        if not isinstance(store, Store):
            continue
        roundings = list(dict.fromkeys(n for n in walk(store.value) if _rounds(n)))
        if store.update == "Fma":  # its product is not rounded
            roundings = [n for n in roundings if n is not store.value]
        updates = store.update in _UPDATES and random_dtype(store.buffer.dtype) is not None
        count = len(roundings) + updates
        if not count:
            continue
        steps, total = _steps(store, path)
        if not op.numbered or (steps is not None and any(isinstance(n, Cast) for n in roundings)):
            raise UnsupportedError(not_numbered(op.name))
        here = first if steps is None else first + steps * count
        numbers = {id(n): here + k for k, n in enumerate(roundings)}
        index = store.buffer.flat(store.idx)
        places = {key: _drawn(number, draw) for key, number in numbers.items()}
        store.value = _wrapped(store.value, places, node, index)
        if updates:
            step = _drawn(here + len(roundings), draw)
            store.value = At(store.value, node, index_value(index), step)
        first = first + total * count


def _rounds(e: Expr) -> bool:
    """Whether `e` rounds stochastically. Counts become constants, which do not."""
    if random_dtype(e.dtype) is None:
        return False
    if isinstance(e, Cast):
        return not any(isinstance(n, IndexValue) for n in walk(e.value))
    return isinstance(e, BinOp) and e.op in PLACED


def _steps(store: Store, path: Sequence[For]) -> tuple[Index | None, Index]:
    """(number of the iteration of the loops that sum up, None without any; how many there are).

    Loops of one iteration or none, which skip the padding, are not counted.
    """
    kept = {v for i in store.idx for v in i.vars()}
    loops = [f for f in path if f.var not in kept]
    if not store.update:
        return None, Index.of(1)
    flat, total = Index(), Index.of(1)
    for loop in loops:
        if loop.extent.range()[1] != 1:
            flat, total = flat * loop.extent + loop.var, total * loop.extent
    return flat, total


def _drawn(count: Index, draw: Expr | None) -> Expr:
    """The step of a place."""
    step = index_value(count)
    return step if draw is None else BinOp("Add", step, draw, draw.dtype)


def _wrapped(e: Expr, steps: dict[int, Expr], node: int, index: Index) -> Expr:
    kids = [_wrapped(k, steps, node, index) for k in e.children()]
    new = e.rebuilt(kids) if any(a is not b for a, b in zip(kids, e.children(), strict=True)) else e
    if id(e) not in steps:
        return new
    return At(new, node, index_value(index), steps[id(e)])
