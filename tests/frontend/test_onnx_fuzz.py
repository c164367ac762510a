"""Broken files of every kind are refused in one sentence, quickly, and within little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_mutations import MEMORY, SECONDS, _nested
from test_onnx_errors import _external, fails, model, node

from compiler.errors import ModelError, UnsupportedError
from compiler.frontend.onnx_importer import from_onnx

SCRIPT = Path(__file__).parent / "onnx_mutations.py"


def imports(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Import broken files in a process with limited memory."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(count), str(seed), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def judge(facts: dict[str, Any], count: int) -> None:
    assert facts["failures"] == {}
    assert sum(facts["counts"].values()) == count
    # the changes are neither so small that nothing breaks, nor so large that nothing is read
    assert facts["counts"]["refused"] > count // 2
    assert facts["counts"]["imported"] > count // 20
    assert facts["slowest_s"] < SECONDS
    assert facts["grown_kib"] << 10 < 4 * MEMORY


@pytest.mark.thorough
def test_300_broken_files_give_clean_errors(tmp_path: Path) -> None:
    judge(imports(300, 0, tmp_path), 300)


@pytest.mark.slow
def test_10000_broken_files_give_clean_errors(tmp_path: Path) -> None:
    judge(imports(10_000, 1, tmp_path), 10_000)


# ---- what must not grow --------------------------------------------------------------------------
def test_a_tensor_that_declares_more_than_its_file_holds() -> None:
    for dims in ([2**40], [2**40, 2**40], [2**62, 2**62], [-1], [-3, -1]):
        proto = model([node("Add", ["x", "w"], ["y"])], {"x": [3]}, ["y"], {"w": np.ones(1, "f")})
        proto.graph.initializer[0].dims[:] = dims
        fails(proto, ModelError, "'w'")


@pytest.mark.parametrize("length", ["12", str(4 * 2**40), "-1"])
def test_external_data_that_declares_more_than_its_file_holds(tmp_path: Path, length: str) -> None:
    proto = _external("w.bin")
    t = proto.graph.initializer[0]
    t.dims[:] = [2**40]
    t.external_data[1].value = length
    (tmp_path / "w.bin").write_bytes(bytes(12))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    fails(path, ModelError, "'w'", "memory_limit")
    fails(path, ModelError, "'w'", "which has 12", memory_limit=8 * 2**40)


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "/dev/zero", "w.bin\0"])
def test_external_data_that_names_other_files(tmp_path: Path, location: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_external(location).SerializeToString())
    fails(path, ModelError, "'w'")


def test_weights_together_stay_within_the_limit(tmp_path: Path) -> None:
    weights = {f"w{k}": np.zeros(1000, np.float32) for k in range(4)}
    nodes = [node("Sum", ["x", *weights], ["y"])]
    proto = model(nodes, {"x": [1000]}, ["y"], weights)
    from_onnx(proto, memory_limit=16_000)
    fails(proto, ModelError, "memory_limit of 15999", memory_limit=15_999)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    fails(path, ModelError, "memory_limit", memory_limit=100)


GROWING = {
    "ConstantOfShape": (["n"], {"n": [2**40]}),
    "Range": (["a", "b", "c"], {"a": 0, "b": 2**40, "c": 1}),
    "OneHot": (["i", "n", "v"], {"i": [1], "n": 2**40, "v": [0, 1]}),
    "Tile": (["i", "n"], {"i": [1], "n": [2**40]}),
    "Expand": (["i", "n"], {"i": [1], "n": [2**40]}),
}


@pytest.mark.parametrize("op", GROWING)
def test_operators_that_make_large_constants(op: str) -> None:
    """They stay computations of the program, or are refused: nothing large is made now."""
    operands, weights = GROWING[op]
    arrays = {k: np.asarray(v, np.int64) for k, v in weights.items()}
    proto = model([node(op, operands, ["y"])], {"x": [1]}, ["y"], arrays)
    large = 2**40 * 8
    if op in ("Tile", "Expand", "ConstantOfShape"):
        text = from_onnx(proto, memory_limit=1 << 20).astext()
        assert "broadcast_to" in text
    else:
        fails(proto, ModelError, str(large), "memory_limit", memory_limit=1 << 20)


@pytest.mark.thorough
def test_loops_in_loops_are_not_written_out_for_ever() -> None:
    fails(_nested(trips=64), UnsupportedError, "steps")


def test_local_functions_that_double_each_other() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def calling(name: str, *callees: str) -> Any:
        nodes = [node(c, ["a"], [f"b{k}"], domain="own") for k, c in enumerate(callees)]
        return helper.make_function("own", name, ["a"], ["b0"], nodes, opsets)

    functions = [calling(f"f{k}", f"f{k + 1}", f"f{k + 1}") for k in range(40)]
    start = [node("f0", ["x"], ["y"], domain="own")]
    proto = model(start, {"x": [1]}, ["y"])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.functions.extend([*functions, calling("f40", "f0")])
    fails(proto, ModelError, "calls itself")
    del proto.functions[:]
    proto.functions.extend(functions)
    fails(proto, UnsupportedError, "local functions")
