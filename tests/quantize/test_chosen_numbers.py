"""Weights in formats and blocks that data chooses: text of a plan, GPTQ, clipped scales."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import Plan, QConfig
from quantize.calibration.rounding.in_formats import chosen_in_format
from quantize.calibration.rounding.problem import problem
from quantize.formats.blocks import define_block_format
from quantize.formats.chosen import Numbers, numbers, weight_array, with_choice
from quantize.formats.element import element
from quantize.formats.operand_format import OperandFormat, flattened, rounded_array
from quantize.formats.packing import packed

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import mixed_net, noise

UNIT = float(np.float32(0.0013))
BLOCKS = ("mxfp4_e2m1", "mxfp6_e3m2", "mxfp8_e4m3", "mxint8", "nvfp4", "nvint4")
SCALARS = ("float8_e4m3fn", "posit8_es1", "nf4", "float4_e2m1fn", "fixed4_0", "posit16_es1")


def operand(name: str, shape: tuple[int, ...], flat: bool = False, group: int = 0) -> OperandFormat:
    """A format with scales for weights of a shape."""
    if name in BLOCKS:
        return OperandFormat(name, (UNIT if name.startswith("nv") else 1.0,), 1, flat=flat)
    count = shape[0] * -(-int(np.prod(shape[1:])) // group) if group else shape[0]
    return OperandFormat(name, tuple(0.5 + k / 8 for k in range(count)), 0, group)


operands = st.one_of(
    st.builds(
        lambda name, flat: (operand(name, (3, 5, 3, 3), flat), (3, 5, 3, 3)),
        st.sampled_from(BLOCKS), st.booleans(),
    ),
    st.builds(
        lambda name, group: (operand(name, (4, 70), group=group), (4, 70)),
        st.sampled_from(SCALARS), st.sampled_from([0, 1, 16, 40, 70]),
    ),
    st.builds(lambda name: (operand(name, (4, 70)), (4, 70)), st.sampled_from(BLOCKS)),
)  # fmt: skip


@settings(max_examples=40)
@given(operands, st.integers(0, 10**6))
def test_any_choice_of_numbers_and_scales_is_text_that_gives_them_back(
    given_operand: tuple[OperandFormat, tuple[int, ...]], seed: int
) -> None:
    f, shape = given_operand
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(np.float32)
    n = Numbers(f)
    scales = n.plain_scales(x.reshape(flattened(shape, f))) if n.block is not None else None
    plain = n.nearest(x / n.element_scales(x, scales))
    # Counted from the rule's scales and the nearest numbers, plain rounding is no choice at all.
    assert with_choice(x, f, plain, scales) == f
    np.testing.assert_array_equal(
        n.real(plain, n.element_scales(x, scales)), rounded_array(x, f) + 0.0
    )
    places = rng.integers(0, len(n.values), shape)
    steps = None if scales is None else scales + rng.integers(-2, 3, scales.shape)
    chosen = with_choice(x, f, places, steps)
    want = n.values[places].astype(np.float32) * n.element_scales(x, steps)
    np.testing.assert_array_equal(weight_array(x, chosen), want)


def scaled_problem(rng: Any, groups: int, outputs: int, inputs: int) -> Any:
    """A layer whose inputs are correlated, seen with some noise once quantized."""
    weight = rng.normal(size=(groups, outputs, inputs))
    mix = np.eye(inputs) + rng.normal(0, 1 / np.sqrt(inputs), (groups, inputs, inputs))
    x = mix @ rng.normal(size=(groups, inputs, 300))
    y = x + rng.normal(0, 0.05, x.shape)
    moment, cross = (a @ y.transpose(0, 2, 1) / 300 for a in (y, x))
    return problem(weight, moment, cross, np.ones(()), (0.0, 0.0), 0.01)


@settings(max_examples=15)
@given(st.sampled_from([*BLOCKS, "nf4", "float8_e4m3fn"]), st.integers(0, 10**6), st.booleans(),
       st.booleans())  # fmt: skip
def test_no_output_gets_a_larger_error_than_with_the_nearest_numbers(
    name: str, seed: int, compensate: bool, clip: bool
) -> None:
    task = scaled_problem(np.random.default_rng(seed), 2, 3, 40)
    weight = task.weight.reshape(6, 40).astype(np.float32)
    f = operand(name, weight.shape)

    def rows(a: Array) -> Array:
        return a.reshape(2, 3, 40)

    chosen = chosen_in_format(f, weight, rows, task, compensate, clip)
    errors = [rows(weight_array(weight, k)) - task.target for k in (f, chosen)]
    plain, better = (np.einsum("gok,gkj,goj->go", e, task.moment, e) for e in errors)
    assert (better <= plain * (1 + 1e-4)).all()


def test_blocks_get_their_scales_from_weights_that_errors_have_moved() -> None:
    """GPTQ as a textbook has it: after every input, all that follow are solved for again."""
    task = scaled_problem(np.random.default_rng(3), 1, 4, 64)
    weight = task.weight[0].astype(np.float32)
    f = operand("mxfp4_e2m1", weight.shape)
    chosen = weight_array(weight, chosen_in_format(f, weight, lambda a: a[None], task, True, False))
    moment, n = task.moment[0], Numbers(f)
    size = np.diagonal(moment)
    blocks = sorted([range(32), range(32, 64)], key=lambda b: -size[list(b)].sum())
    order = [j for b in blocks for j in sorted(b, key=lambda j: -size[j])]
    for o in range(len(weight)):
        target, row = task.target[0, o], task.target[0, o].copy()
        for k, j in enumerate(order):
            if k % 32 == 0:
                members = order[k : k + 32]
                scale = 2.0 ** (np.floor(np.log2(np.abs(row[members]).max())) - 2)
            row[j] = n.values[np.abs(n.values - row[j] / scale).argmin()] * scale
            fixed, free = order[: k + 1], order[k + 1 :]
            if free:
                push = moment[np.ix_(free, fixed)] @ (row[fixed] - target[fixed])
                row[free] = target[free] - np.linalg.solve(moment[np.ix_(free, free)], push)
        np.testing.assert_allclose(chosen[o], row, atol=1e-6)


def dense_net(inputs: int) -> tuple[IRModule, Any]:
    """One layer whose inputs are strongly correlated, and what makes data for it."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(24, inputs)).astype(np.float32)
    mix = rng.normal(size=(inputs, inputs)) * 0.9 ** np.arange(inputs)
    b = FunctionBuilder()
    b.call("nn.dense", b.param("x", (Var("n"), inputs)), b.const(w), name="y")
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    return mod, lambda n: (rng.normal(size=(n, inputs)) @ mix.T).astype(np.float32)


GROUPS = {"weight_granularity": "group", "weight_group_size": 32}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "scheme",
    [
        *({"weight_dtype": name} for name in ("mxfp4_e2m1", "nvfp4", "nvint4", "posit8_es1")),
        {"weight_dtype": "nf4", **GROUPS},
        {"weight_bits": 4, **GROUPS},
        {"weight_dtype": "nvfp4", "activation_dtype": "nvfp4"},
    ],
    ids=lambda scheme: "-".join(map(str, scheme.values())),
)
def test_gptq_and_clipped_scales_gain_decibels_in_every_format(scheme: dict[str, Any]) -> None:
    mod, data = dense_net(64)
    fit, x = data(400), data(200)
    reference = compiler.build(mod)(x)
    found = {}
    base = QConfig(**{"activation_dtype": "float32", "bias_correction": "none", **scheme})
    for method in ({}, {"weight_rounding": "gptq"}, {"weight_calibrate": "output"}):
        plan = quantize.calibrate(mod, [fit], replace(base, **method))
        assert plan == Plan.from_json(plan.to_json())
        y = compiler.build(quantize.realize(mod, plan))(x)
        assert metrics.sqnr_db(y, compiler.evaluate(quantize.simulate(mod, plan), x)) > 90
        found[str(method)] = metrics.sqnr_db(y, reference)
    plain, chosen, clipped = found.values()
    assert chosen > plain + (5 if base.activation_dtype == "float32" else 1.5), found
    assert clipped > plain, found


@pytest.mark.thorough
def test_convolutions_are_chosen_too_and_the_plan_says_so() -> None:
    mod, batches = mixed_net(), [noise(30, 1)]
    config = QConfig(weight_dtype="mxfp4_e2m1", activation_dtype="float32")
    plans = [
        quantize.calibrate(mod, batches, replace(config, weight_rounding=method))
        for method in ("nearest", "gptq")
    ]
    x = noise(40, 9)
    reference, *found = (
        np.ravel(compiler.build(m)(x)[0])
        for m in (mod, *(quantize.realize(mod, plan) for plan in plans))
    )
    assert "rounded by data" in plans[1].summary()
    assert metrics.sqnr_db(found[1], reference) > metrics.sqnr_db(found[0], reference) + 1


@pytest.mark.parametrize(
    ("entry", "damage", "message"),
    [
        ("rounding", "!", "damaged"),
        ("rounding", packed(np.ones(3)), "not that of"),
        ("scale_steps", packed(np.full(48, 300)), "not that of these weights"),
        ("scale_steps", 3, "must be text"),
    ],
)
def test_damaged_choices_are_refused(entry: str, damage: Any, message: str) -> None:
    mod, data = dense_net(64)
    config = QConfig(weight_dtype="mxfp4_e2m1", activation_dtype="float32", weight_rounding="gptq")
    saved = json.loads(quantize.calibrate(mod, [data(50)], config).to_json())
    saved["formats"]["y"][1][entry] = damage
    with pytest.raises(ConfigError, match=message):
        quantize.realize(mod, Plan.from_dict(saved))


def test_only_stored_weights_are_chosen() -> None:
    mod, data = dense_net(64)
    both = {"weight_dtype": "posit8_es1", "activation_dtype": "posit8_es1"}
    for k, fields, message in (
        (0, {}, "operand 0 of node 'y' is no weight: leave out its rounding"),
        (1, {"compute": "native"}, "'y' is computed in its format, which rounds to the nearest"),
    ):
        plan = quantize.calibrate(mod, [data(50)], QConfig(**both, **fields))
        operands = list(plan.formats["y"])
        operands[k] = replace(operands[k], rounding=packed(np.ones(24 * 64)))
        with pytest.raises(ConfigError, match=message):
            quantize.realize(mod, replace(plan, formats={"y": tuple(operands)}))


def test_formats_with_too_many_numbers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"posit32_es2.* cannot be chosen by data"):
        numbers(element("posit32_es2"))


@pytest.mark.parametrize("fields", [{"weight_rounding": "gptq"}, {"weight_calibrate": "output"}])
def test_blocks_with_float32_scales_are_not_chosen(fields: dict[str, Any]) -> None:
    define_block_format("eights", element="float8_e4m3fn", scale="float32", block=8)
    mod, data = dense_net(64)
    config = QConfig(weight_dtype="eights", activation_dtype="float32", **fields)
    with pytest.raises(ConfigError, match="weights in eights cannot be chosen by data: its scales"):
        quantize.calibrate(mod, [data(50)], config)
