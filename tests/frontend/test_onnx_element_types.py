"""Element types that numpy does not have: integers of 4 and 2 bits, formats of 8 and 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model

import compiler
import datatypes
from compiler.boundary.elements import numbers
from compiler.errors import UnsupportedError
from compiler.frontend.element_types import NARROW, bounds
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate

node = helper.make_node
X = np.float32([-3e38, -9, -8.5, -2.5, -0.1, 0, 0.5, 1.49, 2.5, 7.5, 20, 447, 465, 3e38, np.inf])


def both(proto: onnx.ModelProto, *args: Any) -> Any:
    """The result, interpreted and compiled, which must be the same."""
    mod = from_onnx(proto)
    want = evaluate(mod, *args)
    got = compiler.build(mod)(*args)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(numbers(got), numbers(want))
    return want


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    ],
)
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_formats_are_those_of_ml_dtypes(code: int, dtype: Any, saturate: int) -> None:
    proto = model([node("Cast", ["x"], ["y"], to=code, saturate=saturate)], {"x": [15]}, ["y"],
                  opset=21)  # fmt: skip
    limits = ml_dtypes.finfo(dtype)
    x = X
    if saturate and code != TensorProto.BFLOAT16:
        x = np.clip(X, np.float32(limits.min), np.float32(limits.max))
    got = both(proto, X).view(dtype).astype(np.float32)
    np.testing.assert_array_equal(got, x.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("code", NARROW)
def test_quantized_narrow_integers_stay_within_their_bounds(code: int) -> None:
    narrow = NARROW[code]
    low, high = narrow.bounds
    for attrs, zero_point in (({"output_dtype": code}, 0), ({}, 1)):
        weights = {"s": np.float32(2)}
        nodes = [node("QuantizeLinear", ["x", "s", *(["z"] if zero_point else [])], ["q"], **attrs)]
        nodes += [node("DequantizeLinear", ["q", "s"], ["y"])]
        proto = model(nodes, {"x": [15]}, ["q"], weights, opset=25)
        if zero_point:
            proto.graph.initializer.append(helper.make_tensor("z", code, [], [zero_point]))
        got = both(proto, X)
        assert got.dtype.name == f"{'u' * (low == 0)}int{narrow.bits}"
        want = np.clip(np.rint(X / 2) + zero_point, low, high)
        np.testing.assert_array_equal(numbers(got), want)


@pytest.mark.parametrize("code", NARROW)
def test_casts_to_narrow_integers_keep_the_lowest_bits(code: int) -> None:
    values = np.arange(-40, 40, dtype=np.int32)
    proto = model([node("Cast", ["x"], ["y"], to=code)], {"x": [80]}, ["y"],
                  opset=25, dtypes={"x": TensorProto.INT32})  # fmt: skip
    low, _ = NARROW[code].bounds
    size = 1 << NARROW[code].bits
    np.testing.assert_array_equal(numbers(both(proto, values)), (values - low) % size + low)


def test_a_narrow_integer_stays_one_where_it_is_moved() -> None:
    nodes = [
        node("Cast", ["x"], ["q"], to=TensorProto.INT4),
        node("Reshape", ["q", "shape"], ["r"]),
        node("CastLike", ["wide", "r"], ["y"]),
    ]
    weights = {"shape": np.int64([1, 15])}
    proto = model(nodes, {"x": [15], "wide": [2]}, ["y"], weights, 21)
    np.testing.assert_array_equal(numbers(both(proto, X[:], np.float32([9, -9]))), [-7, 7])


def test_nothing_computes_with_narrow_integers() -> None:
    nodes = [node("Cast", ["x"], ["q"], to=TensorProto.INT4), node("Add", ["q", "q"], ["y"])]
    with pytest.raises(UnsupportedError, match="2 or 4 bits"):
        from_onnx(model(nodes, {"x": [15]}, ["y"], opset=21))


@pytest.mark.parametrize("external", [False, True])
def test_weights_of_narrow_types(tmp_path: Path, external: bool) -> None:
    weights = {
        "i": np.array([[-8, 7, 3], [0, -1, 5]], ml_dtypes.int4),
        "u": np.array([[1, 2, 3], [0, 3, 1]], ml_dtypes.uint2),
        "f": np.array([[1, -6, 0.5], [3, 2, 0]], ml_dtypes.float4_e2m1fn),
        "b": np.array([[1, -6, 0.5], [3, 2, 1e30]], ml_dtypes.bfloat16),
    }
    nodes = [node("Cast", [w], [f"{w}1"], to=TensorProto.FLOAT) for w in weights]
    nodes += [node("Sum", ["x", *(f"{w}1" for w in weights)], ["y"])]
    proto = model(nodes, {"x": [2, 3]}, ["y"], opset=25)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    if external:
        for t in proto.graph.initializer:
            (tmp_path / t.name).write_bytes(b"...." + t.raw_data)
            t.ClearField("raw_data")
            t.data_location = TensorProto.EXTERNAL
            t.external_data.add(key="location", value=t.name)
            t.external_data.add(key="offset", value="4")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    want = sum(a.astype(np.float32) for a in weights.values())
    mod = from_onnx(path)
    zero = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(evaluate(mod, zero), want)
    np.testing.assert_array_equal(compiler.build(mod)(zero), want)


def test_constants_of_formats_are_numbers_not_codes() -> None:
    """Clip, Pow, Range, Pad and the like read bounds, exponents and sizes from constants."""
    weights = {"two": 2.0, "low": -1.0, "high": 1.5, "start": 1.0, "limit": 4.0, "one": 1.0}
    nodes = [
        node("Pow", ["x", "two"], ["p"]),
        node("Clip", ["p", "low", "high"], ["c"]),
        node("Range", ["start", "limit", "one"], ["r"]),
        node("Add", ["c", "r"], ["a"]),
        node("Pad", ["a", "pads", "high"], ["d"]),
        node("PRelu", ["d", "two"], ["e"]),
        node("Reciprocal", ["e"], ["y"]),
    ]
    proto = model(nodes, {"x": [3]}, ["y"], {"pads": np.int64([0, 1])}, opset=25,
                  dtypes={"x": TensorProto.BFLOAT16})  # fmt: skip
    for name, value in weights.items():
        stored = numpy_helper.from_array(np.asarray(value, ml_dtypes.bfloat16), name)
        proto.graph.initializer.append(stored)
    x = np.array([0.5, 1, 2], ml_dtypes.bfloat16)
    want = 1 / np.float32([1.25, 3, 4.5, 1.5])
    got = both(proto, x.view(np.uint16)).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, want.astype(ml_dtypes.bfloat16))


def test_bounds_of_formats() -> None:
    for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float4_e2m1fn"):
        limits = ml_dtypes.finfo(getattr(ml_dtypes, name))
        dtype = compiler.types.dtypes.DType.parse(name)
        assert bounds(dtype) == (float(limits.min), float(limits.max))
        assert datatypes.get(name)
