"""Converters of onnxruntime's own operators (domain com.microsoft) on quantized data.

As in converters_quantized, they are compositions: values are dequantized, the operator is computed
in float32, and the result is scaled, rounded to nearest even and saturated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from compiler.frontend.converters_nn import matrix_product
from compiler.frontend.converters_pool import reaching
from compiler.frontend.converters_quantized import (
    cast_to,
    dequantize_linear,
    quantize_linear,
    quantized_bounds,
    saturated,
)
from compiler.frontend.converters_recurrent import QuantizedWeights, recurrent
from compiler.frontend.integer_products import (
    integer_matrices,
    integer_requantized,
    known_integers,
    one_zero_point,
)
from compiler.frontend.node import Converter, Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.frontend.windows import two
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import FLOAT32, INT8, INT32, UINT8

DOMAIN = "com.microsoft"
INPUTS: dict[str, tuple[int, int]] = {}
"""Operator -> the least and the largest number of its inputs, which no schema gives."""
OUTPUTS: dict[str, int] = {}
"""Operator -> the largest number of its outputs."""
RUNTIME_OWN: set[str] = set()
"""Operators of its own that onnxruntime has in ONNX's domain."""


def microsoft(op: str, least: int, most: int, outputs: int = 1) -> Callable[[Converter], Converter]:
    """Decorator: the function converts an operator of this domain with so many inputs, and at most
    so many outputs."""
    INPUTS[op], OUTPUTS[op] = (least, most), outputs
    return converts(f"{DOMAIN}.{op}")


def without_domain(
    op: str, least: int, most: int, outputs: int = 1
) -> Callable[[Converter], Converter]:
    """Decorator: the same of an operator that models have in ONNX's domain, where it is none, or in
    this one."""
    RUNTIME_OWN.add(op)
    return microsoft(op, least, most, outputs)


def _real(n: Node, i: int) -> Atom:
    """Input `i`, an integer, as float32 by the scale and zero point that follow it."""
    zero = one_zero_point(n, i + 2)
    if zero is not None and n.constant(i + 1) is not None and n.type(i).dtype in (INT8, UINT8):
        return n.step("qnn.dequantize", n.atom(i), _one(n, n.atom(i + 1)), zero_point=zero, axis=0)
    q = cast_to(n, n.atom(i), INT32)
    if n.has(i + 2):
        q = n.step("subtract", q, _one(n, cast_to(n, n.atom(i + 2), INT32)))
    return n.step("multiply", cast_to(n, q, FLOAT32), _one(n, n.atom(i + 1)))


def _one(n: Node, a: Atom) -> Atom:
    """A scale or zero point of one number as a scalar."""
    t = tensor_type(a)
    if t.shape not in ((), (1,)):
        raise n.unsupported(f"a scale or zero point {t}; one number is supported")
    return n.step("reshape", a, newshape=()) if t.rank else a


def _quantized(n: Node, real: Atom, scale: int, like: int, unit: Atom | None = None) -> Imported:
    """`real` by `unit`, or else the scale of input `scale`, and the zero point that follows it;
    without one, the result has the dtype of input `like`."""
    unit = _one(n, n.atom(scale)) if unit is None else unit
    at = scale + 1 if n.has(scale + 1) else like
    dtype = n.type(at).dtype
    bounds = quantized_bounds(n, n.element(at), dtype)
    known = one_zero_point(n, scale + 1)
    if known is not None and isinstance(unit, Constant) and dtype in (INT8, UINT8):
        return n.call(
            "qnn.quantize", real, unit, zero_point=known, axis=0,
            out_dtype=str(dtype), qmin=bounds[0], qmax=bounds[1],
        )  # fmt: skip
    zero = _one(n, n.atom(scale + 1)) if n.has(scale + 1) else None
    return saturated(n, n.step("divide", real, unit), zero, dtype, bounds)


@microsoft("QLinearAdd", 7, 8)
def qlinear_add(n: Node) -> Imported:
    """The sum of two, broadcasting."""
    return _quantized(n, n.step("add", _real(n, 0), _real(n, 3)), 6, 0)


@microsoft("QLinearMul", 7, 8)
def qlinear_mul(n: Node) -> Imported:
    """The product of two, broadcasting."""
    return _quantized(n, n.step("multiply", _real(n, 0), _real(n, 3)), 6, 0)


@microsoft("QLinearSigmoid", 4, 5)
def qlinear_sigmoid(n: Node) -> Imported:
    """1 / (1 + exp(-x))."""
    return _quantized(n, n.step("sigmoid", _real(n, 0)), 3, 0)


@microsoft("QLinearLeakyRelu", 4, 5)
def qlinear_leaky_relu(n: Node) -> Imported:
    """x if x >= 0 else alpha * x."""
    return _quantized(n, n.step("nn.leaky_relu", _real(n, 0), alpha=n.attr("alpha", 0.01)), 3, 0)


@microsoft("QLinearSoftmax", 5, 5)
def qlinear_softmax(n: Node) -> Imported:
    """exp(x) over its sum along an axis, on a grid of a whole number of steps to 1.

    onnxruntime, whose operator this is, rounds 1 / scale down: 254 steps for the float32 next to
    1 / 255, where QuantizeLinear has 255.
    """
    x, rank, old = _real(n, 0), n.type(0).rank, n.attr("opset", 13) < 13
    axis = n.axis(1 if old else -1, rank)
    if old and axis != rank - 1:
        raise n.unsupported(f"axis={axis} of opset {n.attr('opset')}")
    scale = _one(n, n.atom(3))
    one = scalar(1.0, tensor_type(scale))
    steps = n.step("floor", n.step("divide", one, scale))
    unit = n.step("divide", one, steps)
    return _quantized(n, n.step("nn.softmax", x, axis=axis), 3, 0, unit)


@microsoft("QLinearConcat", 5, 1 << 20)
def qlinear_concat(n: Node) -> Imported:
    """Tensors of different scales side by side; the result's scale comes first."""
    if len(n.inputs) % 3 != 2:
        raise n.unsupported(f"{len(n.inputs)} inputs: a scale, a zero point, and triples")
    parts = [_real(n, i) for i in range(2, len(n.inputs), 3)]
    axis = n.front(n.need("axis"), tensor_type(parts[0]).rank)
    whole = n.step("concatenate", *parts, axis=axis) if len(parts) > 1 else parts[0]
    return _quantized(n, whole, 0, 2)


@microsoft("QLinearAveragePool", 4, 5)
def qlinear_average_pool(n: Node) -> Imported:
    """The mean of each window of an image."""
    n.rank_of(0, 4)
    n.expect("channels_last", 0, 0)
    at, more = reaching(n, n.type(0))
    mean = n.step(
        "nn.avg_pool2d", _real(n, 0), **at.attrs(), pool_size=two(at.kernel, 1),
        count_include_pad=bool(n.attr("count_include_pad", 0)), **more,
    )  # fmt: skip
    return _quantized(n, mean, 3, 0)


@microsoft("QLinearGlobalAveragePool", 4, 5)
def qlinear_global_average_pool(n: Node) -> Imported:
    """The mean of every channel."""
    rank = n.rank_of(0, 3, 4, 5)
    first = 1 if n.expect("channels_last", 0, 0, 1) else 2
    axes = tuple(range(first, first + rank - 2))
    return _quantized(n, n.step("mean", _real(n, 0), axis=axes, keepdims=True), 3, 0)


@microsoft("QGemm", 6, 9)
def qgemm(n: Node) -> Imported:
    """alpha * A B + C, of int8 matrices; C is int32, of the scale of the product. Without a scale
    of the result, that is float32."""
    acc = _gemm(n)
    scales = n.step("multiply", _one(n, n.atom(1)), _column(n, n.atom(4)))
    scales = n.step("multiply", scales, scalar(float(n.attr("alpha", 1.0)), tensor_type(scales)))
    if not n.has(7):
        return n.call("multiply", cast_to(n, acc, FLOAT32), scales)
    at = 8 if n.has(8) else 0
    bounds = quantized_bounds(n, n.element(at), n.type(at).dtype)
    factor = n.step("divide", scales, _one(n, n.atom(7)))
    if tensor_type(factor).rank == 1:
        factor = n.step("reshape", factor, newshape=(1, -1))
    known = integer_requantized(n, acc, factor, 7, bounds) if at == 8 else None
    if known is not None:
        return known
    return _quantized(n, n.step("multiply", cast_to(n, acc, FLOAT32), scales), 7, 0)


def _gemm(n: Node) -> Atom:
    """The int32 product of the two matrices, each transposed if asked, plus C."""
    weights = known_integers(n, 3, 5, 0 if n.attr("transB", 0) else 1)
    rows = weights if weights is None or n.attr("transB", 0) else weights.T
    a = n.step("transpose", n.atom(0), axes=(1, 0)) if n.attr("transA", 0) else n.atom(0)
    known = integer_matrices(n, a, rows, 2, [n.atom(6)] if n.has(6) else [])
    if known is not None:
        return known
    a, b = (_centred(n, i, n.attr(name, 0)) for i, name in ((0, "transA"), (3, "transB")))
    acc = matrix_product(n, a, b, n.step)
    return n.step("add", acc, n.atom(6)) if n.has(6) else acc


def _column(n: Node, a: Atom) -> Atom:
    """A scale or zero point of one number, or of one for each column."""
    t = tensor_type(a)
    return n.step("reshape", a, newshape=()) if t.shape == (1,) else a


def _centred(n: Node, i: int, turned: int) -> Atom:
    """A matrix as int32 minus its zero point, transposed if asked."""
    q = n.step("transpose", n.atom(i), axes=(1, 0)) if turned else n.atom(i)
    q = cast_to(n, q, INT32)
    if n.has(i + 2):
        q = n.step("subtract", q, _column(n, cast_to(n, n.atom(i + 2), INT32)))
    return q


microsoft("QuantizeLinear", 2, 3)(quantize_linear)
microsoft("DequantizeLinear", 2, 3)(dequantize_linear)


@microsoft("DynamicQuantizeLSTM", 12, 12, outputs=3)
def dynamic_quantize_lstm(n: Node) -> Sequence[Imported]:
    """An LSTM whose known weights are integers [directions, inputs, 4 * hidden], and whose inputs
    and states are rounded to 8 bits, over their own range, before they meet them.

    onnxruntime adds products of the integers and scales the sum; here the factors are scaled, and
    the sum is one of floats.
    """
    weights = []
    for i, scale in ((1, 8), (2, 10)):
        q, s = n.known(i, "weights"), n.known(scale, "scales").astype(np.float32)
        zero = n.known(scale + 1, "zero points")
        s, zero = (v.reshape(v.shape[0], 1, -1) for v in (s, zero))
        real = (q.astype(np.float32) - zero.astype(np.float32)) * s
        weights.append(Constant.of(real.astype(np.float32), FLOAT32))
    lstm = replace(n, op="LSTM", inputs=n.inputs[:8])
    return recurrent(lstm, QuantizedWeights(weights[0], weights[1]))
