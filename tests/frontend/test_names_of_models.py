"""Inputs and outputs are called what the model calls them, in text, plans, files and calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import compiler
import datatypes
import quantize
from compiler.errors import InputError, ParseError
from compiler.types.names import identifier, printed
from compiler.types.tokens import Cursor

NAMES = [
    ("input:0", "Identity:0"),
    ("serving_default_x:0", "StatefulPartitionedCall:0"),
    ("class", "self"),
    ("mod", "file"),
    (" ", "\t"),
    ("größe", "🎵 out"),
    ('a"b\\c', "x.0"),
    ("a/*b*/", "//c"),
    ("x\ny", "%z"),
    ("1", "2.5"),
    ("main/x", "meta[Constant][0]"),
    ("a_0", "a:0"),
]


def model(name: str, output: str) -> Any:
    """relu(name @ w), [n, 4] -> [n, 3]; the product is called "a:0" like an output may be."""
    w = numpy_helper.from_array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "w")
    nodes = [
        helper.make_node("MatMul", [name, "w"], ["product:0"]),
        helper.make_node("Relu", ["product:0"], [output]),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k])
        for n, k in ((name, 4), (output, 3))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


X = np.linspace(-2, 2, 20, dtype=np.float32).reshape(5, 4)


@pytest.mark.parametrize(("name", "output"), NAMES)
def test_text_and_calls_have_the_models_names(name: str, output: str) -> None:
    mod = compiler.from_onnx(model(name, output))
    assert [p.name for p in mod.main.params] == [name]
    assert [r.name for r in mod.main.results] == [output]  # type: ignore[union-attr]
    text = mod.astext(show_meta_data=True)
    back = compiler.parse(text)
    assert back.astext(show_meta_data=True) == text
    assert [p.name for p in back.main.params] == [name]
    want = compiler.evaluate(mod, X)
    assert np.array_equal(compiler.evaluate(back, **{name: X}), want)
    assert np.array_equal(compiler.evaluate(mod, {name: X}), want)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "output"), NAMES)
def test_everything_made_of_a_model_has_its_names(name: str, output: str, tmp_path: Path) -> None:
    mod = compiler.from_onnx(model(name, output))
    exe = compiler.build(mod)
    assert list(exe.inputs) == [name]
    assert list(exe.outputs) == [output]
    want = exe(X)
    assert np.array_equal(exe(**{name: X}), want)
    exe.save(tmp_path / "saved")
    loaded = compiler.load(tmp_path / "saved")
    assert list(loaded.inputs) == [name]
    assert list(loaded.outputs) == [output]
    assert np.array_equal(loaded(**{name: X}), want)
    plan = quantize.calibrate(mod, [{name: X}])
    assert name in plan.values
    assert output in plan.nodes
    plan.to_json(tmp_path / "plan.json")
    plan = quantize.Plan.from_json(tmp_path / "plan.json")
    realized = quantize.realize(mod, plan)
    again = compiler.parse(realized.astext(show_meta_data=True))
    assert np.array_equal(compiler.evaluate(again, **{name: X}), compiler.build(realized)(X))
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    graph = onnx.load(tmp_path / "q.onnx").graph
    assert [v.name for v in (*graph.input, *graph.output)] == [name, output]
    retyped = datatypes.change_dtype(mod, "float32", "posit8_es0")
    assert compiler.evaluate(retyped, **{name: X}).shape == want.shape


@given(st.text(max_size=12))
def test_any_name_is_one_word_of_a_program(name: str) -> None:
    text = printed(name)
    (token,) = Cursor(f"{text};").tokens[:1]
    assert (token.kind, token.text[1:]) == ("var", name)
    assert text.isprintable()
    assert Cursor(f"{text};").tokens[1].text == ";"


def test_a_name_that_is_none_says_where() -> None:
    with pytest.raises(ParseError, match=r'line 1, column 11: "\\q" is no name'):
        compiler.parse('def @main(%"\\q": Tensor[(1,), float32]) { %x }')


@given(st.text(max_size=12))
def test_a_python_keyword_may_stand_for_a_name(name: str) -> None:
    key = identifier(name)
    assert not key or key.isidentifier()
    if key:
        assert identifier(key) == key


def test_keywords_and_mistakes() -> None:
    mod = compiler.from_onnx(model("input:0", "y"))
    want = compiler.evaluate(mod, X)
    assert np.array_equal(compiler.evaluate(mod, input_0=X), want)
    wrong = X.astype(float)
    for args, kwargs, sentence in [
        ((), {"input0": X}, "unknown input 'input0'; did you mean 'input:0'"),
        ((X, X), {}, r"2 inputs given, but the model has 1: \['input:0'\]"),
        ((), {}, r"missing input 'input:0'; the model has \['input:0'\]"),
        ((X,), {"input_0": X}, "input 'input:0' is given twice"),
        ((X[0],), {}, r"input 'input:0' must have rank 2, shape \(N, 4\)"),
        ((X[:, :3],), {}, r"input 'input:0' has shape .* axis 1 must be 4"),
        ((wrong,), {}, "input 'input:0' must be float32, not float64"),
    ]:
        with pytest.raises(InputError, match=sentence):
            compiler.evaluate(mod, *args, **kwargs)
    with pytest.raises(InputError, match="unknown input 'input0'; did you mean 'input:0'"):
        quantize.calibrate(mod, [{"input0": X}])


@pytest.mark.parametrize("wanted", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_integers_are_converted_only_where_nothing_is_lost(wanted: str, dtype: str) -> None:
    mod = compiler.parse(f"def @main(%x: Tensor[(n,), {wanted}]) {{ %x }}")
    own, have = np.iinfo(wanted), np.iinfo(dtype)
    for value in {0, 1, int(have.min), int(have.max)}:
        x = np.array([1, value], dtype)
        if own.min <= value <= own.max:
            got = compiler.evaluate(mod, x)
            assert got.dtype == wanted
            assert got.tolist() == [1, value]
        else:
            with pytest.raises(InputError, match=f"'x' must be {wanted}, which has no {value}"):
                compiler.evaluate(mod, x)
