"""`trace_plan` of plans in number formats: every node as the realized module has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from encoder_net import encoder, sentences
from hypothesis import given, settings
from reference_checks import floats_of, values_of
from test_sites import LENGTH, attention, configs, dense, first_block, tokens_of

import compiler
import quantize
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from quantize import QConfig

OFF: dict[str, Any] = {"smoothing": 0.0, "bias_correction": "none"}


def check(mod: IRModule, config: QConfig, calibration: Any, x: Any) -> int:
    """Compare every node that both have; how many of them are in formats."""
    plan = quantize.calibrate(mod, [calibration], config)
    got = floats_of(values_of(quantize.realize(mod, plan), False, x))
    traced = quantize.trace_plan(mod, plan, x, given=got)
    for name, node in traced.items():
        if node.kind == "float" and name in got:
            np.testing.assert_array_equal(node.values, got[name], err_msg=name)
    return len(plan.formats.keys() & got.keys() & traced.keys())


@pytest.mark.parametrize(
    "fields",
    [
        {"weight_dtype": "float8_e4m3fn", "activation_dtype": "float8_e4m3fn"},
        {"weight_bits": 4, "weight_granularity": "group", "activation_granularity": "token"},
        {"weight_dtype": "int4", "activation_dtype": "int8", "activation_granularity": "token"},
        {"weight_dtype": "nvfp4", "activation_dtype": "mxfp8_e4m3"},
        {"weight_dtype": "nf4", "activation_dtype": "posit8_es1", "activation_granularity": "token",
         "scale_dtype": "float8_e8m0fnu"},
        {"weight_dtype": "int4", "weight_granularity": "group", "weight_group_size": 16,
         "activation_dtype": "int8", "weight_rounding": "gptq"},
    ],
)  # fmt: skip
def test_a_dense_layer_is_traced(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    w, bias = rng.normal(size=(6, 48)).astype("f4"), rng.normal(size=6).astype("f4")
    x = rng.normal(size=(5, 48)).astype(np.float32)
    assert check(dense(w, bias), QConfig(**{**OFF, **fields}), x, x) == 1


@pytest.mark.thorough
@settings(max_examples=6)
@given(configs())
def test_encoders_are_traced_in_any_formats(config: QConfig) -> None:
    mod = attention()
    assert check(mod, config, sentences(8, LENGTH, 0), sentences(2, LENGTH, 1)) > 0


@pytest.mark.thorough
@settings(max_examples=3)
@given(configs())
def test_decoders_are_traced_in_any_formats(config: QConfig) -> None:
    mod = first_block()
    assert check(mod, config, tokens_of(mod, 2, 8, 0, 2), tokens_of(mod, 1, 4, 3, 1)) > 0


def test_the_first_node_that_differs_is_found() -> None:
    """What the trace is for: a weight that was changed shows at its own node first."""
    mod = compiler.from_onnx(encoder(LENGTH))
    x: Array = sentences(1, LENGTH, 1)
    config = QConfig(weight_dtype="int8", activation_granularity="token", **OFF)
    plan = quantize.calibrate(mod, [sentences(4, LENGTH, 0)], config)
    want = quantize.trace_plan(mod, plan, x)
    name = [n for n, f in plan.formats.items() if len(f) == 2 and len(f[1].scales) > 1][2]
    first, second = plan.formats[name]
    doubled = replace(second, scales=tuple(2 * s for s in second.scales))
    changed = replace(plan, formats={**plan.formats, name: (first, doubled)})
    other = quantize.trace_plan(mod, changed, x)
    apart = [n for n in want if not np.array_equal(want[n].values, other[n].values)]
    assert apart[0] == name
