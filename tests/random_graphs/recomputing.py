"""What results should be, computed anew: on other operands, in wider floats, or by numpy in the
fewest steps. Rules bound by it what they excuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from ml_dtypes import finfo
from onnx import helper

import compiler
from random_graphs.comparing import Difference, cut_model, fed, listed, numbers, sized
from random_graphs.drawing import ml_isfinite, reference
from random_graphs.numbers_drawn import is_float
from random_graphs.oracle import Array, Unavailable
from random_graphs.tolerances import wide, within


def attribute(d: Difference, name: str, default: Any = None) -> Any:
    """An attribute of the node, or the default."""
    found = [a for a in d.node.proto.attribute if a.name == name]
    return helper.get_attribute_value(found[0]) if found else default


def operand(d: Difference, index: int) -> Array | None:
    """What the node reads as input `index`; None if that is left out."""
    names = list(d.node.proto.input)
    return d.graph.arrays[names[index]] if index < len(names) and names[index] else None


# ---- on other operands ---------------------------------------------------------------------------
def agrees(d: Difference, change: Callable[[Array], Array]) -> Array | bool:
    """Where the interpreter gives the reference's result on changed operands (weights too)."""
    arrays = {r: change(d.graph.arrays[r]) for r in d.node.reads}
    g = replace(d.graph, arrays=arrays, nodes=(d.node,))
    n = replace(d.node, promoted=d.node.promoted and not _widened(arrays, d.graph.arrays))
    try:
        want = reference(n, arrays, g.weights, g.opset)
        mod = sized(cut_model(g, [n]))
        with np.errstate(all="ignore"):
            got = listed(compiler.evaluate(mod, fed(g, mod)))
    except (Unavailable, compiler.DtypelabError):
        return False
    full = replace(g, arrays={**arrays, **dict(zip(n.gives, want, strict=True))})
    a, b = got[d.output], want[d.output]
    if b.dtype != a.dtype and a.dtype == np.uint16:  # codes of bfloat16
        a = a.view(b.dtype)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return within(n, full, a, b, d.output)


def _widened(new: Mapping[str, Array], old: Mapping[str, Array]) -> bool:
    return any(a.dtype != old[r].dtype for r, a in new.items())


def reference_on(d: Difference, change: Callable[[Array], Array]) -> Array | None:
    """The reference's result on changed operands; None if it refuses them."""
    arrays = {r: change(d.graph.arrays[r]) for r in d.node.reads}
    try:
        return reference(d.node, arrays, d.graph.weights, d.graph.opset)[d.output]
    except Unavailable:
        return None


def in_wider(d: Difference, wider: type) -> Array | bool:
    """Where both agree with all floats in a wider dtype."""
    return agrees(d, lambda a: a.astype(wider) if is_float(a.dtype) else a)


def ordinary(a: Array) -> Array:
    """With numbers of ordinary size in place of NaN, infinities and huge numbers."""
    if not is_float(a.dtype):
        return a
    numbers = np.where(ml_isfinite(a), np.clip(np.nan_to_num(wide(a)), -4, 4), 0.5)
    return numbers.astype(a.dtype)


def compiled_agrees(d: Difference) -> bool:
    """Whether compiled code and the interpreter agree on ordinary operands, within rounding."""
    arrays = {r: ordinary(d.graph.arrays[r]) for r in d.node.reads}
    g = replace(d.graph, arrays=arrays, nodes=(d.node,))
    try:
        want = reference(d.node, arrays, g.weights, g.opset)
        mod = sized(cut_model(g, [d.node]))
        own = listed(compiler.evaluate(mod, fed(g, mod)))[d.output]
        got = listed(compiler.build(mod)(**fed(g, mod)))[d.output]
    except (Unavailable, compiler.DtypelabError):
        return False
    full = replace(g, arrays={**arrays, **dict(zip(d.node.gives, want, strict=True))})
    return bool(within(d.node, full, numbers(got, d.want), numbers(own, d.want), d.output).all())


def without_odd(d: Difference) -> bool:
    """Whether both agree as soon as nothing is NaN, infinite or huge."""
    return bool(np.all(agrees(d, ordinary)))


# ---- by numpy ------------------------------------------------------------------------------------
def saturated(x: Array, dtype: np.dtype) -> Array:
    """Floats as integers: toward zero, beyond the range its ends, NaN as 0."""
    info = np.iinfo(dtype)
    whole = np.trunc(np.nan_to_num(wide(x), nan=0, posinf=np.inf, neginf=-np.inf))
    inside = np.clip(whole, float(info.min), float(info.max))
    high, low = whole >= float(info.max), whole <= float(info.min)
    fits = np.where(high | low, 0, inside).astype(dtype)
    return np.where(high, info.max, np.where(low, info.min, fits)).astype(dtype)


def reduced_axes(d: Difference) -> tuple[int, ...]:
    """The axes of a reduction."""
    x, axes = operand(d, 0), attribute(d, "axes")
    given = operand(d, 1) if d.node.op not in ("ArgMax", "ArgMin") else None
    if d.node.op in ("ArgMax", "ArgMin"):
        axes = [attribute(d, "axis", 0)]
    elif given is not None:
        axes = given.tolist()
    assert x is not None
    if not axes and attribute(d, "noop_with_empty_axes", 0):
        return ()
    return tuple(int(a) for a in axes) if axes else tuple(range(x.ndim))


def reduced_shape(d: Difference) -> tuple[int, ...]:
    """The shape that a reduction gives by ONNX's words."""
    x = operand(d, 0)
    assert x is not None
    keep = bool(attribute(d, "keepdims", 1))
    return np.zeros(x.shape, np.int8).any(axis=reduced_axes(d), keepdims=keep).shape


def wrapped_sums(d: Difference) -> Array | None:
    """A reduction of integers that wraps, as the operators of the dtype itself do."""
    x, axes, keep = operand(d, 0), reduced_axes(d), bool(attribute(d, "keepdims", 1))
    assert x is not None
    with np.errstate(all="ignore"):
        if d.node.op == "ReduceProd":
            return np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)
        if d.node.op == "ReduceSumSquare":
            return np.sum(x * x, axis=axes, keepdims=keep, dtype=x.dtype)
        total = np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)
        if d.node.op == "ReduceSum":
            return total
        count = x.size // max(total.size, 1)
        whole = np.abs(total.astype(object)) // count * np.sign(total.astype(object))
        return np.asarray(whole).astype(x.dtype)


Normal = Any
"""Normalized numbers [...], and the scale and the bias that broadcast with them."""


def exact_norm(d: Difference) -> Array | bool:
    """Where the interpreter's result is the norm's, computed in long doubles by distances from the
    mean, within what rounding the operands and the mean changes."""
    x = operand(d, 0)
    if x is None or d.wrong is None:
        return False
    numbers = wide(x).astype(np.longdouble)
    with np.errstate(all="ignore"):
        found = _norms(d, numbers)
        if found is None:
            return False
        exact, deviation, scale, size = found
        eps = float(finfo(d.want.dtype).eps)
        lost = size / np.maximum(deviation, np.finfo(np.longdouble).tiny)
        slack = 32 * eps * (np.abs(exact) + np.abs(scale) * (1 + lost)) + eps
        return np.asarray(np.abs(wide(d.got) - exact) <= slack)


def _norms(d: Difference, x: Array) -> tuple[Array, Array, Array, Array] | None:
    op = d.node.op
    one, zero = np.ones((), x.dtype), np.zeros((), x.dtype)
    if op == "LpNormalization":
        axis, p = attribute(d, "axis", -1), attribute(d, "p", 2)
        norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / np.longdouble(p))
        return np.where(norm == 0, 0, x / norm), norm, one, zero
    if op == "MeanVarianceNormalization":
        axes = tuple(attribute(d, "axes", [0, 2, 3]))
        mean = x.mean(axes, keepdims=True)
        deviation = np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True))
        return (x - mean) / (deviation + np.longdouble(1e-9)), deviation, one, np.abs(mean)
    axes = tuple(range(2, x.ndim))
    if op == "LayerNormalization":
        axes = tuple(range(attribute(d, "axis", -1) % x.ndim, x.ndim))
    elif op != "InstanceNormalization":
        return None
    s, b = (operand(d, k) for k in (1, 2))
    scale = one if s is None else wide(s).astype(x.dtype)
    bias = zero if b is None else wide(b).astype(x.dtype)
    if op == "InstanceNormalization":
        scale, bias = (v.reshape(-1, *(1 for _ in axes)) for v in (scale, bias))
    mean = x.mean(axes, keepdims=True)
    deviation = np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + attribute(d, "epsilon", 1e-5))
    exact = (x - mean) / deviation * scale + bias
    return exact, deviation, np.abs(scale) + np.abs(bias), np.abs(mean)


def touches_padding(d: Difference) -> Array | bool:
    """Where windows of a convolution do not lie in the data alone, or (transposed) not all taps
    have data: those whose sum of ones is less than there are weights."""
    names = list(d.node.proto.input)
    if not all(names[:2]):
        return False
    w = d.graph.arrays[names[1]]
    taps = int(np.prod(w.shape[1:]))
    if d.node.op == "ConvTranspose":
        taps = w.shape[0] // int(attribute(d, "group", 1)) * int(np.prod(w.shape[2:]))
    ones = {r: np.ones_like(d.graph.arrays[r]) for r in names[:2]}
    if len(names) > 2 and names[2]:
        ones[names[2]] = np.zeros_like(d.graph.arrays[names[2]])
    try:
        return np.asarray(reference(d.node, ones, d.graph.weights, d.graph.opset)[0] < taps)
    except Unavailable:
        return False
