"""What each operator's integer form computes, for `quantize.reference.trace`.

Each integer form of operators has a rule in RULES. To add one, write a function that takes a
Node and returns a Grid (an operator that moves integers) or a Pending (one whose result has
parameters of its own), and register it:

    @rule(Form.MATMUL)
    def product(n: Node) -> Pending:
        unit = np.asarray(n.grid(0).params.scale * n.grid(1).params.scale)
        sums = np.matmul(n.above_zero(0), n.above_zero(1))
        return Pending(lambda out: n.scaled(sums, unit, out), sums, unit)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.interpret.graph import resolve_attrs
from compiler.ir.expr import Binding, Call, Constant, tensor_type
from compiler.op.opdef import OpDef
from compiler.symbolic import Index
from compiler.types.dtypes import FLOAT64, Array
from quantize.plan.call_facts import Form, centred, clips, contraction, form
from quantize.plan.node_plan import SEQUENTIAL
from quantize.plan.params import ValueParams
from quantize.reference import integers

if TYPE_CHECKING:
    from quantize.reference.trace import Walk


@dataclass(frozen=True, eq=False)
class Grid:
    """A value on a grid: float64 integers `q` (a tuple of arrays, of an operator with several
    results)."""

    q: Any
    params: ValueParams


@dataclass(frozen=True, eq=False)
class Pending:
    """A result that is not yet on a grid.

    Attributes:
        rounded: parameters of the result -> its integers, before the zero point and clipping.
        sums: the int32 accumulator, if there is one.
        unit: its real value of one, float64, in a shape that broadcasts to `sums`.
    """

    rounded: Callable[[ValueParams], Array]
    sums: Array | None = None
    unit: Array | None = None


def bounds_of(call: Call) -> tuple[float, float]:
    """The real bounds of a relu or clip."""
    bounds = clips(call)
    assert bounds is not None
    return bounds


# ---- rules ---------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Node:
    """What a rule sees of one integer node."""

    walk: Walk
    binding: Binding
    call: Call

    @property
    def attrs(self) -> Any:
        """Attributes, with symbolic dimensions replaced by numbers."""
        return resolve_attrs(self.call.attrs, self.walk.dims)

    def grid(self, i: int) -> Grid:
        """Operand `i` on its grid."""
        return self.walk.grid(self.call.args[i])

    def above_zero(self, i: int) -> Array:
        """The integers of operand `i` minus their zero point."""
        return np.asarray(self.grid(i).q - self.grid(i).params.zero_point)

    def operand(self, i: int, bits: int) -> tuple[Array, float]:
        """The integers of operand `i` minus their zero point, and the real value of one. A constant
        has so many bits, and the least power of two as its unit."""
        a = self.call.args[i]
        if not isinstance(a, Constant):
            return self.above_zero(i), self.grid(i).params.scale
        step = max(float(np.abs(a.data).max()) / (2.0 ** (bits - 1) - 1), 2.0**-126)
        unit = 2.0 ** math.ceil(math.log2(step))
        return np.rint(a.data / np.float64(unit)), unit

    def result_shape(self) -> tuple[int, ...]:
        """The shape of the result in this run."""
        shape = tensor_type(self.binding.var).shape
        return tuple(d.value(self.walk.dims) if isinstance(d, Index) else d for d in shape)

    def scaled(self, x: Array, unit: Array, out: ValueParams) -> Array:
        """Steps of `out` nearest to x * unit, by the plan's arithmetic of requantize."""
        return integers.scaled(x, unit, out.scale, self.walk.plan.config.requantize)


Rule = Callable[[Node], Grid | Pending]
RULES: dict[Form, Rule] = {}
"""Integer form of an operator -> how it is computed."""


def rule(*forms: Form) -> Callable[[Rule], Rule]:
    """Decorator: the function is the rule of operators of these forms."""

    def register(f: Rule) -> Rule:
        RULES.update(dict.fromkeys(forms, f))
        return f

    return register


@rule(Form.WEIGHTED)
def weighted(n: Node) -> Pending:
    """Sums of products with integer weights, in the node's accumulator."""
    name, data = n.binding.var.name, n.grid(0).params
    params, mode = n.walk.plan.weights[name], n.walk.plan.nodes[name].accumulate
    weight, *rest = (a.data for a in n.call.args[1:] if isinstance(a, Constant))
    unit = data.scale * np.asarray(params.scales, np.float64)
    given = params.shifted(rest[0] if rest else None)
    low, high = integers.LOW, integers.HIGH
    if params.is_wide(data):
        mode, low, high = integers.WIDE, -(2.0**52), 2.0**52
    bias = None if given is None else np.clip(np.rint(given / unit), low, high)
    x, w = n.above_zero(0), params.quantized(weight).astype(np.float64)
    kernel = contraction(n.call).kernel
    if kernel:
        sums = integers.convolved(x, w, bias, n.attrs, mode)
        unit = unit.reshape(-1, *[1] * kernel)
    else:
        sums = integers.multiplied(x, w, bias, mode)
    return Pending(lambda out: n.scaled(sums, unit, out), sums, unit)


@rule(Form.MATMUL)
def product(n: Node) -> Pending:
    """Sums of products of two activations, in the node's accumulator."""
    mode = n.walk.plan.nodes[n.binding.var.name].accumulate
    x, y = n.above_zero(0), n.above_zero(1)
    sums = np.matmul(x, y) if mode == SEQUENTIAL else integers.products(x, y, mode)
    unit = np.asarray(n.grid(0).params.scale * n.grid(1).params.scale)
    return Pending(lambda out: n.scaled(sums, unit, out), sums, unit)


@rule(Form.ADD, Form.SUBTRACT)
def add(n: Node) -> Pending:
    """The sum or difference of two products with scales."""
    arithmetic = n.walk.plan.config.requantize
    (a, unit), (b, other) = (n.operand(i, 16 if arithmetic == "gemmlowp" else 24) for i in (0, 1))
    sign = -1.0 if form(n.call) == Form.SUBTRACT else 1.0
    data = [x for x in n.call.args if not isinstance(x, Constant)]
    both = len(data) == 2 and all(n.walk.grid(x).params.dtype in ("int8", "uint8") for x in data)

    def rounded(out: ValueParams) -> Array:
        scales = unit / out.scale, sign * other / out.scale
        if arithmetic == "gemmlowp":
            return integers.summed_twice((a, b), scales, 20 if both else 15)
        return integers.summed((a, b), scales, arithmetic)

    return Pending(rounded)


@rule(Form.MULTIPLY)
def multiply(n: Node) -> Pending:
    """Exact products."""
    (a, unit), (b, other) = (n.operand(i, 16) for i in (0, 1))
    return Pending(lambda out: n.scaled(a * b, np.asarray(unit * other), out))


@rule(Form.SOFTMAX)
def softmax(n: Node) -> Pending:
    """Exponentials with 15 bits behind the point, exact sums, one float32 quotient a row."""
    q, axis = n.grid(0).q, n.attrs.axis
    below = q.max(axis, keepdims=True) - q
    e = np.rint(np.exp(-below * n.grid(0).params.scale) * 2.0**15)
    total = integers.single(e.sum(axis, keepdims=True))

    def rounded(out: ValueParams) -> Array:
        each = integers.single(integers.single(1 / out.scale) / total)
        return np.rint(integers.single(e * each))

    return Pending(rounded)


@rule(Form.LAYER_NORM)
def layer_norm(n: Node) -> Pending:
    """Of Python's integers, which no sum overflows; the formulas of `compiler.op.qnn.layer_norm`,
    with the variance summed from the distances."""
    x, first = n.grid(0), n.attrs.axis
    axes = tuple(range(first % x.q.ndim, x.q.ndim))
    rows = np.frompyfunc(int, 1, 1)(x.q)
    count = math.prod(x.q.shape[k] for k in axes)
    bits = 23 - (count - 1).bit_length()
    middle = rows.sum(axes, keepdims=True) if centred(n.call) else count * x.params.zero_point
    apart = count * rows - middle
    spread = (apart * apart).sum(axes, keepdims=True) // count
    unit = x.params.scale / (count * 2.0**bits)
    least = round(min(max(n.attrs.epsilon / unit / unit, 1.0), 2.0**60))
    root = np.frompyfunc(math.isqrt, 1, 1)(spread * 4**bits + least)
    normalized = apart * (2**60 // root) // 2 ** (44 - bits)
    gain, *offset = (a.data for a in n.call.args[1:] if isinstance(a, Constant))

    def rounded(out: ValueParams) -> Array:
        factor, given = (
            np.frompyfunc(round, 1, 1)(np.float64(c) / out.scale * 2.0**b)
            for c, b in ((gain, 16), (offset[0] if offset else np.zeros(1), 32))
        )
        return np.asarray((normalized * factor + given + 2**31) // 2**32, np.float64)

    return Pending(rounded)


@rule(Form.AVERAGE)
def average(n: Node) -> Pending:
    """An exact sum, times the quotient of the scales' ratio and the count (of float32 in that
    arithmetic, else of float64); by a fixed-point product where others are shifts."""
    x, a = n.above_zero(0), n.attrs
    if hasattr(a, "pool_size"):
        size = n.result_shape()[2:]
        total = integers.window_sums(x, a, size)
        border = float(a.count_include_pad)
        count = integers.window_sums(np.ones((1, 1, *x.shape[2:])), a, size, border)
    else:
        pooled = not hasattr(a, "axis")
        axes = range(2, x.ndim) if pooled else np.atleast_1d(a.axis).astype(int)
        axis = tuple(k % x.ndim for k in axes) or tuple(range(x.ndim))
        total = x.sum(axis, keepdims=pooled or a.keepdims)
        count = np.asarray(float(np.prod([x.shape[k] for k in axis])))

    def rounded(out: ValueParams) -> Array:
        arithmetic = n.walk.plan.config.requantize
        if arithmetic != "float32":
            exact = np.asarray(n.grid(0).params.scale / out.scale / count)
            how = "fixed_upward" if arithmetic == "shift" else arithmetic
            return integers.scaled(total, exact, 1.0, how)
        ratio = integers.single(n.grid(0).params.scale / out.scale)
        factor = integers.single(ratio / integers.single(count))
        return np.rint(integers.single(integers.single(total) * factor))

    return Pending(rounded)


@rule(Form.JOIN)
def concatenate(n: Node) -> Grid:
    """Operands on other grids are scaled to the result's."""
    out = n.walk.plan.values[n.binding.var.name]
    parts = []
    for i in range(len(n.call.args)):
        x = n.grid(i)
        if x.params == out:
            parts.append(x.q)
        else:
            q = n.scaled(n.above_zero(i), np.asarray(x.params.scale), out)
            parts.append(np.clip(q + out.zero_point, out.qmin, out.qmax))
    return Grid(np.concatenate(parts, axis=n.attrs.axis), out)


@rule(Form.CLIP)
def activation(n: Node) -> Grid:
    """Integers between those nearest to the bounds."""
    x = n.grid(0)
    low, high = (integers.clipped(v, x.params) for v in bounds_of(n.call))
    return Grid(np.clip(x.q, low, high), x.params)


@rule(Form.PAD)
def pad(n: Node) -> Grid:
    """Padded with the integer nearest to the value."""
    value = integers.clipped(n.attrs.value, n.grid(0).params)
    return _moved(n, replace(n.attrs, value=value))


@rule(Form.MOVE)
def move(n: Node) -> Grid:
    """The operator itself, on integers."""
    return _moved(n, n.attrs)


def _moved(n: Node, attrs: Any) -> Grid:
    x, op = n.grid(0), n.call.op
    assert isinstance(op, OpDef)
    rest = [n.walk.real(a) for a in n.call.args[1:]]
    return Grid(op.reference(arithmetic(FLOAT64), attrs, x.q, *rest), x.params)
