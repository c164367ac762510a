"""Weights in any integers, formats and groups, beside activations in any: every pair, and formats
of scales, against numpy and ml_dtypes alone."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from format_emulation import assert_same, cast
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import images, net, plan_of

import compiler
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from quantize import Plan, QConfig
from quantize.search.costs import plan_cost, realized_cost

FLOATS = {
    "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float6_e2m3fn": 7.5, "float4_e2m1fn": 6.0
}  # fmt: skip
SCALES = ("float32", "float16", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn")
NO_FMA = "llvm -mcpu=x86-64-v2"
"""Sums of float32 products are contracted where the CPU can: not here."""


def top(name: str) -> float:
    return FLOATS[name] if name in FLOATS else 2.0 ** (int(name[3:]) - 1) - 1


def numbers(x: Array, name: str) -> Array:
    """float32 numbers of a format, or integers, nearest to `x`, saturating."""
    if name in FLOATS:
        return cast(x, name)
    return np.clip(np.rint(x), -top(name), top(name)).astype(np.float32)


def scales_of(largest: Array, name: str, scale: str) -> Array:
    """The scales of groups with these largest magnitudes, from their definition."""
    most = top(name)
    if scale == "float32":
        return np.where(largest > 0, (largest.astype(np.float64) / most), 1.0).astype(np.float32)
    if scale == "float8_e8m0fnu":  # OCP MX 1.0, 6.3
        powers = [
            -127 if m == 0 else math.frexp(m)[1] - math.frexp(most)[1]
            for m in largest.astype(float).ravel()
        ]
        exponents = np.clip(powers, -127, 127).reshape(largest.shape)
        return np.ldexp(np.float32(1), exponents).astype(np.float32)
    dtype = np.dtype(getattr(ml_dtypes, scale, scale))
    info = ml_dtypes.finfo(dtype)
    unit = np.float32(1)
    if scale == "float8_e4m3fn":
        unit = np.float32(float(largest.max()) / (most * 448.0)) if largest.any() else unit
    ratio = largest / np.float32(most * float(unit))
    least = np.float32(info.smallest_subnormal)
    kept = np.clip(ratio, least, np.float32(info.max)).astype(dtype)
    return kept.astype(np.float32) * unit


def in_groups(w: Array, name: str, scale: str, group: int) -> Array:
    """Weights [O, K] rounded in groups of inputs, one group at a time."""
    starts = range(0, w.shape[1], group)
    largest = np.stack([np.abs(w[:, k : k + group]).max(axis=1) for k in starts], axis=1)
    s = scales_of(largest, name, scale)
    out = np.empty_like(w)
    for g, k in enumerate(starts):
        each = s[:, g, None]
        out[:, k : k + group] = numbers(w[:, k : k + group] / each, name) * each
    return out


def dense(w: Array) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (3, w.shape[1]))
    return IRModule({"main": b.finish(b.call("nn.dense", x, b.const(w), name="y"))})


@settings(max_examples=20)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["int2", "int3", "int4", "int5", "int8", *FLOATS]),
    st.sampled_from(SCALES),
    st.integers(1, 30),
    st.integers(1, 40),
)  # fmt: skip
def test_weights_of_groups_with_scales_in_formats_are_those_of_numpy(
    seed: int, name: str, scale: str, inputs: int, group: int
) -> None:
    rng = np.random.default_rng(seed)
    w = (rng.normal(size=(5, inputs)) * 10.0 ** rng.uniform(-3, 3, (5, 1))).astype(np.float32)
    w[rng.integers(5)] *= rng.integers(2)
    x = rng.normal(size=(3, inputs)).astype(np.float32)
    config = QConfig(
        weight_dtype=name, activation_dtype="float32", weight_granularity="group",
        weight_group_size=group, scale_dtype=scale, smoothing=0.0,
    )  # fmt: skip
    plan = quantize.calibrate(dense(w), [x], config)
    want = compiler.evaluate(dense(in_groups(w, name, scale, group)), x)
    q = quantize.realize(dense(w), plan)
    assert_same(compiler.evaluate(q, x), want)
    assert_same(compiler.evaluate(quantize.simulate(dense(w), plan), x), want)
    assert Plan.from_json(plan.to_json()) == plan


WEIGHTS = ("int2", "int4", "int8", "float8_e4m3fn", "posit6_es1", "nf4", "mxfp4_e2m1", "nvfp4")
ACTIVATIONS = (
    "float32",
    "uint8",
    "int8",
    "uint4",
    "float8_e5m2",
    "float16",
    "mxint8",
    "posit8_es1",
)
INTEGER_NETWORKS = (("int8", "float32"), ("int8", "uint8"), ("int8", "int8"))
PAIRS = [p for p in itertools.product(WEIGHTS, ACTIVATIONS) if p not in INTEGER_NETWORKS]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("weights", "activations"),
    [
        pytest.param(*pair, marks=() if k % 9 == 0 else pytest.mark.thorough)
        for k, pair in enumerate(PAIRS)
    ],
)
def test_every_pair_of_formats_runs_and_its_sums_are_those_of_float32(
    weights: str, activations: str
) -> None:
    config = QConfig(weight_dtype=weights, activation_dtype=activations, smoothing=0.0)
    x = images()[1][:3]
    plan = plan_of("mlp", config)
    assert plan.coverage == 1.0
    q = quantize.realize(net("mlp"), plan)
    got = compiler.build(q, target=NO_FMA)(x)
    assert_same(got, compiler.evaluate(q, x))
    assert "scale_dtype" not in plan.to_dict()["formats"]["logits"][1]


@pytest.mark.parametrize(
    ("fields", "bits"),
    [
        ({}, 4 * 64 + 4 * 32),
        ({"weight_granularity": "tensor"}, 4 * 64 + 32),
        ({"weight_granularity": "group", "weight_group_size": 4}, 4 * 64 + 16 * 32),
        (
            {
                "weight_granularity": "group", "weight_group_size": 5,
                "scale_dtype": "float8_e4m3fn",
            },
            4 * 64 + 16 * 8 + 32,
        ),
        ({"scale_dtype": "bfloat16"}, 4 * 64 + 4 * 16),
        ({"scale_dtype": "float8_e8m0fnu"}, 4 * 64 + 4 * 8),
        ({"weight_dtype": "mxfp4_e2m1"}, 4 * 64 + 4 * 8),
        ({"weight_dtype": "nvfp4"}, 4 * 64 + 4 * 8 + 32),
    ],
)  # fmt: skip
def test_costs_count_scales_of_weights_in_their_formats(fields: dict[str, Any], bits: int) -> None:
    w = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    given = {"weight_dtype": "int4", "activation_dtype": "float32", **fields}
    mod = dense(w)
    plan = quantize.calibrate(mod, [np.ones((3, 16), np.float32)], QConfig(**given))
    assert plan_cost(mod, plan).parameter_bytes == bits // 8


TOKENS = {"activation_dtype": "int8", "activation_granularity": "token"}


@pytest.mark.parametrize(
    ("fields", "bits", "made"),  # of parameters; of what the layer makes of its input of 3 rows
    [
        ({**TOKENS, "weight_dtype": "int4"}, 4 * 64 + 4 * 32, 3 * (16 * 8 + 32)),
        (
            {
                **TOKENS, "weight_dtype": "int3", "weight_granularity": "group",
                "weight_group_size": 4, "scale_dtype": "float8_e4m3fn",
            },
            3 * 64 + 16 * 8 + 32 + 32,  # a scale of each tensor
            3 * (16 * 8 + 8),
        ),
        (  # with the sums of weights that zero points are multiplied with
            {**TOKENS, "weight_dtype": "int4", "activation_dtype": "uint5"},
            4 * 64 + 4 * 32 + 4 * 32,
            3 * (16 * 5 + 32 + 5),
        ),
    ],
)  # fmt: skip
def test_costs_count_integers_of_tokens_with_their_scales_and_zero_points(
    fields: dict[str, Any], bits: int, made: int
) -> None:
    w = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    config, mod = QConfig(**fields), dense(w)
    plan = quantize.calibrate(mod, [np.ones((3, 16), np.float32)], config)
    found, realized = realized_cost(mod, plan)
    assert found.parameter_bytes == bits // 8
    first, second = config.activation_format, config.weight_format
    assert dict(found.macs_by_dtypes) == {f"{first} x {second}": 3 * 64}
    # At most the input, what is made of it and an accumulator are alive at once.
    least = (3 * 16 * 32 + made) // 8
    assert least - 3 * 4 * 4 <= found.activation_bytes <= least + 2 * 3 * 4 * 4
    assert len(realized.main.bindings) > 3


@pytest.mark.parametrize(
    ("name", "scale", "edge"),
    [("int8", "bfloat16", 127.0), ("float8_e4m3fn", "float8_e4m3fn", 464.0)],
)
def test_what_a_scale_that_is_rounded_down_leaves_outside_is_cut_off(
    name: str, scale: str, edge: float
) -> None:
    """By as much that float8_e4m3fn, which has no infinity, would have no number for it."""
    w = np.random.default_rng(3).normal(size=(200, 8)).astype(np.float32)
    config = QConfig(weight_dtype=name, scale_dtype=scale, activation_dtype="float32")
    plan = quantize.calibrate(dense(w), [np.ones((3, 8), np.float32)], config)
    scales = np.asarray(plan.formats["y"][1].scales)
    assert 0.05 < (np.abs(w).max(axis=1) / scales > edge).mean() < 0.5
    rows = [compiler.evaluate(quantize.realize(dense(w), plan), x[None].repeat(3, 0))[0]
            for x in np.eye(8, dtype=np.float32)]  # fmt: skip
    assert np.abs(np.stack(rows, axis=1) / scales[:, None]).max() == pytest.approx(top(name))
