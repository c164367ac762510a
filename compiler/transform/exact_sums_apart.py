"""Operators with exact sums inside, as the operators of their reference: what `SplitExact` takes
apart where float64 does not hold the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.errors import LoweringError
from compiler.ir.expr import Atom, Binding, Call, Constant, tensor_type
from compiler.op.accumulate import EXACT_BITS, exact_bits
from compiler.op.opdef import OpDef
from compiler.passes.rewrite import Rewriter, call, op_name, typed
from compiler.symbolic import Index
from compiler.transform.exact_sum import check_numbered
from compiler.types.dtypes import custom

_EXACT = "exact"


class _Steps:
    """The bindings that take the place of one."""

    def __init__(self, r: Rewriter, b: Binding):
        self.r, self.b = r, b
        self.bindings: list[Binding] = []

    def do(self, op: str, *args: Atom, **attrs: Any) -> Atom:
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
    v, name = b.value, op_name(b.value)
    if name not in _RULES or not isinstance(v, Call) or v.attrs.accumulate != _EXACT:
        return [b]
    assert isinstance(v.op, OpDef)
    assert v.op.terms is not None
    rule, products = _RULES[name]
    types = [tensor_type(a) for a in v.args]
    terms = v.op.terms(v.attrs, types)
    if exact_bits(types[0].dtype, terms, products) <= EXACT_BITS:
        return [b]
    steps = _Steps(r, b)
    last = rule(steps, v)
    if last is None:
        return [b]
    check_numbered(f"sums of {name}", types[0].dtype, Index.of(terms).const)
    r.changed = True
    return [*steps.bindings, Binding(b.var, last, b.origins)]


def _softmax(s: _Steps, v: Call) -> Call:
    (x,), axis = v.args, (v.attrs.axis,)
    d = s.do("subtract", x, s.do("max", x, axis=axis, keepdims=True))
    e = s.do("exp", d)
    total = s.do("sum", e, axis=axis, keepdims=True, accumulate=_EXACT)
    if op_name(v) == "nn.softmax":
        return call("divide", e, total)
    return call("subtract", d, s.do("log", total))


def _layer_norm(s: _Steps, v: Call) -> Call:
    x, gamma, *beta = v.args
    t = tensor_type(x)
    axes = tuple(range(v.attrs.axis % t.rank, t.rank))
    d = s.do("subtract", x, s.do("mean", x, axis=axes, keepdims=True, accumulate=_EXACT))
    var = s.do("mean_products", d, d, axis=axes, keepdims=True, accumulate=_EXACT)
    deviation = s.do("sqrt", s.do("add", var, s.number(v.attrs.epsilon)))
    y = call("multiply", s.do("divide", d, deviation), gamma)
    return call("add", s.bind(y), *beta) if beta else y


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
    product = s.do("einsum", *first, equation=f"{','.join(names)}->{held}")
    attrs = replace(v.attrs, equation=f"{held},{final}->{result}")
    return Call(v.op, (product, last), attrs)


_RULES: dict[str, tuple[Callable[[_Steps, Call], Call | None], bool]] = {
    "nn.softmax": (_softmax, False),
    "nn.log_softmax": (_softmax, False),
    "nn.layer_norm": (_layer_norm, True),
    "einsum": (_einsum, True),
}
"""How an operator is taken apart, and whether its sums are of products."""
