"""Verilog of sums in chunks, trees and aligned groups, and with a compensation, against what
networks compute (which other tests compare with fractions)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from accumulator_oracle import codes_of
from sum_oracle import dtype_of
from verilog_reader import modules, ports

import compiler
from compiler.errors import DtypelabError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.accumulator_presets import PRESETS
from datatypes.formats import Format, get
from datatypes.hardware import tools
from datatypes.hardware.accumulators import Staged
from datatypes.hardware.generate import Design, design
from datatypes.hardware.simulation import Simulation

needs_tools = pytest.mark.skipif(
    bool(tools.missing() or tools.missing_compiler()),
    reason=tools.missing() or tools.missing_compiler(),
)
Codes = npt.NDArray[Any]
Run = Callable[..., Codes]
MODES = [
    ("float8_e4m3fn", "h100_fp8"),
    ("float8_e5m2", "h100_fp8_promoted"),
    ("float16", "v100_fp16"),
    ("bfloat16", "a100_fp16"),
    ("posit8_es2", "b200_fp8"),
    ("float8_e4m3fnuz", "l40s_fp8"),
    ("fixed8_4", '{format = "float32", align_bits = 20, group = 4}'),
    ("float8_e4m3fn", '{format = "float16", chunk = 5, outer = "float32", order = "tree4"}'),
    ("posit8_es2", '{format = "posit16_es2", order = "tree8", products = "rounded"}'),
    ("takum8", '{format = "bfloat16", chunk = 3, rounding = "truncate"}'),
    ("float8_e4m3fn", '{format = "bfloat16", compensated = true}'),
    ("posit8_es1", '{format = "float16", chunk = 4, outer = "takum16", compensated = true}'),
    ("float4_e2m1fn", '{format = "float32", order = "tree2"}'),
    ("nf4", '{format = "float32", chunk = 4}'),
]

WIDE = ("h100_fp8", "h100_fp8_promoted", "b200_fp8")
"""Groups of 32, which take a minute to simulate."""


def sums(made: Design, run: Run, x: Codes, w: Codes) -> Codes:
    """Codes of the dot products of rows, [rows, terms], by the modules of a design."""
    into, terms = made.accumulator, made.terms
    assert isinstance(into, Staged)
    size = into.how.chunk or x.shape[1]
    total = acc = np.zeros(len(x), np.int64)
    for start in range(0, x.shape[1], size):
        acc = np.zeros(len(x), np.int64)
        for k in range(start, min(start + size, x.shape[1]), terms):
            end = min(k + terms, start + size, x.shape[1])
            a, b = (packed(made.nbits, codes[:, k:end]) for codes in (x, w))
            acc = run("mac", a=a, b=b, acc=acc)
        if into.outer is not None:
            total = run("outer", part=acc, acc=total)
    return run("round", acc=acc if into.outer is None else total)


def packed(nbits: int, codes: Codes) -> Codes:
    """Codes of a group side by side, the first one lowest."""
    places = [nbits * k for k in range(codes.shape[1])]
    return np.array(
        [sum(int(v) << k for v, k in zip(row, places, strict=True)) for row in codes], object
    )


def pairs(fmt: Format, rows: int, columns: int) -> tuple[Codes, Codes]:
    """Factors of all magnitudes, and some of any codes, what is no number included."""
    x, w = codes_of(fmt, rows, 1), codes_of(fmt, columns, 2)
    x[-1] = np.random.default_rng(3).integers(0, fmt.mask + 1, x.shape[1])
    return x, w


def network(fmt: Format, mode: str, x: Codes, w: Codes, compiled: bool) -> Codes:
    """Codes of x @ w.T, row by row, as a network computes them."""
    b = FunctionBuilder()
    factors = (b.param(n, v.shape, dtype_of(fmt)) for n, v in (("x", x), ("w", w)))
    mod = IRModule({"main": b.finish(b.call("nn.dense", *factors, accumulate=mode))})
    return np.asarray(
        compiler.build(mod)(x, w) if compiled else compiler.evaluate(mod, x, w)
    ).ravel()


def every(x: Codes, w: Codes) -> tuple[Codes, Codes]:
    """Every row with every column."""
    return np.repeat(x, len(w), axis=0), np.tile(w, (len(x), 1))


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_sums_are_those_of_networks(name: str, mode: str) -> None:
    fmt, made = get(name), design(name, mode)
    read = modules(made.verilog)

    def run(what: str, **inputs: Codes) -> Codes:
        work, rows = read[f"{name}_{what}"], zip(*inputs.values(), strict=True)
        return np.array(
            [work(**{p: int(v) for p, v in zip(inputs, row, strict=True)}) for row in rows], object
        )

    x, w = pairs(fmt, 2, 4)
    found = sums(made, run, *every(x, w))
    assert found.tolist() == network(fmt, mode, x, w, compiled=False).tolist()


@needs_tools
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[pytest.mark.slow] if mode in WIDE else [])
        for name, mode in MODES
    ],
)
def test_simulated_sums_are_those_of_networks(name: str, mode: str) -> None:
    fmt, made = get(name), design(name, mode)
    x, w = pairs(fmt, 40, 250)
    with Simulation(made, ["mac", "outer", "round"]) as circuit:
        found = sums(made, circuit.run, *every(x, w))
    assert np.array_equal(found, network(fmt, mode, x, w, compiled=True))


def test_every_preset_has_circuits() -> None:
    for name, how in PRESETS.items():
        made = design("float8_e4m3fn", name)
        found = ports(made.verilog)
        assert made.terms == how.group
        assert found["float8_e4m3fn_mac"]["a"] == ("input", 8 * how.group)
        assert ("float8_e4m3fn_outer" in found) == bool(how.chunk)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("mode", ["v100_fp16", '{format = "float16", compensated = true}'])
def test_steps_wait_in_registers(mode: str, rows: int) -> None:
    plain, late = (design("float8_e5m2", mode, pipeline=n) for n in (0, rows))
    assert late.circuits["mac"].cuts == rows
    work = [modules(made.verilog)["float8_e5m2_mac"] for made in (plain, late)]
    for words in np.random.default_rng(5).integers(0, 1 << 32, (10, 3)).tolist():
        width = 8 * plain.terms
        a, b, acc = (v & (1 << n) - 1 for v, n in zip(words, (width, width, 32), strict=True))
        assert work[0](a=a, b=b, acc=acc) == work[1](a=a, b=b, acc=acc)


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("nf4", '{format = "float16", order = "pairwise"}', "the nearest is order = 'tree8'"),
        ("nf4", '{format = "float64", chunk = 2}', "has no sums in float64.*='float32'"),
        ("nf4", '{format = "float16", chunk = 2, outer = "lns8_3"}', "no sums in lns8_3"),
        ("bfloat16", "float8_e5m2", "8 bits .float8_e5m2. is narrower than a factor of bfloat16"),
        ("float16", "h100_fp8", "keeps 14 bits is narrower than products of float16.*have 22"),
        ("int16", "h100_fp8", "keeps 14 bits is narrower than products of int16, which have 30"),
        ("int8", "float64", "hardware of int8 has no sums in float64"),
        ("float16", "h100_fp9", "is none of exact, fma"),
        ("lns8_3", "h100_fp8", "lns8_3 has only sequential"),
    ],
)
def test_sums_that_no_step_forms_are_refused(name: str, mode: str, message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        design(name, mode)
    if name == "lns8_3":
        with pytest.raises(UnsupportedError):
            design(name, '{format = "float16", order = "tree4"}')
