"""Products of two computed operands of bytes, as the target's dot products take them.

With x' = x + a and w' = w + b of the dtypes that the instruction multiplies, p and q what stands
for zero in x' and w', and n terms,

    sum((x' - p) * (w' - q)) = sum(x' * w') - q * sum(x') - p * sum(w') + n * p * q

modulo 2^32, as int32 sums are: not a bit of a result differs. Sums of x' are one a row, those of w'
one a column. Operands are copied where that adds a number, or to fill the reduction up to whole dot
products with zeros. Where a target multiplies matrices (see
`matrix_products`), bytes stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compiler.scheduling import Schedule
from compiler.scheduling.matrix_products import product_of, worth_copies
from compiler.scheduling.nests import nest
from compiler.scheduling.select import consumer
from compiler.scheduling.tile import index_vars_of, is_product, keeps_order, stride_of
from compiler.scheduling.unpacked_tiles import SHARED_COPY
from compiler.symbolic import Index, IntLike, Var
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import BinOp, Cast, Expr, IntImm, Load, cast, const, rewrite, subst
from compiler.tensor.stmt import Buffer, For, Stmt, Store
from compiler.types.dtypes import INT8, INT32, UINT8, DType

LEAST = {INT8: -128, UINT8: 0}
"""The least numbers of bytes."""


def for_dot_products(s: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Let every sum of products of two computed operands of bytes multiply plain bytes."""
    every = (i for i in for_target(target) if i.steps and not i.data_bits)
    dots = [i for i in every if set(i.operand_dtypes) <= {*LEAST}]
    if not dots:
        return
    dot = dots[0]
    for stage in s.stages():
        ((store, path, _), *more) = s.stage_stores(stage)
        found = None if more else _operands(store, path)
        if found is None or any(o.load.buffer in constants for o in found):
            continue
        dtypes, steps = _taken(store, path, found, target) or (dot.operand_dtypes, dot.steps)
        wanted = list(zip(found, dtypes, strict=True))
        terms = path[-1].extent.const
        if all(not o.zero and o.load.dtype == d for o, d in wanted) and terms % steps == 0:
            continue
        if store.buffer in s.func.params or consumer(s, store) is None:
            s.accumulate_apart(stage)
        x, w = (_stored(s, stage, o, d, steps) for o, d in wanted)
        _multiply(s, stage, x, w, steps, target.vector_bytes // 4)


def _taken(
    store: Store, path: Sequence[For], found: tuple[_Operand, _Operand], target: Target
) -> tuple[list[DType], int] | None:
    """The dtypes that instructions on matrices multiply, those that the operands have, and how many
    steps of the reduction they take; None: they do not compute this, or not sooner."""
    x, w = (o.load for o in found)
    product = product_of(store, path, x, w, target)
    if product is None or not worth_copies(product) or not product.pays(target):
        return None
    return [x.dtype, w.dtype], product.by.steps


@dataclass
class _Operand:
    """A factor `int32(load) - zero`."""

    load: Load
    zero: int


def _operands(store: Store, path: tuple[For, ...]) -> tuple[_Operand, _Operand] | None:
    """The factors of a sum of products of bytes, whose second alone follows the last axis; None:
    it is none, or one whose operands are not worth a copy."""
    rank = len(store.idx)
    if len(path) != rank + 1 or not is_product(store) or keeps_order(store) or not rank:
        return None
    if store.update != "Add" or store.buffer.dtype != INT32:
        return None
    if not isinstance(store.init, IntImm) or store.init.value:
        return None
    own = [f.var for f in path[:rank]]
    if any(i != v for i, v in zip(store.idx, own, strict=True)):
        return None
    extents = [f.extent.constant() for f in path]
    assert isinstance(store.value, BinOp)
    x, w = _factor(store.value.a), _factor(store.value.b)
    if x is None or w is None or any(n is None for n in extents):
        return None
    last, term = own[-1], path[-1].var
    if last in index_vars_of(x.load) or stride_of(w.load, last) != 1:
        return None
    used = index_vars_of(w.load)
    rows = [f.extent.const for f in path[: rank - 1] if f.var not in used]
    apart = all(i == term or term not in i.vars() for o in (x, w) for i in o.load.idx)
    wide = path[rank - 1].extent.const >= 4
    return (x, w) if apart and wide and math.prod(rows) >= SHARED_COPY else None


def _factor(e: Expr) -> _Operand | None:
    zero = 0
    if isinstance(e, BinOp) and e.op == "Sub" and isinstance(e.b, IntImm):
        zero, e = e.b.value, e.a
    if isinstance(e, Cast) and isinstance(e.value, Load) and e.value.dtype in LEAST:
        return _Operand(e.value, zero)
    return None


def _stored(s: Schedule, stage: str, o: _Operand, dtype: DType, steps: int) -> _Operand:
    """The operand as bytes of `dtype`, with whole steps of neighbours: a copy, unless it is that
    already."""
    ((_, path, _),) = s.stage_stores(stage)
    term, n = path[-1].var, path[-1].extent.const
    more = LEAST[dtype] - LEAST[o.load.dtype]
    last = path[len(path) - 2].var
    along = last if last in index_vars_of(o.load) else term
    if not more and n % steps == 0 and stride_of(o.load, along) == 1:
        return o
    name = f"{stage}.{o.load.buffer.name}.bytes"
    mine = [f.var for f in path if f.var in index_vars_of(o.load)]
    order = [v for v in mine if v not in (term, along)] + (
        [term, along] if along is not term else [term]
    )
    filled = -(-n // steps) * steps
    shape = [Index.of(filled) if v is term else v.extent or Index.of(1) for v in order]
    out = Buffer(f"{o.load.buffer.name}_bytes", tuple(shape), dtype)
    s.func.temps.append(out)
    for ending, first, count in (("", 0, n), (".rest", n, filled - n)):
        if not count:
            continue
        fresh = {v: Var(f"{name}{ending}.{v.name.rsplit('.', 1)[-1]}", v.extent) for v in order}
        fresh[term] = Var(fresh[term].name, count)
        at = tuple(fresh[v] + first if v is term else Index.of(fresh[v]) for v in order)
        m: dict[Var, IntLike] = dict(fresh)
        value = cast(subst(o.load, m), INT32) + more if more else subst(o.load, m)
        value = const(0, dtype) if ending else cast(value, dtype)
        _put(s, stage, nest([fresh[v] for v in order], Store(name + ending, out, at, value)))
    return _Operand(Load(out, tuple(map(Index.of, order))), o.zero + more)


def _put(s: Schedule, stage: str, node: Stmt) -> None:
    """Insert a loop nest before that of a stage."""
    ((_, path, _),) = s.stage_stores(stage)
    at = next(k for k, x in enumerate(s.func.body) if x is path[0])
    s.func.body.insert(at, node)


def _multiply(s: Schedule, stage: str, x: _Operand, w: _Operand, steps: int, lanes: int) -> None:
    """Let the stage multiply plain bytes, and its reader add the rest."""
    ((store, path, _),) = s.stage_stores(stage)
    reader = consumer(s, store)
    assert reader is not None
    term, n = path[-1].var, path[-1].extent.const
    own = [f.var for f in path[:-1]]
    rest: list[tuple[int, Load]] = []
    if w.zero:
        rest += [(-w.zero, y) for y in _row_sums(s, stage, x.load, own, term, n, lanes)]
    if x.zero:
        rest.append((-x.zero, _sum(s, stage, w.load, own, term, n, ".w")))
    offset = n * x.zero * w.zero

    def put(e: Expr) -> Expr | None:
        if not (isinstance(e, Load) and e.buffer is store.buffer):
            return None
        m: dict[Var, IntLike] = dict(zip(own, e.idx, strict=True))
        out: Expr = e
        for factor, y in rest:
            out = out + subst(y, m) * factor
        return out + wrapped(offset) if offset else out

    reader.value = rewrite(reader.value, put)
    filled = Var(term.name, -(-n // steps) * steps)
    value = BinOp("Mul", cast(x.load, INT32), cast(w.load, INT32), INT32)
    new = Store(
        store.stage, store.buffer, store.idx, subst(value, {term: filled}), "Add", store.init
    )
    home = path[-2].body
    s.swap(home, path[-1], [For(filled, [new])])


def wrapped(n: int) -> int:
    """`n` modulo 2^32 as int32 has it."""
    return (n + 2**31) % 2**32 - 2**31


def _row_sums(
    s: Schedule, stage: str, x: Load, own: list[Var], term: Var, n: int, lanes: int
) -> list[Load]:
    """Sums of the elements of x along `term`: whole vectors in lanes, and what is left."""
    whole = n // lanes if stride_of(x, term) == 1 else 0
    out: list[Load] = []
    if whole:
        lane, step = Var("lane", lanes), Var("step", whole)
        part = _sum(
            s, stage, subst(x, {term: step * lanes + lane}), [*own, lane], step, whole, ".x.lanes"
        )
        out.append(_sum(s, stage, part, own, lane, lanes, ".x"))
    if n > whole * lanes:
        left = Var("left", n - whole * lanes)
        at = subst(x, {term: left + whole * lanes})
        out.append(_sum(s, stage, at, own, left, n - whole * lanes, ".x.rest"))
    return out


def _sum(s: Schedule, stage: str, y: Expr, own: list[Var], term: Var, n: int, ending: str) -> Load:
    """A new stage `<stage><ending>`, before `stage`: int32 sums of `y` along `term`, for those of
    the loops `own` that y follows and that have several iterations; an element of them."""
    assert isinstance(y, Load)
    used, name = index_vars_of(y), stage + ending
    mine = [v for v in own if v in used and (v.extent is None or v.extent != 1)]
    fresh = {v: Var(f"{name}.{v.name.rsplit('.', 1)[-1]}", v.extent) for v in mine}
    along = Var(f"{name}.{term.name.rsplit('.', 1)[-1]}", n)
    m: dict[Var, IntLike] = {**{v: 0 for v in own if v in used}, **fresh, term: along}
    out = Buffer(name.replace(".", "_"), tuple(v.extent or Index.of(1) for v in mine), INT32)
    s.func.temps.append(out)
    value = cast(subst(y, m), INT32)
    idx = tuple(map(Index.of, fresh.values()))
    node = nest([*fresh.values(), along], Store(name, out, idx, value, "Add", const(0, INT32)))
    _put(s, stage, node)
    return Load(out, tuple(map(Index.of, mine)))


__all__ = ["for_dot_products"]
