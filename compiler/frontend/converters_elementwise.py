"""Converters of elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.arithmetic.scalar_functions import UNARY
from compiler.frontend.choices import each_value, flag
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, constant_of, numbers, scalar
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import BOOL

_UNARY = {
    **{f.onnx: f.name for f in UNARY.values() if f.onnx is not None},
    "Relu": "nn.relu",
    "HardSwish": "nn.hard_swish",
    "Neg": "negative",
    "Abs": "abs",
    "Sign": "sign",
    "Not": "logical_not",
    "BitwiseNot": "bitwise_not",
    "IsNaN": "isnan",
}

_BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}

_VARIADIC = {"Sum": "add", "Max": "maximum", "Min": "minimum"}


@converts(*_UNARY)
def unary(n: Node) -> Imported:
    """One operand, no attributes."""
    return n.call(_UNARY[n.op], n.atom(0))


@converts(*_BINARY)
def binary(n: Node) -> Imported:
    """Two operands that broadcast."""
    return n.call(_BINARY[n.op], n.atom(0), n.atom(1))


@converts(*_VARIADIC)
def variadic(n: Node) -> Imported:
    """Any number of operands, from the left."""
    first, *rest = n.atoms()
    op = _VARIADIC[n.op]
    if not rest:
        return first
    for a in rest[:-1]:
        first = n.step(op, first, a)
    return n.call(op, first, rest[-1])


@converts("Mean")
def mean(n: Node) -> Imported:
    """The sum of any number of operands, divided by that number."""
    first, *rest = n.atoms()
    for a in rest:
        first = n.step("add", first, a)
    return n.call("divide", first, scalar(1 + len(rest), n.type(0)))


@converts("Reciprocal")
def reciprocal(n: Node) -> Imported:
    """1 / x."""
    return n.call("divide", scalar(1, n.type(0)), n.atom(0))


@converts("Mod")
def mod(n: Node) -> Imported:
    """Remainder with the sign of the divisor, or (fmod=1) of the dividend."""
    return n.call("fmod" if n.attr("fmod", 0) else "mod", n.atom(0), n.atom(1))


@converts("BitShift")
def bit_shift(n: Node) -> Imported:
    """Of integers, by counts of the same dtype."""
    direction = n.expect("direction", None, "LEFT", "RIGHT")
    return n.call(f"{direction.lower()}_shift", n.atom(0), n.atom(1))


@converts("IsInf")
def is_inf(n: Node) -> Imported:
    """Infinities of the signs asked for."""
    below, above = bool(n.attr("detect_negative", 1)), bool(n.attr("detect_positive", 1))
    return n.call("isinf", n.atom(0), detect_negative=below, detect_positive=above)


@converts("Identity")
def identity(n: Node) -> Imported:
    """The operand itself."""
    return n.value(0)


@converts("Dropout")
@each_value(2, flag)
def dropout(n: Node) -> Sequence[Imported]:
    """Identity in inference, and where nothing is dropped; the mask is true everywhere.

    In training, the mask is the one that the reference implementation of ONNX draws of the seed.
    """
    if n.has(2) and n.known(2, "training_mode").any():
        ratio = n.constant(1) if n.has(1) else np.float64(0.5)
        if ratio is None or ratio.reshape(()) != 0:
            return _dropped(n, None if ratio is None else float(ratio.reshape(())))
    y = n.call("nn.dropout", n.atom(0))
    if not n.wants(1):
        return [y]
    # The mask is of the operand's dtype before opset 10.
    kept = Constant.of(np.asarray(True), BOOL) if n.opset >= 10 else scalar(1.0, n.type(0))
    return [y, n.result(1, "broadcast_to", kept, shape=n.type(0).shape)]


def _dropped(n: Node, ratio: float | None) -> list[Imported]:
    """What remains when the share `ratio` is dropped, scaled up for it, and which that is; None: a
    share that the program computes."""
    if "seed" not in n.attrs:
        raise n.unsupported(
            "training_mode=True and no seed: it would drop others in every run; "
            "export the model in evaluation mode, or with a seed"
        )
    t, seed = n.type(0), int(n.need("seed"))
    if not 0 <= seed < 2**32 or (ratio is not None and not 0 <= ratio < 1):
        raise n.unsupported(f"seed={seed} and ratio={ratio}: give 0 to 2**32 - 1, and 0 to below 1")
    n.reserve(*t.static_shape)
    drawn = np.random.RandomState(seed).uniform(0, 1, t.static_shape)
    if ratio is None:
        share = n.step("cast", n.step("reshape", n.atom(1), newshape=()), dtype="float64")
        held = n.result(1, "greater_equal", Constant.of(drawn), share) if n.wants(1) else n.step(
            "greater_equal", Constant.of(drawn), share
        )  # fmt: skip
        one = scalar(1, tensor_type(share))
        grown = n.step("divide", one, n.step("subtract", one, share))
        grown = n.step("cast", grown, dtype=str(t.dtype))
        return [n.call("multiply", n.atom(0), n.step("where", held, grown, scalar(0, t))), held]
    kept = drawn >= ratio
    scale = constant_of(kept / (1 - ratio), t.dtype)
    return [n.call("multiply", n.atom(0), scale), Constant.of(kept, BOOL)]


@converts("Clip")
def clip(n: Node) -> Imported:
    """min/max as attributes (opset < 11) or inputs, either of them optional."""
    x, t = n.atom(0), n.type(0)
    bounds: Sequence[Atom | None]
    if n.opset < 11:
        given = [n.attr("min"), n.attr("max")]
        bounds = [None if v is None else scalar(v, t) for v in given]
    else:
        bounds = [n.atom(i) if n.has(i) else None for i in (1, 2)]
    lo, hi = bounds
    known = all(b is None or isinstance(b, Constant) for b in bounds)
    if lo is None and hi is None:
        return x
    if known and t.dtype.is_float:
        low, high = (_number(lo, -np.inf), _number(hi, np.inf))
        if low == 0 and high >= np.finfo(t.dtype.storage).max:
            return n.call("nn.relu", x)
        return n.call("clip", x, a_min=low, a_max=high)
    if lo is not None and hi is not None:
        return n.call("minimum", n.step("maximum", x, lo), hi)
    if lo is not None:
        return n.call("maximum", x, lo)
    assert hi is not None
    return n.call("minimum", x, hi)


def _number(bound: Atom | None, default: float) -> float:
    return float(numbers(bound).reshape(())) if isinstance(bound, Constant) else default


@converts("LeakyRelu")
def leaky_relu(n: Node) -> Imported:
    """x if x >= 0 else alpha * x."""
    return n.call("nn.leaky_relu", n.atom(0), alpha=n.attr("alpha", 0.01))


@converts("HardSigmoid")
def hard_sigmoid(n: Node) -> Imported:
    """clip(alpha * x + beta, 0, 1)."""
    alpha, beta = n.attr("alpha", 0.2), n.attr("beta", 0.5)
    return n.call("nn.hard_sigmoid", n.atom(0), alpha=alpha, beta=beta)


@converts("Gelu")
def gelu(n: Node) -> Imported:
    """Exact or tanh approximation."""
    kind = n.expect("approximate", "none", "none", "tanh")
    return n.call("nn.gelu", n.atom(0), approximate=kind)


@converts("Pow")
def power(n: Node) -> Imported:
    """Exponents 1, 2, 3 and 0.5 become multiplications and a square root, which every dtype has."""
    x, t = n.atom(0), n.type(0)
    e = n.constant(1)
    if e is not None and e.size == 1 and e.ndim <= t.rank:
        value = float(e.reshape(()))
        if value == 1:
            return x
        if value == 2:
            return n.call("multiply", x, x)
        if value == 3:
            return n.call("multiply", n.step("multiply", x, x), x)
        if value == 0.5 and t.dtype.is_float:
            return n.call("sqrt", x)
    exponent = n.atom(1)
    if t.dtype.is_float and not t.dtype.is_custom:
        if tensor_type(exponent).dtype != t.dtype:
            exponent = n.step("cast", exponent, dtype=str(t.dtype))
        return n.call("power", x, exponent)
    wide = [n.step("cast", a, dtype="float64") for a in (x, exponent)]
    return n.call("cast", n.step("power", *wide), dtype=str(t.dtype))


@converts("Where")
def where(n: Node) -> Imported:
    """Elements of input 1 where input 0 holds, else of input 2."""
    return n.call("where", n.atom(0), n.atom(1), n.atom(2))
