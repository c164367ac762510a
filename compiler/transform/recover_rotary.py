"""RecoverRotary: nn.rotary where an exporter has written the operators it is made of.

x * cos + concatenate(-second half of x, first half of x) * sin is the sequence of operations that
nn.rotary stands for: results stay the same in every number format.
"""

from __future__ import annotations

from compiler.ir.expr import Call, Value, tensor_type
from compiler.op.concatenate import CONCATENATE, SPLIT
from compiler.op.elementwise import ADD, MULTIPLY
from compiler.op.nn.rotary import ROTARY
from compiler.op.slice import STRIDED_SLICE
from compiler.passes.rewrite import Rewriter, call
from compiler.pattern.patterns import any_order, is_op, item, wildcard
from compiler.pattern.rules import Rule, RulePass
from compiler.pattern.search import Found
from compiler.types.tensor_types import TensorType, broadcast

_X, _MULTIPLY = wildcard("x"), is_op(MULTIPLY)
_CUT, _SPLIT = is_op(STRIDED_SLICE), is_op(SPLIT)
_SECOND = _CUT.bind("second")(_X) | item(_SPLIT(_X), 1)
_FIRST = _CUT.bind("first")(_X) | item(_SPLIT(_X), 0)
_TURNED = is_op(CONCATENATE).bind("turned")(is_op("negative")(_SECOND), _FIRST)
_STRAIGHT = any_order(_MULTIPLY, _X, wildcard("cos"))
_ACROSS = any_order(_MULTIPLY, _TURNED, wildcard("sin"))


def _rotary(found: Found, r: Rewriter) -> Value | str:
    x, cos, sin = found["x"], found["cos"], found["sin"]
    t = tensor_type(x)
    size = t.shape[-1] if t.rank else None
    if not (t.dtype.is_float or t.dtype.is_custom):
        return f"it is of {t.dtype}"
    if not isinstance(size, int) or size % 2:
        return f"its last axis has the size {size}"
    turned = found.called("turned").value
    assert isinstance(turned, Call)
    if turned.attrs.axis % t.rank != t.rank - 1:
        return f"its halves are put together along axis {turned.attrs.axis}, not the last"
    for name, start in (("second", size // 2), ("first", 0)):
        if name in found and not _is_half(found.called(name).value, t, start):
            return f"its {name} part is not that half of the last axis"
    parts = [b.value for b in found.bindings if isinstance(b.value, Call) and b.value.op is SPLIT]
    if any(not _halves(v, t, size) for v in parts if isinstance(v, Call)):
        return "it is not split into the halves of the last axis"
    for a in (cos, sin):
        if broadcast(t.shape, tensor_type(a).shape) != t.shape:
            return "its angles are of more than it has"
    return call(ROTARY, x, cos, sin)


def _is_half(v: Value, t: TensorType, start: int) -> bool:
    """Whether a slice of data of type `t` takes the half of the last axis from `start` on."""
    assert isinstance(v, Call)
    a, size = v.attrs, t.shape[-1]
    assert isinstance(size, int)
    axes = a.axes or tuple(range(len(a.begin)))
    steps = a.strides or (1,) * len(a.begin)
    if [k % t.rank for k in axes] != [t.rank - 1]:
        return False
    taken = range(size)[slice(a.begin[0], a.end[0], steps[0])]
    return taken == range(start, start + size // 2)


def _halves(v: Call, t: TensorType, size: int) -> bool:
    return v.attrs.axis % t.rank == t.rank - 1 and tuple(v.attrs.sizes) == (size // 2, size // 2)


class RecoverRotary(RulePass):
    """nn.rotary in place of slices, a negation, a concatenation, two products and a sum."""

    name = "RecoverRotary"
    opt_level = 0
    rules = (Rule("sum as rotary", any_order(is_op(ADD), _STRAIGHT, _ACROSS), _rotary),)
