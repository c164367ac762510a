"""Registering datatypes and their lowering functions."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datatypes
from compiler.errors import DtypelabError, LoweringError
from compiler.tensor.expr import (
    BinOp,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Select,
    binary,
    call,
    cast,
    const,
)
from compiler.types.dtypes import Array, DType, custom
from datatypes import kernels
from datatypes.lowering import stored

_counter = itertools.count()

HALF = """
#include <stdint.h>
#include <string.h>
static float value(uint16_t a) { uint32_t b = a << 16; float f; memcpy(&f, &b, 4); return f; }
static uint16_t code(float f) { uint32_t b; memcpy(&b, &f, 4); return b >> 16; }
uint16_t reg_add(uint16_t a, uint16_t b) { return code(value(a) + value(b)); }
uint8_t reg_add8(uint8_t a, uint8_t b) { return a + b; }
_Bool reg_lt(uint16_t a, uint16_t b) { return value(a) < value(b); }
uint16_t reg_code(float f) { return code(f); }
float reg_value(uint16_t a) { return value(a); }
uint16_t reg_lowest(void) { return 0xff7f; }
uint16_t reg_exp(uint16_t a) { return code(value(a) + 1); }
"""


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "half.c").write_text(HALF)
    subprocess.run(["cc", "-shared", "-fPIC", "half.c", "-ohalf.so"], cwd=folder, check=True)
    datatypes.load_library(Path(folder / "half.so"))


@pytest.fixture
def name() -> str:
    """A new datatype: the upper half of a float, with casts and addition from C."""
    fresh = f"half{next(_counter)}"
    lower = datatypes.create_lower_func
    datatypes.register(fresh)
    datatypes.register_op(lower({(32, 16): "reg_code"}), "Cast", "llvm", "float", fresh)
    datatypes.register_op(lower({(16, 32): "reg_value"}), "Cast", "llvm", fresh, "float")
    datatypes.register_op(lower({16: "reg_add", 8: "reg_add8"}), "Add", "llvm", fresh)
    return fresh


def of(name: str, bits: int = 16) -> DType:
    return DType.parse(f"custom[{name}]{bits}")


def codes(*values: float) -> Array:
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


# ---- names and codes -----------------------------------------------------------------------------
def test_codes_are_given_or_automatic() -> None:
    assert datatypes.register("given", 201) == 201
    automatic = datatypes.register("automatic")  # leaves low codes to those that ask
    assert 150 <= automatic <= 255
    assert datatypes.type_code("automatic") == automatic
    assert datatypes.type_name(201) == "given"
    assert datatypes.registered_types()["given"] == 201


def test_duplicates_are_errors() -> None:
    datatypes.register("taken", 202)
    with pytest.raises(DtypelabError, match="'taken' is already registered, with code 202"):
        datatypes.register("taken")
    with pytest.raises(DtypelabError, match="type code 202 is taken by datatype 'taken'"):
        datatypes.register("another", 202)


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("float", None, "built-in type"),
        ("posit16_es1", None, "built-in type"),
        ("no-name", None, "cannot name a datatype"),
        ("early", 149, "must be 150 to 255"),
    ],
)
def test_bad_registrations(name: str, code: int | None, message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        datatypes.register(name, code)


def test_unknown_names() -> None:
    with pytest.raises(DtypelabError, match="unknown registered datatype 'nobody'"):
        datatypes.type_code("nobody")
    with pytest.raises(DtypelabError, match="no datatype has type code 255"):
        datatypes.type_name(255)
    with pytest.raises(DtypelabError, match="unknown custom datatype 'nobody'"):
        DType.parse("custom[nobody]16")


def test_formats_need_no_registration() -> None:
    assert str(DType.parse("posit16_es1")) == "custom[posit16_es1]16"
    assert str(DType.parse("float16")) == "float16"
    with pytest.raises(DtypelabError, match="unknown dtype 'posit16'"):
        DType.parse("posit16")
    dtype = DType.parse("custom[posit12_es2]12")
    assert custom("posit12_es2").encode(np.array([1.0]), dtype).tolist() == [0x400]
    assert "posit12_es2" not in datatypes.registered_types()


# ---- register_op ---------------------------------------------------------------------------------
def nothing(node: Expr) -> Expr:
    return node


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nothing, "Addd", "llvm", "bfloat16"), "unknown operation 'Addd'; did you mean 'Add'"),
        ((nothing, "Add", "cuda", "bfloat16"), "unknown target 'cuda'"),
        ((nothing, "Add", "llvm", "unheard"), r"unknown datatype 'unheard'.*datatypes\.register"),
        ((nothing, "Add", "llvm", "float"), "no custom datatype"),
        ((nothing, "Cast", "llvm", "bfloat16"), "Cast needs it"),
        ((nothing, "Add", "llvm", "bfloat16", "float"), "dest_type_name is for Cast"),
        ((nothing, "Call", "llvm", "bfloat16"), "Call needs it"),
        (("p16_add", "Add", "llvm", "bfloat16"), "must be a function"),
    ],
)
def test_bad_operations(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        datatypes.register_op(*arguments)


def test_c_functions_are_the_meaning(name: str) -> None:
    t = of(name)
    a, b = codes(1.0, 2.5, -3.0), codes(0.5, 0.25, 3.0)
    assert custom(name).apply("Add", t, a, b).tolist() == codes(1.5, 2.75, 0.0).tolist()
    assert custom(name).encode(np.float32([1.0, -2.0]), t).tolist() == codes(1.0, -2.0).tolist()
    assert custom(name).encode(np.array([1.0]), t).tolist() == codes(1.0).tolist()
    assert custom(name).decode(a, t).tolist() == [1.0, 2.5, -3.0]


def test_missing_lowering_says_how_to_add_it(name: str) -> None:
    with pytest.raises(
        LoweringError,
        match=rf"Mul of custom\[{name}\]16 has no lowering for target 'llvm'; add one with "
        rf'datatypes\.register_op\(lower_func, "Mul", "llvm", "{name}"\)',
    ):
        kernels.operate("Mul", of(name), codes(1.0), codes(1.0))
    with pytest.raises(LoweringError, match=rf'"Cast", "llvm", "int", "{name}"'):
        custom(name).encode(np.array([1], np.int32), of(name))


def test_missing_width_names_those_there_are(name: str) -> None:
    with pytest.raises(LoweringError, match=rf"Add of custom\[{name}\]32 .*, only for 16, 8"):
        kernels.operate("Add", of(name, 32), np.array([1]), np.array([1]))
    with pytest.raises(LoweringError, match="64 to 16 bits, only for 32 to 16"):
        kernels.convert(np.array([1.0]), DType.parse("float64"), of(name))


def test_one_name_several_widths(name: str) -> None:
    got = kernels.operate("Add", of(name, 8), np.array([250], np.uint8), np.array([7], np.uint8))
    assert got.tolist() == [1]


def test_comparison_returns_bool(name: str) -> None:
    datatypes.register_op(datatypes.create_lower_func({16: "reg_lt"}), "LT", "llvm", name)
    got = custom(name).apply("LT", of(name), codes(1.0, 2.0, -1.0), codes(2.0, 1.0, 1.0))
    assert got.dtype == np.bool_
    assert got.tolist() == [True, False, True]


@pytest.mark.parametrize("spelling", ["exp", "tir.exp"])
def test_calls_by_either_spelling(name: str, spelling: str) -> None:
    lower = datatypes.create_lower_func({16: "reg_exp"})
    datatypes.register_op(lower, "Call", "llvm", name, intrinsic_name=spelling)
    assert custom(name).apply("exp", of(name), codes(2.0)).tolist() == codes(3.0).tolist()


def test_any_callable_may_lower_and_use_the_datatype_itself(name: str) -> None:
    """Max as a choice by LT, LT by C; Sub as an addition with the sign bit flipped."""

    def largest(node: Any) -> Expr:
        return Select(binary("LT", node.a, node.b), node.b, node.a)

    def subtract(node: Any) -> Expr:
        flipped = CallExtern("reg_add", (stored(node.b) ^ 0x8000, IntImm(0, DType("uint", 16))),
                             node.dtype)  # fmt: skip
        return binary("Add", node.a, flipped)

    datatypes.register_op(datatypes.create_lower_func({16: "reg_lt"}), "LT", "llvm", name)
    datatypes.register_op(largest, "Max", "llvm", name)
    datatypes.register_op(subtract, "Sub", "llvm", name)
    a, b = codes(1.0, 5.0), codes(4.0, -2.0)
    assert custom(name).apply("Max", of(name), a, b).tolist() == codes(4.0, 5.0).tolist()
    assert custom(name).apply("Sub", of(name), a, b).tolist() == codes(-3.0, 7.0).tolist()


def test_endless_lowering_is_an_error(name: str) -> None:
    datatypes.register_op(lambda node: node, "Div", "llvm", name)
    with pytest.raises(LoweringError, match="does not come to an end"):
        kernels.operate("Div", of(name), codes(1.0), codes(1.0))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (const(1.0), r"of Sub returned an expression of float32; custom\[.*\]16 needs uint16"),
        (7, "of Sub returned 7; it must return an expression of uint16"),
    ],
)
def test_what_a_lowering_returns_is_checked(name: str, returned: Any, message: str) -> None:
    datatypes.register_op(lambda node: returned, "Sub", "llvm", name)
    with pytest.raises(LoweringError, match=message):
        kernels.operate("Sub", of(name), codes(1.0), codes(1.0))


def test_later_registration_replaces(name: str) -> None:
    before = custom(name).apply("Add", of(name), codes(1.0), codes(1.0))
    datatypes.register_op(lambda node: const(7, DType("uint", 16)), "Add", "llvm", name)
    after = custom(name).apply("Add", of(name), codes(1.0), codes(1.0))
    assert (before.tolist(), after.tolist()) == (codes(2.0).tolist(), [7])


def test_constants_are_encoded_or_lowered(name: str) -> None:
    """Without a lowering of FloatImm a constant is encoded by the datatype's own Cast."""
    t = of(name)

    def plus_one(x: Expr) -> Expr:
        return binary("Add", x, FloatImm(1.0, t))

    run = kernels.compile_elementwise("plus", (t,), t, plus_one)
    assert run(codes(2.0)).tolist() == codes(3.0).tolist()
    datatypes.register_op(datatypes.create_lower_func({16: "reg_code"}), "FloatImm", "llvm", name)
    run = kernels.compile_elementwise("plus", (t,), t, plus_one)
    assert run(codes(2.0)).tolist() == codes(3.0).tolist()


def test_ready_made_lowering_functions(name: str) -> None:
    t, extern = of(name), "call_pure_extern"
    datatypes.register_op(
        datatypes.lower_ite, "Call", "llvm", name, intrinsic_name="tir.if_then_else"
    )
    datatypes.register_op(
        datatypes.lower_call_pure_extern, "Call", "llvm", name, intrinsic_name="reg_exp"
    )

    def body(a: Expr, b: Expr) -> Expr:
        return call("if_then_else", cast(a, DType("float", 32)) < 0.0, b, call("reg_exp", a),
                    dtype=t)  # fmt: skip

    run = kernels.compile_elementwise(extern, (t, t), t, body)
    assert run(codes(-1.0, 1.0), codes(8.0, 8.0)).tolist() == codes(8.0, 2.0).tolist()
    with pytest.raises(LoweringError, match="lower_ite is for Call"):
        datatypes.lower_ite(const(1.0))
    with pytest.raises(LoweringError, match="lower_call_pure_extern is for calls"):
        datatypes.lower_call_pure_extern(const(1.0))


# ---- the minimum ---------------------------------------------------------------------------------
MINIMUMS: dict[str, Callable[[str], Any]] = {
    "C function": lambda name: datatypes.create_min_lower_func({16: "reg_lowest"}, name),
    "number": lambda name: lambda bits: -3.3895313892515355e38,
    "FloatImm": lambda name: lambda bits: FloatImm(-3.3895313892515355e38, of(name, bits)),
    "code": lambda name: lambda bits: IntImm(0xFF7F, DType("uint", bits)),
}


@pytest.mark.parametrize("kind", MINIMUMS)
def test_minimum(name: str, kind: str) -> None:
    datatypes.register_min_func(MINIMUMS[kind](name), name)
    assert custom(name).lowest(of(name)) == 0xFF7F


def test_minimum_is_needed_and_its_width_too(name: str) -> None:
    with pytest.raises(LoweringError, match=rf'register_min_func\(func, "{name}"\)'):
        custom(name).lowest(of(name))
    datatypes.register_min_func(datatypes.create_min_lower_func({16: "reg_lowest"}, name), name)
    with pytest.raises(LoweringError, match="no C function, only for 16 bits"):
        custom(name).lowest(of(name, 8))
    with pytest.raises(DtypelabError, match="unknown datatype"):
        datatypes.register_min_func(lambda bits: 0.0, "unheard")


# ---- described formats ---------------------------------------------------------------------------
def test_a_lowering_for_a_format_is_its_meaning_too() -> None:
    """An approximate multiplier: what is registered is used by compiled code and interpreter."""
    t = DType.parse("custom[posit9_es1]9")
    one = custom("posit9_es1").encode(np.array([1.0]), t)

    def approximate(node: Any) -> Expr:
        assert isinstance(node, BinOp)
        return stored(node.a) | stored(node.b)

    assert custom("posit9_es1").apply("Mul", t, one, one).tolist() == [0x80]
    datatypes.register_op(approximate, "Mul", "llvm", "posit9_es1")
    assert custom("posit9_es1").apply("Mul", t, one, one + 1).tolist() == [0x81]
    assert kernels.operate("Mul", t, one, one + 1).tolist() == [0x81]


def test_conversion_between_custom_types(name: str) -> None:
    posit = DType.parse("custom[posit16_es1]16")
    values = np.array([1.0, -2.5, 3e-9])
    bits = custom("bfloat16").encode(values, DType.parse("custom[bfloat16]16"))
    got = kernels.convert(bits, DType.parse("custom[bfloat16]16"), posit)
    want = custom("posit16_es1").encode(datatypes.decode("bfloat16", bits), posit)
    np.testing.assert_array_equal(got, want)
    with pytest.raises(LoweringError, match=rf'"Cast", "llvm", "posit16_es1", "{name}"'):
        kernels.convert(got, posit, of(name))


def test_signatures_of_create_lower_func(name: str) -> None:
    t = of(name)
    lower = datatypes.create_lower_func({16: "f", (16, 32): "g"})
    x = IntImm(1, t.storage_dtype)
    made = lower(BinOp("LT", FloatImm(1.0, t), FloatImm(2.0, t), DType("bool", 8)))
    assert isinstance(made, CallExtern)
    assert (made.symbol, str(made.dtype)) == ("f", "bool")
    made = lower(Cast(FloatImm(1.0, t), DType("float", 32)))
    assert (made.symbol, str(made.dtype)) == ("g", "float32")
    made = lower(Call("exp", (FloatImm(1.0, t),), t))
    assert (made.symbol, str(made.dtype)) == ("f", "uint16")
    with pytest.raises(LoweringError, match="makes no lowering of Select"):
        lower(Select(x, x, x))


def test_tables_and_several_functions_in_one_lowering(name: str) -> None:
    """Mul as a look-up of products of 4-bit codes, Sub as two C calls inside an expression."""
    from compiler.lowering.tables import table
    from compiler.tensor.expr import Gather

    t = of(name, 4)
    products = (np.arange(16)[:, None] * np.arange(16) % 16).astype(np.uint8).reshape(-1)
    entries = table(f"{name}_products", products)

    def multiply(node: Any) -> Expr:
        at = cast(stored(node.a), DType("int", 64)) * 16 + cast(stored(node.b), DType("int", 64))
        return Gather(entries, at)

    def subtract(node: Any) -> Expr:
        once = datatypes.call_pure_extern("uint8", "reg_add8", node.a, node.b)
        return datatypes.call_pure_extern("uint8", "reg_add8", once, once) & 0xF

    datatypes.register_op(multiply, "Mul", "llvm", name)
    datatypes.register_op(subtract, "Sub", "llvm", name)
    a, b = np.array([3, 15], np.uint8), np.array([4, 15], np.uint8)
    assert kernels.operate("Mul", t, a, b).tolist() == [12, 1]
    assert kernels.operate("Sub", t, a, b).tolist() == [14, 12]


def test_encode_and_decode_registered_types(name: str) -> None:
    bits = datatypes.encode(f"custom[{name}]16", np.float32([1.0, -2.5]))
    assert bits.tolist() == codes(1.0, -2.5).tolist()
    assert datatypes.decode(f"custom[{name}]16", bits, np.float32).tolist() == [1.0, -2.5]
    assert datatypes.decode(of(name), bits).dtype == np.float64
