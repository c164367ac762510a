"""Numbers that become integers: toward zero, saturated, NaN is 0; the same in every path."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import compiler
import datatypes
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import cast
from compiler.types.dtypes import Array, DType
from datatypes.formats import decode, encode, get

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
FORMATS = [n for n in datatypes.list_formats() if not get(n).storage_only]
SOME = ["bfloat16", "float8_e4m3fn", "posit16_es1", "fixed16_8"]
TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
NEAR = (-1024.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 1024.0)
VALUES = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 0.999, -0.999, 1.5, -1.5, 2.5, 1e38, -1e38,
    1e300, -1e300, 1e-40,
    *(sign * 2.0**k + d for k in (3, 4, 7, 8, 15, 16, 31, 32, 63, 64) for d in NEAR
      for sign in (1, -1)),
]  # fmt: skip


def dtype_of(kind: str) -> DType:
    plain = kind in (*FLOATS, *INTEGERS, "bool")
    return DType.parse(kind if plain else f"custom[{kind}]{get(kind).nbits}")


def given(kind: str) -> Array:
    with np.errstate(all="ignore"):
        a = np.array(VALUES)
        return a.astype(kind) if kind in FLOATS else encode(get(kind), a)


def meaning(kind: str, x: Array, to: str) -> Array:
    """In Python's integers, one by one."""
    real = x.astype(np.float64) if kind in FLOATS else decode(get(kind), x)
    ends = np.iinfo(to)

    def one(v: float) -> int:
        if math.isnan(v):
            return 0
        if math.isinf(v):
            return int(ends.max if v > 0 else ends.min)
        return min(max(math.trunc(v), int(ends.min)), int(ends.max))

    return np.array([one(float(v)) for v in real], to)


def casting(kind: str, to: str, shape: tuple[Any, ...]) -> IRModule:
    b = FunctionBuilder()
    y = b.call("cast", b.param("x", shape, dtype_of(kind)), dtype=str(dtype_of(to)))
    return IRModule({"main": b.finish(y)})


def folded(kind: str, to: str, x: Array) -> Array:
    """The same of a constant, which is folded when the module is built."""
    b = FunctionBuilder()
    c = b.call("cast", b.const(x, dtype_of(kind)), dtype=to)
    zero = b.param("z", (1,), to)
    mod = IRModule({"main": b.finish(b.call("bitwise_or", c, zero))})
    with compiler.PassContext(opt_level=3):
        return np.asarray(compiler.build(mod)(np.zeros(1, to)))


def interpreted(kind: str, to: str, x: Array) -> Array:
    """The loop nest's expression."""
    b = PrimBuilder("f")
    p = b.input("x", x.shape, dtype_of(kind))
    out = b.compute("y", p.shape, DType.parse(to), lambda i: cast(p[i], DType.parse(to)))
    y = np.zeros(x.shape, to)
    loop_nests.run(b.finish([out]), [x, y])
    return y


@pytest.mark.sampled(9)
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("kind", FLOATS)
def test_floats(kind: str, to: str) -> None:
    x = given(kind)
    want = meaning(kind, x, to)
    mod = casting(kind, to, x.shape)
    np.testing.assert_array_equal(compiler.evaluate(mod, x), want)
    np.testing.assert_array_equal(interpreted(kind, to, x), want)
    np.testing.assert_array_equal(folded(kind, to, x), want)
    one_by_one = casting(kind, to, (Var("n"),))
    for target in TARGETS:
        np.testing.assert_array_equal(compiler.build(mod, target=target)(x), want)
        exe = compiler.build(one_by_one, target=target)
        np.testing.assert_array_equal(exe(x), want)
        np.testing.assert_array_equal(exe(x[5:8]), want[5:8])


def check_format(kind: str, to: str, targets: list[str]) -> None:
    x = given(kind)
    want = meaning(kind, x, to)
    mod = casting(kind, to, x.shape)
    np.testing.assert_array_equal(compiler.evaluate(mod, x), want)
    np.testing.assert_array_equal(folded(kind, to, x), want)
    for lowering in ("library", "table", "vector"):
        if lowering == "table" and get(kind).nbits > 8:
            continue
        for target in targets:
            exe = compiler.build(mod, target=target, dtype_lowering=lowering)
            np.testing.assert_array_equal(exe(x), want, f"{lowering} {target}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("kind", SOME)
def test_formats(kind: str, to: str) -> None:
    check_format(kind, to, ["llvm"])


@pytest.mark.slow
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind: str, to: str) -> None:
    check_format(kind, to, TARGETS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*FLOATS, *SOME])
def test_truth_values(kind: str) -> None:
    """Everything but zero is true, NaN and what is smaller than one included."""
    x = given(kind)
    real = x.astype(np.float64) if kind in FLOATS else decode(get(kind), x)
    mod = casting(kind, "bool", x.shape)
    np.testing.assert_array_equal(compiler.evaluate(mod, x), real != 0)
    for target in TARGETS:
        np.testing.assert_array_equal(compiler.build(mod, target=target)(x), real != 0)


# ---- imported models -----------------------------------------------------------------------------
def model(node: Any, to: int, source: int, *constants: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", source, [2, len(VALUES)])],
        [helper.make_tensor_value_info("y", to, [2, len(VALUES)])],
        list(constants),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def both_equal(mod: IRModule, x: Array) -> Array:
    """What the interpreter gives; compiled code gives the same at all levels and targets."""
    want = compiler.evaluate(mod, x)
    for target, level in [(t, 2) for t in TARGETS] + [("llvm", 0)]:
        with compiler.PassContext(opt_level=level):
            got = compiler.build(mod, target=target)(x)
        np.testing.assert_array_equal(got, want)
    return np.asarray(want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", ["INT8", "UINT8", "INT16", "UINT16", "INT32", "INT64"])
def test_imported_casts(code: str) -> None:
    to = getattr(TensorProto, code)
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    mod = compiler.from_onnx(model(node, to, TensorProto.FLOAT))
    x = np.stack([given("float32")] * 2)
    want = meaning("float32", x[0], code.lower())
    np.testing.assert_array_equal(both_equal(mod, x), np.stack([want] * 2))


@pytest.mark.parametrize("code", ["INT4", "UINT4", "INT2", "UINT2"])
def test_imported_casts_to_narrow_integers(code: str) -> None:
    """ONNX's own test data keep the lowest bits, here of the number saturated to int32."""
    to = getattr(TensorProto, code)
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    mod = compiler.from_onnx(model(node, to, TensorProto.FLOAT))
    x = np.stack([given("float32")] * 2)
    bits, whole = int(code[-1]), meaning("float32", x[0], "int32").astype(np.int64)
    want = whole % (1 << bits)
    if code[0] == "I":
        want = np.where(want >= 1 << (bits - 1), want - (1 << bits), want)
    np.testing.assert_array_equal(both_equal(mod, x), np.stack([want] * 2))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fmt", "channels"),
    [(None, False), *((f, True) for f in (None, "bfloat16", "float8_e4m3fn", "posit8_es0"))],
)
@pytest.mark.parametrize("code", ["INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4"])
def test_quantize_linear(code: str, fmt: str | None, channels: bool) -> None:
    """One scale or one a channel, and after the graph was retyped: bounds that the format rounds
    up must not come round to the other end."""
    to, shape = getattr(TensorProto, code), [2] if channels else []
    scale = helper.make_tensor("s", TensorProto.FLOAT, shape, [0.5, 2.0][: 1 + channels])
    low = code[0] == "I"
    zero = helper.make_tensor("z", to, shape, [-3 if low else 2, 1][: 1 + channels])
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=0)
    mod = compiler.from_onnx(model(node, to, TensorProto.FLOAT, scale, zero))
    if fmt is not None:
        mod = datatypes.change_dtype(mod, "float32", fmt)
    x = np.stack([given("float32")] * 2)
    got = both_equal(mod, x).astype(np.int64)
    bits = int("".join(c for c in code if c.isdigit()))
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if low else (0, (1 << bits) - 1)
    assert least <= got.min()
    assert got.max() <= most
    if fmt in (None, "bfloat16"):
        assert (got[:, 1] == most).all()
        assert (got[:, 2] == least).all()


def test_float16_goes_through_float32() -> None:
    """LLVM's own conversion is wrong for NaN on CPUs with AVX512-FP16."""
    for to in INTEGERS:
        for shape in ((16,), (Var("n"),)):
            source = compiler.build(casting("float16", to, shape)).source
            assert "fpext" in source
            assert "sat" not in source or "f16(" not in source
