"""Block formats: how their scales are found, which numbers share one, and the scale of a tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_emulation import assert_same, mx, shared_exponent
from onnx import TensorProto, helper, numpy_helper
from quantize_nets import net, plan_of
from test_format_ops import ELEMENTS, all_magnitudes, attrs, checked

import compiler
import quantize
from compiler.errors import ConfigError, DtypelabError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, Constant, IRModule, tensor_type
from compiler.op.qnn.formats import SCALE_ROUNDINGS
from compiler.transform.preparation import prepare
from compiler.types.dtypes import Array
from quantize import Plan, QConfig, calibrate
from quantize.formats.element import element
from quantize.formats.operand_format import OperandFormat, rounded_array
from quantize.formats.storage import operand_bits


# ---- scales that are powers of two ---------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("largest", "exponents"),  # of e4m3, whose largest number is 448 = 1.75 * 2^8
    [
        (224.0, (-1, 0, -1, -1)),
        (256.0, (0, 0, 0, 0)),
        (448.0, (0, 1, 0, 0)),
        (449.0, (0, 1, 0, 1)),
        (495.0, (0, 1, 0, 1)),
        (496.0, (0, 1, 1, 1)),
        (512.0, (1, 1, 1, 1)),
        (0.0, (-127, -127, -127, -127)),
    ],
)
def test_exponents_of_known_blocks(largest: float, exponents: tuple[int, ...]) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 3] = largest
    for rounding, want in zip(SCALE_ROUNDINGS, exponents, strict=True):
        assert shared_exponent(largest, "float8_e4m3fn", rounding) == want, rounding
        more = {"scale_rounding": rounding, "step": 32.0}
        got = checked("qnn.simulated_blocks", x, axis=1, **more, **attrs("float8_e4m3fn"))
        assert_same(got, mx(x, "float8_e4m3fn", 1, rounding=rounding))


@pytest.mark.thorough
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n not in ("float8_e4m3fn", "float4_e2m1fn")))
        for n in ELEMENTS
    ],
)
def test_every_rounding_of_scales_is_the_definition(name: str, rounding: str) -> None:
    """Over all magnitudes, and around those at which the exponent changes."""
    most = element(name).high
    rng = np.random.default_rng(7)
    near = np.concatenate([
        np.nextafter(np.float32(s * 2.0**k), np.float32(t))
        for k in (-130, -60, 0, 90)
        for s in (1.0, most, 2.0 - element(name).step / most, *rng.uniform(1, 2, 4))
        for t in (0.0, s * 2.0**k, 1e38)
    ], axis=None)  # fmt: skip
    x = np.concatenate([all_magnitudes((10, 33)), np.zeros((len(near), 33), np.float32)])
    x[10:, 5], x[10:, 6] = near, -0.3 * near
    x[0, 0], x[1, 1] = np.nan, np.inf
    given = {"scale_rounding": rounding, "step": element(name).step, **attrs(name)}
    want = mx(x, name, 1, rounding=rounding)
    assert_same(checked("qnn.simulated_blocks", x, axis=1, **given), want)


def test_nothing_saturates_with_ceil_and_rceil_and_rceil_is_never_coarser() -> None:
    rng = np.random.default_rng(8)
    for name in ELEMENTS:
        most = element(name).high
        for m in np.abs(rng.normal(0, 1, 200) * 2.0 ** rng.integers(-20, 20, 200)):
            floor, ceil, even, rceil = (shared_exponent(m, name, r) for r in SCALE_ROUNDINGS)
            assert m / 2.0**ceil <= most
            assert m / 2.0**rceil <= most < m / 2.0 ** (rceil - 1)
            assert floor <= even <= rceil <= ceil <= floor + 1


def test_a_configuration_says_how_scales_are_rounded() -> None:
    kept = {}
    for rounding in SCALE_ROUNDINGS:
        config = QConfig(
            weight_dtype="mxfp4_e2m1", activation_dtype="mxfp8_e4m3", block_scale_rounding=rounding
        )
        plan = plan_of("mlp", config)
        again = Plan.from_dict(plan.to_dict())
        assert again == plan
        for name, formats in plan.formats.items():
            assert {f.scale_rounding for f in formats} == {rounding}
            _, (_, weight) = _factors(prepare(net("mlp")), name)
            want = mx(weight[:3], "float4_e2m1fn", 1, rounding=rounding)
            assert_same(rounded_array(weight[:3], formats[1]), want)
            kept[rounding] = operand_bits(weight.shape, formats[1])
        written = str(plan.to_dict()["formats"])
        assert ("scale_rounding" in written) == (rounding != "floor")  # plans of before stay as is
    assert len(set(kept.values())) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_scale_rounding": "up"}, "block_scale_rounding"),
        ({"block_scale_rounding": "ceil"}, "is for block formats"),
        (
            {"block_scale_rounding": "ceil", "weight_dtype": "nvfp4", "activation_dtype": "nvfp4"},
            "powers of two, such as",
        ),
    ],
)
def test_roundings_that_decide_nothing_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(**fields)


def test_operators_refuse_roundings_that_they_cannot_do() -> None:
    x = np.zeros((1, 32), np.float32)
    given = attrs("float8_e4m3fn")
    for more in (
        {"scale_rounding": "up"},
        {"scale_rounding": "even"},
        {"scale_rounding": "ceil", "scale_dtype": "custom[float8_e4m3fn]8"},
    ):
        with pytest.raises(DtypelabError, match="scale_rounding"):
            checked("qnn.simulated_blocks", x, axis=1, **more, **given)


# ---- which numbers share a scale -----------------------------------------------------------------
def _imported(op: str, x: tuple[int, ...], w: tuple[int, ...], **more: Any) -> IRModule:
    weight = np.random.default_rng(0).normal(0, 1, w).astype(np.float32)
    node = helper.make_node(op, ["x", "w"], ["y"], **more)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return compiler.from_onnx(model)


def _attention() -> IRModule:
    b = FunctionBuilder()
    q, k = b.param("q", (2, 6, 40)), b.param("k", (2, 40, 7))
    return IRModule({"main": b.finish(b.call("nn.matmul", q, k))})


CONTRACTIONS = {
    "conv": lambda: _imported("Conv", (1, 40, 5, 5), (6, 40, 3, 3)),
    "grouped": lambda: _imported("Conv", (1, 24, 5, 5), (6, 12, 3, 3), group=2),
    "depthwise": lambda: _imported("Conv", (1, 64, 5, 5), (64, 1, 3, 3), group=64),
    "multiplier": lambda: _imported("Conv", (1, 32, 8, 8), (64, 1, 7, 7), group=32),
    "conv1d": lambda: _imported("Conv", (1, 40, 9), (6, 40, 3)),
    "depthwise1d": lambda: _imported("Conv", (1, 40, 9), (40, 1, 3), group=40),
    "conv3d": lambda: _imported("Conv", (1, 40, 4, 5, 5), (6, 40, 2, 3, 3)),
    "depthwise3d": lambda: _imported("Conv", (1, 40, 4, 5, 5), (40, 1, 2, 3, 3), group=40),
    "transposed": lambda: _imported("ConvTranspose", (1, 40, 5, 5), (40, 6, 3, 3), strides=[2, 2]),
    "transposed_depthwise": lambda: _imported(
        "ConvTranspose", (1, 40, 5, 5), (40, 1, 3, 3), group=40
    ),
    "dense": lambda: _imported("Gemm", (3, 40), (6, 40), transB=1),
    "matmul": lambda: _imported("MatMul", (2, 3, 40), (40, 6)),
    "attention": _attention,
}


def _factors(mod: IRModule, name: str) -> tuple[str, list[Array]]:
    """The operator of a node, and its two factors: constants, or data of the same shape."""
    (call,) = [b.value for b in mod.main.bindings if b.var.name == name]
    assert isinstance(call, Call)
    rng = np.random.default_rng(1)

    def factor(a: Atom) -> Array:
        if isinstance(a, Constant):
            return a.data
        shape = [n if isinstance(n, int) else 2 for n in tensor_type(a).shape]
        return rng.normal(0, 1, shape).astype(np.float32)

    return str(call.op), [factor(a) for a in call.args[:2]]


def _summed_with(op: str, k: int, at: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Where an operand has the elements of which products are added to those of the one at `at`."""
    out = np.zeros(shape, bool)
    if op == "nn.conv2d":
        out[at[0] if k else (at[0], slice(None), *at[2:])] = True
    elif op == "nn.matmul" and k == 1:
        out[(*at[:-2], slice(None), at[-1])] = True
    else:
        out[at[:-1]] = True
    return out


@pytest.mark.parametrize("kind", CONTRACTIONS)
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "nvfp4"])
def test_a_scale_is_shared_by_what_is_added_together(kind: str, name: str) -> None:
    """A number that grows takes bits from those of its block: all of them are summed with it, and
    there are as many as a block has, or as are summed. (What depthwise weights multiply shares
    scales along the channels.)"""
    mod = prepare(CONTRACTIONS[kind]())
    shapes = [(p.name, tensor_type(p).static_shape) for p in mod.main.params]
    rng = np.random.default_rng(2)
    data = {n: rng.normal(0, 1, shape).astype(np.float32) for n, shape in shapes}
    plan = calibrate(mod, [data], QConfig(weight_dtype=name, activation_dtype=name))
    assert plan.formats
    size = {"mxfp8_e4m3": 32, "nvfp4": 16}[name]
    for node, formats in plan.formats.items():
        op, factors = _factors(mod, node)
        for k, (x, f) in enumerate(zip(factors, formats, strict=True)):
            f = replace(f, scales=(1.0,))
            at = tuple(int(rng.integers(0, n)) for n in x.shape)
            small, large = x * np.float32(1e-2), (x * np.float32(1e-2)).copy()
            large[at] = 300.0
            changed = rounded_array(small, f) != rounded_array(large, f)
            mates = _summed_with(op, k, at, x.shape)
            assert not changed[~mates].any()
            assert 1 < changed.sum() <= min(size, mates.sum())
            if k == 1 and mates.sum() <= size:
                assert changed.sum() > 0.3 * mates.sum()


def test_depthwise_blocks_take_the_bits_that_are_counted() -> None:
    f = OperandFormat("mxfp8_e4m3", axis=1, flat=True)
    assert operand_bits((64, 1, 7, 7), f) == 64 * (49 + 2) * 8
    assert operand_bits((64, 1, 3, 3), f) == 64 * (9 + 1) * 8


@pytest.mark.thorough
def test_plans_of_before_keep_their_blocks() -> None:
    """Without the entry `flat`, blocks run along the axis alone."""
    config = QConfig(weight_dtype="mxfp8_e4m3", activation_dtype="mxfp8_e4m3")
    plan = plan_of("dwsep", config)
    flat = {n: f for n, f in plan.formats.items() if f[1].flat}
    assert flat
    old = plan.to_dict()
    for name in flat:
        del old["formats"][name][1]["flat"]
        old["formats"][name][1].pop("axis", None)
    old["config"].pop("block_scale_rounding")
    read = Plan.from_dict(old)
    assert {read.formats[n][1] for n in flat} == {OperandFormat("mxfp8_e4m3")}
    compiler.build(quantize.realize(net("dwsep"), read))


def test_activations_have_no_flat_blocks() -> None:
    config = QConfig(weight_dtype="mxfp8_e4m3", activation_dtype="mxfp8_e4m3")
    plan = plan_of("mlp", config)
    name, (data, weight) = next(iter(plan.formats.items()))
    formats = {**plan.formats, name: (replace(data, flat=True), weight)}
    with pytest.raises(ConfigError, match="has no flat blocks"):
        quantize.realize(net("mlp"), replace(plan, formats=formats))


# ---- the scale of a tensor -----------------------------------------------------------------------
def _dense(x: Array) -> IRModule:
    b = FunctionBuilder()
    w = np.random.default_rng(3).normal(0, 1, (8, x.shape[1])).astype(np.float32)
    return IRModule({"main": b.finish(b.call("nn.dense", b.param("x", x.shape), b.const(w)))})


def _decibels(x: Array, f: OperandFormat) -> float:
    error = rounded_array(x, f).astype(np.float64) - x
    return float(10 * np.log10((x.astype(np.float64) ** 2).sum() / (error**2).sum()))


@pytest.mark.parametrize("calibrate_by", ["mse", "minmax", "kl", "power_of_two"])
def test_the_scale_of_a_tensor_covers_its_largest_number(calibrate_by: str) -> None:
    """Searches for the best range of a grid of equal steps have no say in it."""
    x = np.random.default_rng(4).standard_t(2, (16, 256)).astype(np.float32)
    config = QConfig(weight_dtype="nvfp4", activation_dtype="nvfp4", calibrate=calibrate_by)
    ((data, _),) = calibrate(_dense(x), [x, x[::-1]], config).formats.values()
    unit = np.abs(x).max() / (6 * 448)
    if calibrate_by == "power_of_two":
        assert data.scales[0] == 2.0 ** np.ceil(np.log2(unit))
    else:
        assert data.scales[0] == pytest.approx(unit, rel=1e-6)


def test_a_range_that_is_stated_is_kept() -> None:
    x = np.random.default_rng(4).standard_t(2, (16, 256)).astype(np.float32)
    config = QConfig(
        weight_dtype="nvfp4", activation_dtype="nvfp4", calibrate="percentile", percentile=99.0
    )
    ((data, _),) = calibrate(_dense(x), [x], config).formats.values()
    assert data.scales[0] < 0.5 * np.abs(x).max() / (6 * 448)


@pytest.mark.parametrize("freedom", [2, 3, 30])
def test_nvfp4_of_heavy_tails_is_as_good_as_its_own_search(freedom: int) -> None:
    x = np.random.default_rng(5).standard_t(freedom, (32, 512)).astype(np.float32)
    config = QConfig(weight_dtype="nvfp4", activation_dtype="nvfp4")
    ((data, _),) = calibrate(_dense(x), [x], config).formats.values()
    unit = data.scales[0]
    tried = [float(np.float32(unit * 2**k)) for k in np.arange(-3, 1, 0.25)]
    best = max(_decibels(x, replace(data, scales=(s,))) for s in tried)
    assert _decibels(x, data) > best - 0.15
    assert _decibels(x, data) > 20.3


def test_blocks_below_the_least_scale_lose_their_bits() -> None:
    """The least scale is 2^-9 of the tensor's: a block of magnitude m has numbers down to half of
    0.5 * 2^-9 * unit, and is all zeros below."""
    unit = 1.0 / (6 * 448)
    least = 2.0**-9 * unit
    x = np.zeros((1, 48), np.float32)
    x[0, 0] = 1.0
    x[0, 16:24] = np.float32(6 * least)  # fills the range exactly
    x[0, 32:40] = np.float32(0.24 * least)  # below half of the least element
    x[0, 40:48] = 0.0
    got = rounded_array(x, OperandFormat("nvfp4", (float(np.float32(unit)),), 1))
    np.testing.assert_allclose(got[0, 16:24], x[0, 16:24], rtol=1e-6)
    assert not got[0, 32:].any()
    assert np.isfinite(got).all()


def test_scales_of_blocks_are_powers_of_two_where_those_are_asked_for() -> None:
    x = np.random.default_rng(4).normal(0, 1, (16, 256)).astype(np.float32)
    config = QConfig(weight_dtype="nvfp4", activation_dtype="nvfp4", scales="power_of_two")
    ((data, weight),) = calibrate(_dense(x), [x], config).formats.values()
    assert {float(np.frexp(f.scales[0])[0]) for f in (data, weight)} == {0.5}


def test_files_of_plans_keep_roundings(tmp_path: Path) -> None:
    config = QConfig(
        weight_dtype="mxfp4_e2m1", activation_dtype="mxfp4_e2m1", block_scale_rounding="even"
    )
    plan = plan_of("mlp", config)
    plan.to_json(tmp_path / "p.json")
    assert Plan.from_json(tmp_path / "p.json") == plan
