"""Floating-point instructions and conversions of PTX round as exact fractions say."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx_instructions import integers
from ptx_numbers import ARITHMETIC, CONVERSIONS, FORMATS, fma, from_bits, numbers, to_bits
from ptx_runs import HEAD, Array, assemble, dtype_of, elementwise, run_elementwise

from compiler.codegen.ptx.assembler import assembler
from compiler.runtime.machines import ptx

CASES = [*ARITHMETIC, *CONVERSIONS]


def kernels(picked: list[int]) -> str:
    """Those of some cases."""
    return HEAD.format(target="sm_90") + "".join(
        elementwise(f"k{i}", CASES[i][0].code, CASES[i][0].sources, CASES[i][0].target)
        for i in picked
    )


@pytest.fixture(scope="module")
def module() -> ptx.PtxModule:
    return ptx.parse(kernels(list(range(len(CASES)))))


def values(rng: np.random.Generator, kind: str, n: int) -> Array:
    return numbers(rng, kind, n) if kind in FORMATS else integers(rng, kind.replace("b", "u"), n)


def shown(raw: Any, kind: str) -> str:
    return f"{int(raw):#x} ({from_bits(int(raw), kind)})" if kind in FORMATS else str(int(raw))


def wrong(module: ptx.PtxModule, i: int, n: int) -> list[str]:
    (case, kinds), rng = CASES[i], np.random.default_rng(i)
    arrays = [values(rng, k, n) for k in kinds]
    got = run_elementwise(module, f"k{i}", arrays, case.target)
    want = np.array([case.meaning(*map(int, v)) for v in zip(*arrays, strict=True)],
                    dtype_of(case.target))  # fmt: skip
    same = got == want
    if case.target == "u64" and "f64" in case.code:  # of float64, any NaN will do
        same |= np.isnan(got.view(np.float64)) & np.isnan(want.view(np.float64))
    return [
        f"{[shown(a[k], t) for a, t in zip(arrays, kinds, strict=True)]} -> {got[k]:#x}, "
        f"not {want[k]:#x}"
        for k in np.flatnonzero(~same)[:3]
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("i", range(len(CASES)), ids=lambda i: CASES[i][0].code)
def test_float_instruction(module: ptx.PtxModule, i: int) -> None:
    assert wrong(module, i, 200) == []


def test_some_float_instructions() -> None:
    picked = list(range(0, len(CASES), 29))
    few = ptx.parse(kernels(picked))
    assert {CASES[i][0].code: wrong(few, i, 30) for i in picked if wrong(few, i, 30)} == {}


PAIRS = [
    ("add.f16x2", "f16"), ("mul.f16x2", "f16"), ("sub.f16x2", "f16"), ("fma.rn.f16x2", "f16"),
    ("fma.rn.bf16x2", "bf16"), ("min.f16x2", "f16"), ("max.bf16x2", "bf16"), ("neg.f16x2", "f16"),
    ("abs.bf16x2", "bf16"), ("add.rn.bf16x2", "bf16"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "kind"), PAIRS)
def test_pairs_of_halves_are_two_halves(code: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    n = 3 if "fma" in code else 1 if code[:3] in ("neg", "abs") else 2
    names = ", ".join(f"%{c}" for c in "abc"[:n])
    single = code.replace("x2", "")
    text = HEAD.format(target="sm_90")
    text += elementwise("two", f"{code} %d, {names}", ["b32"] * n, "b32")
    text += elementwise("one", f"{single} %d, {names}", ["b16"] * n, "b16")
    arrays = [numbers(rng, kind, 400) for _ in range(n)]
    module = ptx.parse(text)
    both = run_elementwise(module, "two", [a.view(np.uint32) for a in arrays], "b32")
    each = run_elementwise(module, "one", arrays, "b16")
    assert np.array_equal(both.view(np.uint16), each)
    if n == 1:
        bit = 0x8000
        assert np.array_equal(
            each, arrays[0] ^ bit if "neg" in code else arrays[0] & ~np.uint16(bit)
        )


FUNCTIONS = {"ex2.approx": lambda x: 2.0**x, "lg2.approx": math.log2, "sin.approx": math.sin,
             "cos.approx": math.cos, "tanh.approx": math.tanh,
             "rsqrt.approx": lambda x: 1 / math.sqrt(x), "sqrt.approx": math.sqrt,
             "rcp.approx": lambda x: 1 / x}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_round_well(name: str) -> None:
    x = np.random.default_rng(2).uniform(0.01, 12, 200).astype(np.float32)
    text = HEAD.format(target="sm_80") + elementwise("k", f"{name}.f32 %d, %a", ["f32"], "f32")
    got = run_elementwise(ptx.parse(text), "k", [x], "f32")
    want = np.array([FUNCTIONS[name](float(v)) for v in x])
    assert np.array_equal(got, want.astype(np.float32))


def test_special_values_of_functions() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e-40], np.float32)
    want = {
        "ex2.approx": [1, 1, np.inf, 0, np.nan, 0.5, 1],
        "lg2.approx": [
            -np.inf,
            -np.inf,
            np.inf,
            np.nan,
            np.nan,
            np.nan,
            np.log2(np.float32(1e-40)),
        ],
        "lg2.approx.ftz": [-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, -np.inf],
        "rsqrt.approx": [np.inf, -np.inf, 0, np.nan, np.nan, np.nan, np.float32(1e-40) ** -0.5],
        "tanh.approx": [0, -0.0, 1, -1, np.nan, np.tanh(-1), 1e-40],
    }
    for name, results in want.items():
        text = HEAD.format(target="sm_80") + elementwise("k", f"{name}.f32 %d, %a", ["f32"], "f32")
        got = run_elementwise(ptx.parse(text), "k", [x], "f32")
        assert np.allclose(got, np.array(results, np.float32), equal_nan=True, rtol=1e-6), name
        assert set(got[np.isnan(got)].view(np.uint32).tolist()) <= {0x7FFFFFFF}


@pytest.mark.thorough
def test_fused_multiply_adds_where_parts_cancel() -> None:
    """c is near -a b: what rounding twice gets wrong."""
    rng = np.random.default_rng(11)
    for kind in ("f32", "f64", "f16", "bf16"):
        digits, _, bits, _ = FORMATS[kind]
        a = (1 + rng.integers(0, 2 ** (digits - 1), 2000) / 2.0 ** (digits - 1)).tolist()
        b = (1 + rng.integers(0, 2 ** (digits - 1), 2000) / 2.0 ** (digits - 1)).tolist()
        scale = rng.integers(-2 * digits, 3, 2000).tolist()
        c = [-x * y if k % 3 else math.ldexp(1.0, s) for k, (x, y, s) in
             enumerate(zip(a, b, scale, strict=True))]  # fmt: skip
        c = [from_bits(to_bits(fma(1.0, v, 0.0, kind, "rn"), kind), kind) for v in c]
        arrays = [np.array([to_bits(v, kind) for v in w], f"u{bits // 8}") for w in (a, b, c)]
        text = elementwise("k", f"fma.rn.{kind} %d, %a, %b, %c", [f"b{bits}"] * 3, f"u{bits}")
        got = run_elementwise(
            ptx.parse(HEAD.format(target="sm_90") + text), "k", arrays, f"u{bits}"
        )
        want = [to_bits(fma(*v, kind, "rn"), kind) for v in zip(a, b, c, strict=True)]
        assert got.tolist() == want


@pytest.mark.thorough
@pytest.mark.skipif(not assembler(), reason="needs ptxas (package nvidia-cuda-nvcc)")
def test_ptxas_accepts_floats(tmp_path: Path) -> None:
    assert assemble(kernels(list(range(len(CASES)))), "sm_90", tmp_path) == ""
    text = HEAD.format(target="sm_90")
    for k, (code, _) in enumerate(PAIRS):
        n = 3 if "fma" in code else 1 if code[:3] in ("neg", "abs") else 2
        names = ", ".join(f"%{c}" for c in "abc"[:n])
        text += elementwise(f"p{k}", f"{code} %d, {names}", ["b32"] * n, "b32")
    assert assemble(text, "sm_90", tmp_path) == ""
