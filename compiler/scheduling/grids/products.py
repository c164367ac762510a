"""Loop nests that are products of matrices: which axes of the result follow which operand.

A sum of products over some loops is a product of matrices if each axis of the result is followed by
one operand alone (rows or columns), or by both (one product for each of its positions). The axes of
a side are numbered as one, and so are the loops of the sum; so a convolution is one too, whose
operand repeats what windows share (implicit GEMM).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compiler.scheduling import Schedule
from compiler.scheduling.grids.consumers import reader_of
from compiler.scheduling.tile import guards, is_product
from compiler.symbolic import Index, IntLike, Quasi, Var, imax, imin
from compiler.tensor.expr import (
    BinOp,
    Cast,
    Expr,
    Load,
    binary,
    const,
    index_value,
    index_vars,
    loads,
    rewrite,
    select,
    subst,
)
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Store
from compiler.types.dtypes import DType

DTYPES = tuple(DType.parse(n) for n in ("float32", "float64", "int32", "int64"))
"""Built-in dtypes that sums may be of, beside every custom one: they are added up in registers one
by one."""


@dataclass(frozen=True)
class Side:
    """An operand.

    Attributes:
        value: an element, over the loops of the result and of the sum.
        axes: the loops of the result that it alone follows, outermost first.
    """

    value: Expr
    axes: tuple[For, ...]

    @property
    def load(self) -> Load:
        """What it reads."""
        (load,) = loads(self.value)
        return load

    @property
    def length(self) -> Index:
        """How many elements its axes have."""
        return total(self.axes)


class Dot(NamedTuple):
    """The dot product of words that multiplies, and the position within a word."""

    intrinsic: Intrinsic
    lane: Var


@dataclass(frozen=True)
class Product:
    """A sum of products, and what is stored of it.

    Attributes:
        store: what is added up.
        reader: the elementwise stage that reads it, at the same positions; None: it is stored.
        rows, columns: the operands.
        both: the loops of the result that both operands follow.
        sums: the loops of the sum, outermost first; their extents are constants.
        axes: where an element of the result is, by these loops.
        root: the outermost loop around the sum.
        dot: what multiplies words of four bytes, if the steps of the sum are words; the operands
            are bytes then.
        guards: steps are done where these are 1, and left out where they are 0 or less, each by
            the loops of one operand and of the sum.
    """

    store: Store
    reader: Store | None
    rows: Side
    columns: Side
    both: tuple[For, ...]
    sums: tuple[For, ...]
    axes: tuple[Index, ...]
    root: For
    dot: Dot | None = None
    guards: tuple[Index, ...] = ()

    @property
    def leaves_out(self) -> bool:
        """Whether steps must be left out where there are none, as they may not be zeros: sums of
        custom dtypes may round zeros, or have none of the sign that changes nothing, and what is
        multiplied by them may be no number."""
        return self.store.buffer.dtype.is_custom

    @property
    def steps(self) -> int:
        """Products that an element is a sum of."""
        return math.prod(f.extent.const for f in self.sums)


def total(loops: Sequence[For]) -> Index:
    """How many iterations loops have together."""
    out = Index.of(1)
    for f in loops:
        out = out * f.extent
    return out


def positions(loops: Sequence[For], number: IntLike) -> dict[Var, IntLike]:
    """The positions of loops in iteration `number` of all of them, the last of them fastest."""
    at: dict[Var, IntLike] = {}
    left = Index.of(number)
    for f in reversed(loops):
        at[f.var] = left if f is loops[0] else left % f.extent
        left = left // f.extent
    return at


def product_of(s: Schedule, stage: str) -> Product | None:
    """What a stage multiplies; None: it is no product of matrices."""
    ((store, path, _), *more) = s.stage_stores(stage)
    if more or store.init is None or not is_product(store):
        return None
    if store.buffer.dtype not in DTYPES and not store.buffer.dtype.is_custom:
        return None
    rank = len(store.idx)
    axes, inner = path[:rank], path[rank:]
    if not axes or path[0] not in s.func.body or any(f.kind != "serial" for f in path):
        return None
    if any(i != f.var for i, f in zip(store.idx, axes, strict=True)) or not inner:
        return None
    skipped = guards(path)
    if any(f in skipped for f in axes) or any(f.extent.range()[1] != 1 for f in skipped):
        return None
    sums = tuple(f for f in inner if f not in skipped)
    if not sums or any(f.extent.constant() is None for f in sums):
        return None
    value = store.value
    assert isinstance(value, BinOp)
    if any(len(loads(x)) != 1 for x in (value.a, value.b)):
        return None
    return _sides(s, stage, store, (axes, sums, skipped), value)


def _sides(
    s: Schedule,
    stage: str,
    store: Store,
    loops: tuple[Sequence[For], tuple[For, ...], list[For]],
    value: BinOp,
) -> Product | None:
    axes, sums, skipped = loops
    if any(f.var in index_vars(x) for f in skipped for x in (value.a, value.b)):
        return None
    operands = [value.a, value.b]
    own = [index_vars(x) for x in operands]
    left_out = store.buffer.dtype.is_custom  # see `Product.leaves_out`; else it adds zero
    for guard in skipped:
        needed = guard.extent.vars() & {f.var for f in axes}
        side = next((k for k in (0, 1) if needed <= own[k]), None)
        if side is None:
            return None
        operands[side] = (
            _within(operands[side]) if left_out else _zero_unless(guard.extent, operands[side])
        )
    rows, columns, both = list[For](), list[For](), list[For]()
    loops_of, m = _without_groups(axes, operands)
    operands = [subst(x, m) for x in operands]
    for f in loops_of:
        in_a, in_b = (f.var in index_vars(x) for x in operands)
        if not in_a and not in_b and f.extent != 1:
            return None
        (both if in_a and in_b else columns if in_b else rows).append(f)
    if not rows or not columns:
        return None
    a, b = (Side(x, tuple(mine)) for x, mine in zip(operands, (rows, columns), strict=True))
    reader = reader_of(s, stage)
    init = None if store.init is None else subst(store.init, m)
    begun = replace(store, init=init)
    at = tuple(Index.of(f.var).subst(m) for f in axes)
    guarding = tuple(f.extent.subst(m) for f in skipped) if left_out else ()
    return Product(begun, reader, a, b, tuple(both), sums, at, axes[0], guards=guarding)


def _without_groups(
    axes: Sequence[For], operands: Sequence[Expr]
) -> tuple[list[For], dict[Var, IntLike]]:
    """The loops of a result, and what becomes of those that both operands follow, but one of them
    only in groups: two loops, over the groups and over what is in one."""
    out: list[For] = []
    m: dict[Var, IntLike] = {}
    for f in axes:
        each = next((n for x in operands for n in _divisors(x, f)), None)
        if each is not None:
            group = Var(f"{f.var.name}.group", f.extent // each)
            within = Var(f"{f.var.name}.within", each)
            split: dict[Var, IntLike] = {f.var: group * each + within}
            if sum(within in index_vars(subst(x, split)) for x in operands) == 1:
                m |= split
                out += [For(group, []), For(within, [])]
                continue
        out.append(f)
    return out, m


def _divisors(e: Expr, f: For) -> list[int]:
    """Numbers that a load divides a loop's variable by, of those that divide its extent."""
    found = []
    for a in (a for x in loads(e) for i in x.idx for a in i.terms if isinstance(a, Quasi)):
        n = a.b.constant()
        if a.op == "//" and n and a.a == f.var and f.extent.multiple_of(n) and f.extent.constant():
            found.append(n)
    return found


def _zero_unless(condition: Index, value: Expr) -> Expr:
    """A value where a condition is 1, else (0 or less) zero; what it reads stays inside its
    buffer."""
    if isinstance(value, Cast):  # bytes stay bytes
        return Cast(_zero_unless(condition, value.value), value.dtype)
    holds = binary("NE", index_value(imax(condition, 0)), 0)
    return select(holds, _within(value), const(0, value.dtype))


def _within(value: Expr) -> Expr:
    """A value of which each load stays inside its buffer."""

    def put(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        idx = [_inside(i, n) for i, n in zip(e.idx, e.buffer.shape, strict=True)]
        return Load(e.buffer, tuple(idx))

    return rewrite(value, put)


def _inside(i: Index, n: Index) -> Index:
    return imin(imax(i, 0), n - 1)


NONE = Index()


@dataclass(frozen=True)
class At:
    """Where loops are: iteration `number` of all of them, and `lane` further on in the last one,
    which has so many neighbours there."""

    loops: Sequence[For]
    number: Index
    lane: Index = NONE

    @property
    def last(self) -> For:
        """The innermost loop of more than one iteration."""
        return next((f for f in reversed(self.loops) if f.extent != 1), self.loops[-1])


def numbered(e: Expr, where: Sequence[At]) -> Expr:
    """An expression in which loops are replaced by where they are. Where a load goes through loops
    evenly, it takes their number as it is: beyond the end of a row lies the next one."""
    m: dict[Var, IntLike] = {}
    for at in where:
        m.update(positions(at.loops, at.number + at.lane))

    def put(n: Expr) -> Expr | None:
        return evenly(n, where) if isinstance(n, Load) else None

    return subst(rewrite(e, put), m)


def evenly(load: Load, where: Sequence[At]) -> Load:
    """See `numbered`."""
    for at in where:
        idx = list(load.idx)
        several = [f for f in at.loops if f.extent != 1]
        step = even_step(load, several) if len(several) > 1 else None
        lane = even_step(load, [at.last])
        if step:
            idx = [i.subst({f.var: 0 for f in at.loops}) for i in idx]
            idx[-1] = idx[-1] + (at.number + at.lane) * step
        elif lane and at.lane != 0:
            idx = [i.subst(positions(at.loops, at.number)) for i in idx]
            idx[-1] = idx[-1] + at.lane * lane
        else:
            idx = [i.subst(positions(at.loops, at.number + at.lane)) for i in idx]
        load = Load(load.buffer, tuple(idx))
    return load


def even_step(load: Load, loops: Sequence[For]) -> int | None:
    """Elements by which a load moves from one iteration of loops to the next, if that is the same
    everywhere; None: it is not, or not known."""
    flat = load.buffer.flat(load.idx)
    variables = {f.var for f in loops}
    if any(not isinstance(a, Var) and a.leaves() & variables for a in flat.terms):
        return None
    used = [f for f in loops if f.extent != 1]
    if not used:
        return None
    step, below = flat.terms.get(used[-1].var, 0), 1
    for f in reversed(used):
        if flat.terms.get(f.var, 0) != step * below:
            return None
        n = f.extent.constant()
        if n is None and f is not used[0]:
            return None
        below *= n or 1
    return step


__all__ = [
    "At", "Dot", "Product", "Side", "even_step", "evenly", "numbered", "positions", "product_of",
    "total",
]  # fmt: skip
