"""Exports of networks as few people have them: along one axis and along three, embeddings whose
positions are anything, several outputs of truth values and integers, names that are no names in C,
recurrent layers, scalars. C runs under sanitizers, machine code between pages that nothing touches;
all files compile without a warning, in C and C++."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compilers import STRICT
from guarded_calls import UNDEFINED, program
from onnx import TensorProto, helper, numpy_helper

import compiler
import datatypes
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

sys.path.append(str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import listed, needs_compiler

pytestmark = needs_compiler
F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Value = tuple[str, int, Sequence[int | str]]


def module(
    nodes: Sequence[Any], inputs: Sequence[Value], outputs: Sequence[Value], **weights: Any
) -> IRModule:
    """Of ONNX nodes; weights are arrays, or shapes of random ones."""
    rng = np.random.default_rng(0)
    stored = {
        name: rng.normal(size=w).astype(np.float32) if isinstance(w, tuple) else np.asarray(w)
        for name, w in weights.items()
    }
    given, made = ([helper.make_tensor_value_info(*v) for v in vs] for vs in (inputs, outputs))
    held = [numpy_helper.from_array(a, name) for name, a in stored.items()]
    graph = helper.make_graph(nodes, "strange", given, made, held)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return compiler.from_onnx(model)


def floats(*shape: int) -> Array:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


node = helper.make_node
Case = tuple[IRModule, list[Array], dict[str, int]]


def along_one_axis() -> Case:
    """Of any batch and length; names with spaces, slashes and letters of other languages."""
    nodes = [
        node("Conv", ["x in", "w"], ["c"], kernel_shape=[5], pads=[2, 1], strides=[2], group=2),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[3], strides=[2]),
        node("GlobalAveragePool", ["p"], ["r\u00e9sum\u00e9 / \u51fa\u529b"]),
    ]
    inputs = [("x in", F, ["batch size", 4, "l\u00e4nge"])]
    outputs = [("r\u00e9sum\u00e9 / \u51fa\u529b", F, ["batch size", 6, 1])]
    mod = module(nodes, inputs, outputs, w=(6, 2, 5))
    return mod, [floats(2, 4, 17)], {"batch_size": 2, "l_nge": 17}


def along_three_axes() -> Case:
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1] * 6), node("Softmax", ["y"], ["z"], axis=1)]
    shape = ["b", 2, 4, 5, 6]
    mod = module(nodes, [("x", F, shape)], [("z", F, ["b", 3, 4, 5, 6])], w=(3, 2, 3, 3, 3))
    return mod, [floats(2, 2, 4, 5, 6)], {"b": 2}


def embeddings() -> Case:
    nodes = [
        node("Gather", ["table", "ids"], ["e"], axis=0),
        node("ReduceMean", ["e"], ["m"], axes=[1], keepdims=0),
        node("MatMul", ["m", "w"], ["logits"]),
        node("Greater", ["logits", "zero"], ["is positive?"]),
        node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0),
        node("Not", ["flag"], ["not flag"]),
    ]
    inputs: list[Value] = [("ids", INT, ["n", "t"]), ("flag", B, ["n"])]
    outputs: list[Value] = [
        ("logits", F, ["n", 3]), ("is positive?", B, ["n", 3]), ("best", INT, ["n"]),
        ("not flag", B, ["n"]), ("e", F, ["n", "t", 8]),
    ]  # fmt: skip
    mod = module(nodes, inputs, outputs, table=(11, 8), w=(8, 3), zero=np.float32(0))
    ids = np.random.default_rng(2).integers(-11, 11, (3, 5))
    return mod, [ids, np.array([True, False, True])], {"n": 3, "t": 5}


def recurrent() -> Case:
    """Of known length: loops over open ones are not exported."""
    nodes = [node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=5)]
    outputs: list[Value] = [
        ("y", F, [7, 1, "n", 5]), ("h", F, [1, "n", 5]), ("c", F, [1, "n", 5]),
    ]  # fmt: skip
    mod = module(nodes, [("x", F, [7, "n", 3])], outputs, w=(1, 20, 3), r=(1, 20, 5), b=(1, 40))
    return mod, [floats(7, 3, 3)], {"n": 3}


def largest() -> Case:
    nodes = [node("TopK", ["x", "k"], ["v", "i"], axis=1)]
    outputs: list[Value] = [("v", F, ["n", 3]), ("i", INT, ["n", 3])]
    mod = module(nodes, [("x", F, ["n", 9])], outputs, k=np.array([3]))
    x = floats(3, 9)
    x[1, 4] = np.nan
    return mod, [x], {"n": 3}


def scalars() -> Case:
    nodes = [node("Mul", ["x", "alpha"], ["y"]), node("Reshape", ["y", "s"], ["z"])]
    inputs: list[Value] = [("x", F, ["n", 4, 6]), ("alpha", F, [])]
    mod = module(nodes, inputs, [("z", F, ["m", 8])], s=np.array([-1, 8]))
    return mod, [floats(3, 4, 6), np.asarray(np.float32(2.5))], {"n": 3}


CASES = (along_one_axis, along_three_axes, embeddings, recurrent, largest, scalars)


def exported(folder: Path, mod: IRModule, target: str) -> None:
    """And its files compile: the header in C++, the program in C."""
    compiler.export(mod, target, folder, forms=["source" if target == "c" else "object"])
    for words in (["c++", "-std=c++11", "-x", "c++", "net.h"], ["cc", "-std=c11", "main.c"]):
        call = [words[0], *STRICT, *words[1:-1], "-c", "-o", "x.o", words[-1]]
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:1000]


def check(
    folder: Path, mod: IRModule, target: str, given: list[Array], want: list[Array],
    dims: dict[str, int],
) -> None:  # fmt: skip
    exported(folder, mod, target)
    flags = ("-O1", UNDEFINED) if target == "c" else ("-O1",)
    made = program(folder, given, want, dims, flags)
    for mode in ["exact"] if target == "c" else ["behind", "before"]:
        made.run(mode, 2, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ["float32", "posit8_es1"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_results(tmp_path: Path, target: str, case: Any, fmt: str) -> None:
    mod, given, dims = case()
    mod = mod if fmt == "float32" else datatypes.change_dtype(mod, "float32", fmt)
    here = compiler.build(mod, target="llvm -mcpu=generic" if target == "c" else target)
    want = [np.asarray(a) for a in listed(here(*given))]
    for a, b in zip(want, map(np.asarray, listed(compiler.evaluate(mod, *given))), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if fmt == "float32" else {"rtol": 0, "atol": 0}
        np.testing.assert_allclose(a, b, **tolerance)
    check(tmp_path / "x", mod, target, given, want, dims)


@pytest.mark.parametrize("target", ["c", pytest.param("llvm", marks=pytest.mark.thorough)])
def test_positions_outside_read_the_border(tmp_path: Path, target: str) -> None:
    """In C nothing checks them; whatever they are, nothing outside is read."""
    mod, (ids, flags), dims = embeddings()
    odd = [11, 1000, -12, -1000, 2**31, -(2**31), 2**33 + 3, 2**62, -(2**63), 2**63 - 1]
    ids = ids.copy()
    ids.reshape(-1)[: len(odd)] = odd
    cpu = "llvm -mcpu=generic" if target == "c" else target
    inside = np.where(ids < 0, np.maximum(ids, -11), np.minimum(ids, 10))
    want = [np.asarray(a) for a in listed(compiler.build(mod, target=cpu)(inside, flags))]
    check(tmp_path / "x", mod, target, [ids, flags], want, dims)
