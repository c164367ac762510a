"""Weights of many megabytes in files beside a model are mapped, not read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import compiler
import quantize
from compiler.errors import ModelError
from compiler.frontend.external_data import is_mapped
from compiler.ir.expr import Call, Constant

MIB = 1 << 20
SIZES = {
    TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2, TensorProto.INT8: 1,
    TensorProto.FLOAT8E4M3FN: 1,
}  # fmt: skip


def write(folder: Path, layers: int, width: int, code: int = TensorProto.FLOAT) -> Path:
    """x -> MatMul with [width, width] weights, `layers` times; the weights are in one file, mostly
    a hole. Weights that are not float32 are converted by a Cast, as exporters do."""
    each = width * width * SIZES[code]
    nodes, weights, x = [], [], "x"
    for k in range(layers):
        w = TensorProto(name=f"w{k}", data_type=code, dims=[width, width])
        w.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", k * each), ("length", each)):
            w.external_data.add(key=key, value=str(value))
        weights.append(w)
        name = w.name
        if code != TensorProto.FLOAT:
            nodes.append(helper.make_node("Cast", [name], [f"r{k}"], to=TensorProto.FLOAT))
            name = f"r{k}"
        nodes.append(helper.make_node("MatMul", [x, name], [f"y{k}"]))
        x = f"y{k}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, ["n", width])],
        [value(x, TensorProto.FLOAT, ["n", width])], weights,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(proto, folder / "net.onnx")
    with (folder / "w.bin").open("wb") as file:
        file.truncate(layers * each)
        if code == TensorProto.FLOAT:
            row = np.random.default_rng(0).normal(0, 0.1, width).astype(np.float32)
            file.write(row.tobytes())
    return folder / "net.onnx"


MEASURED = """
import resource, sys, time
import compiler

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()

compiler.from_onnx(sys.argv[1] + ".small", memory_limit=1 << 34)
before, start = resident(), time.perf_counter()
mod = compiler.from_onnx(sys.argv[1], memory_limit=1 << 34)
print(time.perf_counter() - start, resident() - before)
"""


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_small(folder: Path) -> Path:
    """A model of one node."""
    small = folder / "net.onnx.small"
    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [one], [
        helper.make_empty_tensor_value_info("y")])  # fmt: skip
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), small)
    return small


def measured(path: Path) -> tuple[float, int]:
    """Seconds and bytes that an import takes in a process of its own, after a first one."""
    write_small(path.parent)
    command = [sys.executable, "-c", MEASURED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, taken = done.stdout.split()
    return float(seconds), int(taken)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_an_import_takes_no_memory_for_its_weights(tmp_path: Path) -> None:
    path = write(tmp_path, 4, 2048)
    assert (tmp_path / "w.bin").stat().st_size == 64 * MIB
    compiler.from_onnx(write_small(tmp_path))  # so that all that is needed has been loaded
    before = resident()
    mod = compiler.from_onnx(path)
    assert resident() - before < 0.2 * 64 * MIB
    assert len(mod.main.bindings) == 4


@pytest.mark.slow
@pytest.mark.parametrize("code", SIZES, ids=TensorProto.DataType.Name)
def test_a_model_of_three_gigabytes_is_imported_at_once(tmp_path: Path, code: Any) -> None:
    width = 8192
    each = width * width * SIZES[code]
    path = write(tmp_path, 3 * 1024 * MIB // each, width, code)
    assert (tmp_path / "w.bin").stat().st_size == 3 * 1024 * MIB
    seconds, taken = measured(path)
    print(f"{TensorProto.DataType.Name(code)}: {seconds:.2f} s, {taken / MIB:.1f} MiB")
    assert seconds < 10
    assert taken < 1.2 * 3 * 1024 * MIB


def test_mapped_weights_stay_in_the_file(tmp_path: Path) -> None:
    mod = compiler.from_onnx(write(tmp_path, 1, 640))
    (layer,) = [b.value for b in mod.main.bindings if isinstance(b.value, Call)]
    weights = layer.args[1]
    assert isinstance(weights, Constant)
    assert is_mapped(weights.data)
    assert not weights.data.flags.writeable


@pytest.mark.thorough
def test_mapped_weights_compute(tmp_path: Path) -> None:
    mod = compiler.from_onnx(write(tmp_path, 1, 640))
    x = np.random.default_rng(1).normal(0, 1, (3, 640)).astype(np.float32)
    stored = np.fromfile(tmp_path / "w.bin", np.float32).reshape(640, 640)
    for got in (compiler.evaluate(mod, x), compiler.build(mod)(x)):
        np.testing.assert_allclose(got, x @ stored, rtol=1e-4, atol=1e-5)
    q = quantize.quantize(mod, [x])
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


@pytest.mark.parametrize("offset", [1, 64, 4096])
def test_weights_at_any_offset(tmp_path: Path, offset: int) -> None:
    path = write(tmp_path, 1, 640)
    proto = onnx.load(path, load_external_data=False)
    (entry,) = [e for e in proto.graph.initializer[0].external_data if e.key == "offset"]
    entry.value = str(offset)
    onnx.save(proto, path)
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(bytes(offset) + data)
    (layer,) = [b.value for b in compiler.from_onnx(path).main.bindings if hasattr(b.value, "args")]
    np.testing.assert_array_equal(
        layer.args[1].data, np.frombuffer(data, np.float32).reshape(640, 640).T
    )
    assert layer.args[1].data.flags.aligned


def test_the_limit_of_memory_holds_for_mapped_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="memory_limit of 20000000 bytes"):
        compiler.from_onnx(write(tmp_path, 4, 2048), memory_limit=20_000_000)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("signed", [False, True])
def test_packed_integers_beside_the_model(tmp_path: Path, bits: int, signed: bool) -> None:
    code = {(4, False): 21, (4, True): 22, (2, False): 25, (2, True): 26}[bits, signed]
    low = -(1 << (bits - 1)) if signed else 0
    want = (np.arange(35) % (1 << bits) + low).astype(np.int8 if signed else np.uint8).reshape(5, 7)
    codes = (want.reshape(-1).astype(np.uint8) & ((1 << bits) - 1)).tolist()
    packed = bytearray(-(-35 * bits // 8))
    for k, c in enumerate(codes):
        packed[k * bits // 8] |= c << (k * bits % 8)
    (tmp_path / "w.bin").write_bytes(packed)
    w = TensorProto(name="w", data_type=code, dims=[5, 7], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value="w.bin")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["r"], to=TensorProto.FLOAT),
         helper.make_node("Add", ["x", "r"], ["y"])],
        "g", [value("x", TensorProto.FLOAT, [5, 7])], [helper.make_empty_tensor_value_info("y")],
        [w],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    onnx.save(proto, tmp_path / "net.onnx")
    got = compiler.evaluate(compiler.from_onnx(tmp_path / "net.onnx"), np.zeros((5, 7), np.float32))
    np.testing.assert_array_equal(got, want)
