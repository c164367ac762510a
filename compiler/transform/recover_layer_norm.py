"""RecoverLayerNorm: nn.layer_norm where an exporter has written the operators it is made of.

Torch's spelling, (x - mean) / sqrt(variance + epsilon) * gain + offset, is the sequence of
operations that nn.layer_norm stands for: results stay the same in every number format. So does that
of TensorFlow, x * g + (offset - mean * g) with g = 1 / sqrt(variance + epsilon) * gain, and what
multiplies x - mean with g, but for their roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir.expr import Atom, Call, Constant, Value, tensor_type
from compiler.op.elementwise import ADD, DIVIDE, MULTIPLY, SUBTRACT
from compiler.op.nn.norm import LAYER_NORM
from compiler.op.opdef import OpDef
from compiler.op.reduce import MEAN
from compiler.passes.rewrite import Rewriter, call, op_of
from compiler.pattern.patterns import Pattern, any_order, constant, is_op, wildcard
from compiler.pattern.rules import Rule, RulePass
from compiler.pattern.search import Found
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, broadcast

_MULTIPLY, _ADD, _SUBTRACT = is_op(MULTIPLY), is_op(ADD), is_op(SUBTRACT)
_CENTER = is_op(MEAN, keepdims=True)(wildcard("x"))
_CENTRED = _SUBTRACT(wildcard("x"), _CENTER)
_VARIANCE = is_op(MEAN, keepdims=True)(_MULTIPLY(_CENTRED, _CENTRED))
_DEVIATION = is_op("sqrt")(any_order(_ADD, _VARIANCE, constant("epsilon")))
_INVERSE = is_op(DIVIDE)(constant("one", 1.0), _DEVIATION)
_FACTOR = any_order(_MULTIPLY.bind("factor"), _INVERSE, constant("gain")) | _INVERSE.bind("factor")


def _normalized(found: Found, r: Rewriter) -> Value | str:
    """x normalized over the axes of the means, with the gain and offset that were found."""
    t = tensor_type(found["x"])
    axis = first_axis(found, t.rank)
    epsilon = found.constant("epsilon").data
    if not t.dtype.is_float:
        return f"its constants are of {t.dtype}"
    if isinstance(axis, str):
        return axis
    if epsilon.size != 1:
        return "its epsilon is no scalar"
    gain = found.constant("gain") if "gain" in found else Constant.of(1.0, t.dtype)
    given = [gain, *([found.constant("offset")] if "offset" in found else [])]
    constants = [over(c, t, axis) for c in given]
    if any(c is None for c in constants):
        return "its gain or offset does not fit the axes that are normalized"
    attrs: dict[str, Any] = {"axis": axis - t.rank, "epsilon": float(epsilon.reshape(()))}
    return call(LAYER_NORM, found["x"], *(c for c in constants if c is not None), **attrs)


def first_axis(found: Found, rank: int, ops: Sequence[OpDef] = (MEAN,)) -> int | str:
    """The axis from which all means (calls of `ops`) are taken; or why there is none."""
    means = [b.value for b in found.bindings if op_of(b.value) in ops]
    seen = {_axes(v, rank) for v in means if isinstance(v, Call)}
    axes, *others = seen
    if others:
        return "its mean and its variance are over different axes"
    if not axes or axes != tuple(range(axes[0], rank)):
        return "the axes that it normalizes are not the last ones"
    return axes[0]


def _axes(mean: Call, rank: int) -> tuple[int, ...]:
    a = mean.attrs.axis
    given = (a,) if isinstance(a, int) else tuple(range(rank)) if a is None else a
    return tuple(sorted(k % rank for k in given)) or tuple(range(rank))


def over(c: Constant, t: TensorType, axis: int) -> Constant | None:
    """A constant in the shape of the axes from `axis` on; None if it varies along others,
    or gives the result more."""
    inner = t.shape[axis:]
    shape = c.data.shape
    while len(shape) > len(inner) and shape[0] == 1:
        shape = shape[1:]
    if c.data.ndim > t.rank or len(shape) > len(inner) or broadcast(inner, shape) != inner:
        return None
    data: Array = c.data.reshape(shape)
    known = tuple(n for n in inner if isinstance(n, int))
    return Constant(np.broadcast_to(data, known) if len(known) == len(inner) else data, c.dtype)


def _layer_norm(*constants: Pattern) -> Pattern:
    return is_op(LAYER_NORM).bind("norm")(wildcard("x"), *constants).once()


def _with_gain(found: Found, r: Rewriter) -> Value | str:
    return _extended(found, found.constant("gain"))


def _with_offset(found: Found, r: Rewriter) -> Value | str:
    return _extended(found, found["before"], found.constant("offset"))


def _extended(found: Found, *constants: Atom) -> Value | str:
    """The nn.layer_norm that was found, with other constants."""
    norm, t = found.called("norm").value, tensor_type(found["x"])
    assert isinstance(norm, Call)
    if not t.dtype.is_float:
        return f"its constants are of {t.dtype}"
    *known, last = constants
    assert isinstance(last, Constant)
    fitting = over(last, t, norm.attrs.axis % t.rank)
    if fitting is None:
        return "its gain or offset does not fit the axes that are normalized"
    return Call(norm.op, (found["x"], *known, fitting), norm.attrs)


class RecoverLayerNorm(RulePass):
    """nn.layer_norm in place of means, a square root, a quotient, a product and a sum."""

    name = "RecoverLayerNorm"
    opt_level = 0
    rules = (
        Rule("quotient as layer_norm", is_op(DIVIDE)(_CENTRED, _DEVIATION), _normalized),
        Rule("product as layer_norm", any_order(_MULTIPLY, _CENTRED, _FACTOR), _normalized),
        Rule(
            "sum of products as layer_norm",
            any_order(
                _ADD,
                any_order(_MULTIPLY, wildcard("x"), _FACTOR),
                _SUBTRACT(constant("offset"), any_order(_MULTIPLY, _CENTER, _FACTOR)),
            ),
            _normalized,
        ),
        Rule(
            "gain of layer_norm",
            any_order(_MULTIPLY, _layer_norm(constant(value=1.0)), constant("gain")),
            _with_gain,
        ),
        Rule(
            "offset of layer_norm",
            any_order(_ADD, _layer_norm(wildcard("before")), constant("offset")),
            _with_offset,
        ),
    )
