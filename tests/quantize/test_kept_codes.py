"""Large weights in formats of few bits: realized as codes and scales, built packed, and in every
other way the float32 numbers that they stand for."""

from typing import Any

import numpy as np
import pytest

import compiler
import quantize
from compiler.build import optimize
from compiler.ir.expr import Call, Constant, IRModule
from quantize import QConfig
from quantize.formats.chosen import weight_array
from quantize.formats.operand_format import OperandFormat
from quantize.realization.kept_codes import FEWEST, codes_of
from quantize.realization.realize import Realizer
from quantize.search.costs import plan_cost

UNITS, INPUTS = 512, 640  # more than a cache holds as float32
FORMATS: dict[str, dict[str, Any]] = {
    "nf4": {"weight_dtype": "nf4", "weight_granularity": "group", "weight_group_size": 64},
    "nf4_channel": {"weight_dtype": "nf4", "weight_granularity": "channel"},
    "e2m1": {"weight_dtype": "float4_e2m1fn"},
    "mxfp4": {"weight_dtype": "mxfp4_e2m1"},
    "nvfp4": {"weight_dtype": "nvfp4"},
    "gptq": {"weight_dtype": "nvfp4", "weight_rounding": "gptq"},
}


def layer(rows: int | str = 1, units: int = UNITS) -> tuple[IRModule, np.ndarray]:
    rng = np.random.default_rng(0)
    n = compiler.symbolic.Var("n") if rows == "n" else rows
    x = compiler.var("x", (n, INPUTS))
    weight = compiler.const(rng.standard_normal((units, INPUTS)).astype(np.float32))
    bias = compiler.const(rng.standard_normal(units).astype(np.float32))
    y = compiler.call("nn.dense", x, weight, bias)
    data = rng.standard_normal((1 if rows == "n" else rows, INPUTS)).astype(np.float32)
    return IRModule({"main": compiler.function([x], y)}), data


def plan_of(mod: IRModule, x: np.ndarray, entries: dict[str, Any]) -> quantize.Plan:
    return quantize.calibrate(mod, [x], QConfig(activation_dtype="float32", **entries))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(
            entries, id=name, marks=[pytest.mark.thorough] if name in ("gptq", "nf4") else []
        )
        for name, entries in FORMATS.items()
    ],
)
def test_weights_of_plans_are_read_packed(entries: dict[str, Any]) -> None:
    mod, x = layer()
    plan = plan_of(mod, x, entries)
    realized, plain = quantize.realize(mod, plan), Realizer(mod, plan, boundary=True).run()
    assert "qnn.lookup" not in str(plain)
    want = compiler.evaluate(plain, x)
    np.testing.assert_array_equal(compiler.evaluate(realized, x), want)
    text = str(optimize(realized))
    assert "qnn.packed_dense" in text
    assert "bits=4" in text
    # Sums of 640 float32 numbers: what their roundings can differ by.
    got = compiler.build(realized)(x)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


def test_other_layers_get_the_numbers_themselves() -> None:
    for rows, units in ((64, UNITS), (1, FEWEST // INPUTS)):
        mod, x = layer(rows, units)
        realized = quantize.realize(mod, plan_of(mod, x, FORMATS["nf4"]))
        text = str(optimize(realized))
        assert "packed" not in text
        assert "lookup" not in text
    mod, x = layer()
    for entries in ({"weight_dtype": "float8_e4m3fn"}, {"weight_dtype": "mxfp6_e3m2"}):
        assert "lookup" not in str(quantize.realize(mod, plan_of(mod, x, entries)))


@pytest.mark.parametrize("name", ["nf4", "int3", "float4_e2m1fn", "nvfp4", "mxfp4_e2m1"])
@pytest.mark.parametrize("group", [0, 16])
def test_codes_are_the_numbers(name: str, group: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((6, 64)).astype(np.float32) * 2.0 ** rng.integers(-9, 9, (6, 64))
    x[0] = 0
    blocks = OperandFormat(name).blocks is not None
    scales = (
        (1.0,)
        if blocks
        else tuple(float(n) for n in 2.0 ** rng.integers(-3, 3, 24 if group else 6))
    )
    f = OperandFormat(name, scales, axis=1 if blocks else 0, group=0 if blocks else group)
    found = codes_of(x.astype(np.float32), f)
    assert found is not None
    assert found.codes.max() < 16
    got = found.table[found.codes] * found.scales
    np.testing.assert_array_equal(got.reshape(x.shape), weight_array(x.astype(np.float32), f))


def test_weights_that_have_no_codes() -> None:
    x = np.ones((4, 24), np.float32)
    for f in (
        OperandFormat("float32"),
        OperandFormat("posit8_es0"),
        OperandFormat("nvfp4", axis=1),  # half a block at the end
        OperandFormat("nvfp4", axis=0),
        OperandFormat("nf4", axes=(1,), scales=tuple(map(float, range(1, 25)))),
    ):
        assert codes_of(x, f) is None
    assert codes_of(np.full((4, 24), np.nan, np.float32), OperandFormat("nf4")) is None
    assert codes_of(np.ones((4, 6, 2), np.float32), OperandFormat("nf4")) is None


def test_costs_are_those_of_the_numbers() -> None:
    mod, x = layer()
    plan = plan_of(mod, x, FORMATS["nf4"])
    kept = plan_cost(mod, plan)
    words = UNITS * INPUTS // 2 + UNITS * INPUTS // 64 * 4
    assert words <= kept.parameter_bytes <= words + 4 * UNITS + 64
    constants = [
        a.data.nbytes
        for b in quantize.realize(mod, plan).main.bindings
        if isinstance(b.value, Call)
        for a in b.value.args
        if isinstance(a, Constant)
    ]
    assert sum(constants) < UNITS * INPUTS * 1.2
