"""CanonicalizeOps: one way of writing what several operators say, so that other passes need to know
one only."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import Call, Constant, Value, Var, tensor_type
from compiler.op.elementwise import ADD
from compiler.op.facts import Moves
from compiler.op.mixed import BIAS_ADD
from compiler.op.opdef import OpDef
from compiler.op.shapes import RESHAPE
from compiler.passes.rewrite import Rewriter, call, typed
from compiler.pattern.patterns import Pattern, constant, is_op, op_that, wildcard
from compiler.pattern.rules import Rule, RulePass
from compiler.pattern.search import Found


def _gives_shape(op: OpDef) -> bool:
    """Whether an operator only gives a value another shape, but is not reshape itself."""
    return op.moves is Moves.VIEW and op is not RESHAPE


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
        wider = call(RESHAPE, bias, newshape=shape)
        bias = r.emit(typed(r.fresh(f"{b.var.name}_bias"), wider, b.origins))
    return call(ADD, found["x"], bias)


def _constant_last(found: Found, r: Rewriter) -> Value | str:
    """op(c, x) = op(x, c)."""
    v = found.called("y").value
    assert isinstance(v, Call)
    return replace(v, args=v.args[::-1])


def _as_reshape(found: Found, r: Rewriter) -> Value | str:
    """The same memory under the shape of the result."""
    shape = tensor_type(found.var("y")).shape
    return call(RESHAPE, found["x"], newshape=shape, allowzero=0 in shape)


def _variable(found: Found) -> str | None:
    return None if isinstance(found["x"], Var) else "both operands are constants"


_SWAPPED: Pattern = (
    op_that("an operator that commutes", lambda op: op.commutes)
    .bind("y")(constant("c"), wildcard("x"))
    .where(_variable)
)


class CanonicalizeOps(RulePass):
    """bias_add becomes add; constants come last in operators that commute; operators that give
    another shape become reshape. Results stay the same, bit for bit."""

    name = "CanonicalizeOps"
    opt_level = 3
    rules = (
        Rule("bias_add as add", is_op(BIAS_ADD).bind("y")(wildcard("x"), wildcard("bias")),
             _bias_add),
        Rule("constant last", _SWAPPED, _constant_last),
        Rule("view as reshape",
             op_that("squeeze or the like", _gives_shape).bind("y")(wildcard("x")), _as_reshape),
    )  # fmt: skip
