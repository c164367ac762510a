"""Convolutions and matrix products as primitives, of float32 and of integers of 8 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from compiler.engines.onednn.anchors import Anchor, GetValue, anchor, require
from compiler.engines.onednn.chain import Fit
from compiler.engines.onednn.library import Refused, library
from compiler.engines.onednn.objects import (
    BIAS,
    INFERENCE,
    SRC,
    WEIGHTS,
    Attributes,
    Desc,
    Primitive,
    cpu,
    dims,
)
from compiler.engines.onednn.operators import EXACT, Node, dtype_of, known
from compiler.engines.onednn.plan import Plan, Value
from compiler.ir.expr import Constant
from compiler.types.dtypes import Array

_DIRECT = 1
_VNNI = 64
"""The bit of AVX512-VNNI among oneDNN's instruction sets (dnnl_cpu_isa_t)."""
_BYTES = ("uint8", "int8")


@cache
def exact_bytes() -> bool:
    """Whether sums of products of bytes are exact: this CPU has AVX512-VNNI, and oneDNN is let use
    it. With less oneDNN adds pairs in 16 bits, which saturate; with AVX-VNNI alone, some results of
    version 3.2 are far off."""
    return bool(library().get_effective_cpu_isa() & _VNNI)


def _operands(node: Node) -> bool:
    """Whether a contraction is of integers.

    Raises:
        Refused: oneDNN does not have its arithmetic.
    """
    a, (x, w) = node.attrs, (dtype_of(v) for v in node.args[:2])
    require(a.accumulate == "sequential", f"sums in {a.accumulate}")
    require(not getattr(a, "input_bits", 0), "data of fewer than 8 bits")
    if x == w == node.dtype == np.float32:
        return False
    require(str(x) in _BYTES and str(w) in _BYTES and node.dtype == np.int32,
            f"products of {x} and {w} summed up in {node.dtype}")  # fmt: skip
    require(
        exact_bytes(),
        "without AVX512-VNNI oneDNN's sums of products of bytes are not exact: they saturate",
    )
    return True


def _sums(node: Node, w: Array | None, terms: int, zero: int, other_zero: int = 0) -> Array:
    """Bounds of |sums|, for each output channel: the first axis of `w`."""
    x, y = (np.iinfo(dtype_of(v)) for v in node.args[:2])
    high = max(abs(int(x.max) - zero), abs(int(x.min) - zero))
    if w is None:
        of_weight = max(abs(int(y.max) - other_zero), abs(int(y.min) - other_zero))
        return np.array([float(high * of_weight * terms)])
    rows = np.abs(w.astype(np.float64) - other_zero).reshape(w.shape[0], -1)
    bound: Array = rows.sum(1) * high
    if len(node.args) == 3:
        bias = node.args[2]
        bound = bound + (np.abs(bias.data.astype(np.float64)) if isinstance(bias, Constant)
                         else np.inf)  # fmt: skip
    return bound


def _result(dtype: np.dtype[Any], sums: Array | None) -> None:
    """Check that a result that is stored as it is summed up is exact."""
    if dtype == np.int32 and sums is not None:
        require(sums.max() <= EXACT, "sums beyond 2^24 are not exact where oneDNN adds a bias")


def _bias(plan: Plan, node: Node, shape: Sequence[int], value: GetValue) -> Value | None:
    if len(node.args) < 3:
        return None
    b = node.args[2]
    if dtype_of(b) == np.int32:
        return plan.constant(known(b, "the bias of integers").astype(np.float32).reshape(shape))
    return plan.reshaped(value(b), shape)


@anchor("nn.conv2d")
def _conv2d(plan: Plan, node: Node, value: GetValue) -> Anchor:
    a = node.attrs
    integers = _operands(node)
    require(a.data_layout == a.out_layout == "NCHW", "data in blocks of channels")
    require(not a.padding_value or not any(a.padding), "padding that stands for no zero")
    x, w = value(node.args[0]), value(node.args[1])
    o, i, kh, kw = w.shape
    if a.groups > 1:
        w = plan.reshaped(w, (a.groups, o // a.groups, i, kh, kw))
    bias = _bias(plan, node, (o,), value)
    sums = None
    if integers:
        held = known(node.args[1], "weights of integers")
        sums = _sums(node, held, i * kh * kw, a.input_zero_point)
    zero = {SRC: a.input_zero_point} if a.input_zero_point else {}

    def make(dtype: np.dtype[Any], attributes: Attributes) -> Primitive:
        _result(dtype, sums)
        given, weights = Desc.any(x.shape, x.desc.dtype), Desc.any(w.shape, w.desc.dtype)
        to = Desc.any(node.shape, dtype)
        return Primitive(
            "convolution_forward", cpu(), INFERENCE, _DIRECT, given.address, weights.address,
            bias.desc.address if bias else None, to.address, dims(a.strides),
            dims([d - 1 for d in a.dilation]), dims(a.padding[:2]), dims(a.padding[2:]),
            attributes=attributes,
        )  # fmt: skip

    def operands(primitive: Primitive) -> dict[int, Value]:
        found = {k: plan.held(v, primitive.desc(k)) for k, v in ((SRC, x), (WEIGHTS, w))}
        return found if bias is None else {**found, BIAS: bias}

    return Anchor(node.shape, make, operands, tuple, sums, 1, True, zero)


# ---- matrix products -----------------------------------------------------------------------------
def _folded(shape: tuple[int, ...]) -> Fit:
    """Operands of a value whose rows are all one axis to the primitive."""
    rows = shape[:-1]

    def fit(given: Sequence[int]) -> tuple[int, ...]:
        lead = tuple(given[:-1])
        require(lead in (rows, (1,) * len(rows)), f"an operand of shape {tuple(given)}")
        last = given[-1:] or (1,)
        return (math.prod(lead), *last)

    return fit


@anchor("nn.dense")
def _dense(plan: Plan, node: Node, value: GetValue) -> Anchor:
    integers = _operands(node)
    x, w = value(node.args[0]), value(node.args[1])
    units, inner = w.shape
    rows = math.prod(node.shape[:-1])
    x = plan.reshaped(x, (rows, inner))
    sums = None
    if integers:
        held = known(node.args[1], "weights of integers")
        sums = _sums(node, held, inner, node.attrs.input_zero_point)
    bias = _bias(plan, node, (1, units), value)
    zero = {SRC: node.attrs.input_zero_point} if node.attrs.input_zero_point else {}
    turned = plan.permuted(w, (1, 0))
    fit = _folded(node.shape)
    return _product(plan, node, x, turned, bias, (rows, units), fit, sums, zero)


@anchor("nn.matmul")
def _matmul(plan: Plan, node: Node, value: GetValue) -> Anchor:
    integers = _operands(node)
    a, (x, w) = node.attrs, (value(v) for v in node.args)
    require(len(x.shape) > 1 and len(w.shape) > 1, "products of vectors")
    zeros = {SRC: a.input_zero_point, WEIGHTS: a.weight_zero_point}
    sums = _sums(node, None, x.shape[-1], *zeros.values()) if integers else None
    shape: tuple[int, ...] = node.shape
    fit: Fit = tuple
    if len(w.shape) == 2 and len(x.shape) > 2:  # weights are shared: rows are one axis
        x, fit = plan.reshaped(x, (math.prod(x.shape[:-1]), x.shape[-1])), _folded(shape)
        shape = (x.shape[0], shape[-1])
    rank = len(shape)
    x = plan.reshaped(x, (1,) * (rank - len(x.shape)) + x.shape)
    w = plan.reshaped(w, (1,) * (rank - len(w.shape)) + w.shape)
    zeros = {k: z for k, z in zeros.items() if z}
    return _product(plan, node, x, w, None, shape, fit, sums, zeros)


def _product(
    plan: Plan, node: Node, x: Value, w: Value, bias: Value | None, shape: tuple[int, ...],
    fit: Fit, sums: Array | None, zeros: dict[int, int],
) -> Anchor:  # fmt: skip
    unsigned = w.desc.dtype == np.uint8
    if unsigned:  # oneDNN takes int8 there
        zeros = {**zeros, WEIGHTS: zeros.get(WEIGHTS, 0) - _HALF}
    free = w.slot.array is not None or unsigned

    def primitive(dtype: np.dtype[Any], attributes: Attributes, given: Desc, weights: Desc
                  ) -> Primitive:  # fmt: skip
        to = Desc.any(shape, dtype)
        return Primitive(
            "matmul", cpu(), given.address, weights.address, bias.desc.address if bias else None,
            to.address, attributes=attributes,
        )  # fmt: skip

    def make(dtype: np.dtype[Any], attributes: Attributes) -> Primitive:
        _result(dtype, sums)
        kind = np.dtype(np.int8) if unsigned else w.desc.dtype
        anything = Desc.any(x.shape, x.desc.dtype), Desc.any(w.shape, kind)
        plain = Desc.plain(x.shape, x.desc.dtype), Desc.plain(w.shape, kind)
        as_is = x.desc, anything[1] if free else w.desc
        mixed = as_is[0], plain[1] if not free else anything[1]
        last: Refused | None = None
        for given, weights in (as_is, mixed, (plain[0], as_is[1]), plain, anything):
            try:
                found = primitive(dtype, attributes, given, weights)
            except Refused as e:
                last = e
                continue
            if not found.reference:
                return found
        raise last or Refused("oneDNN has only its reference code for this product")

    def operands(primitive: Primitive) -> dict[int, Value]:
        wanted = primitive.desc(WEIGHTS)
        weights = plan.lowered(w, wanted, _HALF) if unsigned else plan.held(w, wanted)
        found = {SRC: plan.held(x, primitive.desc(SRC)), WEIGHTS: weights}
        return found if bias is None else {**found, BIAS: bias}

    channels = len(node.shape) - 1
    return Anchor(shape, make, operands, fit, sums, channels, True, zeros)


_HALF = 128
