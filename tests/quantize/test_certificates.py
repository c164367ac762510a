"""Certificates of integer sums: at the certified width they are what they were, and one bit less is
too few."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, IRModule
from compiler.op.accumulator_width import Width
from compiler.transform.certificates import bits_of, certificates
from compiler.types.dtypes import Array
from quantize import QConfig
from quantize.search.data_sums import averaged, sums_of

KINDS = {
    "conv": ((2, 6, 7, 7), (5, 6, 3, 3), {"padding": (1, 1, 1, 1)}),
    "pointwise": ((2, 9, 4, 4), (4, 9, 1, 1), {}),
    "depthwise": ((2, 4, 7, 7), (4, 1, 3, 3), {"padding": (1, 1, 1, 1), "groups": 4}),
    "grouped": ((2, 6, 6, 6), (4, 3, 3, 2), {"groups": 2}),
    "dilated": ((2, 3, 9, 9), (4, 3, 3, 3), {"dilation": (2, 2), "padding": (2, 2, 2, 2)}),
    "strided": ((2, 3, 9, 9), (4, 3, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
}


def layer(op: str, shape: Any, weight: Array, bias: Array, mode: str, **attrs: Any) -> IRModule:
    """One integer layer of uint8 data in [3, 200] with zero point 7."""
    b = FunctionBuilder()
    x = b.param("x", shape, "uint8")
    limited = b.call("clip", x, a_min=3.0, a_max=200.0)
    y = b.call(
        op, limited, b.const(weight), b.const(bias), out_dtype="int32", input_zero_point=7,
        accumulate=mode, name="y", **attrs,
    )  # fmt: skip
    return IRModule({"main": b.finish(y)})


def extremes(weight: Array, channel: int) -> tuple[Array, Array]:
    """Patches of data that give an output channel its least and its largest sum."""
    low = np.where(weight[channel] > 0, 3, 200).astype(np.uint8)
    return low, np.where(weight[channel] > 0, 200, 3).astype(np.uint8)


def convolved_ends(kind: str, weight: Array, mod: IRModule, channel: int) -> tuple[int, int]:
    """The sums of a channel where the window meets the data that give its extremes."""
    shape, _, attrs = KINDS[kind]
    found = []
    for k, patch in enumerate(extremes(weight, channel)):
        x = np.full(shape, 7, np.uint8)
        group = channel // (len(weight) // attrs.get("groups", 1))
        channels = slice(group * weight.shape[1], (group + 1) * weight.shape[1])
        d = attrs.get("dilation", (1, 1))
        # A window that lies inside the data: its first tap is where the padding ends, or further.
        s, p = attrs.get("strides", (1, 1)), attrs.get("padding", (0, 0, 0, 0))
        at = [-(-p[i] // s[i]) for i in (0, 1)]
        y0, x0 = (at[i] * s[i] - p[i] for i in (0, 1))
        rows = slice(y0, y0 + (weight.shape[2] - 1) * d[0] + 1, d[0])
        columns = slice(x0, x0 + (weight.shape[3] - 1) * d[1] + 1, d[1])
        x[0, channels, rows, columns] = patch
        for run in (compiler.build(mod), lambda v: compiler.evaluate(mod, v)):
            found.append((k, int(run(x)[0, channel, at[0], at[1]])))
    assert found[0] == found[1]
    assert found[2] == found[3]
    return found[0][1], found[2][1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_reach_their_bounds(kind: str) -> None:
    shape, w_shape, attrs = KINDS[kind]
    rng = np.random.default_rng(1)
    weight = rng.integers(-127, 128, w_shape).astype(np.int8)
    bias = rng.integers(-2000, 2000, len(weight)).astype(np.int32)

    def made(mode: str) -> IRModule:
        return layer("nn.conv2d", shape, weight, bias, mode, **attrs)

    (c,) = certificates(made("sequential"))
    sums = (weight.astype(np.int64).reshape(len(weight), -1) * 1).clip(0)
    below = weight.astype(np.int64).reshape(len(weight), -1).clip(None, 0)
    highs = sums.sum(1) * 193 + below.sum(1) * -4 + bias
    assert c.high == highs.max()
    lows = sums.sum(1) * -4 + below.sum(1) * 193 + bias
    assert c.low == lows.min()
    needed = [bits_of(int(a), int(b)) for a, b in zip(lows, highs, strict=True)]
    channel = int(np.argmax(needed))
    want = int(lows[channel]), int(highs[channel])
    assert convolved_ends(kind, weight, made(c.accumulate), channel) == want
    fewer = Width(c.bits - 1, False)
    narrow = convolved_ends(kind, weight, made(f"int{c.bits - 1}_wrap"), channel)
    assert narrow == tuple(int(fewer.limited(np.asarray(v))) for v in want)
    assert narrow != want
    assert convolved_ends(kind, weight, made(f"int{c.step_bits}_saturate"), channel) == want


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_dense_layers_of_any_range_reach_their_bounds(data: st.DataObject) -> None:
    draw = data.draw
    low = draw(st.integers(0, 250))
    high, zero = draw(st.integers(low, 255)), draw(st.integers(0, 255))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    weight = rng.integers(-128, 128, (draw(st.integers(1, 4)), draw(st.integers(1, 9))))
    bias = rng.integers(-(10 ** draw(st.integers(1, 6))), 10**3, len(weight)).astype(np.int32)
    b = FunctionBuilder()
    shape = (2 * len(weight), weight.shape[1])
    x = b.call("clip", b.param("x", shape, "uint8"), a_min=low, a_max=high)

    def made(mode: str) -> IRModule:
        y = b.call(
            "nn.dense", x, b.const(weight.astype(np.int8)), b.const(bias), out_dtype="int32",
            input_zero_point=zero, accumulate=mode,
        )  # fmt: skip
        return IRModule({"main": b.finish(y)})

    (c,) = certificates(made("sequential"))
    ends = np.where(weight > 0, high, low), np.where(weight > 0, low, high)
    rows = np.concatenate(ends).astype(np.uint8)
    sums = (rows.astype(np.int64) - zero) @ weight.T + bias
    assert (sums.min(), sums.max()) == (c.low, c.high)
    steps = np.cumsum((rows[:, None].astype(np.int64) - zero) * weight, axis=2)
    assert bits_of(int(steps.min()), int(steps.max())) <= c.step_bits
    for mode in (c.accumulate, f"int{c.step_bits}_saturate"):
        np.testing.assert_array_equal(compiler.evaluate(made(mode), rows), sums)
    if c.bits > 2:
        assert (compiler.evaluate(made(f"int{c.bits - 1}_wrap"), rows) != sums).any()


def _transposed(onnx: Any, weight: Array, stride: int) -> Any:
    from onnx import helper, numpy_helper

    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[stride] * 2, name="up")
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, [4, 4, 6, 6])],
        [helper.make_tensor_value_info("y", kind, None)], [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def transposed_ends(kernel: Array, stride: int, grid: Any) -> list[tuple[int, Array]]:
    """(sum, data [inputs, 6, 6] as integers) of the largest and the least sum that a transposed
    convolution can have in the middle of the image, of any channel; `kernel` is that of the
    convolution of what lies on the grid of the stride."""
    low, high = grid.qmin - grid.zero_point, grid.qmax - grid.zero_point
    found = []
    for at in np.ndindex(stride, stride):
        # The data that taps meet at this position; between them lie zeros.
        first = [2 * stride + r - (kernel.shape[2] - 1) for r in at]
        taps = [[t for t in range(kernel.shape[2]) if (f + t) % stride == 0] for f in first]
        place = [[(f + t) // stride for t in own] for f, own in zip(first, taps, strict=True)]
        seen = kernel[:, :, taps[0]][..., taps[1]]
        for channel, weights in enumerate(seen):
            for sign in (1, -1):
                q = np.where(sign * weights > 0, high, low)
                data = np.zeros((kernel.shape[1], 6, 6), np.int64)
                data[:, place[0][0] : place[0][-1] + 1, place[1][0] : place[1][-1] + 1] = q
                found.append((int((q * weights).sum()), channel, data))
    ordered = sorted(found, key=lambda f: f[0])
    return [(total, data) for total, _, data in (ordered[-1], ordered[0])]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed_convolutions_reach_their_bounds(stride: int) -> None:
    """Of strides, too, where every position meets only some of the taps."""
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(4)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    mod = compiler.from_onnx(_transposed(onnx, weight, stride))
    x = np.concatenate([rng.normal(size=(1, 4, 6, 6)), 3 * np.sign(rng.normal(size=(3, 4, 6, 6)))])
    x = x.astype(np.float32)
    usual = quantize.calibrate(mod, [x], QConfig(bias_correction="none"))
    plan = quantize.calibrate(mod, [x], QConfig(bias_correction="none", accumulate="certified"))
    ((name, params),) = plan.weights.items()
    (c,) = (c for c in quantize.certify(mod, usual) if c.node == name)
    assert plan.nodes[name].accumulate == c.accumulate
    (call,) = (
        b.value
        for b in quantize.realize(mod, usual).main.bindings
        if isinstance(b.value, Call) and str(b.value.op) == "nn.conv2d"
    )
    kernel, *bias = (a.data.astype(np.int64) for a in call.args[1:] if isinstance(a, Constant))
    assert not np.any(bias)
    grid = next(iter(plan.values.values()))
    (high, most), (low, least) = transposed_ends(kernel, stride, grid)
    assert (c.low, c.high) == (low, high)
    for data in (most, least):
        x[0] = data * np.float32(grid.scale)
        want = compiler.build(quantize.realize(mod, usual))(x)
        np.testing.assert_array_equal(compiler.build(quantize.realize(mod, plan))(x), want)
    x[0], x[1] = (d * np.float32(grid.scale) for d in (most, least))
    node = replace(plan.nodes[name], accumulate=f"int{c.bits - 1}_wrap")
    narrow = replace(plan, nodes={**plan.nodes, name: node})
    fewer = compiler.build(quantize.realize(mod, narrow))(x)
    assert (fewer != compiler.build(quantize.realize(mod, usual))(x)).any()
    assert params.bits == 8


def test_small_images_see_only_some_taps() -> None:
    """On one pixel with padding, a kernel of 3 x 3 is its middle."""
    weight = np.full((1, 1, 3, 3), 100, np.int8)
    for size, taps in ((1, 1), (2, 4), (3, 9)):
        shape, bias = (1, 1, size, size), np.zeros(1, np.int32)
        mod = layer("nn.conv2d", shape, weight, bias, "sequential", padding=(1, 1, 1, 1))
        (c,) = certificates(mod)
        assert c.high == taps * 100 * 193


@pytest.mark.parametrize("value", [7, 9])
def test_zero_points_that_were_put_around_data_are_no_terms(value: int) -> None:
    """Padding by an operator of its own is the convolution's, if it fills with zero points."""
    weight = np.random.default_rng(6).integers(-127, 128, (4, 2, 3, 3)).astype(np.int8)

    def made(apart: bool) -> IRModule:
        b = FunctionBuilder()
        x = b.param("x", (1, 2, 2, 2), "uint8")
        around = ((0, 0), (0, 0), (1, 1), (1, 1))
        x = b.call("nn.pad", x, pad_width=around, value=float(value)) if apart else x
        y = b.call(
            "nn.conv2d", x, b.const(weight), out_dtype="int32", input_zero_point=7,
            padding=(0 if apart else 1,) * 4,
        )  # fmt: skip
        return IRModule({"main": b.finish(y)})

    (apart,), (within,) = certificates(made(True)), certificates(made(False))
    same = replace(apart, node=within.node) == within
    assert same is (value == 7)
    assert value == 7 or apart.high > within.high


def products(mode: str) -> IRModule:
    b = FunctionBuilder()
    x, y = b.param("x", (2, 3, 11), "uint8"), b.param("y", (2, 11, 4), "int8")
    z = b.call(
        "nn.matmul", x, y, out_dtype="int32", input_zero_point=9, weight_zero_point=-2,
        accumulate=mode,
    )  # fmt: skip
    return IRModule({"main": b.finish(z)})


def test_products_of_computed_operands_reach_their_bounds() -> None:
    (c,) = certificates(products("sequential"))
    assert (c.low, c.high, c.terms) == (11 * 246 * -126, 11 * 246 * 129, 11)
    x, y = np.full((2, 3, 11), 255, np.uint8), np.full((2, 11, 4), 127, np.int8)
    for mode, same in ((c.accumulate, True), (f"int{c.bits - 1}_wrap", False)):
        for got in (compiler.build(products(mode))(x, y), compiler.evaluate(products(mode), x, y)):
            assert bool((got == c.high).all()) is same


def pooled(op: str, **attrs: Any) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (1, 3, 5, 5), "uint8")
    return IRModule({"main": b.finish(b.call(op, x, input_zero_point=5, **attrs))})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("op", "attrs", "terms"),
    [
        ("qnn.mean", {"axis": (2, 3)}, 25),
        ("qnn.avg_pool2d", {"pool_size": (3, 2), "padding": (1, 1, 1, 0)}, 6),
        ("qnn.avg_pool2d", {"pool_size": (9, 2), "padding": (4, 0, 4, 0)}, 10),
    ],
)
def test_sums_of_averages_are_those_of_a_convolution_with_ones(
    op: str, attrs: dict[str, Any], terms: int
) -> None:
    (c,) = certificates(pooled(op, **attrs))
    assert (c.low, c.high, c.terms) == (-5 * terms, 250 * terms, terms)
    kernel, more = attrs.get("pool_size", (5, 5)), attrs.get("padding", (0, 0, 0, 0))
    ones = np.ones((3, 1, *kernel), np.int8)

    def sums(mode: str) -> Array:
        b = FunctionBuilder()
        y = b.call(
            "nn.conv2d", b.param("x", (1, 3, 5, 5), "uint8"), b.const(ones), groups=3,
            out_dtype="int32", input_zero_point=5, padding=more, accumulate=mode,
        )  # fmt: skip
        found = compiler.build(IRModule({"main": b.finish(y)}))(
            np.full((1, 3, 5, 5), 255, np.uint8)
        )
        return np.asarray(found)

    assert sums(c.accumulate).max() == c.high
    assert sums(f"int{c.bits - 1}_wrap").max() != c.high


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("qnn.mean", {"axis": (2, 3)}),
        ("qnn.avg_pool2d", {"pool_size": (3, 2), "padding": (1, 1, 1, 0), "strides": (2, 1)}),
        ("qnn.avg_pool2d", {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": True}),
        ("qnn.avg_pool2d", {"pool_size": (2, 2), "dilation": (2, 1)}),
    ],
)
def test_sums_of_averages_of_data_are_those_that_are_divided(
    op: str, attrs: dict[str, Any]
) -> None:
    x = np.random.default_rng(8).integers(0, 256, (1, 3, 5, 5)).astype(np.uint8)
    mod = pooled(op, **attrs)
    (b,) = mod.main.bindings
    assert averaged(b) is mod.main.params[0]
    sums = sums_of(b, x)
    around = np.pad(x.astype(int) - 5, [(0, 0), (0, 0), (9, 9), (9, 9)])
    kernel, more = attrs.get("pool_size", (5, 5)), attrs.get("padding", (0, 0, 0, 0))
    step, apart = attrs.get("strides", (1, 1)), attrs.get("dilation", (1, 1))
    want = np.zeros(sums.shape if sums.ndim == 4 else (1, 3, 1, 1), int)
    for i, j in np.ndindex(*want.shape[2:]):
        for di, dj in np.ndindex(*kernel):
            row = 9 - more[0] + i * step[0] + di * apart[0]
            want[:, :, i, j] += around[:, :, row, 9 - more[1] + j * step[1] + dj * apart[1]]
    np.testing.assert_array_equal(sums.reshape(want.shape), want)


def grouped(weight: Array, scales: Array) -> IRModule:
    b = FunctionBuilder()
    y = b.call(
        "qnn.grouped_dense", b.param("x", (4, 10), "uint8"), b.const(weight), b.const(scales),
        group=4, input_zero_point=100,
    )  # fmt: skip
    return IRModule({"main": b.finish(y)})


def test_groups_of_a_dense_layer_reach_their_bounds() -> None:
    weight = np.random.default_rng(3).integers(-8, 8, (3, 10)).astype(np.int8)
    (c,) = certificates(grouped(weight, np.ones((3, 3), np.float32)))
    parts = [weight[:, k : k + 4].astype(int) for k in (0, 4, 8)]
    highs = [p.clip(0).sum(1) * 155 + p.clip(None, 0).sum(1) * -100 for p in parts]
    lows = [p.clip(0).sum(1) * -100 + p.clip(None, 0).sum(1) * 155 for p in parts]
    assert (c.low, c.high) == (np.min(lows), np.max(highs))
    assert len(c.channel_bits) == 9
    scales = np.zeros((3, 3), np.float32)
    for ends, large in ((highs, 255), (lows, 0)):
        k, unit = divmod(int(np.argmax(np.abs(ends))), 3)
        scales[:] = 0
        scales[unit, k] = 1  # the sum of that group alone
        x = np.where(weight[unit] > 0, large, 255 - large).astype(np.uint8)
        got = compiler.build(grouped(weight, scales))(np.stack([x] * 4))
        assert got[0, unit] == ends[k][unit]
    # A group alone is a dense layer, whose accumulator can have any width.
    k, unit = divmod(int(np.argmax(highs if c.high > -1 - c.low else -np.asarray(lows))), 3)
    own = weight[:, 4 * k : 4 * k + 4]
    large = 255 if c.high > -1 - c.low else 0
    x = np.where(own[unit] > 0, large, 255 - large).astype(np.uint8)[None]

    def alone(mode: str) -> Array:
        b = FunctionBuilder()
        y = b.call(
            "nn.dense", b.param("x", x.shape, "uint8"), b.const(own), out_dtype="int32",
            input_zero_point=100, accumulate=mode,
        )  # fmt: skip
        return np.asarray(compiler.build(IRModule({"main": b.finish(y)}))(x))

    want = alone("sequential")
    np.testing.assert_array_equal(alone(c.accumulate), want)
    assert (alone(f"int{c.bits - 1}_wrap") != want).any()
