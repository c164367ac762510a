"""Draws operators that compute every element on its own."""

from __future__ import annotations

import numpy as np

from compiler.arithmetic.scalar_functions import UNARY
from random_graphs.drawing import BOOL, INT64, Drawing, draws
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import BFLOAT16, code_of

FLOAT32 = np.dtype(np.float32)


_PLAIN = {"Abs", "Identity", "IsNaN", "Neg", "Not", "Reciprocal", "Relu", "Sign"}
_OTHERS = ("HardSwish", "Softplus", "Softsign", "Mish", "BitwiseNot", "Size")


@draws(*dict.fromkeys((*sorted({f.onnx for f in UNARY.values() if f.onnx} | _PLAIN), *_OTHERS)))
def unary(g: Drawing, op: str) -> None:
    g.node(op, [g.value(g.dtype(op))])


@draws("Elu", "Celu", "LeakyRelu", "ThresholdedRelu", "Swish", "Selu", "HardSigmoid", "Shrink")
def with_numbers(g: Drawing, op: str) -> None:
    """Attributes are drawn, or left at their defaults; what is divided by is not 0."""
    names = [n for n in ("alpha", "gamma", "beta", "bias", "lambd") if g.has(op, n)]
    attrs = {n: float(np.float32(g.rng.uniform(0.1, 2))) for n in names if g.chance()}
    g.node(op, [g.value(g.dtype(op))], **attrs)


@draws("Gelu")
def gelu(g: Drawing, op: str) -> None:
    g.node(op, [g.value(g.dtype(op))], approximate=g.any([None, "none", "tanh"]))


@draws("IsInf")
def is_inf(g: Drawing, op: str) -> None:
    sides = {n: g.int(0, 1) for n in ("detect_negative", "detect_positive") if g.chance(0.3)}
    g.node(op, [g.value(g.dtype(op))], **sides)


@draws("Clip")
def clip(g: Drawing, op: str) -> None:
    dtype = FLOAT32 if g.opset < 12 else g.dtype(op)
    x = g.value(dtype)
    low, high = sorted(g.int(-4 if dtype.kind != "u" else 0, 6) for _ in range(2))
    bounds = [None if g.chance(0.2) else b for b in (low, high)]
    if g.opset < 11:
        attrs = {k: float(v) for k, v in zip(("min", "max"), bounds, strict=True) if v is not None}
        g.node(op, [x], **attrs)
        return
    put = g.stored if g.chance(0.8) else g.input
    g.node(op, [x, *("" if b is None else put(np.asarray(b, dtype)) for b in bounds)])


@draws("Dropout")
def dropout(g: Drawing, op: str) -> None:
    g.node(op, [g.value(g.dtype(op))], outputs=g.int(1, 2))


@draws(
    "Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
)  # fmt: skip
def binary(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype)
    y = g.given(g.broadcast(g.of(x).shape), dtype)
    if op == "Div" and not is_float(dtype):  # an integer divided by 0 has no value
        y = g.stored(np.where(g.of(y) == 0, 3, g.of(y)), dtype)
        g.node(op, [x, y])
        return
    g.node(op, [x, y] if g.chance(0.7) else [y, x])


@draws("Mod")
def mod(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype)
    y = g.given(g.broadcast(g.of(x).shape), dtype)
    if not is_float(dtype):
        y = g.stored(np.where(g.of(y) == 0, 3, g.of(y)), dtype)
    g.node(op, [x, y], fmod=1 if is_float(dtype) else g.int(0, 1))


@draws("BitShift")
def bit_shift(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype)
    by = g.stored(g.rng.integers(0, 8, g.broadcast(g.of(x).shape)), dtype)
    g.node(op, [x, by], direction=g.any(["LEFT", "RIGHT"]))


@draws("Pow")
def power(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype)
    other = dtype if g.opset < 12 else g.dtype(op, 1)
    if g.chance(0.5):
        e = g.stored(np.asarray(g.any([0, 1, 2, 3, 4] + [0.5, -1, 1.7] * is_float(other)), other))
    else:
        e = g.given(g.broadcast(g.of(x).shape), other)
    g.node(op, [x, e])


@draws("PRelu")
def prelu(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, (1, 2, 3, 4))
    shape = g.of(x).shape
    cut = g.int(0, len(shape))
    g.node(op, [x, g.given([1 if g.chance(0.3) else d for d in shape[cut:]], dtype)])


@draws("Where")
def where(g: Drawing, op: str) -> None:
    dtype = g.dtype(op, 1)
    x = g.value(dtype)
    shape = g.of(x).shape
    g.node(op, [g.given(g.broadcast(shape), BOOL), x, g.given(g.broadcast(shape), dtype)])


@draws("Max", "Min", "Mean", "Sum")
def variadic(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype)
    more = [g.given(g.broadcast(g.of(x).shape), dtype) for _ in range(g.int(0, 3))]
    g.node(op, [x, *more])


@draws("Cast", "CastLike")
def cast(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    narrow = BFLOAT16 if g.opset >= 13 and not g.pure else g.home
    to = g.any([g.home, g.dtype(op), g.dtype(op), INT64, narrow])
    like = np.zeros(1, to)
    if op == "Cast":
        g.node(op, [g.value(dtype)], to=code_of(like))
    else:
        g.node(op, [g.value(dtype), g.stored(like)])


@draws("BitCast")
def bit_cast(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op))
    same = [d for d in ("int32", "float32", "int64", "float64", "uint16", "float16", "int8")
            if np.dtype(d).itemsize == g.of(x).dtype.itemsize]  # fmt: skip
    g.node(op, [x], to=code_of(np.zeros(1, g.any(same))))
