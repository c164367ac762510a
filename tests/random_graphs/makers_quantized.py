"""Draws operators on quantized integers, ONNX's and onnxruntime's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_graphs.drawing import Drawing, draws
from random_graphs.makers_nn import FLOAT32, image, window
from random_graphs.numbers_drawn import draw

INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
OWN = "com.microsoft."


def scale(g: Drawing, shape: Any = (), dtype: Any = FLOAT32) -> str:
    """A stored scale that is no power of two."""
    return g.stored(np.asarray(g.rng.uniform(0.01, 0.2, shape), dtype))


def zero(g: Drawing, dtype: np.dtype, shape: Any = ()) -> str:
    """A stored zero point."""
    return g.stored(np.asarray(g.rng.integers(0, 5, shape) + 120 * (dtype == UINT8), dtype))


def coded(g: Drawing, shape: Any, dtype: np.dtype, weight: float = 0.0) -> str:
    """Integers of the whole range."""
    return g.given(shape, dtype, weight, "wide")


@draws("QuantizeLinear", "DequantizeLinear", OWN + "QuantizeLinear", OWN + "DequantizeLinear")
def linear(g: Drawing, op: str) -> None:
    """One scale, one for every element of an axis, or one a block; mostly a pair of both."""
    kinds = [INT8, UINT8, INT8, UINT8]
    if g.opset >= 21 or op.startswith(OWN):
        kinds += [np.dtype(np.int16), np.dtype(np.uint16)]
    dtype, back = g.any(kinds), op.endswith("DequantizeLinear")
    x = g.value(dtype if back else FLOAT32, (1, 2, 3, 4))
    shape = g.of(x).shape
    axis = g.int(0, len(shape) - 1)
    attrs: dict[str, Any] = {}
    many: Any = ()
    if g.opset >= 13 and g.chance(0.4):
        many, attrs["axis"] = (shape[axis],), axis
    elif g.opset >= 21 and g.chance(0.2) and shape[axis] and shape[axis] % 2 == 0:
        many = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
        attrs |= {"axis": axis, "block_size": 2}
    s, z = scale(g, many), zero(g, dtype, many)
    more = [z] if g.chance(0.8) or dtype not in (UINT8,) or op.startswith(OWN) else []
    made = g.node(op, [x, s, *more], **attrs)
    if not back and g.chance(0.6):
        g.node(op.replace("Quantize", "Dequantize"), [*made, s, *more], **attrs)


@draws("DynamicQuantizeLinear")
def dynamic(g: Drawing, op: str) -> None:
    g.node(op, [g.value(FLOAT32, (1, 2, 3, 4))], 3)


@draws("MatMulInteger")
def matmul_integer(g: Drawing, op: str) -> None:
    a, b = g.any([UINT8, INT8]), g.any([UINT8, INT8])
    m, k, n = (g.int(1, 9) for _ in range(3))
    batch = g.shape(g.int(0, 1))
    zeros = [zero(g, a), zero(g, b)]
    g.node(op, [coded(g, (*batch, m, k), a), coded(g, (k, n), b, 0.8), *zeros[: g.int(0, 2)]])


@draws("ConvInteger")
def conv_integer(g: Drawing, op: str) -> None:
    x = image(g, UINT8, 2)
    attrs = window(g, g.of(x).shape[2:])
    w = coded(g, (g.int(1, 4), g.of(x).shape[1], *attrs["kernel_shape"]), UINT8, 0.9)
    zeros = [zero(g, UINT8), zero(g, UINT8)]
    g.node(op, [x, w, *zeros[: g.int(0, 2)]], **attrs)


@draws("QLinearConv")
def qlinear_conv(g: Drawing, op: str) -> None:
    a, w = g.any([(UINT8, UINT8), (UINT8, INT8), (INT8, INT8)])
    x = image(g, a, 2)
    c = g.of(x).shape[1]
    groups = g.any([1, 1, c])
    attrs, out = window(g, g.of(x).shape[2:]), groups * g.int(1, 3)
    kernel = coded(g, (out, c // groups, *attrs["kernel_shape"]), w, 1)
    many = g.any([(), (out,)])
    z = g.stored(np.zeros(many, w)) if w == INT8 else zero(g, w)
    bias = [g.stored(g.rng.integers(-999, 999, out), np.int32)] if g.chance() else []
    operands = [x, scale(g), zero(g, a), kernel, scale(g, many), z, scale(g), zero(g, a), *bias]
    g.node(op, operands, group=groups if groups > 1 else None, **attrs)


@draws("QLinearMatMul")
def qlinear_matmul(g: Drawing, op: str) -> None:
    a, b = g.any([(UINT8, UINT8), (UINT8, INT8), (INT8, INT8)])
    m, k, n = (g.int(1, 9) for _ in range(3))
    operands = [coded(g, (m, k), a), scale(g), zero(g, a), coded(g, (k, n), b, 0.8), scale(g)]
    g.node(op, [*operands, zero(g, b), scale(g), zero(g, a)])


@draws(OWN + "QLinearAdd", OWN + "QLinearMul")
def qlinear_binary(g: Drawing, op: str) -> None:
    dtype = g.any([INT8, UINT8])
    x = g.value(dtype, (1, 2, 3, 4))
    y = coded(g, g.broadcast(g.of(x).shape), dtype, 0.4)
    g.node(op, [v for a in (x, y) for v in (a, scale(g), zero(g, dtype))]
           + [scale(g), zero(g, dtype)])  # fmt: skip


@draws(OWN + "QLinearSigmoid", OWN + "QLinearLeakyRelu")
def qlinear_unary(g: Drawing, op: str) -> None:
    dtype = g.any([INT8, UINT8])
    x = g.value(dtype, (1, 2, 3, 4))
    alpha = g.any([None, 0.3]) if op.endswith("Relu") else None
    g.node(op, [x, scale(g), zero(g, dtype), scale(g), zero(g, dtype)], alpha=alpha)


@draws(OWN + "QLinearSoftmax")
def qlinear_softmax(g: Drawing, op: str) -> None:
    dtype = g.any([INT8, UINT8])
    x = g.value(dtype, (2, 3))
    g.node(op, [x, scale(g), zero(g, dtype), g.stored(np.float32(1 / 256)),
                g.stored(np.asarray(-128 if dtype == INT8 else 0, dtype))],
           axis=-1, opset=13)  # fmt: skip


@draws(OWN + "QLinearAveragePool", OWN + "QLinearGlobalAveragePool")
def qlinear_pool(g: Drawing, op: str) -> None:
    dtype = g.any([INT8, UINT8])
    x = image(g, dtype, 2)
    operands = [x, scale(g), zero(g, dtype), scale(g), zero(g, dtype)]
    if op.endswith("GlobalAveragePool"):
        g.node(op, operands, channels_last=0)
        return
    attrs = window(g, g.of(x).shape[2:])
    attrs.pop("dilations")
    g.node(op, operands, count_include_pad=g.int(0, 1), **attrs)


@draws(OWN + "QLinearConcat")
def qlinear_concat(g: Drawing, op: str) -> None:
    dtype = g.any([INT8, UINT8])
    x = g.value(dtype, (1, 2, 3, 4))
    y = coded(g, g.of(x).shape, dtype)
    parts = [v for a in (x, y) for v in (a, scale(g), zero(g, dtype))]
    g.node(op, [scale(g), zero(g, dtype), *parts], axis=g.int(0, g.of(x).ndim - 1))


@draws(OWN + "QGemm")
def qgemm(g: Drawing, op: str) -> None:
    a, b = g.any([(UINT8, UINT8), (UINT8, INT8), (INT8, INT8)])
    m, k, n, turned = g.int(1, 9), g.int(1, 9), g.int(1, 9), g.int(0, 1)
    w = coded(g, (n, k) if turned else (k, n), b, 1)
    c = g.stored(g.rng.integers(-999, 999, n), np.int32)
    end = [scale(g), zero(g, a)] if g.chance(0.7) else []
    g.node(op, [coded(g, (m, k), a), scale(g), zero(g, a), w, scale(g), zero(g, b), c, *end],
           transB=turned)  # fmt: skip


@draws(OWN + "MatMulNBits")
def matmul_bits(g: Drawing, op: str) -> None:
    bits, block, k, n = g.any([4, 4, 8]), 16, 16 * g.int(1, 2), g.int(1, 5)
    many = k // block
    packed = draw(g.rng, (n, many, block * bits // 8), UINT8, "wide")
    x = g.given((*g.shape(1), k), FLOAT32, 0)
    scales = g.stored(g.rng.uniform(0.01, 0.2, n * many).astype(np.float32))
    zeros = draw(g.rng, (n * ((many * bits + 7) // 8),), UINT8, "wide")
    more = [g.stored(zeros)] if g.chance() else []
    g.node(op, [x, g.stored(packed), scales, *more], K=k, N=n, bits=bits, block_size=block)


@draws(OWN + "DynamicQuantizeLSTM")
def quantized_lstm(g: Drawing, op: str) -> None:
    steps, batch, inner, hidden = g.int(1, 4), g.int(1, 3), g.int(1, 4), g.int(1, 3)
    direction, dtype = g.any([None, "reverse", "bidirectional"]), g.any([INT8, UINT8])
    ways = 2 if direction == "bidirectional" else 1

    def weights(rows: int) -> list[str]:
        values = draw(g.rng, (ways, rows, 4 * hidden), dtype, "wide")
        scales = g.stored(g.rng.uniform(0.002, 0.006, ways).astype(np.float32))
        zeros = np.zeros(ways, dtype) if dtype == INT8 else g.rng.integers(100, 130, ways)
        return [g.stored(values), scales, g.stored(zeros.astype(dtype))]

    (w, ws, wz), (r, rs, rz) = weights(inner), weights(hidden)
    bias = g.stored(g.rng.uniform(-0.5, 0.5, (ways, 8 * hidden)).astype(np.float32))
    x = g.given((steps, batch, inner), FLOAT32, 0, "normal")
    operands = [x, w, r, bias, "", "", "", "", ws, wz, rs, rz]
    g.node(op, operands, 3, hidden_size=hidden, direction=direction)
