"""GroupQueries: the heads of grouped-query attention that share keys and values are multiplied with
these as they are, not with a copy for each (J. Ainslie et al., "GQA", 2023).

Exporters repeat keys and values [..., heads, positions, width] for each of a group's heads: an axis
is put behind the heads', repeated, and joined with these. Then
matmul(a, repeated) is matmul of `a` with the rows of a group one behind another, which is `a` in
another shape. Every sum is the same sum, in the same order. What follows elementwise is a kernel of
its own then, so that this does not pay for very many rows.
"""

from __future__ import annotations

from compiler.ir.expr import Atom, Binding, Call, Function, IRModule, Var, tensor_type
from compiler.op.facts import Moves
from compiler.op.opdef import OpDef
from compiler.op.shapes import RESHAPE, TRANSPOSE
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, call, op_of, typed
from compiler.symbolic import Index, dim
from compiler.types.tensor_types import TensorType

MOST_ROWS = 32
"""Rows of a head, where they are known, that are multiplied so."""


class GroupQueries(FunctionPass):
    """matmul(a, repeat(b)) as matmul(reshape(a), b), reshaped."""

    name = "GroupQueries"
    opt_level = 1
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function without the repetitions."""
        r = Rewriter(f)
        for b in map(r.read, f.bindings):
            if not _grouped(r, b):
                r.keep(b)
        return r.finish()


def _grouped(r: Rewriter, b: Binding) -> bool:
    """Append what takes the place of a product, if it is one with something repeated."""
    op = op_of(b.value)
    if op is None or not isinstance(b.value, Call) or op.contraction is None:
        return False
    if op.contraction.by_rows or len(b.value.args) != 2:
        return False
    a, repeated = b.value.args
    turned = r.producer(repeated)
    if turned is not None and op_of(turned.value) is TRANSPOSE and _turns(turned):
        assert isinstance(turned.value, Call)
        repeated = turned.value.args[0]
    else:
        turned = None
    once = _once(r, repeated)
    if once is None:
        return False
    have, few, many = tensor_type(a), tensor_type(once), tensor_type(b.var)
    *outer, _, rows, inner = have.shape
    heads = few.shape[-3]
    count = dim(Index.of(have.shape[-3]) // heads) if have.rank == few.rank else 0
    if have.rank != few.rank or dim(heads * count) != have.shape[-3]:
        return False
    if tuple(outer) != few.shape[:-3] or (isinstance(rows, int) and rows > MOST_ROWS):
        return False
    x = _shaped(r, b, a, (*outer, heads, dim(rows * count), inner))
    if turned is not None:
        order = (*range(few.rank - 2), few.rank - 1, few.rank - 2)
        value = call(TRANSPOSE, once, axes=order)
        once = r.emit(typed(r.fresh(f"{b.var.name}_turned"), value, turned.origins))
    product = Call(op, (x, once), b.value.attrs)
    grouped = r.emit(typed(r.fresh(f"{b.var.name}_groups"), product, b.origins))
    r.emit(Binding(b.var, call(RESHAPE, grouped, newshape=many.shape), b.origins))
    return True


def _once(r: Rewriter, a: Atom) -> Atom | None:
    """What `a` repeats along the third axis from behind, each as often as it takes, one behind
    another; None: it does not."""
    joined = r.producer(a)
    if joined is None or not _is(joined, Moves.VIEW):
        return None
    assert isinstance(joined.value, Call)
    repeated = r.producer(joined.value.args[0])
    if repeated is None or not _is(repeated, Moves.REPEAT):
        return None
    assert isinstance(repeated.value, Call)
    put = r.producer(repeated.value.args[0])
    if put is None or not _is(put, Moves.VIEW):
        return None
    assert isinstance(put.value, Call)
    once = put.value.args[0]
    t, out = tensor_type(once), tensor_type(repeated.var)
    if t.rank < 3 or out.rank != t.rank + 1:
        return None
    *outer, heads, positions, width = t.shape
    times = out.shape[-3]
    wanted = (
        (put.var, (*outer, heads, 1, positions, width)),
        (repeated.var, (*outer, heads, times, positions, width)),
        (joined.var, (*outer, dim(heads * times), positions, width)),
    )
    fits = all(tensor_type(v) == TensorType(shape, t.dtype) for v, shape in wanted)
    return once if fits else None


def _is(b: Binding, moves: Moves) -> bool:
    op = op_of(b.value)
    return isinstance(op, OpDef) and op.moves is moves


def _turns(b: Binding) -> bool:
    """Whether a transposition changes the last two axes, and no other."""
    assert isinstance(b.value, Call)
    rank = tensor_type(b.var).rank
    given = b.value.attrs.axes or tuple(reversed(range(rank)))
    order = tuple(k % rank for k in given)
    return rank > 2 and order == (*range(rank - 2), rank - 1, rank - 2)


def _shaped(r: Rewriter, b: Binding, a: Atom, shape: tuple[object, ...]) -> Var:
    value = call(RESHAPE, a, newshape=shape)
    return r.emit(typed(r.fresh(f"{b.var.name}_rows"), value, b.origins))
