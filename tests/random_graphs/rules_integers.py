"""Rules on integers."""

from __future__ import annotations

import numpy as np

from compiler.target.registry import Target
from random_graphs.comparing import Difference
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array
from random_graphs.recomputing import (
    agrees,
    attribute,
    reduced_axes,
    reference_on,
    saturated,
    wrapped_sums,
)
from random_graphs.rule_book import of, operands, rule
from random_graphs.tolerances import wide

VNNI = not {"avx512vnni", "avxvnni"}.isdisjoint(Target.parse("llvm").enabled)
PRODUCTS_OF_BYTES = (
    *("MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul"),
    *("com.microsoft.QGemm", "com.microsoft.DynamicQuantizeLSTM"),
)


@rule("softmax of 256", "onnxruntime wraps a probability of 1, which is 256 of 256")
def softmax_wraps(d: Difference) -> Array | bool:
    """Checked: the end of the range here, what wraps from it there."""
    if not of(d, "com.microsoft.QLinearSoftmax"):
        return False
    info = np.iinfo(d.want.dtype)
    return np.asarray((d.want == info.min) & (d.got == info.max))


@rule("Shrink of integers", "onnxruntime computes it in float32, ONNX's body in the integers")
def shrink(d: Difference) -> Array | bool:
    """Checked: ours is numpy's in the integers."""
    x = operands(d)[0]
    if not of(d, "Shrink") or is_float(x.dtype):
        return False
    with np.errstate(all="ignore"):
        threshold = np.asarray(attribute(d, "lambd", 0.5)).astype(x.dtype)
        bias = np.asarray(attribute(d, "bias", 0.0)).astype(x.dtype)
        above = np.where(x > threshold, x - bias, np.zeros_like(x))
        return np.asarray(d.got == np.where(x < -threshold, x + bias, above))


@rule("saturated sums", "onnxruntime reduces integers in floats, and saturates; we wrap")
def saturated_sums(d: Difference) -> Array | bool:
    """Checked: ours is numpy's integer reduction, or einsum."""
    if of(d, "Einsum") and not is_float(d.want.dtype) and d.wrong is not None:
        given = [d.graph.arrays[n] for n in d.node.proto.input]
        equation = attribute(d, "equation").decode()
        return np.asarray(d.got == np.einsum(equation, *given, dtype=d.want.dtype))
    if not of(d, "ReduceProd", "ReduceSum", "ReduceMean", "ReduceSumSquare") or d.wrong is None:
        return False
    if is_float(operands(d)[0].dtype):
        return False
    own = wrapped_sums(d)
    return own is not None and np.asarray(d.got == own)


@rule("saturated products", "without VNNI, onnxruntime adds pairs of products of bytes in int16")
def saturated_products(d: Difference) -> Array | bool:
    """Checked: both agree where signed bytes have 7 bits, of which two products fit."""
    signed = any(d.graph.arrays[r].dtype == np.int8 for r in d.node.reads)
    if VNNI or not signed or not of(d, *PRODUCTS_OF_BYTES):
        return False
    return agrees(d, lambda a: a // 2 if a.dtype == np.int8 else a)


@rule("remainders of 64 bits", "onnxruntime takes C's remainders of integers in float64")
def remainders(d: Difference) -> Array | bool:
    """Checked: ours is numpy's remainder of the integers."""
    if not of(d, "Mod") or is_float(d.want.dtype) or not attribute(d, "fmod"):
        return False
    with np.errstate(all="ignore"):
        a, b = (d.graph.arrays[n] for n in d.node.proto.input)
        return np.asarray(d.got == np.fmod(a, b)) & (d.want.dtype.itemsize == 8)


@rule(
    "mean of nothing", "0 of 0 elements is NaN, as in numpy; in onnxruntime 0. ONNX leaves it open"
)
def mean_of_nothing(d: Difference) -> Array | bool:
    """Checked: there is no element, NaN here and 0 there."""
    if not of(d, "ReduceMean") or operands(d)[0].size or d.wrong is None:
        return False
    return is_float(d.want.dtype) and np.isnan(wide(d.got)) & (d.want == 0)


@rule("logarithms of integers", "ONNX's body computes them in floats and cuts the result short")
def integer_logarithms(d: Difference) -> Array | bool:
    """Checked: ours is 1 (or what float64 rounds) at most from the one of long doubles."""
    if not of(d, "ReduceLogSum", "ReduceLogSumExp") or is_float(operands(d)[0].dtype):
        return False
    x, axes = operands(d)[0].astype(np.longdouble), reduced_axes(d)
    with np.errstate(all="ignore"):
        unit = x.max(axes, keepdims=True) if d.node.op == "ReduceLogSumExp" else 0 * x
        terms = np.exp(x - unit) if d.node.op == "ReduceLogSumExp" else x
        exact = np.log(terms.sum(axes)).reshape(d.got.shape) + unit.max(axes).reshape(d.got.shape)
        info = np.iinfo(d.want.dtype)
        exact = np.clip(np.nan_to_num(exact, nan=0), info.min, info.max)
        return np.asarray(np.abs(d.got.astype(np.longdouble) - exact) <= 1 + 1e-15 * np.abs(exact))


@rule("integers between two", "a resized integer is cut to its whole part, which rounding decides")
def cut_short(d: Difference) -> Array | bool:
    """Checked: they are 1 apart at most; where onnxruntime filters 8-bit integers twice, with
    integers in between, 1 from its own result in float32."""
    if not of(d, "Resize") or is_float(operands(d)[0].dtype) or d.wrong is None:
        return False
    apart = np.abs(d.got.astype(np.int64) - d.want.astype(np.int64))
    if d.want.dtype.itemsize == 1 and attribute(d, "antialias"):
        small = d.want.dtype
        full = reference_on(d, lambda a: a.astype(np.float32) if a.dtype == small else a)
        return full is not None and np.abs(saturated(full, small) - d.got.astype(int)) <= 1
    return np.asarray(apart <= 1)


@rule("no range to quantize", "a range of 0 has the scale 0 by ONNX's body, in onnxruntime 1")
def no_range(d: Difference) -> Array | bool:
    """Checked: 0 here, 1 there."""
    return of(d, "DynamicQuantizeLinear") and d.output == 1 and (d.got == 0) & (d.want == 1)
