"""Certificates: at the certified width sums are what they were, and one bit less is too few."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import images, mixed_net, net, noise, plan_of
from random_nets import configs, images_of, networks

import compiler
import datatypes
import quantize
from compiler.errors import ConfigError, DtypelabError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.op.accumulator_width import Width
from compiler.symbolic import Var
from compiler.transform.certificates import Certificate, bits_of, certificates
from compiler.types.dtypes import Array
from quantize import Plan, QConfig
from quantize.formats.element import element
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


@pytest.mark.sampled(2)
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


# ---- plans ---------------------------------------------------------------------------------------
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["mlp", "dwsep", "resnet8"])
def test_networks_at_the_certified_widths_have_the_same_bits(name: str) -> None:
    usual, x = plan_of(name), images()[1][:20]
    plan = plan_of(name, QConfig(accumulate="certified"))
    found = {c.node: c for c in quantize.certify(net(name), usual, [x])}
    widths = {k: n.accumulate for k, n in plan.nodes.items() if n.accumulate != "sequential"}
    assert widths == {k: c.accumulate for k, c in found.items() if k in plan.weights}
    assert set(widths) == set(plan.weights)
    assert all(2 <= c.data_bits <= c.bits <= c.step_bits for c in found.values() if c.data_bits)
    assert min(c.bits for c in found.values()) < 24
    assert all(c.data_bits for c in found.values())  # averages included
    certified = quantize.realize(net(name), plan)
    want = compiler.build(quantize.realize(net(name), usual))(x)
    np.testing.assert_array_equal(compiler.build(certified)(x), want)
    assert Plan.from_json(plan.to_json()) == plan


def test_the_width_that_data_need_loses_nothing_on_them_and_one_bit_less_does() -> None:
    plan, x = plan_of("mlp"), images()[0][:50]
    found = {c.node: c for c in quantize.certify(net("mlp"), plan, [x[:25], x[25:]])}

    def run(less: int) -> Array:
        modes = {k: f"int{c.data_bits - less}_wrap" for k, c in found.items()}
        nodes = {
            k: replace(n, accumulate=modes.get(k, n.accumulate)) for k, n in plan.nodes.items()
        }
        narrow = quantize.realize(net("mlp"), replace(plan, nodes=nodes))
        return np.asarray(compiler.build(narrow)(x))

    want = compiler.build(quantize.realize(net("mlp"), plan))(x)
    np.testing.assert_array_equal(run(0), want)
    assert (run(1) != want).any()


def test_no_data_need_no_width() -> None:
    for batches in ([], [images()[0][:0]]):
        found = quantize.certify(net("mlp"), plan_of("mlp"), batches)
        assert [c.data_bits for c in found] == [0] * len(found)


def test_patterns_and_overrides_choose_what_is_certified() -> None:
    config = QConfig(
        accumulate={"conv_1": "certified"}, overrides={"c3": {"accumulate": "certified"}}
    )
    plan = quantize.calibrate(mixed_net(), [noise(8)], config)
    widths = {k: n.accumulate for k, n in plan.nodes.items() if n.accumulate != "sequential"}
    assert set(widths) == {"c1", "c3"}
    assert QConfig.from_dict(plan.config.to_dict()) == config


def test_products_of_16_bits_keep_their_accumulators() -> None:
    config = QConfig(accumulate="certified", overrides={"c1": {"activation_bits": 16}})
    plan = quantize.calibrate(mixed_net(), [noise(8)], config)
    kept = {k for k in plan.weights if plan.nodes[k].accumulate == "sequential"}
    assert kept
    assert kept != set(plan.weights)
    quantize.realize(mixed_net(), plan)


@pytest.mark.thorough
@given(networks(), configs(), st.integers(0, 999))
@settings(max_examples=5, deadline=None)
def test_no_data_leave_the_certified_widths(mod: IRModule, config: QConfig, seed: int) -> None:
    """Random networks and schemes, and data far beyond what they were calibrated on."""
    usual = quantize.calibrate(mod, [images_of(seed)], replace(config, accumulate="sequential"))
    plan = quantize.calibrate(mod, [images_of(seed)], replace(config, accumulate="certified"))
    x = (images_of(seed + 1) * 50).astype(np.float32)
    found = quantize.certify(mod, usual, [x])
    assert all(c.data_bits <= c.bits for c in found if not c.reason)
    assert {c.node for c in found} >= set(usual.weights)
    got = compiler.build(quantize.realize(mod, plan))(x)
    np.testing.assert_array_equal(got, compiler.build(quantize.realize(mod, usual))(x))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_dtype": "posit8_es1", "compute": "native"}, "'certified' is for integers"),
        ({"activation_dtype": "float32"}, "leave out accumulate"),
    ],
)
def test_formats_and_weights_alone_have_nothing_to_certify(
    fields: dict[str, Any], message: str
) -> None:
    if "weight_dtype" in fields:
        fields = {**fields, "activation_dtype": fields["weight_dtype"]}
    with pytest.raises(ConfigError, match=message):
        QConfig(accumulate="certified", **fields)


def test_open_sizes_are_said_where_they_decide() -> None:
    b = FunctionBuilder()
    n = Var("n")
    x, y = b.param("x", (3, n), "int8"), b.param("y", (n, 3), "int8")
    z = b.call("nn.matmul", x, y, out_dtype="int32")
    (c,) = certificates(IRModule({"main": b.finish(z)}))
    assert c.bits == 0
    assert "a row has elements (n), which is open" in c.reason


# ---- formats -------------------------------------------------------------------------------------
def of_format(name: str, weight: Array, x: Array) -> tuple[Certificate, Function]:
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", x.shape), b.const(weight), name="y")
    mod = datatypes.change_dtype(IRModule({"main": b.finish(y)}), "float32", name)
    (c,) = certificates(mod)
    return c, mod.main


def test_sums_and_products_of_two_values_in_a_format() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 6))
    relu = b.call("nn.relu", x)
    y = b.call("sum", relu, axis=(1,), name="s")
    z = b.call("nn.matmul", x, b.call("transpose", relu, axes=(1, 0)), name="m")
    mod = IRModule({"main": b.finish(y, z)})
    found = certificates(datatypes.change_dtype(mod, "float32", "float8_e4m3fn"))
    by = {c.op: c for c in found}
    assert (by["sum"].low, by["sum"].high, by["sum"].unit) == (0, 6 * 448 * 2**9, -9)
    products = by["nn.matmul"]
    assert (products.low, products.high) == (-6 * (448 * 2**9) ** 2, 6 * (448 * 2**9) ** 2)
    assert products.unit == -18


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("weights", "data"),
    [("posit8_es1", "posit8_es1"), ("int4", "float8_e5m2"), ("float8_e4m3fn", "float6_e3m2fn")],
)
def test_stored_formats_need_the_width_of_their_numbers(weights: str, data: str) -> None:
    config = QConfig(weight_dtype=weights, activation_dtype=data)
    plan = plan_of("mlp", config)
    found = quantize.certify(net("mlp"), plan)
    assert [c.node for c in found] == ["linear", "logits"]
    made = {b.var.name: b.value for b in net("mlp").main.bindings}
    known = datatypes.decode(data, np.arange(1 << datatypes.get(data).nbits))
    known = known[np.isfinite(known)]
    for c in found:
        call = made[c.node]
        assert isinstance(call, Call)
        weight = call.args[1]
        assert isinstance(weight, Constant)
        scales = np.asarray(plan.formats[c.node][1].scales, np.float64).reshape(-1, 1)
        values = element(weights).rounded(weight.data / scales)
        rows = [[Fraction(float(v)) for v in row] for row in values]
        most, unit = Fraction(float(known.max())), Fraction(2) ** c.unit
        above = [sum((v for v in row if v > 0), Fraction(0)) * most for row in rows]
        below = [sum((v for v in row if v < 0), Fraction(0)) * most for row in rows]
        if c.node == "linear":  # the other reads what is not negative
            above = [a - b for a, b in zip(above, below, strict=True)]
            below = [-a for a in above]
        assert c.factors == (data, weights)
        assert (c.low * unit, c.high * unit) == (min(below), max(above))
        finest = max(Fraction(float(v)).denominator for v in known)
        assert unit * finest * max(v.denominator for row in rows for v in row) in (1, 2, 4, 8)


def test_scales_that_differ_within_a_sum_are_named() -> None:
    config = QConfig(weight_dtype="mxfp8_e4m3", activation_dtype="mxfp8_e4m3")
    found = quantize.certify(net("mlp"), plan_of("mlp", config))
    reasons = {c.reason for c in found}
    assert reasons == {"its sums go over blocks or groups with scales of their own"}
    assert {c.bits for c in found} == {0}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        *("posit8_es0", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float6_e3m2fn"),
        *("posit8_es2", "takum8", "posit6_es3"),
    ],
)
def test_exact_sums_of_formats_need_the_width_that_fractions_say(name: str) -> None:
    weight = np.random.default_rng(5).normal(0, 0.3, (4, 7)).astype(np.float32)
    c, main = of_format(name, weight, np.zeros((1, 7), np.float32))
    kind = datatypes.get(name)
    calls = [b.value for b in main.bindings if isinstance(b.value, Call)]
    (call,) = (v for v in calls if str(v.op) == "nn.dense")
    values = datatypes.decode(name, call.args[1].data)
    rows = [[Fraction(float(v)) for v in row] for row in values]
    codes = datatypes.decode(name, np.arange(1 << kind.nbits))
    known = [Fraction(float(v)) for v in codes[np.isfinite(codes)]]
    most = max(sum(map(abs, row)) for row in rows) * max(known)
    finest = max(v.denominator for v in known) * max(v.denominator for row in rows for v in row)
    assert Fraction(2) ** -c.unit == finest
    assert c.high == most * finest
    assert c.bits == int(most * finest).bit_length() + 1


def test_certified_sums_of_a_format_are_exact_ones_that_its_widths_hold() -> None:
    rng, name = np.random.default_rng(6), "posit8_es2"
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", (5, 7)), b.const(rng.normal(size=(4, 7)).astype("f4")))
    mod = IRModule({"main": b.finish(y)})
    certified, exact = (
        datatypes.change_dtype(mod, {"*": (name, mode)}) for mode in ("certified", "exact")
    )
    assert certified.astext() == exact.astext()
    (c,) = quantize.certify(certified, None, [rng.normal(size=(5, 7)).astype(np.float32)])
    assert 0 < c.data_bits <= c.bits <= c.step_bits


def test_certified_sums_need_known_numbers() -> None:
    with pytest.raises(DtypelabError, match="has only sequential accumulation"):
        datatypes.change_dtype(mixed_net(), "float32", "lns16_8", accumulate="certified")
    with pytest.raises(ConfigError, match="integers, and for networks all in one format"):
        QConfig(
            weight_dtype="posit8_es1", activation_dtype="posit8_es1", compute="native",
            accumulate="certified",
        )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["posit8_es2", "float8_e4m3fn", "bfloat16"])
def test_data_need_the_width_of_their_exact_sums(name: str) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 0.3, (4, 7)).astype(np.float32)
    b = FunctionBuilder()
    x = b.param("x", (Var("n"), 7))
    y = b.call("nn.dense", x, b.const(weight), b.const(weight[:, 0]), name="y")
    z = b.call("mean", x, axis=(1,), name="z")
    mod = datatypes.change_dtype(IRModule({"main": b.finish(y, z)}), "float32", name)
    batches = [rng.normal(0, 2, (n, 7)).astype(np.float32) for n in (3, 5)]
    batches[1][0, 0] = np.nan
    found = {c.op: c for c in quantize.certify(mod, None, batches)}

    def numbers(values: Array) -> list[list[Fraction]]:
        rows = datatypes.decode(name, datatypes.encode(name, values))
        return [[Fraction(float(v)) for v in row] for row in rows if np.isfinite(row).all()]

    rows = [row for batch in batches for row in numbers(batch)]
    w = numbers(weight)
    sums = [sum(a * c for a, c in zip(r, v, strict=True)) + v[0] for r in rows for v in w]
    for op, exact in (("nn.dense", sums), ("mean", [sum(r) for r in rows])):
        c = found[op]
        ends = [int(v / Fraction(2) ** c.unit) for v in (min(0, *exact), max(0, *exact))]
        assert c.data_bits == bits_of(*ends) < c.bits
