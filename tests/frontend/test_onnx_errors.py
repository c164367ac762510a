"""Errors of from_onnx: each is one sentence that names what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Case, Const, model

from compiler.errors import DtypelabError, ModelError, UnsupportedError
from compiler.frontend.onnx_importer import from_onnx

node = helper.make_node
X = np.ones((1, 2, 6, 6), np.float32)


def relu(**options: Any) -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"], name="act")], {"x": ["n", 3]}, ["y"], **options)


def fails(source: Any, error: type[DtypelabError], *words: str, **options: Any) -> None:
    with pytest.raises(error) as caught:
        from_onnx(source, **options)
    text = str(caught.value)
    assert "\n" not in text
    for w in words:
        assert w in text, text


# ---- files ---------------------------------------------------------------------------------------
def test_missing_file(tmp_path: Path) -> None:
    fails(tmp_path / "none.onnx", ModelError, "no file", "none.onnx")


def test_directory(tmp_path: Path) -> None:
    fails(tmp_path, ModelError, "is a directory")


@pytest.mark.parametrize("text", ["hello, this is not a model\n", "", "{}", "\n\n\n"])
def test_text_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_text(text)
    fails(path, ModelError, "m.onnx")


def test_wrong_type() -> None:
    fails(3, ModelError, "int")


def test_every_truncation_is_reported() -> None:
    weights = {"w": np.ones((3, 4), np.float32)}
    data = model(
        [node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 3]}, ["y"], weights
    ).SerializeToString()
    from_onnx(data)
    for k in range(len(data)):
        with pytest.raises(DtypelabError):
            from_onnx(data[:k])


def test_flipped_bytes_never_give_another_kind_of_error() -> None:
    weights = {"w": np.ones((3, 4), np.float32), "s": np.array([2, -1])}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Reshape", ["h", "s"], ["y"], allowzero=0)]
    data = model(nodes, {"x": [2, 3]}, ["y"], weights).SerializeToString()
    rng = np.random.default_rng(0)
    for k in range(len(data)):
        bad = bytearray(data)
        bad[k] ^= int(rng.integers(1, 256))
        try:
            from_onnx(bytes(bad))
        except DtypelabError:
            continue


def test_no_outputs() -> None:
    proto = relu()
    del proto.graph.output[:]
    fails(proto, ModelError, "no outputs")


def test_output_that_nothing_computes() -> None:
    proto = relu()
    proto.graph.output[0].name = "z"
    fails(proto, ModelError, "'z'")


def test_two_inputs_of_one_name() -> None:
    proto = relu()
    proto.graph.input.append(proto.graph.input[0])
    fails(proto, ModelError, "two inputs")


def test_value_used_before_it_is_computed() -> None:
    nodes = [node("Neg", ["h"], ["y"], name="late"), node("Relu", ["x"], ["h"])]
    fails(model(nodes, {"x": [3]}, ["y"]), ModelError, "'h'", "late")


def test_value_defined_twice() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])]
    fails(model(nodes, {"x": [3]}, ["y"]), ModelError, "'y'", "twice")


# ---- versions and operators ----------------------------------------------------------------------
@pytest.mark.parametrize("opset", [0, 1, 5, onnx.defs.onnx_opset_version() + 1])
def test_opset_out_of_range(opset: int) -> None:
    fails(relu(opset=opset), UnsupportedError, f"opset {opset}", "opsets 7 to")


def test_older_opset_whose_operators_have_changed_since() -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("Add", ["h", "x"], ["y"])]
    fails(model(nodes, {"x": [3]}, ["y"], opset=6), UnsupportedError, "opset 6", "opsets 7 to")


def test_no_opset() -> None:
    proto = relu()
    del proto.opset_import[:]
    fails(proto, ModelError, "opset")


def test_all_unsupported_operators_at_once() -> None:
    nodes = [
        node("TfIdfVectorizer", ["x"], ["a"], name="first"),
        node("MaxRoiPool", ["a"], ["b"]),
        node("TfIdfVectorizer", ["b"], ["c"], name="third"),
        node("FancyRelu", ["c"], ["y"], name="fourth", domain="com.maker"),
    ]
    fails(
        model(nodes, {"x": ["n", 3]}, ["y"]), UnsupportedError,
        "TfIdfVectorizer", "'first'", "'third'", "MaxRoiPool", "'b'", "MaxPool",
        "com.maker.FancyRelu", "'fourth'", "Relu",
    )  # fmt: skip


def _weights(*shape: int) -> Const:
    return Const(np.ones(shape, np.float32))


UNSUPPORTED: dict[str, tuple[Case, str]] = {
    "conv_4d": (Case("Conv", (np.ones((1, 2, 4, 4, 4, 4), np.float32), _weights(2, 2, 1, 1, 1, 1))),
                "(1, 2, 4, 4, 4, 4)"),
    "conv_auto_pad": (Case("Conv", (X, _weights(2, 2, 3, 3)), {"auto_pad": "MAYBE"}), "auto_pad"),
    "conv_negative_pads": (Case("Conv", (X, _weights(2, 2, 3, 3)), {"pads": [0, -1, 0, 0]}),
                           "pads"),
    "batch_norm_training": (Case("BatchNormalization", (X, *[_weights(2)] * 4),
                                 {"training_mode": 2}), "training_mode"),
    "dropout_without_a_seed": (Case("Dropout", (X, None, Const(np.asarray(True)))), "seed"),
    "dropout_of_everything": (Case("Dropout", (X, Const(np.float32(1)), Const(np.asarray(True))),
                                   {"seed": 1}), "ratio=1"),
    "pad_mode": (Case("Pad", (X, Const(np.zeros(8, np.int64))), {"mode": "mirror"}), "mirror"),
    "resize_mode": (Case("Resize", (X, None, _weights(4)), {"mode": "spline"}), "spline"),
    "cast_string": (Case("Cast", (X,), {"to": TensorProto.STRING}), "STRING"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_attributes_name_the_node(name: str) -> None:
    case, word = UNSUPPORTED[name]
    fails(case.model(), UnsupportedError, "'the_node'", case.op, word)


def test_a_missing_input_names_the_node() -> None:
    fails(Case("Conv", (X,)).model(), ModelError, "'the_node'", "1 inputs", "2 to 3")
    proto = Case("Conv", (X, _weights(2, 2, 3, 3))).model()
    proto.graph.node[0].input[1] = ""
    fails(proto, ModelError, "'the_node'", "input 1")


def test_attributes_that_the_operator_does_not_have() -> None:
    fails(Case("Relu", (X,), {"alpha": 1.0}).model(), ModelError, "'the_node'", "'alpha'")
    case = Case("Flatten", (X,), {"axis": 1.0})
    fails(case.model(), ModelError, "'the_node'", "'axis'", "type")


def test_a_missing_attribute_names_the_node() -> None:
    fails(Case("Concat", (X,)).model(), ModelError, "'the_node'", "'axis'")


def test_shapes_that_do_not_fit_name_the_node() -> None:
    case = Case("MatMul", (np.ones((2, 3), np.float32), _weights(4, 5)))
    fails(case.model(), ModelError, "'the_node'", "(5, 4)")


def test_symbolic_dimensions_that_do_not_fit_are_to_be_fixed() -> None:
    proto = model([node("Add", ["x", "y"], ["z"])], {"x": ["n", 3], "y": ["m", 4]}, ["z"])
    fails(proto, ModelError, "(n, 3)", "(m, 4)", "shapes=")
    from_onnx(proto, shapes={"x": (2, 3), "y": (2, 3)})


def test_unsupported_element_type() -> None:
    fails(relu(dtypes={"x": TensorProto.STRING}), UnsupportedError, "'x'", "STRING", "float32")


def test_branches_of_different_types() -> None:
    branches = [
        helper.make_graph([made], "b", [], [helper.make_empty_tensor_value_info("t")])
        for made in (node("Relu", ["x"], ["t"]), node("Cast", ["x"], ["t"], to=TensorProto.INT64))
    ]
    nodes = [
        node("If", ["c"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1])
    ]
    proto = model(nodes, {"x": [3], "c": []}, ["y"], dtypes={"c": TensorProto.BOOL})
    fails(proto, UnsupportedError, "If", "'choice'")


# ---- shapes --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"input": (1, 3)}, ["'input'", "known: x"]),
        ({"x": (1, 3, 1)}, ["'x'", "3 dimensions"]),
        ({"x": (-2, 3)}, ["-2"]),
        ({"x": (1.5, 3)}, ["1.5"]),
        ({"x": 3}, ["'x'", "tuple"]),
    ],
)
def test_shapes_argument(shapes: Any, words: list[str]) -> None:
    fails(relu(), ModelError, *words, shapes=shapes)


def test_shapes_that_disagree() -> None:
    proto = model([node("Add", ["x", "y"], ["z"])], {"x": ["n"], "y": ["n"]}, ["z"])
    fails(proto, ModelError, "n", "2", "3", shapes={"x": (2,), "y": (3,)})


def test_an_input_without_a_shape() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": None}, ["y"])
    fails(proto, ModelError, "'x'", "shapes=")


# ---- external data -------------------------------------------------------------------------------
def _external(location: str, length: int = 12, offset: int = 0) -> onnx.ModelProto:
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [3]}, ["y"],
                  {"w": np.float32([1, 2, 3])})  # fmt: skip
    t = proto.graph.initializer[0]
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    for k, v in {"location": location, "length": length, "offset": offset}.items():
        t.external_data.add(key=k, value=str(v))
    return proto


def _outside_by_path(folder: Path, secret: Path) -> str:
    return f"../{secret.name}"


def _outside_by_absolute_path(folder: Path, secret: Path) -> str:
    return str(secret)


def _outside_by_link(folder: Path, secret: Path) -> str:
    os.symlink(secret, folder / "inside.bin")
    return "inside.bin"


@pytest.mark.parametrize("locate", [_outside_by_path, _outside_by_absolute_path, _outside_by_link])
def test_external_data_outside_the_folder(
    tmp_path: Path, locate: Callable[[Path, Path], str]
) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.float32([1, 2, 3]).tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "m.onnx"
    path.write_bytes(_external(locate(folder, secret)).SerializeToString())
    fails(path, ModelError, "'w'", "outside the model's folder")


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_external("none.bin").SerializeToString())
    fails(path, ModelError, "'w'", "none.bin")
    (tmp_path / "none.bin").write_bytes(b"1234")
    fails(path, ModelError, "'w'", "12 bytes")
    path.write_bytes(_external("none.bin", offset=-3).SerializeToString())
    fails(path, ModelError, "'w'")


def test_external_data_of_a_model_without_a_folder() -> None:
    fails(_external("w.bin").SerializeToString(), ModelError, "'w'", "path of the model")


def test_weight_whose_data_does_not_fit() -> None:
    proto = relu()
    t = numpy_helper.from_array(np.ones(3, np.float32), "w")
    t.dims[0] = 4
    proto.graph.initializer.append(t)
    fails(proto, ModelError, "'w'")
