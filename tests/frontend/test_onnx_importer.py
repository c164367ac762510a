"""from_onnx: names, shapes, constants, what exporters write around Reshape, golden text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import check, model, run_onnxruntime

from compiler.frontend.onnx_importer import from_onnx, supported_ops
from compiler.interpret.graph import evaluate
from compiler.ir.expr import Constant, tensor_type
from compiler.symbolic import Var

node = helper.make_node
rng = np.random.default_rng(3)


def f(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def reshaped(nodes: list[Any], weights: dict[str, Any], opset: int = 17) -> onnx.ModelProto:
    """x[N, C, 2, 3] -> nodes that compute `shape` -> y."""
    nodes = [*nodes, node("Reshape", ["x", "shape"], ["y"])]
    return model(nodes, {"x": ["N", 4, 2, 3]}, ["y"], weights, opset)


CHAINS: dict[str, onnx.ModelProto] = {
    "gather_unsqueeze_concat": reshaped(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axis"], ["u"]),
            node("Concat", ["u", "rest"], ["shape"], axis=0),
        ],
        {"zero": np.array(0), "axis": ints(0), "rest": ints(-1)},
    ),
    "slice": reshaped(
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "b", "e"], ["n"]),
            node("Concat", ["n", "rest"], ["shape"], axis=0),
        ],
        {"b": ints(0), "e": ints(1), "rest": ints(8, 3)},
    ),
    "sym_size": reshaped(
        [
            node("Shape", ["x"], ["s"], start=0, end=1),
            node("Squeeze", ["s", "axis"], ["n"]),
            node("Reshape", ["n", "one"], ["v"]),
            node("Concat", ["v", "rest"], ["shape"], axis=0),
        ],
        {"axis": ints(0), "one": ints(-1), "rest": ints(24)},
    ),
    "product_of_all": reshaped(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "i0"], ["n"]),
            node("Gather", ["s", "i1"], ["c"]),
            node("Mul", ["n", "c"], ["p"]),
            node("Cast", ["p"], ["p64"], to=7),
            node("Concat", ["p64", "rest"], ["shape"], axis=0),
        ],
        {"i0": ints(0), "i1": ints(1), "rest": ints(-1)},
    ),
    "divided": reshaped(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "i0"], ["n"]),
            node("Mul", ["n", "four"], ["a"]),
            node("Div", ["a", "two"], ["b"]),
            node("Add", ["b", "zero"], ["c"]),
            node("Sub", ["c", "zero"], ["d"]),
            node("Concat", ["d", "rest"], ["shape"], axis=0),
        ],
        {"i0": ints(0), "four": ints(4), "two": ints(2), "zero": ints(0), "rest": ints(12)},
    ),
    "where_equal": reshaped(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "i0"], ["n"]),
            node("Concat", ["n", "rest"], ["wanted"], axis=0),
            node("Equal", ["wanted", "minus"], ["unknown"]),
            node("ConstantOfShape", ["two"], ["ones"],
                 value=numpy_helper.from_array(ints(24))),
            node("Where", ["unknown", "ones", "wanted"], ["shape"]),
        ],
        {"i0": ints(0), "rest": ints(-1), "minus": ints(-1), "two": ints(2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("batch", [1, 5])
def test_shape_chains_fold_away(name: str, batch: int) -> None:
    mod = check(CHAINS[name], {"x": f(batch, 4, 2, 3)})
    assert [str(b.value.op) for b in mod.main.bindings] == ["reshape"]


def test_scales_computed_in_float_fold_away() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "two", "four"], ["hw"]),
        node("Cast", ["hw"], ["real"], to=1),
        node("Mul", ["real", "scale"], ["big"]),
        node("Floor", ["big"], ["floor"]),
        node("Cast", ["floor"], ["size"], to=7),
        node("Slice", ["s", "zero", "two"], ["nc"]),
        node("Concat", ["nc", "size"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    weights = {
        "two": ints(2), "four": ints(4), "zero": ints(0), "scale": np.float32([2.0, 1.5]),
    }  # fmt: skip
    mod = check(model(nodes, {"x": ["n", 3, 4, 5]}, ["y"], weights), {"x": f(2, 3, 4, 5)})
    assert [str(b.value.op) for b in mod.main.bindings] == ["image.resize2d"]


@pytest.mark.parametrize("batch", [1, 3])
def test_dimensions_used_as_data_are_computed_by_the_program(batch: int) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i0"], ["n"]),
        node("Mul", ["n", "seven"], ["m"]),
        node("Div", ["m", "two"], ["half"]),
        node("Concat", ["half", "n", "seven"], ["all"], axis=0),
        node("Cast", ["all"], ["y"], to=1),
    ]
    weights = {"i0": ints(0), "seven": ints(7), "two": ints(2)}
    proto = model(nodes, {"x": ["n", 3]}, ["y", "s"], weights)
    check(proto, {"x": f(batch, 3)})


@pytest.mark.parametrize("batch", [1, 4])
def test_expand_and_constant_of_a_symbolic_shape(batch: int) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["s"], ["ones"],
             value=numpy_helper.from_array(np.float32([2]))),
        node("Expand", ["row", "s"], ["rows"]),
        node("Add", ["ones", "rows"], ["sum"]),
        node("Add", ["sum", "x"], ["y"]),
    ]  # fmt: skip
    check(model(nodes, {"x": ["n", 3]}, ["y"], {"row": f(1, 3)}), {"x": f(batch, 3)})


def test_slice_up_to_a_symbolic_end_keeps_everything() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], end=1),
        node("Slice", ["x", "zero", "s", "zero"], ["z"]),
        node("Relu", ["z"], ["y"]),
    ]
    check(model(nodes, {"x": ["n", 3]}, ["y"], {"zero": ints(0)}), {"x": f(4, 3)})


# ---- names, types, attributes --------------------------------------------------------------------
def test_names_of_the_interface_are_the_models_and_others_are_printable() -> None:
    nodes = [
        node("Relu", ["a/b"], ["a_b"], name="first"),
        node("Relu", ["a_b"], ["1"]),
        node("Relu", ["1"], ["out.put"], name="third"),
    ]
    mod = from_onnx(model(nodes, {"a/b": ["batch size", 3]}, ["out.put"]))
    main = mod.main
    assert [p.name for p in main.params] == ["a/b"]
    assert [b.var.name for b in main.bindings] == ["a_b", "v1", "out.put"]
    assert [b.origins for b in main.bindings] == [("first",), ("1",), ("third",)]
    assert main.results == (main.bindings[-1].var,)
    assert tensor_type(main.params[0]).shape == (Var("batch_size"), 3)
    assert mod.attrs["inputs"] == ("a/b",)
    assert mod.attrs["outputs"] == ("out.put",)


def test_module_attributes() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": [1]}, ["y"], opset=13, producer_name="maker",
                  producer_version="2")  # fmt: skip
    attrs = from_onnx(proto).attrs
    assert attrs["opset"] == 13
    assert attrs["producer"] == "maker 2"
    assert attrs["ir_version"] == 8


def test_several_outputs_keep_order_and_count() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("Identity", ["a"], ["c"])]
    check(model(nodes, {"x": [2, 3]}, ["b", "c", "a"]), {"x": f(2, 3)})


def test_an_identity_gives_the_output_its_name() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Identity", ["a"], ["b"]),
        node("Identity", ["b"], ["y"]),
        node("Neg", ["a"], ["z"]),
        node("Identity", ["x"], ["same"]),
    ]
    mod = check(model(nodes, {"x": [2, 3]}, ["y", "z", "same"]), {"x": f(2, 3)})
    assert [str(r) for r in mod.main.results] == ["%y", "%z", "%x"]


def test_an_output_may_be_an_input_or_a_weight() -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Identity", ["w"], ["b"])]
    check(model(nodes, {"x": [2, 3]}, ["a", "b"], {"w": f(2)}), {"x": f(2, 3)})


def test_weights_may_be_listed_as_inputs() -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [3], "w": [3]}, ["y"], {"w": f(3)}, 9)
    mod = check(proto, {"x": f(3)})
    assert [p.name for p in mod.main.params] == ["x"]


def test_unnamed_dimensions_get_names_that_are_free() -> None:
    proto = model([node("Add", ["x", "y"], ["z"])], {"x": [None, 1], "y": ["d0", 0]}, ["z"])
    mod = from_onnx(proto, shapes={"y": (1, None)})
    assert str(tensor_type(mod.main.params[0])) == "Tensor[(d1, 1), float32]"
    assert str(tensor_type(mod.main.params[1])) == "Tensor[(1, d2), float32]"


def test_question_marks_are_not_the_name_of_a_dimension() -> None:
    mod = from_onnx(model([node("Relu", ["x"], ["y"])], {"x": ["?", "-1", "?"]}, ["y"]))
    assert str(mod.main.params[0].type) == "Tensor[(d0, d1, d2), float32]"


def test_shapes_fix_a_dimension_everywhere_it_is_named() -> None:
    proto = model([node("MatMul", ["x", "y"], ["z"])], {"x": ["n", "k"], "y": ["k", 3]}, ["z"])
    mod = from_onnx(proto, shapes={"x": (-1, 4)})
    assert str(mod.main.params[1].type) == "Tensor[(4, 3), float32]"
    assert str(mod.main.type.result) == "Tensor[(n, 3), float32]"
    renamed = from_onnx(proto, shapes={"x": ("rows", 4)})
    assert str(renamed.main.type.result) == "Tensor[(rows, 3), float32]"


def test_shapes_give_what_the_model_leaves_open() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": None}, ["y"])
    x = f(2, 3)
    np.testing.assert_array_equal(
        evaluate(from_onnx(proto, shapes={"x": (2, 3)}), x), np.maximum(x, 0)
    )


@pytest.mark.parametrize(
    ("attribute", "value", "want"),
    [
        ("value", numpy_helper.from_array(np.float32([[1, 2]])), np.float32([[1, 2]])),
        ("value_float", 1.5, np.float32(1.5)),
        ("value_floats", [1.5, 2.5], np.float32([1.5, 2.5])),
        ("value_int", 3, np.int64(3)),
        ("value_ints", [3, 4], np.int64([3, 4])),
    ],
)
def test_constant_kinds(attribute: str, value: Any, want: Any) -> None:
    mod = from_onnx(model([node("Constant", [], ["c"], **{attribute: value})], {}, ["c"]))
    (result,) = mod.main.results
    assert isinstance(result, Constant)
    assert result.data.dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(result.data, want)


def test_constant_nodes_serve_as_weights() -> None:
    kernel = f(4, 3)
    nodes = [
        node("Constant", [], ["w"], value=numpy_helper.from_array(kernel)),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    mod = check(model(nodes, {"x": ["n", 4]}, ["y"]), {"x": f(2, 4)})
    assert [str(b.value.op) for b in mod.main.bindings] == ["nn.dense"]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8", "bool"])
def test_dtypes_of_inputs(dtype: str) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node("Identity", ["x"], ["y"])], {"x": [2]}, ["y"], dtypes={"x": code})
    x = np.array([0, 1], dtype)
    assert evaluate(from_onnx(proto), x).dtype == x.dtype


def test_float16_weights_in_int32_data() -> None:
    t = helper.make_tensor("w", TensorProto.FLOAT16, [3], np.float16([1, 2, 3]))
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [3]}, ["y"],
                  dtypes={"x": TensorProto.FLOAT16})  # fmt: skip
    proto.graph.initializer.append(t)
    check(proto, {"x": np.float16([0.5, 1, 2])})


def test_bytes_path_and_proto_are_the_same(tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ["n"]}, ["y"])
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    texts = {m.astext() for m in map(from_onnx, (proto, path, str(path), path.read_bytes()))}
    assert len(texts) == 1


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    weights = {"w": f(40, 50), "v": f(50)}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "v"], ["y"])]
    proto = model(nodes, {"x": ["n", 40]}, ["y"], weights)
    x = f(3, 40)
    want = run_onnxruntime(proto, {"x": x})[0]
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=0)  # fmt: skip
    got = evaluate(from_onnx(tmp_path / "m.onnx"), x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_local_functions_are_inlined() -> None:
    opsets = [helper.make_opsetid("", 17)]
    body = [node("Relu", ["a"], ["t"]), node("Neg", ["t"], ["b"])]
    function = helper.make_function("mine", "NegRelu", ["a"], ["b"], body, opsets)
    proto = model([node("NegRelu", ["x"], ["y"], domain="mine")], {"x": [3]}, ["y"],
                  functions=[function])  # fmt: skip
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    check(proto, {"x": f(3)})


def test_supported_ops_are_onnx_operators() -> None:
    assert len(supported_ops()) > 60
    qonnx = {"Quant", "IntQuant", "BipolarQuant", "FloatQuant"}
    others = {f"{d}.{op}" for d in ("qonnx.custom_op.general", "onnx.brevitas") for op in qonnx}
    for op in supported_ops():
        assert onnx.defs.has(op) or op.startswith("com.microsoft.") or op in others


def test_golden_text() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["conv_out"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["conv_out", "g", "b", "m", "v"], ["bn_out"], name="bn"),
        node("Clip", ["bn_out", "lo", "hi"], ["relu6"]),
        node("GlobalAveragePool", ["relu6"], ["pooled"], name="pool"),
        node("Shape", ["x"], ["s"], end=1),
        node("Concat", ["s", "rest"], ["flat_shape"], axis=0),
        node("Reshape", ["pooled", "flat_shape"], ["flat"], name="view"),
        node("Gemm", ["flat", "fc", "fb"], ["logits"], name="head", transB=1),
    ]
    weights = {
        "w": np.ones((4, 3, 3, 3), np.float32), "g": np.ones(4, np.float32),
        "b": np.zeros(4, np.float32), "m": np.zeros(4, np.float32), "v": np.ones(4, np.float32),
        "lo": np.float32(0).reshape(()), "hi": np.float32(6).reshape(()), "rest": ints(-1),
        "fc": np.ones((10, 4), np.float32), "fb": np.zeros(10, np.float32),
    }  # fmt: skip
    weights = {k: np.asarray(v) for k, v in weights.items()}
    proto = model(nodes, {"x": ["N", 3, 8, 8]}, ["logits"], weights)
    mod = check(proto, {"x": f(2, 3, 8, 8)})
    golden = Path(__file__).with_name("golden_small_net.txt")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(mod.astext(), encoding="utf-8")
    assert mod.astext() == golden.read_text(encoding="utf-8")
