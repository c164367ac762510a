"""CombineSlices: products of the parts of one tensor with the same factor become one product, of
which the parts are taken.

Written-out steps of a recurrent layer multiply each step's input by the same weights. One at a
time, these products read all weights anew for the few rows that a step has; together, once. The
terms of each sum, and their order, stay as they are, so that numbers of formats keep every bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.arithmetic.stochastic import random_dtype
from compiler.errors import ConfigError
from compiler.ir.expr import Atom, Binding, Call, Function, IRModule, Var, tensor_type
from compiler.op.facts import Contraction, Moves
from compiler.op.opdef import OpDef
from compiler.op.shapes import RESHAPE
from compiler.op.slice import STRIDED_SLICE
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, call, op_of, typed, union
from compiler.symbolic import product

_MANY_ROWS = 16
"""Rows with which a product takes as long as its multiplications, however often weights are read:
it gains nothing by more."""


@dataclass(frozen=True)
class Part:
    """What one product reads: `whole` from `begin` to `end` along `axis`, which the product's shape
    may lack, if it is one long."""

    whole: Atom
    axis: int
    begin: int
    end: int


class CombineSlices(FunctionPass):
    """Combines products (dense layers, products of matrices) of all parts of a tensor, cut along an
    axis that is none of the sums', with one factor: where the parts are the whole, each once, and
    none is known to have 16 rows or more, which gain nothing.

    Args:
        min_num_branches: fewer parts are left apart.

    Raises:
        ConfigError: a number below 2.
    """

    name = "CombineSlices"
    opt_level = 2
    required = ("InferType",)

    def __init__(self, min_num_branches: int = 2):
        if min_num_branches < 2:
            raise ConfigError(f"{self.name} combines at least 2 branches, not {min_num_branches}")
        self.min_num_branches = min_num_branches

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with its products combined."""
        groups = self._groups(f)
        if not groups:
            return f
        r = Rewriter(f)
        made: dict[Var, tuple[Var, Part]] = {}
        for b in f.bindings:
            if b.var in groups:
                whole = _product(r, groups[b.var])
                made |= {each.var: (whole, part) for each, part in groups[b.var]}
            if b.var in made:
                _take(r, b, *made[b.var])
            else:
                r.keep(b)
        return r.finish()

    def _groups(self, f: Function) -> dict[Var, list[tuple[Binding, Part]]]:
        """The first product of every group -> the group."""
        by = {b.var: b for b in f.bindings}
        found: dict[tuple[object, ...], list[tuple[Binding, Part]]] = {}
        for b in f.bindings:
            part = _part(b, by)
            if part is not None and isinstance(b.value, Call):
                v = b.value
                key = (part.whole, part.axis, v.op, v.attrs, v.args[1:], tensor_type(b.var).dtype)
                found.setdefault(key, []).append((b, part))
        whole = (g for g in found.values() if _are_whole([part for _, part in g]))
        return {g[0][0].var: g for g in whole if len(g) >= self.min_num_branches}


def _part(b: Binding, by: dict[Var, Binding]) -> Part | None:
    """What a product reads, if it is a part of a tensor."""
    v, op = b.value, op_of(b.value)
    if not isinstance(v, Call) or op is None or op.contraction is None:
        return None
    if not _of_rows(op.contraction, v) or random_dtype(tensor_type(b.var).dtype):
        return None
    read = _defined(v.args[0], by)
    cut = read
    if read is not None and _is_view(op_of(read.value)):
        assert isinstance(read.value, Call)
        cut = _defined(read.value.args[0], by)
    if read is None or cut is None or op_of(cut.value) is not STRIDED_SLICE:
        return None
    part = _cut(cut)
    if part is None or part.axis == tensor_type(part.whole).rank - 1:
        return None
    given, shape = tensor_type(cut.var).shape, tensor_type(read.var).shape
    rows = product(given[:-1])
    if isinstance(rows, int) and rows >= _MANY_ROWS:
        return None
    dropped = (*given[: part.axis], *given[part.axis + 1 :])
    return part if shape in (given, dropped) else None


def _of_rows(of: Contraction, v: Call) -> bool:
    """Whether each row of a product, along the last axis, is of the same row of the data alone."""
    if of.kernel or len(v.args) > 3 or tensor_type(v.args[1]).rank != 2:
        return False
    rank = tensor_type(v.args[0]).rank
    return rank >= 1 and of.data % rank == rank - 1 and of.channels % rank == rank - 1


def _is_view(op: OpDef | None) -> bool:
    return op is not None and op.moves is Moves.VIEW


def _defined(a: Atom, by: dict[Var, Binding]) -> Binding | None:
    return by.get(a) if isinstance(a, Var) else None


def _cut(b: Binding) -> Part | None:
    """What a slice takes, if that is one piece along one axis, of known ends."""
    assert isinstance(b.value, Call)
    a, (x,) = b.value.attrs, b.value.args
    given, left = tensor_type(x).shape, tensor_type(b.var).shape
    cut = [k for k, (n, m) in enumerate(zip(given, left, strict=True)) if n != m]
    axes = a.axes or range(len(a.begin))
    if len(cut) != 1 or any(s != 1 for s in a.strides):
        return None
    (k,) = cut
    size, count = given[k], left[k]
    begin = next(i for i, axis in zip(a.begin, axes, strict=True) if axis % len(given) == k)
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    first = min(max(begin + size if begin < 0 else begin, 0), size)
    return Part(x, k, first, first + count)


def _are_whole(parts: Sequence[Part]) -> bool:
    """Whether parts, in some order, are all of the tensor, nothing twice."""
    size = tensor_type(parts[0].whole).shape[parts[0].axis]
    ends = sorted((p.begin, p.end) for p in parts)
    return [0, *(end for _, end in ends)] == [*(begin for begin, _ in ends), size]


def _product(r: Rewriter, group: Sequence[tuple[Binding, Part]]) -> Var:
    """Emit the product of the whole tensor, of all its rows in one matrix."""
    first, part = group[0]
    assert isinstance(first.value, Call)
    origins = union(*(b.origins for b, _ in group))
    stem = f"{first.var.name}_whole"
    of = tensor_type(part.whole)
    rows: Atom = part.whole
    if of.rank > 2:
        flat = call(RESHAPE, rows, newshape=(product(of.shape[:-1]), of.shape[-1]))
        rows = r.emit(typed(r.fresh(f"{stem}_rows"), flat, origins))
    v = first.value
    found = r.emit(typed(r.fresh(stem), Call(v.op, (rows, *v.args[1:]), v.attrs), origins))
    if of.rank == 2:
        return found
    shape = (*of.shape[:-1], tensor_type(found).shape[-1])
    return r.emit(typed(r.fresh(f"{stem}_parts"), call(RESHAPE, found, newshape=shape), origins))


def _take(r: Rewriter, b: Binding, of: Var, part: Part) -> None:
    """Let a binding take its part of the product."""
    cut = call(STRIDED_SLICE, of, begin=(part.begin,), end=(part.end,), axes=(part.axis,))
    made = typed(r.fresh(f"{b.var.name}_part"), cut, b.origins)
    if tensor_type(made.var).shape == tensor_type(b.var).shape:
        r.emit(Binding(b.var, cut, b.origins))
        return
    r.emit(made)
    r.emit(Binding(b.var, call(RESHAPE, made.var, newshape=tensor_type(b.var).shape), b.origins))
