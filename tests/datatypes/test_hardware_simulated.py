"""Verilog of formats as Yosys reads it, simulated: all pairs up to 8 bits, samples beyond."""

from __future__ import annotations

import numpy as np
import pytest

import datatypes
from compiler.errors import DtypelabError
from datatypes.arithmetic import oracle
from datatypes.formats import get
from datatypes.hardware import tools
from datatypes.hardware.generate import design
from datatypes.hardware.simulation import Simulation
from datatypes.proof import samples

needs_tools = pytest.mark.skipif(
    bool(tools.missing() or tools.missing_compiler()),
    reason=tools.missing() or tools.missing_compiler(),
)
EIGHT = (
    "posit8_es0", "posit8_es2", "float8_e4m3fn", "float8_e5m2", "takum8", "fixed8_4", "nf4",
    "lns8_3",
)  # fmt: skip
SIXTEEN = ("posit16_es1", "posit16_es2", "float16", "bfloat16", "takum16", "fixed16_8")


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize("name", EIGHT)
def test_all_pairs_of_codes(name: str) -> None:
    fmt = get(name)
    codes = np.arange(fmt.mask + 1)
    a, b = (side.ravel() for side in np.meshgrid(codes, codes))
    with Simulation(design(name, "sequential"), ["add", "mul", "decode", "encode"]) as circuit:
        for op in ("Add", "Mul"):
            wrong = circuit.run(op.lower(), a=a, b=b) != oracle.apply(fmt, op, a, b)
            assert not wrong.any()
        again = circuit.run("encode", parts=circuit.run("decode", a=codes))
    want = codes if fmt.logarithmic else datatypes.encode(fmt, datatypes.decode(fmt, codes))
    assert np.array_equal(again, want)


@needs_tools
@pytest.mark.thorough
def test_all_pairs_of_int8() -> None:
    a, b = (side.ravel() for side in np.meshgrid(np.arange(256), np.arange(256)))
    x, y = (side.astype(np.uint8).view(np.int8) for side in (a, b))
    with Simulation(design("int8"), ["add", "mul", "mac"]) as circuit:
        assert np.array_equal(circuit.run("add", a=a, b=b), (x + y).view(np.uint8))
        assert np.array_equal(circuit.run("mul", a=a, b=b), (x * y).view(np.uint8))
        acc = circuit.run("mac", a=a, b=b, acc=np.full(len(a), 3 << 30)).astype(np.uint32)
        assert np.array_equal(acc.view(np.int32), x * y.astype(np.int32) - (1 << 30))


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize("name", SIXTEEN)
def test_a_million_pairs_of_sixteen_bits(name: str) -> None:
    fmt = get(name)
    rng = np.random.default_rng(16)
    ends = samples.extremes(fmt)
    pairs = [rng.integers(0, fmt.mask + 1, 500_000), samples.ordinary(fmt, rng, 500_000)]
    a = np.concatenate([*pairs, rng.choice(ends, 20_000)])
    b = rng.permutation(a)
    with Simulation(design(name, "sequential"), ["add", "mul"]) as circuit:
        for op in ("Add", "Mul"):
            wrong = circuit.run(op.lower(), a=a, b=b) != oracle.apply(fmt, op, a, b)
            assert not wrong.any()


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 2])
def test_a_pipeline_gives_the_same_some_clocks_later(rows: int) -> None:
    fmt = get("float8_e5m2")
    codes = np.arange(fmt.mask + 1)
    a, b = (side.ravel() for side in np.meshgrid(codes, codes))
    made = design("float8_e5m2", "bfloat16", pipeline=rows)
    assert made.circuits["mul"].cuts == rows
    with Simulation(made, ["add", "mul"]) as circuit:
        for op in ("Add", "Mul"):
            assert np.array_equal(circuit.run(op.lower(), a=a, b=b), oracle.apply(fmt, op, a, b))
        for op in ("Add", "Mul"):
            assert np.array_equal(circuit.stream(op.lower(), a=a, b=b), oracle.apply(fmt, op, a, b))


@needs_tools
@pytest.mark.thorough
def test_what_has_no_registers_has_no_clock() -> None:
    with (
        Simulation(design("int4"), ["add"]) as circuit,
        pytest.raises(DtypelabError, match="int4_add has no registers"),
    ):
        circuit.stream("add", a=np.zeros(1, int), b=np.zeros(1, int))
