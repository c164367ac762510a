"""Positions that nodes read or write at: known ones are checked now, others noted for calls."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.boundary.index_ranges import IndexRange
from compiler.errors import ModelError
from compiler.frontend.elements import element
from compiler.frontend.node import Graph, Node
from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.passes.rewrite import op_name
from compiler.symbolic import Dim, Index, dim
from compiler.types.dtypes import INT64

_SAME_ELEMENTS = (
    "reshape", "expand_dims", "squeeze", "transpose", "flatten", "broadcast_to", "assume", "copy",
)  # fmt: skip


def check_positions(n: Node, i: int, sizes: Sequence[Dim]) -> None:
    """Have the positions that input `i` holds be along axes of `sizes`: all along one, or a column
    of its last axis along each.

    Those in branches and loops, which may not run, are not looked at.

    Raises:
        ModelError: a known one is outside.
    """
    if not n.graph.runs():
        return
    known = n.constant(i)
    for column, size in enumerate(sizes):
        whole = len(sizes) == 1
        if known is None:
            _note(n, n.atom(i), size, -1 if whole else column)
        elif isinstance(size, int) and known.size:
            part = known if whole else known[..., column]
            for at in (int(part.min()), int(part.max())):
                if not -size <= at < size:
                    raise ModelError(
                        f"{n.where}: the index {at} is outside an axis of length {size}, which has "
                        f"{-size} to {size - 1}"
                    )


def check_counted(n: Node, highest: Dim, size: Dim) -> None:
    """Have the positions 0 to `highest`, which the program counts, be along an axis of `size`.

    Raises:
        ModelError: they are not.
    """
    if not n.graph.runs():
        return
    low = (Index.of(size) - 1 - highest).range()[0]
    if isinstance(size, int) and isinstance(highest, int) and highest >= size:
        raise ModelError(
            f"{n.where}: there is no position {highest} along an axis of length {size}"
        )
    if low is None or low < 0:
        n.graph.note_indices(IndexRange(size, n.where, highest=highest))


def _note(n: Node, v: Atom, size: Dim, column: int) -> None:
    """Note positions that are an input as it comes, or that count up to a size."""
    v, more = (v, 0) if column >= 0 else _source(n.graph, v)
    made = n.graph.maker(v) if isinstance(v, Var) else None
    if isinstance(v, Var) and made is None and not more:
        n.graph.note_indices(IndexRange(size, n.where, v.name, column), v)
    elif isinstance(made, Call) and op_name(made) == "arange" and column < 0:
        least = Index.of(more).range()[0]
        if least is None or least < 0:
            return
        highest = dim(Index.of(made.attrs.size) + (Index.of(more) - 1))
        low = (Index.of(size) - 1 - highest).range()[0]
        if low is None or low < 0:
            n.graph.note_indices(IndexRange(size, n.where, highest=highest))


def _source(graph: Graph, v: Atom) -> tuple[Atom, Dim]:
    """What the elements of `v` are moved from, all of them and nothing else, and a number that has
    been added to each: one that is known, or a size."""
    more: Dim = 0
    while isinstance(v, Var):
        made = graph.maker(v)
        if not isinstance(made, Call) or not made.args:
            break
        op, first, *others = (op_name(made), *made.args)
        by = others[0].data if len(others) == 1 and isinstance(others[0], Constant) else None
        old, new = tensor_type(first).dtype, tensor_type(v).dtype
        if op == "add" and by is not None and by.size == 1 and new.is_integer:
            more = dim(Index.of(more) + int(by.reshape(-1)[0]))
        elif op == "add" and (size := _size(graph, others)) is not None and new == old == INT64:
            more = dim(Index.of(more) + size)
        elif op == "cast":
            if not (old.is_integer and new.kind == "int" and new.bits > old.bits):
                break
        elif op not in _SAME_ELEMENTS and not (
            op == "multiply" and by is not None and (by == 1).all()
        ):
            break
        v = first
    return v, more


def _size(graph: Graph, added: Sequence[Atom]) -> Index | None:
    """The size that a single number is; None if it is something else."""
    if len(added) != 1 or tensor_type(added[0]).size != 1 or tensor_type(added[0]).dtype != INT64:
        return None
    found = element(graph, added[0], 0)
    return found if isinstance(found, Index) else None
