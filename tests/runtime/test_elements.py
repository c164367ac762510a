"""Tensors of types that numpy does not have go in and come out as arrays of ml_dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.reference
import pytest
from onnx import TensorProto, helper

import compiler
import datatypes
from compiler.boundary.elements import FORMATS, NARROW, numbers
from compiler.errors import InputError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

CODES = {
    "bfloat16": TensorProto.BFLOAT16,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "float4_e2m1fn": TensorProto.FLOAT4E2M1,
    "float8_e8m0fnu": 24,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int2": 26,
    "uint2": 25,
}
HOW = ("evaluate", "graph", "vm", "text", "saved")
RNG = np.random.default_rng(0)


def dtype_of(name: str) -> np.dtype[Any]:
    scalar: type[np.generic] = getattr(ml_dtypes, name)
    return np.dtype(scalar)


def everything(name: str) -> Array:
    """Every number of a type, NaN and infinities included."""
    dtype = dtype_of(name)
    if name in NARROW:
        low, high = ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max
        return np.arange(low, high + 1).astype(dtype)
    bits = {"bfloat16": 16, "float4_e2m1fn": 4}.get(name, 8)
    return np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8).view(dtype)


def model(op: str, x: str, y: str, *sizes: int | str, inputs: int = 1, **attrs: Any) -> IRModule:
    names = [f"x:{k}" for k in range(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y:0"], **attrs)],
        "g",
        [helper.make_tensor_value_info(n, CODES.get(x, TensorProto.FLOAT), sizes) for n in names],
        [helper.make_tensor_value_info("y:0", CODES.get(y, TensorProto.FLOAT), None)],
    )
    opsets = [helper.make_opsetid("", 25)]
    return compiler.from_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=12))


def ran(mod: IRModule, how: str, folder: Path, *args: Array) -> Array:
    if how == "text":
        mod = compiler.parse(mod.astext(show_meta_data=True))
    if how in ("evaluate", "text"):
        out = compiler.evaluate(mod, *args)
    elif how == "saved":
        compiler.build(mod).save(folder / "net")
        out = compiler.load(folder / "net")(*args)
    else:
        out = compiler.create_executor(how, mod).evaluate()(*args)
    assert isinstance(out, np.ndarray)
    return out


def same(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    nan = np.isnan(numbers(want))
    np.testing.assert_array_equal(np.isnan(numbers(got)), nan)  # whichever NaN
    assert got[~nan].tobytes() == want[~nan].tobytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", [*FORMATS, *NARROW])
def test_all_codes_go_through_as_they_are(name: str, how: str, tmp_path: Path) -> None:
    x = everything(name)
    got = ran(model("Identity", name, name, "n"), how, tmp_path, x)
    same(got, x)
    assert got is not x


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", HOW[:3])
@pytest.mark.parametrize("name", [*FORMATS, *NARROW])
def test_casts_are_those_of_ml_dtypes(name: str, how: str, tmp_path: Path) -> None:
    x = everything(name)
    same(
        ran(model("Cast", name, "float32", "n", to=TensorProto.FLOAT), how, tmp_path, x),
        numbers(x).astype(np.float32),
    )
    if name == "float8_e8m0fnu":
        return  # ONNX rounds up to it, ml_dtypes to the nearest
    wide = numbers(x).astype(np.float32)
    plain = {"saturate": 0} if name.startswith("float8") else {}
    back = model("Cast", "float32", name, "n", to=CODES[name], **plain)
    with np.errstate(invalid="ignore"):  # ml_dtypes of some NaNs
        want = wide.astype(x.dtype)
    same(ran(back, how, tmp_path, wide), want)


@pytest.mark.parametrize("how", HOW[:3])
@pytest.mark.parametrize("op", ["Add", "MatMul"])
def test_sums_and_products_of_bfloat16(op: str, how: str, tmp_path: Path) -> None:
    a, b = RNG.integers(-9, 9, (2, 5, 5)).astype(ml_dtypes.bfloat16)
    if op == "Add":
        a = a / ml_dtypes.bfloat16(7)
    want = (a + b) if op == "Add" else (a.astype(np.float32) @ b.astype(np.float32))
    got = ran(model(op, "bfloat16", "bfloat16", 5, "n", inputs=2), how, tmp_path, a, b)
    same(got, want.astype(ml_dtypes.bfloat16))  # the sums of the products are exact


@pytest.mark.parametrize("name", [*FORMATS, *NARROW])
def test_codes_and_what_files_hold_are_taken_too(name: str, tmp_path: Path) -> None:
    x = everything(name)
    saved = x if name != "float8_e5m2" else x.view("V1")  # which numpy could not read
    np.savez(tmp_path / "x.npz", x=saved)
    with np.load(tmp_path / "x.npz") as z:
        loaded = z["x"]  # without ml_dtypes' types: numpy writes bytes
    exe = compiler.build(model("Identity", name, name, "n"))
    codes = x.astype(NARROW[name].storage) if name in NARROW else x.view(f"u{x.itemsize}")
    for given in (codes, x[::-1][::-1], *([loaded] if name in FORMATS else [])):
        same(exe(given), x)


@pytest.mark.parametrize("name", list(NARROW))
def test_integers_outside_a_narrow_type_are_refused(name: str) -> None:
    mod = model("Identity", name, name, "n")
    low, high = ml_dtypes.iinfo(dtype_of(name)).min, ml_dtypes.iinfo(dtype_of(name)).max
    for value in (int(low) - 1, int(high) + 1):
        for run in (compiler.build(mod), lambda x: compiler.evaluate(mod, x)):
            with pytest.raises(InputError, match=f"no {value}"):
                run(np.array([0, value], np.int16))


@pytest.mark.parametrize("given", [np.float32, np.int64, ml_dtypes.float8_e5m2, "V4"])
def test_other_types_are_refused_by_name(given: Any) -> None:
    exe = compiler.build(model("Identity", "bfloat16", "bfloat16", 3))
    with pytest.raises(InputError, match=r"input 'x:0' must be custom\[bfloat16\]16, not "):
        exe(np.zeros(3, given))


def test_modules_that_no_model_declares_take_and_give_codes() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,), "float32")
    mod = IRModule({"main": b.finish(b.call("nn.relu", x))})
    inside = datatypes.change_dtype(mod, "float32", "bfloat16", boundary=False)
    codes = datatypes.encode("bfloat16", np.float32([-1, 2, 0.5]))
    for out in (compiler.evaluate(inside, codes), compiler.build(inside)(codes)):
        assert out.dtype == np.uint16
        np.testing.assert_array_equal(datatypes.decode("bfloat16", out), [0, 2, 0.5])
    given = np.array([-1, 2, 0.5], ml_dtypes.bfloat16)
    assert compiler.build(inside)(given).tobytes() == compiler.build(inside)(codes).tobytes()


def test_what_a_model_declares_survives_a_change_of_what_it_computes_in() -> None:
    mod = model("Add", "bfloat16", "bfloat16", 4, inputs=2)
    x = np.array([1, 0.5, -3, 2], ml_dtypes.bfloat16)
    for changed in (mod, datatypes.change_dtype(mod, "bfloat16", "posit16_es1")):
        same(compiler.build(changed)(x, x), x + x)
    bare = datatypes.change_dtype(mod, "bfloat16", "posit16_es1", boundary=False)
    codes = datatypes.encode("posit16_es1", x.astype(np.float32))
    assert compiler.build(bare)(codes, codes).dtype == np.uint16


def test_another_function_than_the_models_own_declares_nothing() -> None:
    mod = model("Identity", "int4", "int4", 2)
    other = model("Identity", "float32", "float32", 2).main
    b = FunctionBuilder()
    f = b.finish(b.call("nn.relu", b.param("x", (2,), "int8")))
    assert other is not f
    for kind in ("interpret", "graph", "vm"):
        got = compiler.create_executor(kind, mod).evaluate(f)(np.array([100, -100], np.int8))
        np.testing.assert_array_equal(got, np.array([100, 0], np.int8))


def test_onnx_agrees() -> None:
    """The reference evaluator of onnx gives arrays of the same types."""
    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        graph = helper.make_graph(
            [helper.make_node("Cast", ["x"], ["y"], to=CODES[name])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
            [helper.make_tensor_value_info("y", CODES[name], ["n"])],
        )
        opsets = [helper.make_opsetid("", 21)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        x = np.float32([-7, 0, 1, 3, 6])
        (want,) = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})
        same(compiler.build(compiler.from_onnx(proto))(x), want)
