"""Caches that lie as their readers want them: keys that nothing but their transposition reads are
kept transposed, so that a call transposes what is new, and not all that there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from compiler.decoding.caches import Cache, Growing
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    Var,
    operands,
    tensor_type,
    uses,
)
from compiler.ir.substitution import with_operands
from compiler.op.append import APPEND, CACHES
from compiler.op.shapes import SHAPE_OF, TRANSPOSE
from compiler.passes.live import live
from compiler.passes.rewrite import Rewriter, call, typed
from compiler.types.dtypes import INT64
from compiler.types.tensor_types import TensorType

Order = tuple[int, ...]


def turned(g: Growing) -> Growing:
    """The same with caches transposed where that is how they are read."""
    f = g.module.main
    orders = _orders(f)
    if not orders:
        return g
    caches = tuple(_turned(c, orders[c.name]) if c.name in orders else c for c in g.caches)
    axes = {c.name: c.axis for c in caches}
    held = tuple((name, axes[name], capacity) for name, _, capacity in f.attrs[CACHES])
    main = replace(_rewritten(f, orders), attrs={**f.attrs, CACHES: held})
    return replace(g, module=g.module.with_function("main", live(main)), caches=caches)


def _turned(c: Cache, order: Order) -> Cache:
    return replace(c, axis=order.index(c.axis), order=order)


def _orders(f: Function) -> dict[str, Order]:
    """How each cache is transposed that is read in no other way."""
    readers, found = uses(f), dict[str, Order]()
    for b in f.bindings:
        if not isinstance(b.value, Call) or b.value.op is not APPEND:
            continue
        orders = {_order(reader) for reader in readers.get(b.var, ())}
        order = orders.pop() if len(orders) == 1 else ()
        if order and isinstance(cache := b.value.args[0], Var):
            found[cache.name] = order
    return found


def _order(b: Binding | None) -> Order:
    """The order of axes of a transposition; nothing of other readers."""
    if b is None or not isinstance(b.value, Call) or b.value.op is not TRANSPOSE:
        return ()
    rank = tensor_type(b.var).rank
    return tuple(k % rank for k in b.value.attrs.axes or reversed(range(rank)))


def _rewritten(f: Function, orders: Mapping[str, Order]) -> Function:
    r = Rewriter(f)
    params: dict[Atom, Var] = {}
    for p in f.params:
        if p.name in orders:
            t = tensor_type(p)
            shape = tuple(t.shape[k] for k in orders[p.name])
            params[p] = Var(p.name, TensorType(shape, t.dtype))
    moved: dict[Atom, Atom] = {}
    bindings: list[Binding] = []

    def emit(b: Binding) -> Var:
        bindings.append(b)
        return b.var

    for b in f.bindings:
        value = with_operands(b.value, [moved.get(a, a) for a in operands(b.value)])
        cache = params.get(value.args[0]) if isinstance(value, Call) and value.args else None
        if cache is None or not isinstance(value, Call):
            if b.var not in moved:
                emit(replace(b, value=value))
            continue
        order = orders[cache.name]
        if value.op is SHAPE_OF:
            sizes = emit(typed(r.fresh(f"{b.var.name}_turned"), call(SHAPE_OF, cache), b.origins))
            back = Constant.of(np.argsort(order), INT64)
            emit(replace(b, value=call("take", sizes, back, axis=0)))
            continue
        new = call(TRANSPOSE, value.args[1], axes=order)
        more = emit(typed(r.fresh(f"{b.var.name}_new"), new, b.origins))
        axis = order.index(value.attrs.axis % len(order))
        join = typed(
            r.fresh(f"{b.var.name}_turned"), call(APPEND, cache, more, axis=axis), b.origins
        )
        emit(join)
        for reader in uses(f).get(b.var, ()):
            assert reader is not None
            moved[reader.var] = join.var
    results = [moved.get(a, a) for a in f.results]
    return replace(f.with_body(bindings, results), params=tuple(params.get(p, p) for p in f.params))
