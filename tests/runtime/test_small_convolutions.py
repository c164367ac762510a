"""Convolutions of every small shape: they compile for every target and give the reference's bits.

Where an axis has one or two places left, tiles, skewed windows and vectors have least room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import compiler
import datatypes
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array

TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
INTEGERS = ("int8", "uint8")


def same(got: Array, want: Array, kind: str, target: str, case: Any) -> None:
    """The same bits; products of float32 may be contracted where the target can."""
    if kind == "float32" and "x86-64" not in target:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{target} {case}")
    else:
        np.testing.assert_array_equal(got, want, err_msg=f"{target} {case}")


def check(mod: IRModule, x: Array, kind: str, case: Any) -> None:
    if kind not in (*INTEGERS, "float32"):
        mod = datatypes.change_dtype(mod, "float32", kind)
    want = compiler.evaluate(mod, x)
    for target in TARGETS:
        same(compiler.build(mod, target=target)(x), want, kind, target, case)


def numbers(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    if kind in INTEGERS:
        return rng.integers(0, 256, shape).astype(np.uint8).view(kind)
    return rng.normal(size=shape).astype(np.float32)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A kind of data, and sizes; not all fit together."""
    kind = draw(st.sampled_from(["int8", "uint8", "int8", "float32", "posit8_es0", "bfloat16"]))
    channels = draw(st.integers(1, 5))
    depthwise = draw(st.integers(0, 3)) == 0
    fitting = [g for g in range(1, channels + 1) if channels % g == 0]
    groups = channels if depthwise else draw(st.sampled_from(fitting))
    pair = st.tuples(st.integers(1, 5), st.integers(1, 5))
    return kind, {
        "batch": draw(st.integers(0, 2)),
        "symbolic": draw(st.booleans()),
        "channels": channels,
        "outputs": groups * draw(st.sampled_from([1, 2, 3, 4, 8, 16, 17])),
        "size": draw(pair),
        "kernel": draw(pair),
        "strides": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "dilation": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "padding": draw(st.tuples(*[st.integers(0, 3)] * 4)),
        "groups": groups,
        "zero": draw(st.sampled_from([0, -128, 5])),
        "finish": draw(st.sampled_from(["nothing", "requantize", "relu"])),
    }


def module(kind: str, c: dict[str, Any], rng: np.random.Generator) -> IRModule:
    """The convolution, and what follows it."""
    b, integers = FunctionBuilder(), kind in INTEGERS
    batch = Var("n") if c["symbolic"] and c["batch"] else c["batch"]
    dtype = kind if integers else "float32"
    x = b.param("x", (batch, c["channels"], *c["size"]), dtype)
    shape = (c["outputs"], c["channels"] // c["groups"], *c["kernel"])
    w = rng.integers(-128, 128, shape).astype(np.int8) if integers else numbers(rng, kind, shape)
    attrs = {k: c[k] for k in ("strides", "dilation", "padding", "groups")}
    if integers:
        zero = max(c["zero"], 0) if kind == "uint8" else c["zero"]
        attrs |= {"out_dtype": "int32", "input_zero_point": zero}
    y = b.call("nn.conv2d", x, b.const(w), **attrs)
    if integers and c["finish"] == "requantize":
        y = b.call("qnn.requantize", y, b.const(np.float32(1e-3)), output_zero_point=7)
    elif c["finish"] == "relu":
        y = b.call("nn.relu", y)
    return IRModule({"main": b.finish(y)})


@pytest.mark.thorough
@pytest.mark.parametrize("count", [12, pytest.param(2000, marks=pytest.mark.slow)])
def test_small_shapes(count: int) -> None:
    tried: list[int] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(convolutions(), st.integers(0, 2**32 - 1))
    def trial(case: tuple[str, dict[str, Any]], seed: int) -> None:
        kind, c = case
        rng = np.random.default_rng(seed)
        try:
            mod = module(kind, c, rng)
        except TypeInferenceError:
            return  # the kernel does not fit into the data
        check(mod, numbers(rng, kind, (c["batch"], c["channels"], *c["size"])), kind, c)
        tried.append(1)

    trial()
    assert len(tried) > count / 4


@pytest.mark.sampled(12)
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2])
def test_a_single_window_in_a_row(width: int, channels: int, strides: int) -> None:
    """What the data and its padding leave is one window wide, or two."""
    rng = np.random.default_rng(width)
    for kernel in (3, 4):
        before = kernel - 1 if kernel - width < 1 else kernel - width
        case = {
            "batch": 1, "symbolic": False, "channels": channels, "outputs": 16, "groups": 1,
            "size": (4, width), "kernel": (3, kernel), "strides": (1, strides),
            "dilation": (1, 1), "padding": (1, before, 1, (width - 1) * strides), "zero": 5,
            "finish": "requantize",
        }  # fmt: skip
        mod = module("int8", case, rng)
        check(mod, numbers(rng, "int8", (1, channels, 4, width)), "int8", case)


# ---- one, two and three spatial axes, imported ---------------------------------------------------
def imported(rng: np.random.Generator, rank: int, integers: bool) -> tuple[Any, tuple[int, ...]]:
    """A model of one convolution over `rank` spatial axes, and the shape of its input."""
    channels, outputs = int(rng.integers(1, 4)), int(rng.choice([1, 3, 8, 16]))
    kernel = [int(k) for k in rng.integers(1, 4, rank)]
    size = [k + int(e) for k, e in zip(kernel, rng.integers(0, 2, rank), strict=True)]
    attrs = {
        "kernel_shape": kernel,
        "strides": [int(s) for s in rng.integers(1, 3, rank)],
        "pads": [int(p) for p in rng.integers(0, 2, 2 * rank)],
    }
    shape = (outputs, channels, *kernel)
    if integers:
        w = helper.make_tensor("w", TensorProto.INT8, shape, rng.integers(-128, 128, shape).ravel())
        zero = helper.make_tensor("z", TensorProto.UINT8, [], [int(rng.integers(0, 256))])
        node, constants = (
            helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], **attrs),
            [w, zero],
        )
        dtypes = TensorProto.UINT8, TensorProto.INT32
    else:
        w = helper.make_tensor("w", TensorProto.FLOAT, shape, rng.normal(size=shape).ravel())
        node, constants = helper.make_node("Conv", ["x", "w"], ["y"], **attrs), [w]
        dtypes = TensorProto.FLOAT, TensorProto.FLOAT
    given_shape = (int(rng.integers(1, 3)), channels, *size)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", dtypes[0], given_shape)],
        [helper.make_tensor_value_info("y", dtypes[1], None)],
        constants,
    )
    version = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=version, ir_version=10), given_shape


def check_imported(kind: str, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model, shape = imported(rng, rank, kind == "uint8")
    check(compiler.from_onnx(model), numbers(rng, kind, shape), kind, (rank, seed))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", ["uint8", "float32", "posit8_es0"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_imported(kind: str, rank: int) -> None:
    for seed in range(2):
        check_imported(kind, rank, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uint8", "float32", "posit8_es0"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_many_imported(kind: str, rank: int) -> None:
    for seed in range(100, 160):
        check_imported(kind, rank, seed)
