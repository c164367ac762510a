"""Every arithmetic of requantize: exact where it says so, the same by every path."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor, frexp

import numpy as np
import pytest
from gemmlowp_oracle import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from qnn_checks import RANGES, check, check_compiled, limits, reference

import compiler
from compiler.errors import UnsupportedError
from compiler.op.qnn.requantize import ROUNDINGS
from compiler.types.dtypes import Array

CPUS = ("", " -mcpu=skylake-avx512", " -mcpu=haswell", " -mcpu=x86-64-v2")
HALVES = np.array([-7, -5, -3, -1, 1, 3, 5, 7], np.int32)
UP, EVEN = [-3, -2, -1, 0, 1, 2, 3, 4], [-4, -2, -2, 0, 0, 2, 2, 4]


def targets() -> list[str]:
    """The instruction sets that this machine can run."""
    out = []
    for cpu in CPUS:
        try:
            out.append(compiler.Target.parse(f"llvm{cpu}").text)
        except UnsupportedError:
            continue
    return out


@pytest.mark.parametrize(
    ("rounding", "want"),
    [
        ("float32", EVEN),
        ("float64", EVEN),
        ("fixed_tonearest_even", EVEN),
        ("fixed_upward", UP),
        ("shift", UP),
    ],
)
def test_requantize_of_halves(rounding: str, want: Sequence[int]) -> None:
    got = check("qnn.requantize", HALVES, np.float32(0.5), rounding=rounding, **limits("int8"))
    assert got.tolist() == want


def exact(x: int, scale: float, rounding: str) -> int:
    """The integer that x * scale becomes, by rational arithmetic."""
    if rounding == "gemmlowp":
        return scaled(x, scale)
    if rounding == "float32":
        product = np.float32(np.float64(np.float32(x)) * np.float64(scale))
        return round(Fraction(float(product)))
    if rounding == "float64":
        return round(Fraction(float(Fraction(x) * Fraction(scale))))
    significand, exponent = frexp(scale)
    if rounding == "shift":
        multiplier = Fraction(1 if significand >= 0.75 else Fraction(1, 2))
    else:
        multiplier = Fraction(floor(Fraction(significand) * 2**31 + Fraction(1, 2)), 2**31)
    product = x * multiplier * Fraction(2) ** exponent
    if rounding == "fixed_tonearest_even":
        return round(product)
    return floor(product + Fraction(1, 2))


def borders(scale: float, seed: int) -> Array:
    """int32 accumulators: the ends, around powers of two, and around those whose products are
    halves of every 8-bit integer."""
    powers = [s * 2**k + d for k in range(32) for s in (1, -1) for d in (-1, 0, 1)]
    halves = [
        floor(Fraction(2 * k + 1, 2) / Fraction(scale)) + d
        for k in range(-131, 260)
        for d in (-1, 0, 1, 2)
    ]
    rng = np.random.default_rng(seed)
    drawn = rng.integers(-(2**31), 2**31, 64).tolist()
    inside = [max(-(2**31), min(2**31 - 1, v)) for v in (*powers, *halves, *drawn)]
    return np.array(inside, np.int32)


def border_scales(rounding: str) -> Array:
    """Scales from 2^-40 to above 1: powers of two, their neighbours, and others."""
    rng = np.random.default_rng(5)
    held = np.float32 if rounding == "float32" else np.float64
    powers = [held(2.0**k) for k in (0, -1, -2, -7, -8, -15, -24, -31, -32, -33, -40)]
    near = [np.nextafter(p, held(t)) for p in powers[:6] for t in (0, 4)]
    return np.array([*powers, *near, *(2 ** rng.uniform(-22, 0.5, 8)), 1.5, 1.4999], held)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_requantize_at_every_border_on_every_instruction_set(rounding: str) -> None:
    scales = border_scales(rounding)
    x = np.stack([borders(float(s), k) for k, s in enumerate(scales)], axis=1)
    safe = np.abs(x * scales.astype(np.float64)) < 2.0**30
    x = np.where(safe, x, 0)
    attrs = {"axis": 1, "rounding": rounding, "output_zero_point": 3, **limits("int8")}
    got = reference("qnn.requantize", x, scales, **attrs)
    for k, s in enumerate(scales):
        column = [exact(int(v), float(s), rounding) for v in x[:, k]]
        assert got[:, k].tolist() == [min(max(q + 3, -128), 127) for q in column], float(s)
    check_compiled("qnn.requantize", [x, scales], got, targets(), **attrs)


def test_a_float64_scale_has_a_multiplier_of_31_bits() -> None:
    """2^30 * (1/3) is 357913941.33: 24 bits of 1/3 give another integer."""
    x, third = np.array([1 << 30], np.int32), 1 / 3
    attrs = {"rounding": "fixed_upward", **limits("uint8")}
    near = 357913941 - 100
    for scale, above in ((np.float64(third), 0), (np.float32(third), 11)):
        zero = {"output_zero_point": -near}
        assert reference("qnn.requantize", x, scale, **attrs, **zero).tolist() == [100 + above]


scales = st.floats(2.0**-45, 1.5).filter(lambda s: s > 0)
accumulators = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None)
@given(
    x=accumulators,
    scale=scales,
    zero=st.integers(0, 255),
    rounding=st.sampled_from(ROUNDINGS[1:]),
    narrow=st.booleans(),
)
def test_requantize_is_what_rational_arithmetic_says(
    x: list[int], scale: float, zero: int, rounding: str, narrow: bool
) -> None:
    held = np.float32(scale) if narrow else np.float64(scale)
    attrs = {"output_zero_point": zero, "rounding": rounding, **limits("uint8")}
    got = reference("qnn.requantize", np.array(x, np.int32), held, **attrs)
    want = [exact(a, float(held), rounding) + zero for a in x]
    assert got.tolist() == [min(max(q, 0), 255) for q in want]


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rounding=st.sampled_from(ROUNDINGS),
    source=st.sampled_from(["int32", "uint8", "int8"]),
    dtype=st.sampled_from(["int8", "uint8"]),
    channels=st.sampled_from([None, 1, -1]),
    wide=st.booleans(),
)
def test_requantize_agrees(
    seed: int, rounding: str, source: str, dtype: str, channels: int | None, wide: bool
) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(source)
    x = rng.integers(info.min, info.max, (2, 3, 2, 5), endpoint=True).astype(source)
    if source == "int32":
        x >>= rng.integers(0, 24, x.shape)
    size = () if channels is None else (x.shape[channels],)
    held = np.float64 if wide and rounding != "float32" else np.float32
    scale = np.exp2(rng.uniform(-20, -0.1, size)).astype(held)
    zero = 0 if source == "int32" else int(rng.integers(info.min, info.max, endpoint=True))
    low, high = RANGES[dtype]
    attrs = {
        "axis": channels or 0, "input_zero_point": zero, "rounding": rounding,
        "output_zero_point": int(rng.integers(low, high, endpoint=True)), **limits(dtype),
    }  # fmt: skip
    check("qnn.requantize", x, scale, **attrs)
