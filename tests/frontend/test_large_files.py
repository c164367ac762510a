"""Files of gigabytes that are no models are refused before they are read; models are read."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.errors import ModelError
from compiler.frontend import framing, model_file
from compiler.frontend.external_files import external_files
from compiler.frontend.limits import MEMORY


def model(size: int = 12) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.zeros((4, size), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, [1, size])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(autouse=True)
def _walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are looked at as large ones are."""
    monkeypatch.setattr(framing, "_SHORT", 0)


GIB = 1 << 30
#: How a sparse file begins -> why it is no model.
STARTS = {
    "zeros": b"",
    "a graph of zeros": b"\x08\x09\x3a" + bytes((0x80, 0x80, 0x80, 0x80, 0x04)),
    "a graph beyond the end": b"\x3a" + bytes((0xFF, 0xFF, 0xFF, 0xFF, 0x7F)),
    "no number": b"\x08" + b"\xff" * 30,
    "groups": b"\x0b",
    "text": b"PK\x03\x04 and so on",
}


@pytest.mark.parametrize("size", [2 * GIB - 10, 2 * GIB, 12 * GIB])
@pytest.mark.parametrize("start", STARTS)
def test_sparse_files_are_refused_unread(
    start: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "big.onnx"
    with path.open("wb") as file:
        file.write(STARTS[start])
        file.truncate(size)
    monkeypatch.setattr(model_file, "_parse", lambda *_: pytest.fail("was read"))
    message = "is not an ONNX model" if size < 2 * GIB else "export it with external data"
    for use in (compiler.from_onnx, external_files):
        with pytest.raises(ModelError, match=message):
            use(path)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.text(max_size=5), st.booleans())
def test_what_protobuf_reads_is_framed(size: int, doc: str, extra: bool) -> None:
    proto = model(size)
    proto.doc_string, proto.graph.doc_string = doc, doc
    data = (
        proto.SerializeToString() + (b"\xf9\x3f" + bytes(8)) * extra
    )  # a field of a later version
    assert framing.is_framed(io.BytesIO(data), len(data))


def test_what_is_not_framed_protobuf_does_not_read() -> None:
    data = model().SerializeToString()
    changes = itertools.product(range(len(data)), (0, 3, 0x3A, 0x80, 0xFF))
    refused = 0
    for place, byte in changes:
        changed = data[:place] + bytes([byte]) + data[place + 1 :]
        if not framing.is_framed(io.BytesIO(changed), len(changed)):
            refused += 1
            with pytest.raises(ModelError):
                model_file.read_model(changed, MEMORY)
    assert refused > 10


def test_weights_beside_a_large_model_are_read(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    with (tmp_path / "w.bin").open("r+b") as file:
        file.truncate(3 * GIB)
    assert external_files(path) == (tmp_path / "w.bin",)
    assert compiler.from_onnx(path).main.bindings
