"""Simulated graphs round halves as the integer arithmetic of their plan does."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qnn_checks import check
from quantize_nets import NETS, images, mixed_net, net, noise, plan_of

import compiler
import quantize
from compiler.errors import TypeInferenceError
from compiler.op.qnn.quantize import HALVES
from quantize import QConfig


def nearest(x: Fraction, halves: str) -> int:
    """The integer nearest to a number."""
    if halves == "even":
        return round(x)
    if halves == "up" or x > 0:
        return floor(x + Fraction(1, 2))
    return -floor(-x + Fraction(1, 2))


@settings(max_examples=60, deadline=None)
@given(
    x=st.lists(
        st.integers(-600, 600).map(lambda k: k / 2) | st.floats(-300, 300, width=32), min_size=1
    ),
    halves=st.sampled_from(HALVES),
    zero=st.integers(-128, 127),
    k=st.integers(-10, 10),
)
def test_halves_go_where_they_are_told(x: list[float], halves: str, zero: int, k: int) -> None:
    near = [np.nextafter(np.float32(v), np.float32(t)) for v in x for t in (-1e9, 1e9)]
    data = np.concatenate([np.float32(x), near]) * np.float32(2.0**k)
    data = data[(np.abs(data) > 1e-30) | (data == 0)].astype(np.float32)
    got = check(
        "qnn.simulated_quantize", data, np.float32(2.0**k), zero_point=zero, halves=halves,
        out_dtype="int8", qmin=-128, qmax=127,
    )  # fmt: skip
    unit = Fraction(2) ** k
    q = [nearest(Fraction(float(v)) / unit, halves) for v in data]
    want = [min(max(v, -128 - zero), 127 - zero) * 2.0**k for v in q]
    np.testing.assert_array_equal(got, np.float32(want))


def test_other_names_are_refused() -> None:
    with pytest.raises(TypeInferenceError, match="halves must be one of"):
        check("qnn.simulated_quantize", np.zeros(2, np.float32), np.float32(1), halves="odd")


KINDS = [
    pytest.param(name, dtype, symmetric, calibrate, marks=[pytest.mark.slow] * (not quick))
    for name in NETS
    for dtype, symmetric in (("uint8", False), ("int8", True))
    for calibrate in ("mse", "minmax")
    for quick in [(name, dtype, calibrate) in (("resnet8", "int8", "mse"), ("mlp", "uint8", "mse"))]
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "dtype", "symmetric", "calibrate"), KINDS)
def test_a_simulation_of_shifts_is_exact(
    name: str, dtype: str, symmetric: bool, calibrate: str
) -> None:
    """Every sum is a float32 number, and half of all additions of residues are halves."""
    config = QConfig(
        requantize="shift", activation_dtype=dtype, activation_symmetric=symmetric,
        calibrate=calibrate, bias_correction="none",
    )  # fmt: skip
    plan, x = plan_of(name, config), images()[1][:10]
    simulated = compiler.build(quantize.simulate(net(name), plan))(x)
    np.testing.assert_array_equal(simulated, compiler.build(quantize.realize(net(name), plan))(x))


@pytest.mark.parametrize("rounding", ["shift", "fixed_upward", "float64"])
def test_a_simulation_of_every_form_with_powers_of_two_is_exact(rounding: str) -> None:
    mod = mixed_net()
    plan = quantize.calibrate(
        mod, [noise(8)], QConfig(requantize="shift", skip=("soft",), bias_correction="none")
    )
    plan = replace(plan, config=replace(plan.config, requantize=rounding))
    pairs = zip(
        compiler.evaluate(quantize.simulate(mod, plan), noise(4)),
        compiler.evaluate(quantize.realize(mod, plan), noise(4)),
        strict=True,
    )
    for s, r in pairs:
        np.testing.assert_allclose(s, r, rtol=1e-6, atol=1e-6)  # softmax is a float operator
