"""Every site in every kind of format: attention's factors found by structure, scales of tokens, and
random configurations compiled as they are interpreted."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from encoder_net import encoder, sentences
from format_emulation import assert_same
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, IRModule, operands
from compiler.ir.substitution import with_operands
from compiler.passes.live import live
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from experiments import zoo
from quantize import Plan, QConfig
from quantize.annotation.annotate import annotate, prepared
from quantize.annotation.graph import Graph
from quantize.annotation.sites import sites
from quantize.config.sites import ATTENTION, GRANULARITIES
from quantize.search.costs import plan_cost

LENGTH = 9
NO_FMA = "llvm -mcpu=x86-64-v2"
"""Sums of float32 products are contracted where the CPU can: not here."""
OFF: dict[str, Any] = {"smoothing": 0.0, "bias_correction": "none"}


@cache
def attention() -> IRModule:
    return compiler.from_onnx(encoder(LENGTH))


# ---- what is a site ------------------------------------------------------------------------------
def test_factors_of_attention_are_found_in_an_encoder_and_in_a_decoder_with_a_cache() -> None:
    for mod, layers in (
        (attention(), 2),
        (decoder(), 4),
    ):
        found = list(sites(Graph(prepared(mod).main)).values())
        assert found.count(("activation", "key")) == layers
        assert found.count(("probability", "value")) == layers
        assert found.count(("softmax",)) == layers
        assert found.count(("norm",)) == 2 * layers + 1
        assert found.count(("embedding",)) == 1
        assert found.count(("activation", "logit")) == 1
        assert found.count(("activation", "weight")) > 6 * layers - 1


def test_a_product_of_activations_without_softmax_is_no_attention() -> None:
    b = FunctionBuilder()
    x, y = b.param("x", (2, 3, 4)), b.param("y", (2, 4, 3))
    f = b.finish(b.call("nn.matmul", x, y, name="z"))
    assert sites(Graph(f)) == {"z": ("activation", "activation")}


@pytest.mark.thorough
def test_keys_of_their_own_format_change_nothing_else() -> None:
    config = QConfig(
        weight_dtype="float32", activation_dtype="float32", key_dtype="int4",
        key_granularity="head", **OFF,
    )  # fmt: skip
    plan = quantize.calibrate(attention(), [sentences(8, LENGTH, 0)], config)
    rounded = {n: [f.format for f in fs] for n, fs in plan.formats.items()}
    products = {k: f for k, f in rounded.items() if f != ["float32", "float32"]}
    assert list(products.values()) == [["float32", "int4"]] * 2
    assert all(len(plan.formats[n][1].scales) == 4 for n in products)  # heads


@pytest.mark.thorough
def test_embeddings_logits_softmax_and_norms_are_sites() -> None:
    given = {
        "embedding_dtype": "nf4", "logit_dtype": "int8", "softmax_dtype": "bfloat16",
        "norm_dtype": "float16",
    }  # fmt: skip
    plain = QConfig(weight_dtype="int4", activation_granularity="token", **OFF)
    config = QConfig(weight_dtype="int4", activation_granularity="token", **OFF, **given)
    batches, x = [sentences(8, LENGTH, 0)], sentences(2, LENGTH, 1)
    before = quantize.calibrate(attention(), batches, plain).formats
    plan = quantize.calibrate(attention(), batches, config)
    roles = sites(Graph(prepared(attention()).main))
    own = {n: f for n, f in plan.formats.items() if len(f) == 1}
    found = {(roles[n][0], f[0].format) for n, f in own.items()}
    assert found == {("embedding", "nf4"), ("softmax", "bfloat16"), ("norm", "float16")}
    (head,) = [n for n, r in roles.items() if "logit" in r]
    assert plan.formats[head][1].format == "int8"
    assert {n: f for n, f in plan.formats.items() if n != head and n not in own} == {
        n: f for n, f in before.items() if n != head
    }
    # Softmax in bfloat16 has results in bfloat16.
    q = quantize.realize(attention(), plan)
    calls = [b.value for b in q.main.bindings if isinstance(b.value, Call)]
    assert {str(c.attrs.dtype) for c in calls if str(c.op) == "cast"} >= {
        "custom[bfloat16]16", "custom[float16_e5m10]16"
    }  # fmt: skip
    assert_same(compiler.build(q, target=NO_FMA)(x), compiler.evaluate(q, x))
    left = QConfig(weight_dtype="int4", logit_dtype="float32", **OFF)
    assert "logit_dtype='float32'" in annotate(attention(), left).nodes[head].reason


# ---- tokens --------------------------------------------------------------------------------------
def dense(w: Array, bias: Array, rows: int = 5) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (rows, w.shape[1]))
    return IRModule({"main": b.finish(b.call("nn.dense", x, b.const(w), b.const(bias), name="y"))})


@pytest.mark.thorough
@settings(max_examples=10)
@given(
    st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 50), st.integers(2, 8),
    st.sampled_from(["int8", "uint8", "int4", "uint5"]), st.sampled_from(["channel", "group"]),
)  # fmt: skip
def test_integers_of_tokens_times_integers_of_groups_are_those_of_numpy(
    seed: int, inputs: int, group: int, bits: int, tokens: str, granularity: str
) -> None:
    """Written from what the documentation says alone: W4A8 and its like."""
    rng = np.random.default_rng(seed)
    w, bias = rng.normal(size=(6, inputs)).astype("f4"), rng.normal(size=6).astype("f4")
    x = (rng.normal(1, 1, (5, inputs)) * 10.0 ** rng.uniform(-5, 5, (5, 1))).astype(np.float32)
    x[0] = 0
    config = QConfig(
        weight_bits=bits, weight_granularity=granularity, weight_group_size=group,
        activation_dtype=tokens, activation_granularity="token", **OFF,
    )  # fmt: skip
    mod = dense(w, bias)
    plan = quantize.calibrate(mod, [x], config)
    size = group if granularity == "group" else inputs
    starts = range(0, inputs, size)
    most = 2 ** (bits - 1) - 1
    largest = np.stack([np.abs(w[:, k : k + size]).max(axis=1) for k in starts], axis=1)
    sw = (largest.astype(np.float64) / most).astype(np.float32)
    qw = [np.rint(w[:, k : k + size] / sw[:, g, None]) for g, k in enumerate(starts)]
    qw = [np.clip(q, -most, most).astype(np.int64) for q in qw]
    width = int(tokens.removeprefix("u")[3:])
    tiny = np.finfo(np.float32).tiny
    if tokens.startswith("u"):
        levels = 2**width - 1
        low = np.minimum(x.min(axis=1, keepdims=True), 0)
        sx = np.maximum(
            (np.maximum(x.max(axis=1, keepdims=True), 0) - low) / np.float32(levels), tiny
        )
        zx = np.clip(np.rint(-low / sx), 0, levels).astype(np.int64)
        qx = np.clip(np.rint(x / sx) + zx, 0, levels).astype(np.int64) - zx
    else:
        levels = 2 ** (width - 1) - 1
        sx = np.maximum(np.abs(x).max(axis=1, keepdims=True) / np.float32(levels), tiny)
        qx = np.clip(np.rint(x / sx), -levels, levels).astype(np.int64)
    y = np.zeros((5, 6), np.float32)
    for g, k in enumerate(starts):
        y = y + (qx[:, k : k + size] @ qw[g].T).astype(np.float32) * sw[:, g]
    want = y * sx + bias
    q = quantize.realize(mod, plan)
    assert_same(compiler.evaluate(q, x), want)
    assert_same(compiler.build(q)(x), want)
    floats = compiler.evaluate(quantize.simulate(mod, plan), x)
    np.testing.assert_allclose(floats, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert Plan.from_json(plan.to_json()) == plan


def test_where_sums_are_exact_the_simulation_has_the_bits_of_the_integers() -> None:
    rng = np.random.default_rng(2)
    w, x = rng.integers(-7, 8, (6, 24)).astype("f4"), rng.integers(-127, 128, (5, 24)).astype("f4")
    w[:, ::8], x[:, 0] = 7, 127  # scales of 1
    config = QConfig(
        weight_dtype="int4", weight_granularity="group", weight_group_size=8,
        activation_dtype="int8", activation_granularity="token", **OFF,
    )  # fmt: skip
    mod = dense(w, np.zeros(6, np.float32))
    plan = quantize.calibrate(mod, [x], config)
    real = compiler.evaluate(quantize.realize(mod, plan), x)
    assert_same(real, compiler.evaluate(quantize.simulate(mod, plan), x))
    np.testing.assert_array_equal(real, x @ w.T)


def test_a_token_is_the_same_alone_and_among_others() -> None:
    """What generation, token by token, relies on."""
    config = QConfig(weight_bits=4, weight_granularity="group", activation_granularity="token")
    rng = np.random.default_rng(1)
    w, bias = rng.normal(size=(6, 70)).astype("f4"), rng.normal(size=6).astype("f4")
    x = rng.normal(size=(5, 70)).astype(np.float32)
    plan = quantize.calibrate(dense(w, bias), [x], config)
    together = compiler.build(quantize.realize(dense(w, bias), plan))(x)
    b = FunctionBuilder()
    one = b.param("x", (Var("n"), 70))
    mod = IRModule({"main": b.finish(b.call("nn.dense", one, b.const(w), b.const(bias), name="y"))})
    alone = compiler.build(quantize.realize(mod, quantize.calibrate(mod, [x], config)))
    np.testing.assert_array_equal(np.concatenate([alone(row[None]) for row in x]), together)


def test_scales_of_weights_and_of_tokens_have_formats_of_their_own() -> None:
    config = QConfig(
        weight_dtype="float4_e2m1fn", weight_granularity="group", scale_dtype="float8_e4m3fn",
        activation_granularity="token", activation_scale_dtype="float32", **OFF,
    )  # fmt: skip
    mod = dense(np.ones((6, 128), np.float32), np.ones(6, np.float32))
    plan = quantize.calibrate(mod, [np.ones((5, 128), np.float32)], config)
    assert [f.scale_dtype for f in plan.formats["y"]] == ["float32", "float8_e4m3fn"]
    powers = replace(config, scale_dtype="float8_e8m0fnu", block_scale_rounding="ceil")
    plan = quantize.calibrate(mod, [np.ones((5, 128), np.float32)], powers)
    assert [f.scale_dtype for f in plan.formats["y"]] == ["float32", "float8_e8m0fnu"]
    both = replace(config, activation_scale_dtype="")
    plan = quantize.calibrate(mod, [np.ones((5, 128), np.float32)], both)
    assert [f.scale_dtype for f in plan.formats["y"]] == ["float8_e4m3fn"] * 2


# ---- random configurations -----------------------------------------------------------------------
SCALARS = (
    "float32", "int8", "int4", "int3", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn",
    "float6_e2m3fn", "posit8_es1", "bfloat16", "float16",
)  # fmt: skip
UNSIGNED = ("uint8", "uint4")
BLOCKS = ("mxfp8_e4m3", "mxfp6_e3m2", "mxfp4_e2m1", "mxint8", "nvfp4", "nvint4")
SCALES = ("float32", "float16", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn")


@st.composite
def configs(draw: st.DrawFn) -> QConfig:
    """Any choice for every site."""
    given: dict[str, Any] = {
        "weight_dtype": draw(st.sampled_from((*SCALARS, *BLOCKS, "nf4"))),
        "weight_granularity": draw(st.sampled_from(("tensor", "channel", "group"))),
        "weight_group_size": draw(st.sampled_from((4, 13, 16, 64))),
        "scale_dtype": draw(st.sampled_from(SCALES)),
        "activation_scale_dtype": draw(st.sampled_from(("", *SCALES))),
        "calibrate": draw(st.sampled_from(("minmax", "mse", "percentile"))),
        "seed": draw(st.integers(0, 1000)),
    }
    if given["scale_dtype"] == "float8_e8m0fnu":
        given["block_scale_rounding"] = draw(st.sampled_from(("floor", "ceil", "even", "rceil")))
    for site in ("activation", *ATTENTION):
        name = draw(st.sampled_from((*SCALARS, *UNSIGNED, *BLOCKS)))
        if site != "activation" and draw(st.booleans()):
            continue
        wanted = draw(st.sampled_from(GRANULARITIES[site]))
        if name in BLOCKS:
            wanted = "block" if "block" in GRANULARITIES[site] else "tensor"
        elif wanted == "block" or (name in UNSIGNED and wanted in ("head", "channel")):
            wanted = "token"
        given |= {f"{site}_dtype": name, f"{site}_granularity": wanted}
    for site, names in {
        "embedding": (*SCALARS, *BLOCKS, "nf4"), "logit": (*SCALARS, *BLOCKS),
        "softmax": ("bfloat16", "float8_e5m2", "posit16_es1"), "norm": ("bfloat16", "float16"),
    }.items():  # fmt: skip
        if draw(st.integers(0, 3)) == 0:
            given[f"{site}_dtype"] = draw(st.sampled_from(names))
    try:
        return QConfig(**OFF, **given)
    except ConfigError as e:  # those that say nothing, or belong to networks in integers
        assume("nothing is rounded" in str(e) or "has no integer form" in str(e))
        return QConfig(**OFF, weight_dtype="nvfp4", activation_granularity="token")


def check(mod: IRModule, config: QConfig, x: Any, calibration: Any) -> None:
    """Compiled as interpreted, from the plan as it is saved, with costs counted."""
    plan = quantize.calibrate(mod, calibration, config)
    assert Plan.from_json(plan.to_json()) == plan
    q = quantize.realize(mod, plan)
    given = x if isinstance(x, dict) else {mod.main.params[0].name: x}
    wanted, found = compiler.evaluate(q, **given), compiler.build(q, target=NO_FMA)(**given)
    if not isinstance(wanted, list):
        wanted, found = [wanted], [found]
    for got, want in zip(found, wanted, strict=True):
        assert_same(np.asarray(got), np.asarray(want))
        assert np.isfinite(want).all()
    assert plan_cost(mod, plan).parameter_bytes > 0


@pytest.mark.thorough
@settings(max_examples=3)
@given(configs())
def test_some_configurations_are_compiled_as_they_are_interpreted(config: QConfig) -> None:
    check(attention(), config, sentences(2, LENGTH, 1), [sentences(8, LENGTH, 0)])


@pytest.mark.slow
@settings(max_examples=200)
@given(configs())
def test_200_configurations_are_compiled_as_they_are_interpreted(config: QConfig) -> None:
    check(attention(), config, sentences(2, LENGTH, 1), [sentences(8, LENGTH, 0)])


def tokens_of(mod: IRModule, batch: int, length: int, past: int, seed: int) -> dict[str, Array]:
    """Inputs of a decoder with a cache of 2 heads of 32 numbers."""
    rng = np.random.default_rng(seed)
    cache = (batch, 2, past, 32)
    made = {p.name: rng.normal(size=cache).astype(np.float32) for p in mod.main.params[1:]}
    return {"input_ids": rng.integers(0, 1024, (batch, length)), **made}


@cache
def decoder() -> IRModule:
    return compiler.from_onnx(zoo.FOLDER / "stdlib_lm.onnx")


@cache
def first_block() -> IRModule:
    """The language model with the first of its four blocks, which has every kind of site: what
    the last gives to the norm in front of the logits, this one does."""
    mod = decoder()
    f = mod.main
    at = {b.var.name: b.var for b in f.bindings}
    last, first = at["blocks_3_mlp_residual"], at["blocks_0_mlp_residual"]
    bindings = [
        replace(b, value=with_operands(b.value, [first if a is last else a for a in args]))
        if last in (args := operands(b.value)) else b
        for b in f.bindings
    ]  # fmt: skip
    f = live(replace(f, params=f.params[:3]).with_body(bindings, f.results[:3]))
    return replace(mod, attrs={**mod.attrs, "outputs": mod.attrs["outputs"][:3]}).with_function(
        "main", f
    )


@pytest.mark.thorough
@settings(max_examples=1)
@given(configs())
def test_a_configuration_of_the_language_model_is_compiled_as_it_is_interpreted(
    config: QConfig,
) -> None:
    check(decoder(), config, tokens_of(decoder(), 1, 4, 3, 1), tokens_of(decoder(), 2, 8, 0, 2))


@pytest.mark.slow
@settings(max_examples=200)
@given(configs())
def test_200_configurations_of_the_language_model_are_compiled_as_they_are_interpreted(
    config: QConfig,
) -> None:
    mod = first_block()
    check(mod, config, tokens_of(mod, 1, 4, 3, 1), tokens_of(mod, 2, 8, 0, 2))


# ---- what is refused -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_granularity": "tokens"}, "did you mean 'token'"),
        ({"key_granularity": "channels"}, "did you mean 'channel'"),
        ({"keys_dtype": "int8"}, "did you mean 'key_dtype'"),
        ({"key_dtype": "int9"}, "did you mean 'int8'"),
        ({"value_granularity": "token"}, "needs value_dtype"),
        ({"key_dtype": "int8", "key_granularity": "block"}, "are those of block formats"),
        ({"key_dtype": "mxint8", "key_granularity": "head"}, "are those of block formats"),
        ({"value_dtype": "uint8", "value_granularity": "head"}, "use int8, which is symmetric"),
        ({"key_dtype": "int8", "accumulate": "int16_wrap"}, "is for integers"),
        ({"key_dtype": "int8", "activation_bits": 16}, "go with key_dtype='int8' have 2 to 8"),
        (
            {
                "weight_dtype": "bfloat16", "activation_dtype": "bfloat16", "compute": "native",
                "activation_granularity": "token",
            },
            "has one format and one scale",
        ),
        ({"softmax_dtype": "int8"}, "has none: choose a scalar number format"),
        ({"norm_dtype": "mxfp4_e2m1"}, "has none: choose a scalar number format"),
        ({"embedding_dtype": "uint8"}, "use int8, symmetric"),
        ({"logit_dtype": "flot32"}, "did you mean 'float32'"),
        (
            {
                "weight_dtype": "bfloat16", "activation_dtype": "bfloat16", "compute": "native",
                "softmax_dtype": "bfloat16",
            },
            "needs compute='storage'",
        ),
        ({"overrides": {"x": {"key_dtype": "in8"}}}, "unknown format 'in8'"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_a_sentence(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        QConfig(**fields)


def test_nodes_have_sites_of_their_own_by_pattern() -> None:
    scores = [n for n, roles in sites(Graph(prepared(attention()).main)).items() if "key" in roles]
    config = QConfig(
        weight_dtype="int4", activation_granularity="token", key_dtype="int8",
        key_granularity="token",
        overrides={scores[1]: {"key_dtype": "float8_e5m2", "key_granularity": "channel"}}, **OFF,
    )  # fmt: skip
    plan = quantize.calibrate(attention(), [sentences(8, LENGTH, 0)], config)
    first, second = (plan.formats[n][1] for n in scores)
    assert (first.format, first.token) == ("int8", True)
    assert (second.format, len(second.scales), second.token) == ("float8_e5m2", 32, False)
    with pytest.raises(ConfigError, match="overrides: unknown node"):
        annotate(attention(), QConfig(weight_dtype="int4", overrides={"q": {"key_dtype": "int8"}}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token": 1}, "token must be true or false"),
        ({"axes": [9]}, "has no axis"),
        ({"axes": "head"}, "axes must be a list"),
        ({"zero_point": 3}, "zero_point must be an integer that int8 has"),
        ({"format": "uint8", "zero_point": 256}, "zero_point must be an integer that uint8 has"),
        ({"scale_dtype": "float9"}, "scale_dtype"),
        ({"scales": [1.0, 2.0]}, "needs 1 scales|needs .* scales"),
        ({"format": "mxint8"}, "false for block formats"),
    ],
)
def test_bad_entries_of_plans_are_named(change: dict[str, Any], message: str) -> None:
    config = QConfig(weight_dtype="int4", activation_dtype="int8", activation_granularity="token")
    mod = dense(np.ones((6, 8), np.float32), np.ones(6, np.float32))
    data = json.loads(quantize.calibrate(mod, [np.ones((5, 8), np.float32)], config).to_json())
    data["formats"]["y"][0] |= change
    with pytest.raises(ConfigError, match=message):
        quantize.realize(mod, Plan.from_dict(data))


def test_the_realized_module_holds_integers() -> None:
    config = QConfig(weight_bits=4, weight_granularity="group", activation_granularity="token")
    mod = dense(np.ones((6, 128), np.float32), np.ones(6, np.float32))
    q = quantize.realize(mod, quantize.calibrate(mod, [np.ones((5, 128), np.float32)], config))
    calls = [b.value for b in q.main.bindings if isinstance(b.value, Call)]
    (product,) = [c for c in calls if str(c.op) == "qnn.grouped_dense"]
    kept = product.args[1]
    assert isinstance(kept, Constant)
    assert str(kept.dtype) == "int8"
    assert kept.data.max() == 7
