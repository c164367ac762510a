"""Circuits of formats by every rule that a description may have: all pairs of up to 7 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_hardware import exact_sum
from verilog_reader import modules

import datatypes
from compiler.errors import UnsupportedError
from datatypes.arithmetic import oracle
from datatypes.formats import Format, get, minifloat
from datatypes.formats.codebook import codebook
from datatypes.formats.tables import operation_tables
from datatypes.hardware.accumulators import Exact
from datatypes.hardware.generate import design, hardware

FLOAT = minifloat(3, 2, name="float6")
ROUNDED = [
    replace(fmt, name=f"{fmt.name}_{rounding}", rounding=rounding)
    for fmt in (FLOAT, get("posit6_es1"), get("fixed6_3"), get("nf4"))
    for rounding in ("zero", "up", "down", "nearest_away")
]
STYLES = [
    minifloat(3, 2, "p3109", name="float6_p3109"),
    minifloat(3, 2, "fnuz", bias=4, name="float6_fnuz"),
    minifloat(5, 0, "fn", name="float6_e5m0"),
    minifloat(2, 3, "fn", saturate=True, name="float6_sat"),
    minifloat(3, 2, subnormals=False, name="float6_normal"),
    minifloat(4, 0, "finite", subnormals=False, name="float5_powers"),
    minifloat(2, 1, "fn", subnormals=False, bias=3, name="float4_normal"),
    minifloat(2, 1, "fn", name="float4_fn"),  # the largest number is a power of two
    minifloat(1, 1, "finite", name="float3_e1m1"),
    *(
        replace(minifloat(2, 2, "finite", subnormals=False), name=f"float5_{r}", rounding=r)
        for r in ("zero", "up", "nearest_away")
    ),
    replace(FLOAT, name="float6_minpos", underflow="minpos"),
]
LISTED = [
    codebook("no_zero", [1.0, -2.5, 0.125, np.nan, np.inf, 7.0, -0.5, 3.0]),
    codebook("infinite", [0.0, -2.5, 0.125, np.nan, np.inf, 7.0, -np.inf, 3.0]),
    codebook("unsigned", [k / 4 for k in range(16)]),
    codebook("powers", [2.0 ** (k - 9) for k in range(32)]),
]
WIDTHS = [
    get(name)
    for name in (
        *("posit3_es1", "posit4_es0", "posit5_es2", "posit7_es0", "posit7_es3"),
        *("takum5", "takum6", "takum7", "fixed4_4", "fixed6_0", "fixed6_9", "lns6_2"),
        *("fixed2_1", "fixed3_2", "posit2_es0", "lns5_1"),
    )
]
ALL = [*ROUNDED, *STYLES, *LISTED, *WIDTHS]


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)
def test_all_pairs(fmt: Format) -> None:
    made = modules(hardware(fmt, "sequential"))
    codes = np.arange(fmt.mask + 1)
    a, b = (side.ravel() for side in np.meshgrid(codes, codes))
    for op in ("Add", "Mul"):
        work = made[f"{fmt.name}_{op.lower()}"]
        found = [work(a=x, b=y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert found == oracle.apply(fmt, op, a, b).tolist()
    decode, encode = made[f"{fmt.name}_decode"], made[f"{fmt.name}_encode"]
    want = codes if fmt.logarithmic else datatypes.encode(fmt, datatypes.decode(fmt, codes))
    assert [encode(decode(code)) for code in codes.tolist()] == want.tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", [f for f in ALL if not f.logarithmic], ids=lambda fmt: fmt.name)
def test_sums(fmt: Format) -> None:
    made, rng = design(fmt, "exact"), np.random.default_rng(0)
    assert isinstance(made.accumulator, Exact)
    module = modules(made.verilog)
    for x, y in rng.integers(0, fmt.mask + 1, (100, 2, 3)).tolist():
        acc = 0
        for p, q in zip(x, y, strict=True):
            acc = module[f"{fmt.name}_mac"](a=p, b=q, acc=acc)
        assert (acc, module[f"{fmt.name}_round"](acc)) == exact_sum(fmt, made.accumulator, x, y)
    for name in ("float16", "posit10_es1"):
        back = modules(hardware(fmt, name))[f"{fmt.name}_round"]
        codes = rng.integers(0, get(name).mask + 1, 100)
        want = datatypes.encode(fmt, datatypes.decode(name, codes)).tolist()
        assert [back(code) for code in codes.tolist()] == want


def test_a_table_of_products_is_the_multiplier() -> None:
    table = np.random.default_rng(1).integers(0, 16, (16, 16))
    fmt = replace(get("posit4_es0"), tables=operation_tables("approximate", 4, {"Mul": table}))
    fmt = replace(fmt, name="approximate")
    made = modules(hardware(fmt, "sequential"))
    found = [[made["approximate_mul"](a=x, b=y) for y in range(16)] for x in range(16)]
    assert found == table.tolist()
    with pytest.raises(UnsupportedError, match="only sequential accumulation"):
        hardware(fmt, "exact")


def test_floats_of_any_width_need_no_subnormal_numbers() -> None:
    fmt = minifloat(4, 6, subnormals=False, name="float11_normal")
    made = modules(hardware(fmt, "fma"))
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, fmt.mask + 1, (2, 300))
    b[::2] = 0x1C0 ^ a[::2] & 0x3F  # products near the least number
    for op in ("Add", "Mul"):
        work = made[f"float11_normal_{op.lower()}"]
        found = [work(a=x, b=y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert found == oracle.apply(fmt, op, a, b).tolist()
    values = [datatypes.decode(fmt, codes) for codes in (a, b, a[::-1])]
    want = datatypes.encode(fmt, oracle.multiply_add(fmt, *values)).tolist()
    mac = made["float11_normal_mac"]
    cases = zip(a.tolist(), b.tolist(), a[::-1].tolist(), strict=True)
    assert [mac(a=x, b=y, acc=z) for x, y, z in cases] == want


def test_float32_has_circuits() -> None:
    assert hardware("float32", "fma") == hardware("float32_e8m23", "fma")
