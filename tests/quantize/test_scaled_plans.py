"""Plans of scaled formats: scales, text, JSON, refusals, user-defined formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import images, mixed_net, net, plan_of

import compiler
import datatypes
import quantize
from compiler.errors import ConfigError, DtypelabError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule
from compiler.types.block_names import SHIPPED
from compiler.types.dtypes import FLOAT32, Array
from quantize import Plan, QConfig, annotate, calibrate, realize, simulate
from quantize.calibration.format_scales import FormatObserver, weight_scales
from quantize.formats.blocks import (
    block_format,
    block_formats,
    define_block_format,
    defined_block_format,
)
from quantize.formats.element import element
from quantize.formats.operand_format import OperandFormat, rounded_array
from quantize.reference.trace import trace_plan
from quantize.search.sensitivity import sensitivities

FP8 = QConfig(weight_dtype="float8_e4m3fn", activation_dtype="float8_e4m3fn")


def formats(name: str, **fields: Any) -> QConfig:
    """A configuration with both sides in one format."""
    return QConfig(weight_dtype=name, activation_dtype=name, **fields)


# ---- what is in a format, and what is not --------------------------------------------------------
def test_annotate_names_what_is_in_a_format_and_why_the_rest_is_float() -> None:
    nodes = annotate(net("resnet8"), FP8).nodes
    assert {n.op for n in nodes.values() if n.decision == "format"} == {"nn.conv2d", "nn.dense"}
    assert {n.reason for n in nodes.values() if n.decision == "float"} == {
        "only factors of convolutions, dense layers and matrix products are in number formats"
    }
    skipped = annotate(net("resnet8"), replace(FP8, skip=("logits",))).nodes["logits"]
    assert (skipped.decision, skipped.reason) == ("float", "excluded by skip='logits'")


def test_a_summary_tells_the_formats_and_the_coverage() -> None:
    text = plan_of("mlp", formats("mxfp8_e4m3", skip=("logits",))).summary()
    assert "format" in text
    assert "mxfp8_e4m3; mxfp8_e4m3" in text
    assert "in number formats, 98.7 % of" in text


def test_products_of_activations_are_in_formats() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 5, 40), "float32")
    y = b.call("transpose", x, axes=(0, 2, 1))
    mod = IRModule({"main": b.finish(b.call("nn.matmul", x, y))})
    data = np.random.default_rng(0).normal(0, 1, (2, 5, 40)).astype(np.float32)
    for name in ("float8_e5m2", "mxfp6_e2m3"):
        plan = calibrate(mod, data, formats(name))
        assert plan.coverage == 1
        q = realize(mod, plan)
        a = rounded_array(data, next(iter(plan.formats.values()))[0])
        want = compiler.evaluate(mod, a) if name.startswith("mx") else a @ a.transpose(0, 2, 1)
        np.testing.assert_allclose(compiler.build(q)(data), want, rtol=1e-5, atol=1e-5)


# ---- scales --------------------------------------------------------------------------------------
def test_the_largest_weight_of_each_channel_comes_to_lie_on_the_largest_number() -> None:
    w = np.random.default_rng(1).normal(0, 1, (6, 30)).astype(np.float32)
    scales = weight_scales(w, element("float8_e4m3fn"), FP8)
    np.testing.assert_allclose(np.abs(w).max(axis=1) / np.array(scales), 448, rtol=1e-6)
    (one,) = weight_scales(w, element("float8_e5m2"), replace(FP8, weight_granularity="tensor"))
    assert np.abs(w).max() / one == pytest.approx(57344)
    groups = weight_scales(
        w, element("float8_e4m3fn"), replace(FP8, weight_granularity="group", weight_group_size=8)
    )
    assert len(groups) == 6 * 4


@pytest.mark.parametrize("name", ["posit8_es2", "float4_e2m1fn", "fixed8_4", "takum8"])
def test_searched_scales_have_the_least_error_of_a_fine_search(name: str) -> None:
    e = element(name)
    w = np.random.default_rng(2).normal(0, 0.05, (1, 4000)).astype(np.float32)
    config = QConfig(weight_dtype=name, activation_dtype=name, weight_calibrate="mse")
    (found,) = weight_scales(w, e, config)

    def error(s: float) -> float:
        return float(((e.rounded(w / s) * s - w) ** 2).sum())

    least = min(error(0.05 * 2.0 ** (k / 16)) for k in range(-160, 160))
    assert error(found) <= 1.05 * least


def test_a_posit_is_scaled_to_where_it_is_precise() -> None:
    o = FormatObserver(formats("posit8_es2"))
    o.update(np.random.default_rng(3).normal(0, 30, 5000).astype(np.float32))
    scale = o.scale(element("posit8_es2"))
    assert 1 / 8 < 30 / scale < 8  # values sit around 1, though 2**24 would be in range


def test_power_of_two_scales_are_powers_of_two_everywhere() -> None:
    plan = plan_of("resnet8", formats("float8_e4m3fn", scales="power_of_two"))
    every = [s for pair in plan.formats.values() for f in pair for s in f.scales]
    assert all(np.frexp(s)[0] == 0.5 for s in every)


@given(st.integers(-20, 20), st.sampled_from(["float8_e4m3fn", "posit8_es2", "mxfp4_e2m1"]))
@settings(max_examples=12)
def test_scaling_the_data_by_a_power_of_two_scales_the_results(k: int, name: str) -> None:
    rng = np.random.default_rng(4)
    x, w = rng.normal(0, 1, (8, 40)), rng.normal(0, 1, (5, 40))

    def run(factor: float) -> Array:
        b = FunctionBuilder()
        data = b.param("x", (8, 40), "float32")
        weight = Constant((w * factor).astype(np.float32), FLOAT32)
        mod = IRModule({"main": b.finish(b.call("nn.dense", data, weight))})
        given = (x * factor).astype(np.float32)
        config = formats(name, weight_calibrate="mse")
        return np.asarray(compiler.evaluate(realize(mod, calibrate(mod, given, config)), given))

    np.testing.assert_array_equal(run(2.0**k), run(1.0) * np.float32(4.0**k))


# ---- plans ---------------------------------------------------------------------------------------
def test_a_plan_of_formats_survives_json_and_can_be_edited() -> None:
    plan = plan_of("mlp", formats("float8_e4m3fn"))
    assert Plan.from_dict(json.loads(plan.to_json())) == plan
    data = json.loads(plan.to_json())
    data["formats"]["logits"][0] = {"format": "bfloat16"}
    edited = Plan.from_dict(data)
    assert edited.formats["logits"][0] == OperandFormat("bfloat16")
    assert 'custom[bfloat16]16"' in realize(net("mlp"), edited).astext()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "float9"}, "float9"),
        ({"format": "bfloat16", "scale": 1}, "unknown entry 'scale'"),
        ({"format": "bfloat16", "scales": [0.0]}, "positive numbers that float32 holds"),
        ({"format": "bfloat16", "scales": [0.1]}, "positive numbers that float32 holds"),
        ({"format": "bfloat16", "scales": [1.0, 1.0]}, "scales, but the plan gives it 2"),
        ({"format": "bfloat16", "group": 4}, "has no groups"),
        ({"format": "mxfp8_e4m3", "axis": 7}, "has no axis 7"),
        ({}, "needs the name of its format"),
    ],
)
def test_bad_entries_of_formats_are_refused(change: dict[str, Any], message: str) -> None:
    data = json.loads(plan_of("mlp", formats("float8_e4m3fn")).to_json())
    data["formats"]["logits"][0] = change
    with pytest.raises(ConfigError, match=message):
        realize(net("mlp"), Plan.from_dict(data))


def test_a_plan_without_formats_does_not_mention_them() -> None:
    assert "formats" not in plan_of("mlp").to_dict()


def test_simulation_of_stored_formats_is_the_realized_graph() -> None:
    plan = plan_of("mlp", formats("mxfp8_e4m3"))
    x = images()[1][:4]
    q, s = realize(net("mlp"), plan), simulate(net("mlp"), plan)
    np.testing.assert_array_equal(compiler.evaluate(q, x), compiler.evaluate(s, x))


def test_what_knows_only_integers_refuses_formats(tmp_path: Any) -> None:
    plan = plan_of("mlp", FP8)
    with pytest.raises(UnsupportedError, match="nodes in number formats are not written as ONNX"):
        quantize.export_onnx(net("mlp"), plan, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
    native = plan_of("mlp", replace(FP8, compute="native"))
    with pytest.raises(UnsupportedError, match=r"products and sums in float8_e4m3fn.*no rule"):
        trace_plan(net("mlp"), native, images()[1][:1])


# ---- configurations ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_dtype": "uint4"}, "is for activations"),
        ({"weight_bits": 12, "activation_dtype": "float8_e4m3"}, "have 2 to 8"),
        ({"weight_dtype": "int4", "activation_bits": 16}, "have 2 to 8"),
        (
            {"weight_range": "asymmetric", "weight_granularity": "group"},
            "does not go with weight_granularity='group'",
        ),
        ({"weight_granularity": "group", "compute": "native"}, "integers have kernels"),
        ({"weight_dtype": "nf4", "scale_dtype": "float8"}, "unknown dtype 'float8'"),
        ({"weight_dtype": "nf4", "scale_dtype": 8}, "must be the name of a format"),
        ({"weight_dtype": "float8_e4m4", "activation_dtype": "float32"}, "unknown format"),
        ({"weight_dtype": "float32", "activation_dtype": "float32"}, "nothing is rounded"),
        ({"compute": "native"}, "is for number formats"),
        ({"accumulate": "exact"}, "which is for number formats"),
        (
            {"weight_dtype": "bfloat16", "activation_dtype": "bfloat16", "accumulate": "exact"},
            "needs compute='native'",
        ),
        (
            {"weight_dtype": "bfloat16", "activation_dtype": "float32", "compute": "native"},
            "needs one format",
        ),
        (
            {"weight_dtype": "mxint8", "activation_dtype": "mxint8", "compute": "native"},
            "neither blocks nor groups",
        ),
        (
            {
                "weight_dtype": "bfloat16", "activation_dtype": "bfloat16", "compute": "native",
                "accumulate": "int16_wrap",
            },
            "is for integers",
        ),
        (
            {"weight_dtype": "nf4", "activation_dtype": "float32", "weight_rounding": "adaround"},
            "formats round to the nearest, or by 'gptq'",
        ),
        (
            {"weight_dtype": "nf4", "activation_dtype": "float32", "mean_weight_bits": 5.0},
            "mean_weight_bits and wide_weight_dtype go together",
        ),
        (
            {
                "weight_dtype": "bfloat16", "activation_dtype": "bfloat16", "compute": "native",
                "weight_rounding": "gptq",
            },
            "weight_rounding='gptq' needs compute='storage'",
        ),
        (
            {"weight_dtype": "float32", "activation_dtype": "nf4", "weight_calibrate": "output"},
            "has no weights to choose",
        ),
        ({"wide_weight_dtype": "nf4"}, "wide_weight_dtype is for weights in number formats"),
        ({"weight_rounding": "hqq"}, "and weight_range='asymmetric' too"),
    ],
)  # fmt: skip
def test_choices_that_do_not_go_together_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(**fields)


def test_symbolic_axes_have_no_blocks() -> None:
    from compiler.symbolic import Var

    b = FunctionBuilder()
    n = Var("n")
    x = b.param("x", (2, 3, n), "float32")
    y = b.param("y", (2, n, 3), "float32")
    mod = IRModule({"main": b.finish(b.call("nn.matmul", x, y))})
    (node,) = annotate(mod, formats("mxfp8_e4m3")).nodes.values()
    assert node.reason == "blocks need a known size of axis 2 of operand 0"
    (node,) = annotate(mod, formats("float8_e4m3fn")).nodes.values()
    assert node.decision == "format"


# ---- formats of users ----------------------------------------------------------------------------
def test_users_define_block_formats_of_any_formats() -> None:
    made = define_block_format("block_posit6", "posit6_es1", "float8_e4m3fn", 8)
    assert block_format("block_posit6") == made
    assert made.bits == 7
    plan = plan_of("mlp", formats("block_posit6"))
    x = images()[1][:50]
    q, f = compiler.build(realize(net("mlp"), plan))(x), compiler.build(net("mlp"))(x)
    assert (q.argmax(1) == f.argmax(1)).mean() > 0.95
    powers = define_block_format("powers_of_posit6", "posit6_es1", block=16)
    q = compiler.build(realize(net("mlp"), plan_of("mlp", formats(powers.name))))(x)
    assert (q.argmax(1) == f.argmax(1)).mean() > 0.95
    with pytest.raises(ConfigError, match="a block format called 'mxint8' exists"):
        define_block_format("mxint8", "fixed8_7")
    with pytest.raises(ConfigError, match="a block has 1 to"):
        define_block_format("none_at_all", "fixed8_7", block=0)
    for name in ("posit8_es1", "int4", "uint8", "float32"):
        with pytest.raises(ConfigError, match=f"numbers are called '{name}'"):
            define_block_format(name, "fixed8_7")
    with pytest.raises(ConfigError, match="'fma' names a way to form sums"):
        define_block_format("fma", "fixed8_7")


def test_no_number_has_the_name_of_a_block_format() -> None:
    assert {n for n in block_formats() if defined_block_format(n) is None} == SHIPPED
    define_block_format("blocks_of_ints", "int4")
    for name in ("nvfp4", "blocks_of_ints"):
        with pytest.raises(DtypelabError, match=f"'{name}' names a block format; choose another"):
            datatypes.define(name, exponent=2, mantissa=1)
        with pytest.raises(DtypelabError, match=f"'{name}' names a block format; choose another"):
            datatypes.register(name)


def test_formats_that_users_define_can_be_scaled() -> None:
    fmt = datatypes.define("scaled_e3m3", exponent=3, mantissa=3, nan=False)
    x = np.random.default_rng(5).normal(0, 1, (2, 3, 9, 8)).astype(np.float32)
    plan = calibrate(mixed_net(), x, formats(fmt.name))
    data = plan.formats[next(iter(plan.formats))][0]
    r = rounded_array(x, data)
    most = float(fmt.maxpos)
    codes = datatypes.encode(fmt, np.clip(x / np.float32(data.scales[0]), -most, most))
    np.testing.assert_array_equal(
        r, datatypes.decode(fmt, codes).astype(np.float32) * np.float32(data.scales[0])
    )


def test_nodes_may_have_formats_of_their_own() -> None:
    fp8 = {"weight_dtype": "float8_e5m2", "activation_dtype": "bfloat16"}
    config = formats("mxfp4_e2m1", overrides={"logits": fp8, "linear_1": {"scales": "float32"}})
    plan = plan_of("mlp", formats("mxfp4_e2m1", overrides={"logits": fp8}))
    assert [f.format for f in plan.formats["logits"]] == ["bfloat16", "float8_e5m2"]
    others = {f.format for name, pair in plan.formats.items() if name != "logits" for f in pair}
    assert others == {"mxfp4_e2m1"}
    with pytest.raises(ConfigError, match="unknown node 'linear_1'"):
        annotate(net("mlp"), config)
    with pytest.raises(ConfigError, match="to mix integers with number formats, edit the plan"):
        QConfig(overrides={"logits": {**fp8, "activation_dtype": "float32"}})


@pytest.mark.thorough
def test_nodes_may_compute_in_their_formats(tmp_path: Path) -> None:
    """Some with sums in their format, as they say; the others store it, with sums in float32."""
    own = {"weight_dtype": "posit8_es1", "activation_dtype": "posit8_es1", "compute": "native"}
    stored = {"weight_dtype": "int8", "activation_dtype": "int8", "softmax_dtype": "float32"}
    exact = QConfig(**stored, overrides={"logits": {**own, "accumulate": "exact"}})
    plan = plan_of("mlp", exact)
    assert [name for name in plan.formats if plan.native(name)] == ["logits"]
    plan.to_json(tmp_path / "p.json")
    assert Plan.from_json(tmp_path / "p.json") == plan
    realized = quantize.realize(net("mlp"), plan)
    (sums,) = [line for line in realized.astext().splitlines() if 'accumulate="exact"' in line]
    assert "custom[posit8_es1]8" in sums
    x = images()[1][:3]
    np.testing.assert_array_equal(compiler.build(realized)(x), compiler.evaluate(realized, x))
    x_by_name = {realized.main.params[0].name: x}
    # What a node does alone is what it does with its own accumulator.
    rounded = plan_of("mlp", QConfig(**stored, overrides={"logits": own}))
    (a, b) = (sensitivities(net("mlp"), p, [x_by_name])[-1] for p in (plan, rounded))
    assert a.node == b.node == "logits"
    assert a.noise != b.noise


@pytest.mark.thorough
def test_an_edited_plan_mixes_integers_and_formats() -> None:
    plan = plan_of("resnet8", QConfig(bias_correction="none"))
    name = next(k for k, n in plan.nodes.items() if n.op == "nn.dense")
    node = replace(plan.nodes[name], decision="format")
    pair = (OperandFormat("float8_e4m3fn", (0.0078125,)), OperandFormat("mxint8", axis=1))
    mixed = replace(plan, nodes={**plan.nodes, name: node}, formats={name: pair})
    x = images()[1][:40]
    text = realize(net("resnet8"), mixed).astext()
    assert "qnn.simulated_cast" in text
    assert "int32" in text
    a, b = (compiler.build(realize(net("resnet8"), p))(x) for p in (plan, mixed))
    assert (a.argmax(1) == b.argmax(1)).mean() > 0.95
    assert (
        mixed.summary()
        .splitlines()[-1]
        .endswith("in integers and number formats, 100.0 % of the multiply-accumulates")
    )


# ---- axes of scales, as a person may write them --------------------------------------------------
@given(st.integers(-2, 1), st.integers(-2, 1), st.booleans())
@settings(max_examples=12, deadline=None)
def test_scales_along_any_axis_are_those_that_are_simulated(
    data_axis: int, weight_axis: int, token: bool
) -> None:
    """What is realized on integers has the scales where the plan says, or is computed in float."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2))
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(b.call("nn.dense", b.param("x", x.shape), b.const(w),
                                            name="y"))})  # fmt: skip
    granularity = "token" if token else "tensor"
    config = QConfig(weight_dtype="int4", activation_granularity=granularity)
    plan = quantize.calibrate(mod, [x], config)
    data, weight = plan.formats["y"]
    held = (replace(data, axis=data_axis), replace(weight, axis=weight_axis))
    edited = Plan.from_json(replace(plan, formats={"y": held}).to_json())
    found = compiler.evaluate(quantize.realize(mod, edited), x)
    wanted = compiler.evaluate(quantize.simulate(mod, edited), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
