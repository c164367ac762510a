"""Elementwise operators, normalizations, reductions: values, and the order of operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from op_harness import check_agreement, reference
from ort_node import onnx_run
from toy_dtype import TOY

from compiler.arithmetic.scalar_functions import UNARY as FUNCTIONS
from compiler.errors import DtypelabError, TypeInferenceError
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.types.dtypes import BOOL, FLOAT32, INT32, UINT8, Array, DType
from compiler.types.tensor_types import TensorType

Half = np.float16
HALF = DType("float", 16)

UNARY = [
    *((f.name, {}, f.onnx, {}) for f in FUNCTIONS.values() if f.onnx is not None),
    ("negative", {}, "Neg", {}),
    ("abs", {}, "Abs", {}),
    ("nn.relu", {}, "Relu", {}),
    ("nn.leaky_relu", {"alpha": 0.2}, "LeakyRelu", {"alpha": 0.2}),
    ("nn.hard_sigmoid", {"alpha": 0.3, "beta": 0.4}, "HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("nn.hard_swish", {}, "HardSwish", {}),
    ("nn.gelu", {}, "Gelu", {}),
    ("nn.gelu", {"approximate": "tanh"}, "Gelu", {"approximate": "tanh"}),
    ("nn.softmax", {"axis": 1}, "Softmax", {"axis": 1}),
    ("nn.log_softmax", {}, "LogSoftmax", {}),
    ("max", {"axis": (), "keepdims": True}, "ReduceMax", {}),
    ("mean", {"axis": (), "keepdims": True}, "ReduceMean", {}),
    ("nn.global_avg_pool2d", {}, "GlobalAveragePool", {}),
]


@pytest.mark.parametrize(("op", "attrs", "onnx_op", "onnx_attrs"), UNARY)
def test_unary_equals_onnxruntime(
    op: str, attrs: dict[str, Any], onnx_op: str, onnx_attrs: dict[str, Any]
) -> None:
    x = np.random.default_rng(1).uniform(-6, 6, (3, 4, 5)).astype(np.float32)
    low, high = FUNCTIONS[op].domain if op in FUNCTIONS else (-np.inf, np.inf)
    x = np.clip(x, low + 0.01, high - 0.01)
    want = onnx_run(onnx_op, onnx_attrs, {"x": x})
    np.testing.assert_allclose(reference(op, [x], **attrs), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("op", "onnx_op"),
    [
        ("add", "Add"),
        ("subtract", "Sub"),
        ("multiply", "Mul"),
        ("divide", "Div"),
        ("maximum", "Max"),
        ("minimum", "Min"),
        ("power", "Pow"),
        ("less", "Less"),
        ("greater", "Greater"),
        ("equal", "Equal"),
    ],
)
def test_binary_equals_onnxruntime(op: str, onnx_op: str) -> None:
    rng = np.random.default_rng(2)
    a = rng.integers(1, 9, (2, 1, 4)).astype(np.float32) / 2
    b = rng.integers(1, 9, (3, 1)).astype(np.float32) / 2
    got, want = reference(op, [a, b]), onnx_run(onnx_op, {}, {"a": a, "b": b})
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)])
def test_integers_are_divided_toward_zero(dtype: str) -> None:
    """As Python's integers of any size; by zero gives 0, and the least by -1 wraps."""
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, -7, -2, -1, 0, 1, 2, 3, 8, info.max - 1, info.max]
    numbers = [v for v in dict.fromkeys(edges) if v >= info.min]
    pairs = [(a, b) for a in numbers for b in numbers]
    quotients = [0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                 for a, b in pairs]  # fmt: skip
    want = np.array([info.min if q > info.max else q for q in quotients], dtype)
    a, b = (np.array([p[k] for p in pairs], dtype) for k in (0, 1))
    np.testing.assert_array_equal(reference("divide", [a, b]), want)


def test_layer_and_batch_norm_equal_onnxruntime() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    gamma, beta = (rng.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
    want = onnx_run("LayerNormalization", {"axis": 1}, {"x": x, "g": gamma, "b": beta})
    got = reference("nn.layer_norm", [x, gamma, beta], axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    params = {n: rng.uniform(0.5, 2, 3).astype(np.float32) for n in "gbmv"}
    want = onnx_run("BatchNormalization", {"epsilon": 0.01}, {"x": x, **params})
    got = reference("nn.batch_norm", [x, *params.values()], epsilon=0.01)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@given(array_shapes(min_dims=2, max_dims=4, max_side=4), st.data())
@settings(max_examples=50, deadline=None)
def test_matmul_and_dense_are_numpys(shape: tuple[int, ...], data: Any) -> None:
    rng = np.random.default_rng(4)
    columns = data.draw(st.integers(1, 3))
    x = rng.integers(-9, 9, shape).astype(np.float32)
    weight = rng.integers(-9, 9, (columns, shape[-1])).astype(np.float32)
    batch = shape[:-2][data.draw(st.integers(0, len(shape) - 2)) :]
    y = rng.integers(-9, 9, (*batch, shape[-1], columns)).astype(np.float32)
    np.testing.assert_array_equal(reference("nn.matmul", [x, y]), x @ y)
    vector = weight[0]
    np.testing.assert_array_equal(reference("nn.matmul", [x, vector]), x @ vector)
    np.testing.assert_array_equal(reference("nn.matmul", [vector, y]), vector @ y)
    np.testing.assert_array_equal(reference("nn.dense", [x, weight]), x @ weight.T)


@given(array_shapes(min_dims=1, max_dims=4, max_side=4), st.data(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_reductions_are_numpys(shape: tuple[int, ...], data: Any, keepdims: bool) -> None:
    x = np.random.default_rng(5).integers(-99, 99, shape).astype(np.float32)
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    axis = tuple(a - len(shape) * data.draw(st.booleans()) for a in axes)
    for name, f in (("sum", np.sum), ("max", np.max), ("min", np.min), ("mean", np.mean)):
        want = f(x, axis=axis, keepdims=keepdims)
        got = reference(name, [x], axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def halves(*values: float) -> Array:
    return np.array(values, Half)


def test_sums_are_sequential_and_means_divide_once() -> None:
    # One by one 2048 + 1 stays 2048 in float16; in pairs it does not.
    assert reference("sum", [halves(2048, 1, 1)]).item() == 2048
    assert reference("sum", [halves(1, 1, 2048)]).item() == 2050
    rows = halves(2048, 1, 1, 1).reshape(2, 2)
    assert reference("sum", [rows]).item() == 2048
    assert reference("mean", [halves(65504, 65504)]).item() == np.inf


def test_softmax_divides_by_the_sum() -> None:
    x = halves(0.1, 1.3, -0.7)
    e = [np.exp(np.float64(Half(v - Half(1.3)))).astype(Half) for v in x]
    total = Half(Half(Half(0) + e[0]) + e[1]) + e[2]
    np.testing.assert_array_equal(reference("nn.softmax", [x]), [Half(v / total) for v in e])


def test_softmax_does_not_overflow() -> None:
    x = np.array([[1000, 999], [-1000, -np.inf]], np.float32)
    y = reference("nn.softmax", [x])
    np.testing.assert_allclose(y, [[0.7310586, 0.26894143], [1, 0]], rtol=1e-6)
    np.testing.assert_allclose(reference("nn.log_softmax", [x])[0], [-0.3132617, -1.3132617], 1e-5)


def test_batch_norm_rounds_every_operation() -> None:
    x, gamma, beta, mean, var = (halves(v) for v in (1.7, 0.3, 0.11, 0.21, 1.9))
    s = np.sqrt(np.float64(Half(var[0] + Half(1e-3)))).astype(Half)
    want = Half(Half(Half(Half(x[0] - mean[0]) / s) * gamma[0]) + beta[0])
    args = [x.reshape(1, 1), gamma, beta, mean, var]
    assert reference("nn.batch_norm", args, epsilon=1e-3).item() == want


def test_gelu_rounds_every_operation() -> None:
    from math import erf, sqrt

    x = Half(1.23)
    bend = Half(erf(float(Half(x / Half(sqrt(2))))))
    want = Half(Half(Half(0.5) * x) * Half(Half(1) + bend))
    assert reference("nn.gelu", [halves(1.23)]).item() == want


def test_clip_with_infinite_bounds_is_one_sided() -> None:
    x = np.array([-5, 5], np.int32)
    np.testing.assert_array_equal(reference("clip", [x], a_min=0.0), [0, 5])
    np.testing.assert_array_equal(reference("clip", [x], a_max=3.0), [-5, 3])


def test_casts() -> None:
    x = np.array([-1.7, 0.0, 2.7], np.float32)
    np.testing.assert_array_equal(reference("cast", [x], dtype="int32"), [-1, 0, 2])
    np.testing.assert_array_equal(reference("cast", [x], dtype="bool"), [True, False, True])
    bits = reference("cast", [x], dtype="custom[toyhalf]16")
    assert bits.dtype == np.uint16
    back = reference("cast", [bits], [TOY], dtype="float32")
    np.testing.assert_array_equal(back, x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("op", "dtypes", "message"),
    [
        ("add", (FLOAT32, INT32), "dtypes float32 and int32; cast one of them"),
        ("add", (BOOL, BOOL), "not defined for bool"),
        ("exp", (INT32,), "exp is not defined for int32"),
        ("power", (TOY, TOY), "write it with multiply or sqrt"),
        ("where", (FLOAT32, FLOAT32, FLOAT32), "condition must be bool"),
        ("nn.softmax", (INT32,), "not defined for int32"),
        ("sum", (BOOL,), "not defined for bool"),
        ("nn.bias_add", (BOOL, BOOL), "not defined for bool"),
    ],
)
def test_wrong_dtypes_are_type_errors(op: str, dtypes: tuple[DType, ...], message: str) -> None:
    definition = get_op(op)
    with pytest.raises(TypeInferenceError, match=message):
        definition.infer_type(definition.make_attrs(), [TensorType.of((2, 3), d) for d in dtypes])


def test_wrong_attributes_name_the_nearest() -> None:
    with pytest.raises(DtypelabError, match="did you mean 'strides'"):
        get_op("nn.conv2d").make_attrs(stride=(1, 1))
    with pytest.raises(DtypelabError, match=r"did you mean 'nn\.conv2d'"):
        get_op("nn.conv2")
    with pytest.raises(TypeInferenceError, match="'none' or 'tanh', not 'fast'"):
        get_op("nn.gelu").make_attrs(approximate="fast")


def test_a_small_network_evaluates_at_any_batch_size() -> None:
    from compiler.symbolic import Var as Dim

    rng = np.random.default_rng(7)
    b = FunctionBuilder()
    x = b.param("x", (Dim("n"), 1, 8, 8))
    w = b.const(rng.standard_normal((4, 1, 3, 3)).astype(np.float32))
    y = b.call("nn.relu", b.call("nn.conv2d", x, w, padding=(1, 1, 1, 1)))
    y = b.call("nn.max_pool2d", y, pool_size=(2, 2), strides=(2, 2))
    y = b.call("reshape", y, newshape=(0, -1))
    units = b.const(rng.standard_normal((3, 64)).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.softmax", b.call("nn.dense", y, units)))})
    data = rng.standard_normal((5, 1, 8, 8)).astype(np.float32)
    whole = evaluate(mod, data)
    assert whole.shape == (5, 3)
    np.testing.assert_allclose(whole.sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(evaluate(mod, data[3:4]), whole[3:4])


@pytest.mark.parametrize(("low", "high", "want"), [
    (-1.0, 256.0, [0, 7, 255]), (-np.inf, -1.0, [0, 0, 0]), (300.0, np.inf, [255, 255, 255]),
])  # fmt: skip
def test_bounds_beyond_integers_are_their_ends(low: float, high: float, want: list[int]) -> None:
    x = np.array([0, 7, 255], np.uint8)
    attrs = {"a_min": low, "a_max": high}
    (got,) = check_agreement("clip", attrs, [TensorType.of((3,), UINT8)], [x])
    np.testing.assert_array_equal(got, want)
