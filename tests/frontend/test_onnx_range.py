"""Operators that ONNX writes out naively, over the whole range of every kind of format: finite and
near the function where that is in range, and with infinities and NaN as onnxruntime has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import compiler
import datatypes
from compiler.ir.expr import IRModule

FLOATS = ("float32", "float64", "float16")
FORMATS = (*FLOATS, "bfloat16", "posit16_es1", "posit8_es0", "float8_e4m3fn", "float8_e5m2")
Function = Callable[..., Any]


def model(op: str, *arrays: Any, opset: int = 18, **attrs: Any) -> onnx.ModelProto:
    """A model of one node with these operands, which are its inputs."""
    kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
    names = [f"x{i}" for i in range(len(arrays))]
    values = zip(names, kinds, arrays, strict=True)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="node", **attrs)],
        "graph",
        [helper.make_tensor_value_info(n, k, a.shape) for n, k, a in values],
        [helper.make_tensor_value_info("y", kinds[0], None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@cache
def numbers_of(fmt: str) -> Any:
    """Finite numbers of a format, ascending: all of them, or of wide ones a sample."""
    if fmt in FLOATS:
        top = math.log10(float(np.finfo(fmt).max))
        powers = 10.0 ** np.linspace(-44, top - 0.01, 400)
        near = np.concatenate([np.linspace(-120, 120, 241), np.linspace(-5, 5, 51)])
        return np.unique(np.concatenate([powers, -powers, near]).astype(fmt)).astype(np.float64)
    bits = datatypes.get(fmt).nbits
    codes = np.arange(1 << bits).astype(f"u{bits // 8}")
    values = datatypes.decode(fmt, codes).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def run(op: str, fmt: str, x: Any, build: bool = False, **attrs: Any) -> Any:
    """The operator on numbers of a format, interpreted, and compiled with the same result (of
    built-in floats, whose exp and tanh the interpreter leaves to numpy, nearly)."""
    proto = model(op, x.astype(fmt if fmt in FLOATS else "float32"), **attrs)
    mod: IRModule = compiler.from_onnx(proto)
    given = x.astype(fmt) if fmt in FLOATS else datatypes.encode(fmt, x)
    if fmt not in FLOATS:
        mod = datatypes.change_dtype(mod, "float32", fmt, boundary=False)
    with np.errstate(all="ignore"):
        found = compiler.evaluate(mod, given)
        if build:
            compiled = compiler.build(mod)(given)
            np.testing.assert_allclose(compiled, found, 1e-6 if fmt in FLOATS else 0, 1e-37)
    decoded = found if fmt in FLOATS else datatypes.decode(fmt, found)
    return np.asarray(decoded, np.float64)


def allowed(fmt: str, x: Any, want: Any) -> Any:
    """How far a result may be off: steps of the format there and at 1, and of tapered formats those
    at x; formats that do not underflow have a smallest result, which x may multiply."""
    values = numbers_of(fmt)
    least = float(values[values > 0][0])
    if fmt in FLOATS or fmt == "bfloat16":
        eps = 2.0**-7 if fmt == "bfloat16" else float(np.finfo(fmt).eps)
        return 4 * eps * np.maximum(np.abs(want), 1) + np.abs(x) * least
    at = np.clip(np.searchsorted(values, want), 1, len(values) - 1)
    one = np.searchsorted(values, 1.0)
    step, unit = values[at] - values[at - 1], values[one + 1] - values[one]
    here = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    taper = (values[here] - values[here - 1]) / np.maximum(np.abs(x), 1)
    return 2 * step + 4 * unit + taper * np.abs(want) + np.abs(x) * least


def softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def elu(x: Any) -> Any:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def gelu_tanh(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


SELU = float(np.float32(1.0507009873554805)), float(np.float32(1.6732632423543772))
FUNCTIONS: dict[str, tuple[Function, dict[str, Any]]] = {
    "Softplus": (softplus, {}),
    "Mish": (lambda x: x * np.tanh(softplus(x)), {}),
    "Softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "Elu": (elu, {}),
    "Selu": (lambda x: SELU[0] * np.where(x > 0, x, SELU[1] * np.expm1(np.minimum(x, 0))), {}),
    "Celu": (lambda x: np.where(x > 0, x, elu(x * 4) / 4), {"alpha": 0.25}),
    "ThresholdedRelu": (lambda x: np.where(x > 1.5, x, 0), {"alpha": 1.5}),
    "Shrink": (lambda x: np.where(np.abs(x) > 0.5, x, 0), {}),
    "Gelu": (gelu_tanh, {"approximate": "tanh", "opset": 20}),
    "HardSwish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), {}),
    "Swish": (lambda x: x * np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))), {"opset": 24}),
    "LeakyRelu": (lambda x: np.where(x > 0, x, x / 8), {"alpha": 0.125}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_finite_and_near_over_the_whole_range(op: str, fmt: str) -> None:
    function, attrs = FUNCTIONS[op]
    if attrs.get("opset", 0) > onnx.defs.onnx_opset_version():
        pytest.skip(f"this onnx has no {op}")
    x = numbers_of(fmt)
    got = run(op, fmt, x, build=op in ("Softplus", "Mish") and fmt in ("float32", "posit8_es0"),
              **attrs)  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        want = function(x)
    inside = np.abs(want) <= numbers_of(fmt)[-1]
    assert inside.sum() > 0.9 * x.size
    with np.errstate(invalid="ignore"):
        bad = inside & ~(np.abs(got - want) <= allowed(fmt, x, want))
    assert not bad.any(), (x[bad][:5], got[bad][:5], want[bad][:5])


def l2(x: Any) -> Any:
    size = np.abs(x).max(1, keepdims=True)
    size[size == 0] = 1
    return np.sqrt(((x / size) ** 2).sum(1)) * size[:, 0]


def log_sum_exp(x: Any) -> Any:
    top = x.max(1, keepdims=True)
    return np.log(np.exp(x - top).sum(1)) + top[:, 0]


REDUCTIONS: dict[str, Function] = {
    "ReduceL1": lambda x: np.abs(x).sum(1),
    "ReduceL2": l2,
    "ReduceSumSquare": lambda x: (x * x).sum(1),
    "ReduceLogSum": lambda x: np.log(x.sum(1)),
    "ReduceLogSumExp": log_sum_exp,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fmt", [*FLOATS, "bfloat16", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_norms_and_logarithms_are_finite_and_near_over_the_whole_range(op: str, fmt: str) -> None:
    rng = np.random.default_rng(0)
    values = numbers_of(fmt)
    x = rng.choice(values, size=(64, 3))  # of all magnitudes,
    same = np.repeat(rng.choice(values[values != 0], size=(64, 1)), 3, axis=1)  # of one,
    near = values[np.searchsorted(values, rng.normal(size=(64, 3))) - 1]
    x = np.concatenate([x, same, near, same * [1, 0, 0]])
    x = np.abs(x) if op == "ReduceLogSum" else x
    got = run(op, fmt, x, build=fmt == "float8_e4m3fn", opset=13, axes=[1], keepdims=0)
    with np.errstate(over="ignore", divide="ignore"):
        want = REDUCTIONS[op](x)
    inside = np.isfinite(want) & (np.abs(want) <= 0.85 * values[-1])
    least = values[values > 0][0]
    assert inside.sum() > 60
    eps = {"bfloat16": 2.0**-7, "float8_e5m2": 0.25, "float8_e4m3fn": 0.125}.get(fmt)
    eps = eps or float(np.finfo(fmt).eps)
    with np.errstate(invalid="ignore"):
        close = np.abs(got - want) <= 4 * eps * np.maximum(np.abs(want), "Log" in op) + 2 * least
    bad = inside & ~close
    if op == "ReduceSumSquare":  # its squares may be too small for the format
        bad &= want > 1
    assert not bad.any(), (x[bad][:5], got[bad][:5], want[bad][:5])


INF, NAN = math.inf, math.nan
ROWS = np.float32([
    [INF, 1, 1, 1], [INF, -INF, 1, 2], [-INF] * 4, [NAN, 1, 2, 3], [-3e38, 0, 0, 0],
    [3e38, 0, -1, 2], [0] * 4, [-1, -2, -3, -4], [0.25] * 4, [88, 89, 100, -5],
])  # fmt: skip


def both(proto: onnx.ModelProto, *arrays: Any) -> Any:
    """The result, compiled, which is nearly the interpreter's; and onnxruntime's."""
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0]
    mod = compiler.from_onnx(proto)
    with np.errstate(all="ignore"):
        interpreted = compiler.evaluate(mod, *arrays)
    got = compiler.build(mod)(*arrays)
    np.testing.assert_allclose(got, interpreted, rtol=1e-6, atol=1e-37)
    return got, want


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_norms_of_infinities_are_those_of_onnxruntime(op: str) -> None:
    got, want = both(model(op, ROWS, opset=13, axes=[1], keepdims=0), ROWS)
    over = np.isinf(want) & np.isfinite(got)  # onnxruntime's squares
    assert over.sum() == (2 if op == "ReduceL2" else 0)
    np.testing.assert_allclose(got[~over], want[~over], rtol=2e-6)


@pytest.mark.parametrize("op", ["LpNormalization", "Softmax", "LogSoftmax"])
def test_rows_of_infinities_are_those_of_onnxruntime(op: str) -> None:
    rows = ROWS[:8] if op == "LpNormalization" else ROWS
    rows = rows[np.abs(rows[:, 0]) < 1e38] if op == "LpNormalization" else rows  # ort overflows
    got, want = both(model(op, rows, axis=1), rows)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


SPECIAL = np.float32([INF, -INF, NAN, 0, -0.0, 1, -1, 1e-30, -1e-30, 3e38, -3e38, 100, -100])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "op",
    ["Softplus", "Mish", "Softsign", "Elu", "Selu", "Celu", "ThresholdedRelu", "Shrink", "Gelu",
     "HardSwish", "HardSigmoid", "LeakyRelu", "Sigmoid", "Tanh", "Sign", "Relu", "Abs", "Erf"],
)  # fmt: skip
def test_functions_of_infinities_are_those_of_onnxruntime(op: str) -> None:
    got, want = both(model(op, SPECIAL, opset=20), SPECIAL)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("slope", [0, 1, -1, INF, -INF, NAN, 0.25, 3e38])
def test_prelu_with_any_slope_is_that_of_onnxruntime(slope: float) -> None:
    slopes = np.float32([slope])
    got, want = both(model("PRelu", SPECIAL, slopes), SPECIAL, slopes)
    np.testing.assert_array_equal(got, want)


NORMS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "LayerNormalization": ({}, (4,)),
    "InstanceNormalization": ({}, (3,)),
    "MeanVarianceNormalization": ({}, ()),
    "LRN": ({"size": 3}, ()),
    "LpPool": ({"kernel_shape": [2, 2]}, ()),
    "GlobalLpPool": ({}, ()),
    "LpNormalization": ({}, ()),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", NORMS)
def test_float16_norms_of_large_numbers_are_near_those_of_float64(op: str) -> None:
    attrs, shape = NORMS[op]
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(2, 3, 4, 4)) * 3000).astype("float16")
    count = 2 if op == "InstanceNormalization" else len(shape)
    more = [rng.normal(size=shape).astype("float16") for _ in range(count)]
    half = compiler.from_onnx(model(op, x, *more, **attrs))
    full = [a.astype("float64") for a in (x, *more)]
    want = compiler.evaluate(compiler.from_onnx(model(op, *full, **attrs)), *full)
    got = compiler.build(half)(x, *more)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-3, atol=2e-3)


def test_mean_variance_normalization_keeps_its_digits() -> None:
    x = np.float32(10000 + np.random.default_rng(2).normal(size=(2, 3, 8, 8)))
    wide = x.astype(np.float64)
    away = wide - wide.mean((0, 2, 3), keepdims=True)
    want = away / np.sqrt((away**2).mean((0, 2, 3), keepdims=True))
    got = compiler.build(compiler.from_onnx(model("MeanVarianceNormalization", x)))(x)
    np.testing.assert_allclose(got, want, atol=2e-2)  # float32's step at 10000 is 1e-3


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_keeps_its_digits(opset: int) -> None:
    rng = np.random.default_rng(3)
    x = np.float32(10000 + rng.normal(size=(2, 6, 5, 5)))
    count = 6 if opset >= 21 else 2
    gamma, beta = (rng.normal(size=count).astype(np.float32) for _ in range(2))
    groups = x.astype(np.float64).reshape(2, 2, 75)
    away = groups - groups.mean(2, keepdims=True)
    unit = away / np.sqrt((away**2).mean(2, keepdims=True) + 1e-5)
    each = (np.repeat(v, 6 // count).reshape(1, 6, 1, 1) for v in (gamma, beta))
    scale, offset = each
    want = unit.reshape(x.shape) * scale + offset
    mod = compiler.from_onnx(model("GroupNormalization", x, gamma, beta, opset=opset, num_groups=2))
    np.testing.assert_allclose(compiler.build(mod)(x, gamma, beta), want, atol=2e-2)
