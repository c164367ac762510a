"""datatypes.define: a format in one call, after which networks run in it; and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from verilog_reader import modules

import compiler
import datatypes
from compiler.errors import DtypelabError, UnsupportedError
from compiler.types.dtypes import Array, DType
from datatypes.arithmetic import oracle
from datatypes.formats import catalogue, get
from datatypes.proof import check_format
from experiments import zoo
from experiments.data import datasets


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Formats of one test are unknown to the next."""
    known = dict(catalogue._known)
    yield
    catalogue._known.clear()
    catalogue._known.update(known)


def hybrid(code: int) -> float:
    """Sign and magnitude: steps of 1/32 up to 2, then eight steps per doubling."""
    size = code & 0x7F
    large = math.ldexp(1 + size % 8 / 8, (size - 64) // 8 + 1)
    return (-1 if code & 0x80 else 1) * (size / 32 if size < 64 else large)


def products(fmt_name: str) -> Array:
    """Mitchell's approximate product of floats: codes are logarithms, so they are added."""
    fmt = get(fmt_name)
    codes = np.arange(256)
    a, b = np.meshgrid(codes, codes, indexing="ij")
    size = (a & 0x7F) + (b & 0x7F) - fmt.encode_exact(1)
    size = np.where((a & 0x7F == 0) | (b & 0x7F == 0), 0, size.clip(0, fmt.highest))
    nan = np.isnan(datatypes.decode(fmt, a)) | np.isnan(datatypes.decode(fmt, b))
    return np.where(nan, fmt.nan_code, size | ((a ^ b) & 0x80))


FIBONACCI = (0, 1, 2, 3, 5, 8, 13, 21, -1, -2, -3, -5, -8, -13, -21, -34)
WAYS: dict[str, dict[str, Any]] = {
    "mine_e5m2": {"exponent": 5, "mantissa": 2, "nan": False},
    "mine_hybrid": {"nbits": 8, "decode": hybrid, "negation": "sign"},
    "mine_fibonacci": {"values": [k / 8 for k in FIBONACCI]},
    "mine_up": {"like": "bfloat16", "rounding": "up"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", WAYS)
def test_whole_nets_run_in_a_format_of_one_call(name: str) -> None:
    fmt = datatypes.define(name, **WAYS[name])
    assert datatypes.get(name) is fmt
    assert name in datatypes.list_formats()
    assert DType.parse(name) == DType("custom", fmt.nbits, name)
    digits = datasets.load("mnist1k").x[:4]
    net = compiler.from_onnx(zoo.FOLDER / "mnist_dwsep.onnx")
    changed = datatypes.change_dtype(net, "float32", name)
    np.testing.assert_array_equal(
        compiler.build(changed)(digits), compiler.evaluate(changed, digits)
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "lowering"),
    [
        ("mine_e5m2", "table"),
        pytest.param("mine_e5m2", None, marks=pytest.mark.slow),
        ("mine_hybrid", None),
    ],
)
def test_its_check_is_green(name: str, lowering: str | None) -> None:
    datatypes.define(name, **WAYS[name])
    report = check_format(name, lowering, targets=["llvm"])
    assert report.passed, report


def test_a_float_without_nan_uses_every_code() -> None:
    fmt = datatypes.define("mine", exponent=5, mantissa=2, nan=False)
    assert np.isfinite(datatypes.decode("mine", np.arange(256))).all()
    assert fmt.maxpos == 7 * 2**14


@pytest.mark.thorough
def test_an_approximate_multiplier_is_a_table() -> None:
    table = products("float8_e4m3fn")
    datatypes.define("mitchell", like="float8_e4m3fn", tables={"Mul": table})
    x = datatypes.encode("mitchell", [1.5, 1.25, 2.0])
    ours = compiler.types.dtypes.custom("mitchell").apply("Mul", DType.parse("mitchell"), x, x)
    assert datatypes.decode("mitchell", ours).tolist() == [2.0, 1.5, 4.0]
    net = compiler.from_onnx(zoo.FOLDER / "mnist_dwsep.onnx")
    changed = datatypes.change_dtype(net, "float32", "mitchell")
    digits = datasets.load("mnist1k").x[:2]
    got = compiler.build(changed)(digits)
    np.testing.assert_array_equal(got, compiler.evaluate(changed, digits))
    exact = compiler.build(datatypes.change_dtype(net, "float32", "float8_e4m3fn"))(digits)
    assert (got != exact).any()


SPECIALS = [0.0, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf, -1.0]


def test_special_values_of_a_function_are_found() -> None:
    fmt = datatypes.define("mine", nbits=3, decode=SPECIALS.__getitem__)
    assert (fmt.has_nan, fmt.has_inf, fmt.nan_code) == (True, True, 4)
    numbers = [9.0, -9.0, math.nan, 0.7]
    back = datatypes.decode("mine", datatypes.encode("mine", numbers)).tolist()
    assert back[:2] == [math.inf, -math.inf]
    assert math.isnan(back[2])
    assert back[3] == 0.5


def test_declared_duplicates_are_accepted() -> None:
    """-0, payloads of NaN, and codebooks in any order."""

    def decode(code: int) -> float:
        size = code & 7
        return math.nan if size > 4 else math.copysign(size / 4, -1 if code & 8 else 1)

    fmt = datatypes.define("mine", nbits=4, decode=decode, negation="sign")
    assert fmt.signed_zero
    assert np.isnan(datatypes.decode("mine", np.arange(16))).sum() == 6
    assert datatypes.encode("mine", [-0.0, 0.0, math.nan, -1.0]).tolist() == [8, 0, 5, 12]
    unsorted = datatypes.define("mine_book", values=[1.0, -2.0, 0.0, 0.5])
    assert unsorted.negation == "none"
    assert datatypes.encode("mine_book", [0.5, 1.0, -3.0, 0.1]).tolist() == [3, 0, 1, 2]


def contradicting(code: int) -> float:
    return hybrid(code ^ 3 if code in (17, 18) else code)


NARROW = np.zeros((255, 256), int)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"nbits": 8, "decode": contradicting, "negation": "sign"}, "do not increase: 0.5625"),
    ({"nbits": 8, "decode": lambda c: hybrid(c & 254), "negation": "sign"}, "0x1 both mean 0, 0"),
    ({"nbits": 8, "decode": lambda c: hybrid(c & ~1)}, "both mean"),
    ({"nbits": 8, "decode": lambda c: hybrid(c) + 1, "negation": "sign"}, "code 0 must mean 0"),
    ({"nbits": 8, "decode": hybrid, "negation": "sign", "signed_zero": False}, "a second time"),
    ({"nbits": 8, "decode": hybrid, "negation": "complement"}, "is not the negative of"),
    ({"nbits": 4, "decode": lambda c: c + 1.0, "negation": "sign"}, "code 0 must mean 0"),
    ({"values": [0.0, 1.0, 1.0, 2.0]}, "both mean 1.0"),
    ({"values": [0.0, 1.0, 2.0]}, r"list 2\*\*n"),
    ({"nbits": 2, "decode": lambda c: Fraction(c, 3)}, "more bits than float64 can prove"),
    ({"nbits": 20, "decode": float}, "nbits from 2 to 16"),
    ({"nbits": 8, "decode": lambda: 1.0}, "decode fails: .*takes 0 positional"),
    ({"nbits": 8, "decode": lambda c: 1 / (c - 5)}, "decode fails: division by zero"),
    ({"exponent": 11, "mantissa": 20}, "reaches beyond"),
    ({"exponent": 4, "mantissa": 30}, "nbits is 35"),
    ({"exponent": 8, "mantissa": 16, "nan": False}, "IEEE's special values"),
    ({"exponent": 4, "mantissa": 3, "nan": False, "infinities": True}, "has NaN too"),
    ({"exponent": 4, "mantissa": 3, "tables": {"Mul": NARROW}}, r"need \(256, 256\)"),
    ({"exponent": 5, "mantissa": 10, "tables": {"Mul": NARROW}}, "at most 8"),
    ({"like": "float8_e4m3fn", "roundign": "up"}, "did you mean 'rounding'"),
    ({"like": "float8_e4m3fn", "rounding": "sideways"}, "choose one of nearest"),
    ({"like": "float32_e8m23", "rounding": "stochastic"}, "at most 16 bits"),
    ({"like": "float8_e4m3", "exponent": 4}, "one of like, exponent, decode, values"),
    ({}, "one of like, exponent, decode, values"),
]  # fmt: skip


@pytest.mark.parametrize(("description", "message"), BAD)
def test_what_contradicts_itself_is_refused_and_not_registered(
    description: dict[str, Any], message: str
) -> None:
    before = datatypes.list_formats()
    with pytest.raises(DtypelabError, match=message):
        datatypes.define("broken", **description)
    assert datatypes.list_formats() == before
    with pytest.raises(DtypelabError):
        datatypes.get("broken")


def test_the_value_of_too_many_bits_is_named() -> None:
    message = "code 0x1 means 1/3, of more bits than float64"
    with pytest.raises(DtypelabError, match=message):
        datatypes.define("thirds", values=[0, Fraction(1, 3), -1, 2])
    with pytest.raises(DtypelabError, match=r"code 0x2 means -1e\+100, of more bits"):
        datatypes.define("googol", values=[0, 1.0, -1e100, 2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("float32", "built-in type"),
        ("int8", "built-in type"),
        ("two words", "cannot name a format"),
        ("posit16_es1", "exists"),
        ("posit9_es1", "names a format of a family"),
        ("exact", "names a way to form sums"),
        ("h100_fp8", "names a way to form sums"),
        ("int16_wrap", "names a way to form sums"),
        ("certified", "names a way to form sums"),
        ("mxfp4_e2m1", "names a block format"),
        ("int4", "names integers"),
        ("uint7", "names integers"),
    ],
)
def test_names_that_are_taken(name: str, message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        datatypes.define(name, exponent=5, mantissa=2)


def test_a_missing_c_function_is_an_error_at_registration() -> None:
    datatypes.register("with_library")
    lower = datatypes.create_lower_func({16: "no_such_function"})
    with pytest.raises(DtypelabError, match=r"no loaded library has .* 'no_such_function'"):
        datatypes.register_op(lower, "Add", "llvm", "with_library")
    from datatypes import registry

    assert registry.lowering(registry.Operation("Add", "llvm", "with_library")) is None


def tenth(code: int) -> float:
    """Steps of 1/32 up to 16, with a sign: 10 bits."""
    return (code & 511) / 32 * (-1 if code >> 9 else 1)


def test_formats_that_a_user_defines_have_circuits() -> None:
    described = datatypes.define("chopped", like="float8_e5m2", rounding="zero")
    listed = datatypes.define("book", values=[-2.0, -0.5, 0.0, 0.25, 1.0, 3.0, 5.0, 7.0])
    short = datatypes.define(
        "by_function", nbits=5, negation="sign", decode=lambda c: tenth(c & 15 | c >> 4 << 9)
    )
    for fmt in (described, listed, short):
        a, b = np.random.default_rng(4).integers(0, fmt.mask + 1, (2, 50))
        made = modules(datatypes.hardware(fmt.name, "sequential"))
        for op in ("Add", "Mul"):
            work = made[f"{fmt.name}_{op.lower()}"]
            found = [work(a=x, b=y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
            assert found == oracle.apply(fmt, op, a, b).tolist()


def test_functions_without_tables_are_refused() -> None:
    datatypes.define("by_function_wide", nbits=10, negation="sign", decode=tenth)
    with pytest.raises(UnsupportedError, match="tables are for at most 8 bits; it has 10"):
        datatypes.hardware("by_function_wide")
    datatypes.register("functions_alone", 177)
    with pytest.raises(UnsupportedError, match="functions that were registered for a name"):
        datatypes.hardware("functions_alone")
