"""CanonicalizeOps: one way of writing what several operators say, so that other passes need to know
one only."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import Call, Constant, Value, Var, tensor_type
from compiler.passes.rewrite import Rewriter, call, typed
from compiler.pattern.patterns import Pattern, constant, either, is_op, wildcard
from compiler.pattern.rules import Rule, RulePass
from compiler.pattern.search import Found

COMMUTATIVE = ("add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and",
               "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")  # fmt: skip
VIEWS = ("squeeze", "expand_dims", "flatten", "nn.batch_flatten")
"""Operators that only give a value another shape."""


def _bias_add(found: Found, r: Rewriter) -> Value | str:
    """bias_add(x, b, axis) = add(x, b with ones behind)."""
    b = found.called("y")
    assert isinstance(b.value, Call)
    rank, bias = tensor_type(b.var).rank, found["bias"]
    ones = rank - 1 - b.value.attrs.axis % rank
    if ones and isinstance(bias, Constant):
        bias = Constant(bias.data.reshape(-1, *[1] * ones), bias.dtype)
    elif ones:
        shape = (*tensor_type(bias).shape, *[1] * ones)
        wider = call("reshape", bias, newshape=shape)
        bias = r.emit(typed(r.fresh(f"{b.var.name}_bias"), wider, b.origins))
    return call("add", found["x"], bias)


def _constant_last(found: Found, r: Rewriter) -> Value | str:
    """op(c, x) = op(x, c)."""
    v = found.called("y").value
    assert isinstance(v, Call)
    return replace(v, args=v.args[::-1])


def _as_reshape(found: Found, r: Rewriter) -> Value | str:
    """The same memory under the shape of the result."""
    shape = tensor_type(found.var("y")).shape
    return call("reshape", found["x"], newshape=shape, allowzero=0 in shape)


def _variable(found: Found) -> str | None:
    return None if isinstance(found["x"], Var) else "both operands are constants"


_SWAPPED: Pattern = either(
    *(is_op(op).bind("y")(constant("c"), wildcard("x")).where(_variable) for op in COMMUTATIVE)
)


class CanonicalizeOps(RulePass):
    """bias_add becomes add; constants come last in operators that commute; operators that give
    another shape become reshape. Results stay the same, bit for bit."""

    name = "CanonicalizeOps"
    opt_level = 3
    rules = (
        Rule("bias_add as add", is_op("nn.bias_add").bind("y")(wildcard("x"), wildcard("bias")),
             _bias_add),
        Rule("constant last", _SWAPPED, _constant_last),
        Rule("view as reshape", either(*(is_op(op).bind("y")(wildcard("x")) for op in VIEWS)),
             _as_reshape),
    )  # fmt: skip
