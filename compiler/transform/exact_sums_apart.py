"""Operators with exact sums inside, as the operators of their reference: what `SplitExact` takes
apart where float64 does not hold the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.errors import LoweringError
from compiler.ir.expr import Atom, Binding, Call, Constant, tensor_type
from compiler.op.accumulate import EXACT_BITS, exact_bits, most_terms
from compiler.op.einsum import EINSUM
from compiler.op.elementwise import ADD, DIVIDE, MULTIPLY, SUBTRACT
from compiler.op.nn.norm import LAYER_NORM, LOG_SOFTMAX, SOFTMAX
from compiler.op.nn.rms_norm import RMS_NORM
from compiler.op.opdef import OpDef
from compiler.op.reduce import MAX, MEAN, MEAN_PRODUCTS, SUM
from compiler.passes.rewrite import Rewriter, call, op_of, typed
from compiler.transform.exact_sum import check_numbered
from compiler.types.dtypes import custom

_EXACT = "exact"


class _Steps:
    """The bindings that take the place of one."""

    def __init__(self, r: Rewriter, b: Binding):
        self.r, self.b = r, b
        self.bindings: list[Binding] = []

    def do(self, op: str | OpDef, *args: Atom, **attrs: Any) -> Atom:
        """The result of an operator, in a new binding."""
        return self.bind(call(op, *args, **attrs))

    def bind(self, value: Call) -> Atom:
        """The variable of a new binding."""
        name = self.r.fresh(f"{self.b.var.name}_exact")
        self.bindings.append(typed(name, value, self.b.origins))
        return self.bindings[-1].var

    def number(self, value: float) -> Constant:
        """A scalar in the operator's datatype."""
        dtype = tensor_type(self.b.var).dtype
        code = custom(dtype.name).encode(np.asarray(value, np.float64), dtype)
        return Constant(np.asarray(code, dtype.storage), dtype)


def apart(r: Rewriter, b: Binding) -> list[Binding]:
    """The bindings that compute what `b` does, whose exact sums are operators of their own; `b`
    itself where it is one, or float64 holds its sums.

    Raises:
        LoweringError: exact sums of this operator cannot be taken apart.
    """
    v, op = b.value, op_of(b.value)
    if op not in _RULES or not isinstance(v, Call) or v.attrs.accumulate != _EXACT:
        return [b]
    assert op.terms is not None
    rule, products = _RULES[op]
    types = [tensor_type(a) for a in v.args]
    terms = op.terms(v.attrs, types)
    if exact_bits(types[0].dtype, terms, products) <= EXACT_BITS:
        return [b]
    steps = _Steps(r, b)
    last = rule(steps, v)
    if last is None:
        return [b]
    check_numbered(f"sums of {op}", types[0].dtype, most_terms(terms))
    r.changed = True
    return [*steps.bindings, Binding(b.var, last, b.origins)]


def _softmax(s: _Steps, v: Call) -> Call:
    (x,), axis = v.args, (v.attrs.axis,)
    d = s.do(SUBTRACT, x, s.do(MAX, x, axis=axis, keepdims=True))
    e = s.do("exp", d)
    total = s.do(SUM, e, axis=axis, keepdims=True, accumulate=_EXACT)
    if v.op is SOFTMAX:
        return call(DIVIDE, e, total)
    return call(SUBTRACT, d, s.do("log", total))


def _layer_norm(s: _Steps, v: Call) -> Call:
    x, gamma, *beta = v.args
    t = tensor_type(x)
    axes = tuple(range(v.attrs.axis % t.rank, t.rank))
    d = s.do(SUBTRACT, x, s.do(MEAN, x, axis=axes, keepdims=True, accumulate=_EXACT))
    var = s.do(MEAN_PRODUCTS, d, d, axis=axes, keepdims=True, accumulate=_EXACT)
    deviation = s.do("sqrt", s.do(ADD, var, s.number(v.attrs.epsilon)))
    y = call(MULTIPLY, s.do(DIVIDE, d, deviation), gamma)
    return call(ADD, s.bind(y), *beta) if beta else y


def _rms_norm(s: _Steps, v: Call) -> Call:
    x, gain = v.args
    t = tensor_type(x)
    axes = tuple(range(v.attrs.axis % t.rank, t.rank))
    squares = s.do(MEAN_PRODUCTS, x, x, axis=axes, keepdims=True, accumulate=_EXACT)
    root = s.do("sqrt", s.do(ADD, squares, s.number(v.attrs.epsilon)))
    return call(MULTIPLY, s.do(DIVIDE, x, root), gain)


def _einsum(s: _Steps, v: Call) -> Call | None:
    """Of more than two factors: all but the last are multiplied first."""
    *first, last = v.args
    if len(first) < 2:
        return None
    left, arrow, result = v.attrs.equation.replace(" ", "").partition("->")
    *names, final = left.split(",")
    if "." in left or not arrow:
        raise LoweringError(
            f"exact sums of products of {len(v.args)} factors need an equation without '...', "
            f"and with '->', not {v.attrs.equation!r}"
        )
    held = "".join(dict.fromkeys("".join(names)))
    product = s.do(EINSUM, *first, equation=f"{','.join(names)}->{held}")
    attrs = replace(v.attrs, equation=f"{held},{final}->{result}")
    return Call(v.op, (product, last), attrs)


_RULES: dict[OpDef, tuple[Callable[[_Steps, Call], Call | None], bool]] = {
    SOFTMAX: (_softmax, False),
    LOG_SOFTMAX: (_softmax, False),
    LAYER_NORM: (_layer_norm, True),
    RMS_NORM: (_rms_norm, True),
    EINSUM: (_einsum, True),
}
"""How an operator is taken apart, and whether its sums are of products."""


def sums_inside() -> frozenset[OpDef]:
    """The operators that are taken apart."""
    return frozenset(_RULES)
