"""Operators that become primitives of their own; what follows them becomes their
post-operations."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.engines.onednn.chain import Chain, Fit
from compiler.engines.onednn.library import Refused
from compiler.engines.onednn.objects import (
    INFERENCE,
    SCALE,
    SHIFT,
    SRC,
    SRC_1,
    Attributes,
    Binary,
    Desc,
    Eltwise,
    Kind,
    Pair,
    Primitive,
    cpu,
    dims,
)
from compiler.engines.onednn.operators import POSTS, Node, dtype_of, known, shape_of
from compiler.engines.onednn.plan import Plan, Value
from compiler.ir.expr import Atom
from compiler.types.dtypes import Array

GetValue = Callable[[Atom], Value]


@dataclass(frozen=True)
class Anchor:
    """A primitive that is still to be given its post-operations and the dtype of its result.

    Attributes:
        shape: of its result.
        make: (dtype, attributes) -> the primitive.
        operands: the primitive -> its operands, held as it wants them.
        fit, sums, channels, broadcasts: see Chain.
        zero_points: operands that have one, and the number.
        begin: appends the post-operations that are part of the operator itself.
    """

    shape: tuple[int, ...]
    make: Callable[[np.dtype[Any], Attributes], Primitive]
    operands: Callable[[Primitive], dict[int, Value]]
    fit: Fit = tuple
    sums: Array | None = None
    channels: int = 1
    broadcasts: bool = False
    zero_points: Mapping[int, int] = field(default_factory=dict)
    begin: Callable[[Chain], None] = lambda chain: None


Make = Callable[[Plan, Node, GetValue], Anchor]
ANCHORS: dict[str, Make] = {}


def anchor(name: str) -> Callable[[Make], Make]:
    """Register how an operator becomes a primitive."""

    def register(f: Make) -> Make:
        ANCHORS[name] = f
        return f

    return register


def require(condition: object, reason: str) -> None:
    """Raise Refused unless a condition holds."""
    if not condition:
        raise Refused(reason)


# ---- pooling -------------------------------------------------------------------------------------
_MAX, _WITH_PADDING, _WITHOUT = 511, 767, 1023


def _pool(
    plan: Plan, x: Value, shape: Sequence[int], kind: int, size: Sequence[int],
    strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
) -> Anchor:  # fmt: skip
    spans = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    after = [
        (n - 1) * s + span - length - before
        for n, s, span, length, before in zip(
            shape[2:], strides, spans, x.shape[2:], padding[:2], strict=True
        )
    ]
    beyond = any(a > p for a, p in zip(after, padding[2:], strict=True))
    require(not (beyond and kind == _WITH_PADDING), "partial windows that count padding")
    after = [max(a, 0) for a in after]

    def make(dtype: np.dtype[Any], attributes: Attributes) -> Primitive:
        require(dtype == x.desc.dtype, f"pooling of {x.desc.dtype} to {dtype}")
        to = Desc.any(shape, dtype)
        found: Primitive | None = None
        for given in (x.desc, Desc.plain(x.shape, dtype, channels_last(x.shape))):
            found = Primitive(
                "pooling_forward", cpu(), INFERENCE, kind, given.address, to.address,
                dims(strides), dims(size), dims([d - 1 for d in dilation]), dims(padding[:2]),
                dims(after), attributes=attributes,
            )  # fmt: skip
            if not found.reference:
                break
        assert found is not None
        return found

    return Anchor(tuple(shape), make, lambda p: {SRC: plan.held(x, p.desc(SRC))})


def channels_last(shape: Sequence[int]) -> list[int]:
    """Strides of NCHW data whose channels lie together."""
    _, c, h, w = shape
    return [c * h * w, 1, w * c, c]


def _windows(plan: Plan, node: Node, value: GetValue, kind: int) -> Anchor:
    a, x = node.attrs, value(node.args[0])
    require(len(x.shape) == 4, "pooling of data in blocks")
    require(not a.partial, "windows that begin before the padding")
    return _pool(plan, x, node.shape, kind, a.pool_size, a.strides, a.padding, a.dilation)


@anchor("nn.max_pool2d")
def _max_pool(plan: Plan, node: Node, value: GetValue) -> Anchor:
    return _windows(plan, node, value, _MAX)


@anchor("nn.avg_pool2d")
def _avg_pool(plan: Plan, node: Node, value: GetValue) -> Anchor:
    require(node.attrs.accumulate == "sequential", f"sums in {node.attrs.accumulate}")
    require(node.dtype == np.float32, "averages of integers without a scale")
    kind = _WITH_PADDING if node.attrs.count_include_pad else _WITHOUT
    return _windows(plan, node, value, kind)


@anchor("nn.global_avg_pool2d")
def _global_pool(plan: Plan, node: Node, value: GetValue) -> Anchor:
    require(node.attrs.accumulate == "sequential", f"sums in {node.attrs.accumulate}")
    require(node.dtype == np.float32, "averages of integers without a scale")
    x = value(node.args[0])
    require(len(x.shape) == 4, "pooling of data in blocks")
    return _pool(plan, x, node.shape, _WITHOUT, x.shape[2:], (1, 1), (0, 0, 0, 0), (1, 1))


@anchor("qnn.avg_pool2d")
def _quantized_pool(plan: Plan, node: Node, value: GetValue) -> Anchor:
    kind = _WITH_PADDING if node.attrs.count_include_pad else _WITHOUT
    a = node.attrs
    require(a.rounding == "float32", f"oneDNN scales averages in float32, not by {a.rounding!r}")
    require(kind == _WITHOUT or not any(a.padding) or not a.input_zero_point,
            "averages of padding that is not zero")  # fmt: skip

    def begin(chain: Chain) -> None:
        chain.function(Kind.LINEAR, 1.0, -a.input_zero_point)
        chain.function(Kind.LINEAR, float(np.float32(a.ratio)))
        chain.to_integers(a.output_zero_point, a.qmin, a.qmax)

    return replace(_windows(plan, node, value, kind), begin=begin)


# ---- rows ----------------------------------------------------------------------------------------
@anchor("nn.softmax")
def _softmax(plan: Plan, node: Node, value: GetValue) -> Anchor:
    require(node.attrs.accumulate == "sequential", f"sums in {node.attrs.accumulate}")
    require(node.dtype == np.float32, f"softmax in {node.dtype}")
    x = value(node.args[0])
    axis = node.attrs.axis % len(x.shape)

    def make(dtype: np.dtype[Any], attributes: Attributes) -> Primitive:
        to = Desc.any(x.shape, dtype)
        return Primitive(
            "softmax_forward", cpu(), INFERENCE, _ACCURATE, x.desc.address, to.address, axis,
            attributes=attributes,
        )  # fmt: skip

    return Anchor(node.shape, make, lambda _: {SRC: x})


_ACCURATE, _SCALED_AND_SHIFTED = 196608, 2 | 4


@anchor("nn.layer_norm")
def _layer_norm(plan: Plan, node: Node, value: GetValue) -> Anchor:
    a = node.attrs
    require(a.accumulate == "sequential", f"sums in {a.accumulate}")
    require(node.dtype == np.float32, f"layer norm in {node.dtype}")
    x = value(node.args[0])
    require(a.axis % len(x.shape) == len(x.shape) - 1, "layer norm over several axes")
    require(len(node.args) == 3 and len(x.shape) > 1, "layer norm without scale and shift")
    size = x.shape[-1:]
    scale, shift = (plan.constant(known(p, "scale and shift").reshape(size)) for p in node.args[1:])

    def make(dtype: np.dtype[Any], attributes: Attributes) -> Primitive:
        to = Desc.any(x.shape, dtype)
        return Primitive(
            "layer_normalization_forward", cpu(), INFERENCE, x.desc.address, to.address, None,
            a.epsilon, _SCALED_AND_SHIFTED, attributes=attributes,
        )  # fmt: skip

    return Anchor(node.shape, make, lambda _: {SRC: x, SCALE: scale, SHIFT: shift})


# ---- elementwise ---------------------------------------------------------------------------------
def pointwise(plan: Plan, node: Node, value: GetValue) -> tuple[Anchor, Chain]:
    """An operator that would be a post-operation, as a primitive: a binary or elementwise one, and
    the chain of what is left."""
    at = next((k for k, a in enumerate(node.args) if _whole(a, node)), None)
    require(at is not None, "no operand has the result's shape")
    assert at is not None
    x = value(node.args[at])
    chain = Chain(plan, x.shape, tuple, begins=True)
    POSTS[node.name](chain, node, at, value)
    chain.begins = False
    first = chain.posts[0] if chain.posts else None
    same = dtype_of(node.var) == x.desc.dtype == np.float32
    if first and isinstance(first.op, Eltwise) and same:
        chain.posts.pop(0)
        return _eltwise(x, first.op), chain
    if first and isinstance(first.op, Binary):
        assert first.operand is not None
        chain.posts.pop(0)
        return _binary(x, first.op.kind, first.operand), chain
    one = plan.scalar(1.0, len(x.shape))
    return _binary(x, Pair.MUL, one), chain


def _whole(a: Atom, node: Node) -> bool:
    return shape_of(a) == node.shape


def _eltwise(x: Value, op: Eltwise) -> Anchor:
    def make(dtype: np.dtype[Any], attributes: Attributes) -> Primitive:
        to = Desc.any(x.shape, dtype)
        return Primitive(
            "eltwise_forward", cpu(), INFERENCE, op.kind, x.desc.address, to.address,
            op.alpha, op.beta, attributes=attributes,
        )  # fmt: skip

    return Anchor(x.shape, make, lambda _: {SRC: x})


def _binary(x: Value, kind: Pair, other: Value) -> Anchor:
    def make(dtype: np.dtype[Any], attributes: Attributes) -> Primitive:
        to = Desc.any(x.shape, dtype)
        return Primitive(
            "binary", cpu(), kind, x.desc.address, other.desc.address, to.address,
            attributes=attributes,
        )  # fmt: skip

    return Anchor(x.shape, make, lambda _: {SRC: x, SRC_1: other})


# ---- moves ---------------------------------------------------------------------------------------
View = Callable[[Plan, Node, GetValue], Value]
VIEWS: dict[str, View] = {}
"""Operators that move nothing, or that a copy does."""


def _reshape(plan: Plan, node: Node, value: GetValue) -> Value:
    return plan.reshaped(value(node.args[0]), node.shape or (1,))


VIEWS["reshape"] = _reshape
VIEWS["flatten"] = _reshape
VIEWS["squeeze"] = _reshape
VIEWS["expand_dims"] = _reshape


def _transpose(plan: Plan, node: Node, value: GetValue) -> Value:
    x = value(node.args[0])
    axes = node.attrs.axes or tuple(reversed(range(len(x.shape))))
    return plan.permuted(x, [k % len(x.shape) for k in axes])


VIEWS["transpose"] = _transpose


def _concatenate(plan: Plan, node: Node, value: GetValue) -> Value:
    xs = [value(a) for a in node.args]
    axis = node.attrs.axis % len(node.shape)
    to = Desc.any(node.shape, node.dtype)
    table = (ctypes.c_void_p * len(xs))(*(x.desc.address for x in xs))
    primitive = Primitive("concat", cpu(), to.address, len(xs), axis, table)
    return plan.run(primitive, {_MULTIPLE + k: x for k, x in enumerate(xs)})


_MULTIPLE = 1024
VIEWS["concatenate"] = _concatenate
