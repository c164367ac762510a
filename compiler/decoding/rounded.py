"""Caches of what readers round keys and values to, not of the numbers that they round: a call
rounds what is new, once, and integers of 8 bits take a quarter of the memory.

Attention rounds keys and values where it multiplies them: behind their repetition for all heads of
a group, transposed. Rounding each element by itself, by constants, gives the same numbers in front
of what only moves elements (`rounded_first`), and new elements may be rounded before they are kept
(`holding_rounded`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.arithmetic.stochastic import random_dtype
from compiler.decoding.caches import Growing
from compiler.interpret.graph import call_reference
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    tensor_type,
    uses,
)
from compiler.ir.substitution import substitute
from compiler.op.append import APPEND
from compiler.op.facts import Moves
from compiler.op.opdef import Fusion
from compiler.op.shapes import SHAPE_OF
from compiler.passes.live import live
from compiler.passes.rewrite import Rewriter, op_of, typed
from compiler.symbolic import Index
from compiler.symbolic import Var as Size
from compiler.types.dtypes import INT64, Array, DType

_MOVES = (Moves.VIEW, Moves.SAME, Moves.PERMUTE, Moves.REPEAT)


# ---- in front of what moves elements -------------------------------------------------------------
@dataclass(frozen=True)
class _Behind:
    """What becomes of a joined value: `first` rounds it; `moves` take its elements to `ends`, which
    rounded them."""

    first: Call
    moves: frozenset[Var]
    ends: frozenset[Var]


def rounded_first(mod: IRModule) -> IRModule:
    """A prepared module with the rounding of what continues an input in front of all that moves it;
    none of its roundings is stochastic."""
    f = mod.main
    found = {b.var: got for b in f.bindings if (got := _behind(f, b)) is not None}
    if not found:
        return mod
    moves = frozenset().union(*(x.moves for x in found.values()))
    ends = frozenset().union(*(x.ends for x in found.values()))
    r, rounded, instead = Rewriter(f), dict[Atom, Atom](), dict[Var, Atom]()
    for b in f.bindings:
        if b.var in ends:
            instead[b.var] = rounded[_data(b)]
            continue
        if b.var in moves:
            value = substitute(b.value, {v: a for v, a in rounded.items() if isinstance(v, Var)})
            rounded[b.var] = r.emit(typed(r.fresh(f"{b.var.name}_rounded"), value, b.origins))
            continue
        r.keep(replace(b, value=substitute(b.value, instead)))
        if b.var in found:
            first = found[b.var].first
            value = replace(first, args=(b.var, *first.args[1:]))
            rounded[b.var] = r.emit(typed(r.fresh(f"{b.var.name}_rounded"), value, b.origins))
    return mod.with_function("main", r.finish())


def _behind(f: Function, join: Binding) -> _Behind | None:
    """What is behind a value that continues an input, if all that reads its elements rounds them
    alike."""
    op = op_of(join.value)
    if op is None or op.moves is not Moves.JOIN or _data(join) not in f.params:
        return None
    readers, results = uses(f), set(f.results)
    paths: list[tuple[Binding, ...]] = [()]
    ends: dict[Var, Call] = {}
    moves: set[Var] = set()
    while paths:
        path = paths.pop()
        for b in readers.get(path[-1].var if path else join.var, ()):
            if not path and (b is None or op_of(b.value) is SHAPE_OF):
                continue
            if b is None or b.var in results or not isinstance(b.value, Call):
                return None
            if _moves(b):
                moves.add(b.var)
                paths.append((*path, b))
            elif (first := _at_source(join.var, path, b.value)) is not None:
                ends[b.var] = first
            else:
                return None
    found = list(ends.values())
    if not found or not all(_same(found[0], x) for x in found):
        return None
    return _Behind(found[0], frozenset(moves), frozenset(ends))


def _moves(b: Binding) -> bool:
    op = op_of(b.value)
    return (
        op is not None and op.moves in _MOVES and isinstance(b.value, Call) and bool(b.value.args)
    )


def _data(b: Binding) -> Atom:
    assert isinstance(b.value, Call)
    return b.value.args[0]


def _same(a: Call, b: Call) -> bool:
    """Whether two calls do the same with their first operands; the others are constants."""
    alike = a.op is b.op and a.attrs == b.attrs and len(a.args) == len(b.args)
    return alike and all(
        isinstance(x, Constant) and isinstance(y, Constant) and np.array_equal(x.data, y.data)
        for x, y in zip(a.args[1:], b.args[1:], strict=True)
    )


def _at_source(joined: Var, path: Sequence[Binding], call: Call) -> Call | None:
    """A rounding of moved elements, by constants, as one of the elements where they come from."""
    op = op_of(call)
    if op is None or op.fusion is not Fusion.ELEMENTWISE or not op.in_float32:
        return None
    dtype = getattr(call.attrs, "dtype", "")
    if dtype and random_dtype(DType.parse(dtype)):
        return None  # its roundings go by where elements are
    rest = []
    for a in call.args[1:]:
        made = _constant(joined, path, call, a) if isinstance(a, Constant) else None
        if made is None:
            return None
        rest.append(made)
    return replace(call, args=(joined, *rest))


def _constant(joined: Var, path: Sequence[Binding], call: Call, a: Constant) -> Constant | None:
    """The constant for elements of `joined` that `a` is for the elements that `path` moves; None if
    an element has several, or they depend on open sizes."""
    if a.data.size == 1:
        return replace(a, data=a.data.reshape(()))
    sizes = {v: 2 for d in tensor_type(joined).shape if isinstance(d, Index) for v in d.vars()}
    places = _moved(joined, path, sizes)
    rank = places.ndim
    if a.data.ndim == 1 and rank > 1:
        axis = getattr(call.attrs, "axis", -1) % rank
        given = a.data.reshape([-1 if k == axis else 1 for k in range(rank)])
    else:
        given = a.data
    wanted = np.broadcast_to(given, places.shape)
    shape = [_value(d, sizes) for d in tensor_type(joined).shape]
    flat = np.zeros(int(np.prod(shape)), a.data.dtype)
    flat[places.reshape(-1)] = wanted.reshape(-1)
    if not np.array_equal(flat[places], wanted):
        return None
    full = flat.reshape(shape)
    for k, d in enumerate(tensor_type(joined).shape):
        alike = full.take([0], k)
        if np.array_equal(np.broadcast_to(alike, full.shape), full):
            full = alike
        elif not isinstance(d, int):
            return None
    return replace(a, data=np.ascontiguousarray(full))


def _moved(joined: Var, path: Sequence[Binding], sizes: dict[Size, int]) -> Array:
    """Where each of the elements that `path` gives comes from, with these sizes."""
    shape = [_value(d, sizes) for d in tensor_type(joined).shape]
    at = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    for b in path:
        assert isinstance(b.value, Call)
        out = Var(b.var.name, tensor_type(b.var).with_dtype(INT64))
        at = call_reference(b.value, [at], out, sizes)
    return np.asarray(at)


def _value(d: int | Index, sizes: dict[Size, int]) -> int:
    return d if isinstance(d, int) else int(d.value(sizes))


# ---- before they are kept ------------------------------------------------------------------------
def holding_rounded(g: Growing) -> Growing:
    """The same with caches of rounded elements, where all that reads a cache rounds it alike."""
    f = g.module.main
    readers = uses(f)
    r, instead = Rewriter(f), dict[Var, Atom]()
    for b in f.bindings:
        if b.var in instead:
            continue
        b = replace(b, value=substitute(b.value, instead))
        ends = _all_rounding(b, readers)
        if not ends or not isinstance(b.value, Call):
            r.keep(b)
            continue
        (cache, new), (end, *_) = b.value.args, ends
        assert isinstance(cache, Var)
        assert isinstance(end.value, Call)
        held = Var(cache.name, tensor_type(cache).with_dtype(tensor_type(end.var).dtype))
        value = replace(end.value, args=(new, *end.value.args[1:]))
        made = r.emit(typed(r.fresh(f"{b.var.name}_new"), value, b.origins))
        joined = replace(b.value, args=(held, made))
        kept = r.emit(typed(r.fresh(f"{b.var.name}_held"), joined, b.origins))
        instead |= {x.var: kept for x in ends} | {cache: held}
    if not instead:
        return g
    # Sizes of a cache may be asked for in front of where it is continued.
    body = [replace(b, value=substitute(b.value, instead)) for b in r.finish().bindings]
    params = tuple(p if isinstance(p := instead.get(q, q), Var) else q for q in f.params)
    dtypes = {p.name: tensor_type(p).dtype for p in params}
    caches = tuple(replace(c, held=dtypes[c.name]) for c in g.caches)
    main = live(replace(f.with_body(body, f.results), params=params))
    return replace(g, module=g.module.with_function("main", main), caches=caches)


def _all_rounding(b: Binding, readers: Mapping[Var, Sequence[Binding | None]]) -> list[Binding]:
    """What reads a cache that is continued, if all of it rounds it alike; else nothing."""
    if op_of(b.value) is not APPEND:
        return []
    found = [x for x in readers.get(b.var, ()) if x is not None and isinstance(x.value, Call)]
    calls = [_at_source(b.var, (), x.value) for x in found if isinstance(x.value, Call)]
    alike = all(c is not None and calls[0] is not None and _same(calls[0], c) for c in calls)
    return found if alike and len(found) == len(readers.get(b.var, ())) else []
