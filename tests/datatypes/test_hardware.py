"""Verilog of formats, read back by a reader of our own, against the kernels and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from verilog_reader import modules, ports

import datatypes
from compiler.errors import DtypelabError
from datatypes.arithmetic import oracle
from datatypes.formats import Format, get
from datatypes.hardware.accumulators import Exact
from datatypes.hardware.generate import Accumulate, design
from datatypes.proof import samples

FORMATS = (
    "posit8_es0", "posit8_es2", "posit16_es1", "posit6_es1", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2_sat", "float4_e2m1fn", "float6_e3m2fn", "float16", "bfloat16",
    "takum8", "takum16", "fixed8_4", "fixed16_8", "nf4", "posit4_es0", "lns8_3",
)  # fmt: skip
WIDE = ("takum8", "takum16", "bfloat16")  # whose exact sums take hundreds of bits
SUMMING = [
    pytest.param(name, marks=[pytest.mark.thorough] if name in WIDE else [])
    for name in FORMATS
    if not name.startswith("lns")
]


def operands(fmt: Format, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of codes: every pair of extremes, and as many of any codes."""
    rng = np.random.default_rng(7)
    ends = samples.extremes(fmt)
    a, b = (rng.choice(ends, count) for _ in range(2))
    c, d = rng.integers(0, fmt.mask + 1, (2, count))
    e = samples.ordinary(fmt, rng, 2 * count)
    return np.concatenate([a, c, e[:count]]), np.concatenate([b, d, e[count:]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMATS)
def test_sums_and_products_are_those_of_the_kernels(name: str) -> None:
    fmt = get(name)
    made = modules(datatypes.hardware(name, accumulate="sequential"))
    a, b = operands(fmt, 60)
    for op in ("Add", "Mul"):
        want = oracle.apply(fmt, op, a, b).tolist()
        work = made[f"{name}_{op.lower()}"]
        assert [work(a=x, b=y) for x, y in zip(a.tolist(), b.tolist(), strict=True)] == want


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_decoded_encodes_again(name: str) -> None:
    fmt = get(name)
    made = modules(datatypes.hardware(name, accumulate="sequential"))
    codes = np.arange(fmt.mask + 1) if fmt.nbits <= 8 else operands(fmt, 60)[0]
    want = datatypes.encode(fmt, datatypes.decode(fmt, codes)).tolist()
    again = [made[f"{name}_encode"](made[f"{name}_decode"](code)) for code in codes.tolist()]
    if fmt.logarithmic:
        want = codes.tolist()  # float64 cannot hold its values
    assert again == want


def exact_sum(fmt: Format, into: Exact, a: list[int], b: list[int]) -> tuple[int, int]:
    """(the accumulator, the code of the sum) from fractions."""
    values = [[datatypes.decode(fmt, np.array(codes))] for codes in (a, b)]
    with np.errstate(invalid="ignore"):
        whole = float(np.sum(np.multiply(values[0][0], values[1][0])))
    if not np.isfinite(whole):
        special = {np.inf: 1, -np.inf: -1}.get(whole, 0)
        acc = 1 << into.width | special & (1 << into.width) - 1
        return acc, fmt.encode_exact(whole)
    exact = [[fmt.decode_exact(code) for code in codes] for codes in (a, b)]
    total = sum((x * y for x, y in zip(*exact, strict=True)), Fraction(0))
    units = total / Fraction(2) ** into.unit
    assert units.denominator == 1
    return units.numerator & (1 << into.width) - 1, fmt.encode_exact(total)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SUMMING)
def test_exact_sums_are_those_of_fractions(name: str) -> None:
    fmt = get(name)
    made = design(name, "exact")
    assert isinstance(made.accumulator, Exact)
    module = modules(made.verilog)
    count = 6 if made.accumulator.width > 300 else 40
    a, b = (codes[: 9 * count].reshape(-1, 3).tolist() for codes in operands(fmt, 3 * count))
    for x, y in zip(a, b, strict=True):
        acc = 0
        for p, q in zip(x, y, strict=True):
            acc = module[f"{name}_mac"](a=p, b=q, acc=acc)
        want = exact_sum(fmt, made.accumulator, x, y)
        assert (acc, module[f"{name}_round"](acc)) == want, (x, y)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("into", ["float32_e8m23", "bfloat16", "posit16_es2", "float8_e4m3fn"])
@pytest.mark.parametrize("name", ["posit8_es0", "float8_e5m2", "takum8", "fixed8_4", "nf4"])
def test_sums_in_a_format_round_once_a_step(name: str, into: str) -> None:
    fmt, wide = get(name), get(into)
    made = modules(datatypes.hardware(name, accumulate=into))
    a, b = operands(fmt, 30)
    acc = operands(wide, 30)[0]
    values = [datatypes.decode(fmt, a), datatypes.decode(fmt, b), datatypes.decode(wide, acc)]
    want = datatypes.encode(wide, oracle.multiply_add(wide, *values)).tolist()
    cases = list(zip(a.tolist(), b.tolist(), acc.tolist(), strict=True))
    assert [made[f"{name}_mac"](a=x, b=y, acc=z) for x, y, z in cases] == want
    back = datatypes.encode(fmt, values[2]).tolist()
    assert [made[f"{name}_round"](z) for _, _, z in cases] == back


def test_a_description_may_round_toward_zero_and_products() -> None:
    name, wide = "float8_e4m3fn", get("bfloat16_truncate")
    described = {"format": "bfloat16", "rounding": "truncate", "products": "rounded"}
    made = modules(datatypes.hardware(name, accumulate=described))
    a, b = operands(get(name), 40)
    acc = operands(get("bfloat16"), 40)[0]
    x, y = (datatypes.decode(name, codes) for codes in (a, b))
    product = datatypes.encode(wide, x * y)
    want = oracle.apply(wide, "Add", product, acc).tolist()
    cases = zip(a.tolist(), b.tolist(), acc.tolist(), strict=True)
    assert [made[f"{name}_mac"](a=p, b=q, acc=z) for p, q, z in cases] == want
    for short, whole in (("bfloat16", "bfloat16"), ("float32", "float32_e8m23")):
        text = datatypes.hardware(name, accumulate=whole)
        assert text == datatypes.hardware(name, accumulate={"format": short})
        assert text == datatypes.hardware(name, accumulate=f'{{format = "{short}"}}')
        assert text == datatypes.hardware(name, accumulate=short)


def test_integers_wrap_and_their_sums_saturate() -> None:
    made = modules(datatypes.hardware("int8"))
    a, b = np.random.default_rng(1).integers(-128, 128, (2, 300))
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        assert made["int8_add"](a=x & 255, b=y & 255) == (x + y) & 255
        assert made["int8_mul"](a=x & 255, b=y & 255) == (x * y) & 255
        acc = made["int8_mac"](a=x & 255, b=y & 255, acc=5)
        assert acc == (x * y + 5) & 0xFFFFFFFF
        assert made["int8_round"](acc) == min(max(x * y + 5, -128), 127) & 255


def test_ports_are_those_that_are_promised() -> None:
    found = ports(datatypes.hardware("posit8_es2", accumulate="exact"))
    kinds = ("add", "mul", "decode", "encode", "mac", "round")
    assert set(found) == {f"posit8_es2_{kind}" for kind in kinds}
    two = {"a": ("input", 8), "b": ("input", 8)}
    assert found["posit8_es2_add"] == found["posit8_es2_mul"] == {**two, "y": ("output", 8)}
    assert found["posit8_es2_decode"]["parts"][1] == found["posit8_es2_encode"]["parts"][1]
    # 2**-48 .. 2**48, 16 bits of headroom, a sign, and the bit for NaN
    assert found["posit8_es2_mac"] == {**two, "acc": ("input", 115), "y": ("output", 115)}
    assert found["posit8_es2_round"] == {"acc": ("input", 115), "y": ("output", 8)}
    in_float = ports(datatypes.hardware("posit8_es2", accumulate="float22_e8m13"))
    assert in_float["posit8_es2_mac"]["acc"] == ("input", 22)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "int8", "fixed8_4", "takum8", "lns8_3"])
@pytest.mark.parametrize("rows", [1, 2])
def test_registers_change_nothing_but_when(name: str, rows: int) -> None:
    into = "sequential" if name.startswith("lns") else "bfloat16"
    plain, late = (modules(datatypes.hardware(name, into, pipeline=n)) for n in (0, rows))
    assert "posedge clk" in datatypes.hardware(name, into, pipeline=rows)
    made = design(name, into)
    mask, last = (1 << made.nbits) - 1, (1 << made.accumulator_bits) - 1
    for x, y, z in np.random.default_rng(3).integers(0, 1 << 32, (10, 3)).tolist():
        x, y, z = x & mask, y & mask, z & last
        for what in ("add", "mul"):
            module = f"{name}_{what}"
            assert plain[module](a=x, b=y) == late[module](a=x, b=y)
        assert plain[f"{name}_mac"](a=x, b=y, acc=z) == late[f"{name}_mac"](a=x, b=y, acc=z)


@pytest.mark.parametrize(
    ("name", "accumulate", "message"),
    [
        ("posit9", "exact", "unknown format 'posit9'"),
        ("bfloat16_stochastic", "exact", "rounds stochastically; the nearest is bfloat16"),
        ("float8_e8m0fnu", "exact", "it only stores values"),
        ("int08", "exact", "unknown format 'int08'"),
        ("int\u0668", "exact", "unknown format"),
        ("lns16_8", "exact", "tables, which are for at most 8 bits; the nearest is lns8_5"),
        ("lns8_3", "exact", "the nearest is accumulate='sequential'"),
        ("posit8_es0", "lns8_3", "no sums in lns8_3"),
        ("lns8_0", "fma", "no sums in lns8_0.* nearest is accumulate='sequential'"),
        ("posit8_es0", "float46", "is none of exact, fma, .* h100_fp8, .*, no descr"),
        ("posit8_es0", "float64", "in at most 32 bits; the nearest is accumulate='float32'"),
        ("nf4", {"format": "float16", "order": "pairwise"}, "the nearest is order = 'tree8'"),
        ("nf4", {"format": "float16", "width": 8}, "accumulate has no 'width'"),
        ("int8", "fma", "no meaning here; the nearest is accumulate='exact'"),
        ("float32_e10m21", "exact", "take 2103 bits, and accumulators have at most 2048"),
        ("int99", "exact", "integers have 2 to 32 bits here"),
    ],
)
def test_what_has_no_circuit_is_refused(name: str, accumulate: Accumulate, message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        datatypes.hardware(name, accumulate)
