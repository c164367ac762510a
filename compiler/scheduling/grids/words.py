"""Products of bytes, four at a time: words of four neighbours along the sum, for the dot products
of a thread (dp4a), and constant operands laid out as threads read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from compiler.scheduling import Schedule
from compiler.scheduling.grids.products import Dot, Product, Side
from compiler.scheduling.grids.tiles import LEAST
from compiler.scheduling.tile import read_once
from compiler.symbolic import Index, IntLike, Var
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Cast, Load, binary, rewrite, subst
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Packed, Store
from compiler.types.dtypes import INT32, DType

LANES = 4
"""Bytes of a word."""


def in_words(p: Product, target: Target) -> Product:
    """The product over words, if its operands are bytes that the target multiplies four at a time;
    else as it is. The order of a sum of integers does not matter."""
    sides = (p.rows.value, p.columns.value)
    if p.store.buffer.dtype != INT32 or p.store.update != "Add" or p.steps < LEAST * LANES:
        return p
    if not all(isinstance(x, Cast) and x.value.dtype.nbytes == 1 for x in sides):
        return p
    dtypes = [x.value.dtype for x in sides if isinstance(x, Cast)]
    dot = next((i for i in for_target(target) if _multiplies(i, dtypes)), None)
    return p if dot is None else over_words(p, dot)


def over_words(p: Product, dot: Intrinsic) -> Product:
    """A product of bytes over words, if some loop of its sum is made of whole words; else as it
    is."""
    sides, loop = (p.rows.value, p.columns.value), _neighbours(p)
    if loop is None:
        return p
    a, b = (x.value for x in sides if isinstance(x, Cast))
    word, lane = Var(loop.var.name, loop.extent // LANES), Var(f"{loop.var.name}.lane", LANES)
    m: Mapping[Var, IntLike] = {loop.var: word * LANES + lane}
    rows = Side(subst(a, m), p.rows.axes)
    columns = Side(subst(b, m), p.columns.axes)
    sums = (*(f for f in p.sums if f is not loop), For(word, []))
    return replace(p, rows=rows, columns=columns, sums=sums, dot=Dot(dot, lane))


def _multiplies(i: Intrinsic, operands: list[DType]) -> bool:
    """Whether an instruction is the dot product of one thread, of such operands."""
    return i.steps == LANES and i.loops["o"] == 1 and i.operand_dtypes == operands


def _neighbours(p: Product) -> For | None:
    """The loop of the sum along which bytes of the data are neighbours in memory, if there is such
    a loop; else the last one that is made of whole words."""
    whole = [f for f in p.sums if f.extent.multiple_of(LANES)]
    load = p.rows.load
    for f in whole:
        first, second = (
            load.buffer.flat(tuple(i.subst({f.var: k}) for i in load.idx)) for k in (0, 1)
        )
        if (second - first).constant() == 1:
            return f
    return whole[-1] if whole else None


def lay_out(
    s: Schedule, p: Product, constants: Collection[Buffer], along_sum: bool = False
) -> Product:
    """The product, of which constant columns lie in memory in the order of the sum's steps; all
    columns of a step are neighbours, or (`along_sum`) all steps of a column."""
    load = p.columns.load
    if load.buffer not in read_once(s.func.body, constants) or load.buffer not in s.func.params:
        return p
    lanes = [] if p.dot is None else [p.dot.lane]
    inner = (*p.columns.axes, *p.sums) if along_sum else (*p.sums, *p.columns.axes)
    loops = [f.var for f in (*p.both, *inner)]
    used = set[Var]().union(*(i.vars() for i in load.idx))
    order = [v for v in (*loops, *lanes) if v in used]
    sizes = [Index() if v.extent is None else v.extent for v in order]
    known = all(n.constant() for n in sizes)
    if used != set(order) or not known or set(p.columns.axes) == set():
        return p
    packed = Buffer(f"{load.buffer.name}_packed", tuple(sizes), load.dtype, align=64)
    s.func.params[s.func.params.index(load.buffer)] = packed
    s.func.packed[packed] = Packed(load.buffer, tuple(order), load.idx)
    there = Load(packed, tuple(map(Index.of, order)))
    value = rewrite(p.columns.value, lambda e: there if e is load else None)
    return replace(p, columns=Side(value, p.columns.axes))


def dot_store(p: Product, total: Buffer, at: Index, a: Load, b: Load) -> Store:
    """The statement that adds the product of two words, over their lanes."""
    value = binary("Mul", a.astype(INT32), b.astype(INT32))
    return Store(p.store.stage, total, (at,), value, "Add")


__all__ = ["LANES", "dot_store", "in_words", "lay_out", "over_words"]
