"""The costs of a row cannot contradict each other: counted again, from the plan and the realized
graph, they come out the same in every scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize_nets import ZOO, images, mixed_net, noise, sized
from quantize_nets import net as network
from random_nets import configs, images_of, networks
from recount import Recount, of_graph, of_plan

import datatypes  # noqa: F401 - the formats that plans name
import quantize
from compiler.ir.expr import IRModule
from compiler.op.qnn.requantize import ROUNDINGS
from compiler.transform.analysis import ModelCost
from compiler.transform.preparation import prepare
from experiments.systems import number_systems, pipeline, schemes
from experiments.systems.prices import OWN, Prices, costs_of
from quantize import QConfig
from quantize.formats.blocks import block_formats
from quantize.search.costs import plan_cost

#: Ranges are not what these tests are about.
FAST = {"calibrate": "minmax", "bias_correction": "none", "smoothing": 0.0}
GROUPS = {"activation_dtype": "float32", "weight_granularity": "group"}
#: Fields of QConfig: integers.
INTEGERS: list[dict[str, Any]] = [
    {},
    {"weight_granularity": "tensor"},
    {"activation_dtype": "int8"},
    {"activation_dtype": "int8", "activation_symmetric": True},
    {"activation_symmetric": True},
    *({"requantize": rounding} for rounding in ROUNDINGS),
    {"requantize": "shift", "arithmetic": "integer", "functions": "integer"},
    {"weight_bits": 4},
    {"weight_bits": 4, "activation_bits": 4},
    {"weight_bits": 2, "weight_range": "asymmetric"},
    {"weight_bits": 8, "weight_range": "asymmetric"},
    {"weight_bits": 8, "activation_bits": 16},
    {"weight_bits": 12, "activation_bits": 8},
    {"weight_bits": 12, "activation_bits": 12},
    {"accumulate": "int16_saturate"},
    {"softmax": "integer", "layer_norm": "integer"},
    {"float_macs": 0.5},
    {"overrides": {"*1": {"weight_bits": 4, "activation_bits": 6}, "*2": {"skip": True}}},
]
#: Weights alone.
WEIGHTS: list[dict[str, Any]] = [
    {**given, "weight_bits": bits, "weight_range": kind}
    for given in (
        {"activation_dtype": "float32"},
        {"activation_dtype": "float32", "weight_granularity": "tensor"},
        {**GROUPS, "weight_group_size": 16},
        GROUPS,
    )
    for bits, kind in ((8, "restricted"), (4, "restricted"), (4, "asymmetric"), (3, "full"))
]
#: Numbers of formats.
SCALED: list[dict[str, Any]] = [
    *({"weight_dtype": name, "activation_dtype": name} for name in block_formats()),
    {"weight_dtype": "mxfp4_e2m1", "activation_dtype": "mxfp8_e4m3"},
    {"weight_dtype": "nvfp4", "activation_dtype": "float32"},
    {"weight_dtype": "float8_e4m3fn", "activation_dtype": "float8_e5m2"},
    {"weight_dtype": "posit8_es0", "activation_dtype": "bfloat16", "scales": "power_of_two"},
    {"weight_dtype": "nf4", **GROUPS, "weight_group_size": 32},
    {"weight_dtype": "float8_e4m3fn", "activation_dtype": "float8_e4m3fn", "compute": "native"},
    {
        "weight_dtype": "posit8_es1", "activation_dtype": "posit8_es1", "compute": "native",
        "accumulate": "exact", "weight_granularity": "tensor",
    },
]  # fmt: skip
FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("float32", {}),
    *((name, {}) for name in ("posit16_es1", "posit8_es0", "bfloat16", "float16", "takum16")),
    *((name, {}) for name in ("fixed8_4", "fixed16_8", "float8_e5m2", "float6_e3m2fn")),
    ("bfloat16", {"accumulate": "float32"}),
    ("posit8_es2", {"accumulate": "exact"}),
    ('{"*conv*" = "posit8_es0", "*" = "bfloat16"}', {}),
]


def assert_counted(found: ModelCost, again: Recount) -> None:
    """Assert that every cost of a module is the one that was counted otherwise."""
    assert dict(found.macs_by_dtypes) == dict(again.macs)
    assert found.macs == sum(again.macs.values())
    assert found.bit_operations == again.bit_operations
    assert found.parameter_bytes == again.size_bytes
    assert found.activation_bytes == again.activation_bytes
    assert found.traffic_bytes == again.traffic_bytes


def check(mod: IRModule, x: np.ndarray[Any, Any], config: QConfig) -> ModelCost:
    """The costs of a plan, counted twice."""
    plan = quantize.calibrate(mod, [x], config)
    found = plan_cost(mod, plan)
    assert_counted(found, of_plan(mod, plan, quantize.realize(mod, plan)))
    return found


def name_of(fields: Mapping[str, Any]) -> str:
    return ",".join(f"{k}={v}" for k, v in fields.items()) or "default"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("fields", [*INTEGERS, *WEIGHTS], ids=name_of)
def test_costs_of_integers_are_those_counted_again(fields: dict[str, Any]) -> None:
    check(mixed_net(), noise(4), QConfig(**{**FAST, **fields}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fields", SCALED, ids=name_of)
def test_costs_of_scaled_numbers_are_those_counted_again(fields: dict[str, Any]) -> None:
    check(mixed_net(), noise(4), QConfig(**{**FAST, **fields}))


#: Picojoules of what rows may multiply: distinct for every pair, as no real table is.
def prices_of(again: Recount) -> dict[str, float]:
    return {pair: 0.1 + 0.7 * k for k, pair in enumerate(sorted(again.macs))} | {"memory": 20.0}


def row_of(name: str, options: Mapping[str, Any], net: str) -> pipeline.Variant:
    """What a row of a scheme is made of."""
    scheme = schemes.parse(name, options)
    path = ZOO / f"mnist_{net}.onnx"
    return pipeline.prepare(
        path, scheme, sample_shape=(1, 28, 28), calibration=images()[0][:8], target="llvm",
        threads=1,
    )  # fmt: skip


def assert_consistent(variant: pipeline.Variant, again: Recount) -> None:
    """Assert that the columns of a row are those counted again, energy included."""
    for column in ("size_bytes", "bit_operations", "activation_bytes", "traffic_bytes"):
        assert getattr(variant, column) == getattr(again, column), column
    prices = prices_of(again)
    energy = costs_of(variant, Prices(OWN, prices))
    operations = sum(n * prices[pair] for pair, n in again.macs.items())
    assert energy.energy_memory_uj == pytest.approx(again.traffic_bytes * 20e-6)
    assert energy.energy_uj == pytest.approx(operations * 1e-6 + again.traffic_bytes * 20e-6)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("scheme", FORMATS, ids=str)
def test_rows_of_formats_are_consistent(scheme: tuple[str, dict[str, Any]]) -> None:
    retyped = pipeline.retype(prepare(sized("dwsep", 1)), schemes.parse(*scheme))
    assert_consistent(row_of(*scheme, net="dwsep"), of_graph(prepare(retyped)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("net", "name", "options"),
    [
        ("dwsep", "int8_channel", {"weight_bits": 4, "requantize": "fixed_upward"}),
        ("resnet8", "int8_channel", {"requantize": "shift"}),
        ("mlp", "int8", {**GROUPS, "weight_bits": 4}),
        ("dwsep", "mxfp4_e2m1", {}),
        ("mlp", "nvfp4", {}),
        ("mlp", "scaled", {"weight_dtype": "float8_e4m3fn", "compute": "native"}),
    ],
    ids=str,
)
def test_rows_of_plans_are_consistent(net: str, name: str, options: dict[str, Any]) -> None:
    given = {**FAST, **options}
    config = number_systems.qconfig(dict(schemes.parse(name, given).options))
    plan = quantize.calibrate(network(net), [images()[0][:8]], config)
    again = of_plan(sized(net, 1), plan, quantize.realize(sized(net, 1), plan))
    assert_consistent(row_of(name, given, net), again)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        # 784 x 128 and 128 x 10 weights, in rows of whole groups of 64; 1684 scales, 138 biases.
        ({**GROUPS, "weight_bits": 8}, (13 * 64 * 128 + 128 * 10) + 4 * (1664 + 20 + 138)),
        ({**GROUPS, "weight_bits": 4}, (13 * 64 * 128 + 128 * 10) / 2 + 4 * (1664 + 20 + 138)),
        # A zero point of four bits for each group.
        (
            {**GROUPS, "weight_bits": 4, "weight_range": "asymmetric"},
            (13 * 64 * 128 + 128 * 10 + 1684) / 2 + 4 * (1664 + 20 + 138),
        ),
        # Integers: the input's scale; a scale and a bias a channel. The input's zero point twice.
        ({}, 784 * 128 + 128 * 10 + 4 * (1 + 138 + 138) + 2),
        ({"requantize": "float64"}, 784 * 128 + 128 * 10 + 4 * (1 + 138 + 10) + 8 * 128 + 2),
        ({"requantize": "fixed_upward"}, 784 * 128 + 128 * 10 + 4 * (1 + 138 + 10) + 5 * 128 + 2),
        ({"requantize": "shift"}, 784 * 128 + 128 * 10 + 4 * (1 + 138 + 10) + 128 + 2),
    ],
    ids=str,
)
def test_sizes_by_hand(fields: dict[str, Any], count: float) -> None:
    plan = quantize.calibrate(network("mlp"), [images()[0][:8]], QConfig(**{**FAST, **fields}))
    assert plan_cost(sized("mlp", 1), plan).parameter_bytes == count


@pytest.mark.thorough
@settings(max_examples=5)
@given(networks(), configs(), st.integers(0, 2**32 - 1))
def test_any_network_in_any_integers(mod: IRModule, config: QConfig, seed: int) -> None:
    check(mod, images_of(seed), config)


@pytest.mark.thorough
@settings(max_examples=5)
@given(networks(), st.sampled_from([*WEIGHTS, *SCALED]), st.integers(0, 2**32 - 1))
def test_any_network_in_any_numbers(mod: IRModule, fields: dict[str, Any], seed: int) -> None:
    check(mod, images_of(seed), QConfig(**{**FAST, **fields}))


@pytest.mark.slow
@settings(max_examples=400)
@given(networks(), configs(), st.sampled_from([{}, *WEIGHTS, *SCALED]), st.integers(0, 2**32 - 1))
def test_many_networks_in_any_numbers(
    mod: IRModule, config: QConfig, fields: dict[str, Any], seed: int
) -> None:
    check(mod, images_of(seed), QConfig(**{**FAST, **fields}) if fields else config)
