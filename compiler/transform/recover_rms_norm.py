"""RecoverRmsNorm: nn.rms_norm where an exporter has written the operators it is made of.

x / sqrt(mean(x * x) + epsilon) * gain is the sequence of operations that nn.rms_norm stands for:
results stay the same in every number format. Llama's spelling, x * (1 / sqrt(...)) * gain, and that
with the power -1/2, are the same but for their roundings.

Where a model of shorter floats computes it in float32, between casts, the casts stay where they
are, and a gain that is multiplied in behind them stays a product of its own: it has a rounding of
its own there.
"""

from __future__ import annotations

from compiler.ir.expr import Call, Constant, Value, tensor_type
from compiler.op.elementwise import ADD, DIVIDE, MULTIPLY
from compiler.op.nn.rms_norm import RMS_NORM
from compiler.op.reduce import MEAN, MEAN_PRODUCTS
from compiler.passes.rewrite import Rewriter, call
from compiler.pattern.patterns import any_order, constant, is_op, wildcard
from compiler.pattern.rules import Rule, RulePass
from compiler.pattern.search import Found
from compiler.transform.recover_layer_norm import first_axis, over

_X, _MULTIPLY, _DIVIDE = wildcard("x"), is_op(MULTIPLY), is_op(DIVIDE)
_SQUARE = _MULTIPLY(_X, _X) | is_op("power")(_X, constant("two", 2.0))
_SQUARES = is_op(MEAN, keepdims=True)(_SQUARE) | is_op(MEAN_PRODUCTS, keepdims=True)(_X, _X)
_SHIFTED = any_order(is_op(ADD), _SQUARES, constant("epsilon"))
_ROOT = is_op("sqrt")(_SHIFTED)
_INVERSE = _DIVIDE(constant("one", 1.0), _ROOT) | is_op("power")(_SHIFTED, constant("half", -0.5))
_NORM = is_op(RMS_NORM).bind("norm")(_X, constant(value=1.0)).once()


def _normalized(found: Found, r: Rewriter) -> Value | str:
    """x over its root mean square, with a gain of 1."""
    t, epsilon = tensor_type(found["x"]), found.constant("epsilon").data
    axis = first_axis(found, t.rank, (MEAN, MEAN_PRODUCTS))
    if not t.dtype.is_float:
        return f"its constants are of {t.dtype}"
    if isinstance(axis, str):
        return axis
    if epsilon.size != 1:
        return "its epsilon is no scalar"
    attrs = {"axis": axis - t.rank, "epsilon": float(epsilon.reshape(()))}
    return call(RMS_NORM, found["x"], Constant.of(1.0, t.dtype), **attrs)


def _with_gain(found: Found, r: Rewriter) -> Value | str:
    """The nn.rms_norm that was found, with the gain that multiplies it."""
    norm, t = found.called("norm").value, tensor_type(found["x"])
    assert isinstance(norm, Call)
    if not t.dtype.is_float:
        return f"its constants are of {t.dtype}"
    gain = over(found.constant("gain"), t, norm.attrs.axis % t.rank)
    if gain is None:
        return "its gain does not fit the axes that are normalized"
    return Call(norm.op, (found["x"], gain), norm.attrs)


class RecoverRmsNorm(RulePass):
    """nn.rms_norm in place of a mean of squares, a square root, a quotient and a product."""

    name = "RecoverRmsNorm"
    opt_level = 0
    rules = (
        Rule("quotient as rms_norm", _DIVIDE(_X, _ROOT), _normalized),
        Rule("product as rms_norm", any_order(_MULTIPLY, _X, _INVERSE), _normalized),
        Rule("gain of rms_norm", any_order(_MULTIPLY, _NORM, constant("gain")), _with_gain),
    )
