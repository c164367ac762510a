"""Sums of Verilog's MACs as Yosys reads them, simulated: 10**5 random sequences a format."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import datatypes
from datatypes.arithmetic import oracle
from datatypes.formats import Format, get
from datatypes.hardware import tools
from datatypes.hardware.accumulators import Exact
from datatypes.hardware.generate import design
from datatypes.hardware.simulation import Simulation, as_words
from datatypes.proof import samples

needs_tools = pytest.mark.skipif(
    bool(tools.missing() or tools.missing_compiler()),
    reason=tools.missing() or tools.missing_compiler(),
)
EIGHT = ("posit8_es0", "posit8_es2", "float8_e4m3fn", "float8_e5m2", "nf4", "fixed8_4", "takum8")
SIXTEEN = ("float16", "bfloat16", "posit16_es1", "posit16_es2", "fixed16_8", "takum16")
STEPS = 8


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize("name", [*EIGHT, *SIXTEEN])
def test_exact_sums_of_random_sequences(name: str) -> None:
    fmt = get(name)
    made = design(name, "exact")
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, fmt.mask + 1, (2, STEPS, 100_000))
    assert isinstance(made.accumulator, Exact)
    unit = made.accumulator.unit // 2
    values = np.array([_units(fmt, code, unit) for code in range(fmt.mask + 1)], object)
    finite = np.array([v is not None for v in values])
    ordinary = (finite[a] & finite[b]).all(axis=0)
    whole = np.where(finite, values, 0)
    want = (whole[a] * whole[b]).sum(axis=0)
    acc = np.zeros((100_000, (made.accumulator_bits + 31) // 32), np.uint32)
    with Simulation(made, ["mac", "round"]) as circuit:
        for x, y in zip(a, b, strict=True):
            found = circuit.run("mac", a=x, b=y, acc=acc)
            acc = as_words(found, made.accumulator_bits)
        codes = circuit.run("round", acc=acc)
    bits = made.accumulator_bits - 1
    expected = as_words(np.array([n & (1 << bits) - 1 for n in want], object), bits + 1)
    assert np.array_equal(acc[ordinary], expected[ordinary])
    assert ordinary.mean() > 0.1
    for place in np.nonzero(ordinary)[0][:2000]:
        total = Fraction(4) ** unit * int(want[place])
        assert codes[place] == fmt.encode_exact(total)


@needs_tools
@pytest.mark.thorough
def test_integer_sums_of_random_sequences() -> None:
    a, b = np.random.default_rng(5).integers(-128, 128, (2, STEPS, 100_000))
    acc = np.zeros(100_000, np.uint64)
    with Simulation(design("int8"), ["mac", "round"]) as circuit:
        for x, y in zip(a & 255, b & 255, strict=True):
            acc = circuit.run("mac", a=x, b=y, acc=acc)
        codes = circuit.run("round", acc=acc)
    total = (a * b).sum(axis=0)
    assert np.array_equal(acc.astype(np.uint32).view(np.int32), total)
    assert np.array_equal(codes.astype(np.uint8).view(np.int8), np.clip(total, -128, 127))


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["posit8_es2", "float8_e4m3fn", "float8_e5m2", "takum8", "nf4"])
def test_sums_in_float32_of_random_sequences(name: str) -> None:
    fmt, wide = get(name), get("float32_e8m23")
    a, b = np.random.default_rng(6).integers(0, fmt.mask + 1, (2, STEPS, 100_000))
    want = np.zeros(100_000, np.uint32)
    with Simulation(design(name, "float32"), ["mac", "round"]) as circuit:
        for x, y in zip(a, b, strict=True):
            values = [datatypes.decode(fmt, x), datatypes.decode(fmt, y)]
            total = oracle.multiply_add(wide, *values, datatypes.decode(wide, want))
            found = circuit.run("mac", a=x, b=y, acc=want)
            want = datatypes.encode(wide, total)
            assert np.array_equal(found, want)
        codes = circuit.run("round", acc=want)
    assert np.array_equal(codes, datatypes.encode(fmt, datatypes.decode(wide, want)))


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "into"),
    [
        ("posit16_es1", "posit16_es1"),
        ("posit16_es2", "posit16_es2"),
        ("float16", "float16"),
        ("float16", "float32_e8m23"),
        ("bfloat16", "bfloat16"),
        ("takum16", "takum16"),
        ("fixed16_8", "float32_e8m23"),
    ],
)
def test_a_million_steps_of_sixteen_bits(name: str, into: str) -> None:
    fmt, wide = get(name), get(into)
    rng = np.random.default_rng(9)
    a, b = rng.integers(0, fmt.mask + 1, (2, 1_000_000))
    acc = rng.integers(0, wide.mask + 1, 1_000_000)
    a[:500_000], b[:500_000] = (samples.ordinary(fmt, rng, 500_000) for _ in range(2))
    acc[:500_000] = samples.ordinary(wide, rng, 500_000)
    values = [datatypes.decode(fmt, a), datatypes.decode(fmt, b), datatypes.decode(wide, acc)]
    with Simulation(design(name, into), ["mac"]) as circuit:
        found = circuit.run("mac", a=a, b=b, acc=acc)
    want = datatypes.encode(wide, oracle.multiply_add(wide, *values))
    assert np.array_equal(found, want)


@needs_tools
@pytest.mark.thorough
def test_logarithms_are_added_after_products() -> None:
    fmt = get("lns8_3")
    a, b = np.random.default_rng(8).integers(0, fmt.mask + 1, (2, STEPS, 100_000))
    want = np.zeros(100_000, np.uint8)
    with Simulation(design("lns8_3", "sequential"), ["mac"]) as circuit:
        for x, y in zip(a, b, strict=True):
            found = circuit.run("mac", a=x, b=y, acc=want)
            want = oracle.apply(fmt, "Add", want, oracle.apply(fmt, "Mul", x, y))
            assert np.array_equal(found, want)


def _units(fmt: Format, code: int, unit: int) -> int | None:
    value = fmt.decode_exact(code)
    return int(value / Fraction(2) ** unit) if isinstance(value, Fraction) else None
