"""What we refuse is handed to onnxruntime, if it is asked for: as little as possible, by name, with
the same results."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_models import (
    ENGINES,
    by_onnxruntime,
    chosen_part,
    inverse_of_scores,
    model,
    sequence,
    weights,
    words_classifier,
)
from onnx import TensorProto as T
from onnx import helper

import compiler
import datatypes
import quantize
from compiler.errors import ConfigError, InputError, MachineError, UnsupportedError
from compiler.frontend.foreign import session
from compiler.ir.handed import handed

pytest.importorskip("onnxruntime")
TEXT = np.array(["W1", "w7", "nothing", "W49"])
RNG = np.random.default_rng(3)


def both(mod: Any, *inputs: Any) -> list[Any]:
    """The results, interpreted and compiled, which must be the same."""
    got, wanted = compiler.build(mod)(*inputs), compiler.evaluate(mod, *inputs)
    got = got if isinstance(got, list) else [got]
    wanted = wanted if isinstance(wanted, list) else [wanted]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return got


def nodes_handed(mod: Any) -> list[tuple[str, ...]]:
    return [r.nodes for r in handed(mod)]


# ---- three models with one exotic part -----------------------------------------------------------
def test_text_goes_in_and_the_rest_of_the_network_is_ours() -> None:
    mod = compiler.from_onnx(words_classifier(), engines=ENGINES)
    (wanted,) = by_onnxruntime(words_classifier(), text=TEXT)
    np.testing.assert_allclose(both(mod, TEXT)[0], wanted, rtol=1e-5)
    assert nodes_handed(mod) == [("norm", "encode")]
    for other in (list(TEXT), TEXT.astype(object), TEXT.astype("S"), TEXT[:1]):
        got = compiler.build(mod)(text=other)
        np.testing.assert_allclose(got, wanted[: len(other)], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "most"),
    [("bfloat16", 2e-2), pytest.param("posit16_es1", 1e-3, marks=pytest.mark.thorough)],
)
def test_text_models_in_formats(name: str, most: float) -> None:
    mod = compiler.from_onnx(words_classifier(), engines=ENGINES)
    (wanted,) = by_onnxruntime(words_classifier(), text=TEXT)
    narrow = datatypes.change_dtype(mod, "float32", name)
    assert nodes_handed(narrow) == [("norm", "encode")]
    got = compiler.build(narrow)(TEXT)
    np.testing.assert_array_equal(got, compiler.evaluate(narrow, TEXT))
    assert 0 < np.abs(got - wanted).max() < most * np.abs(wanted).max()


def test_text_models_in_integers() -> None:
    mod = compiler.from_onnx(words_classifier(), engines=ENGINES)
    (wanted,) = by_onnxruntime(words_classifier(), text=TEXT)
    plan = quantize.calibrate(mod, TEXT)
    assert plan.values == quantize.calibrate(mod, [TEXT]).values
    batches = [{"text": np.array([f"w{k}" for k in RNG.integers(0, 50, 8)])} for _ in range(4)]
    integers = quantize.quantize(mod, batches)
    assert nodes_handed(integers) == [("norm", "encode")]
    assert "int8" in str(integers)
    got = compiler.build(integers)(TEXT)
    np.testing.assert_array_equal(got, compiler.evaluate(integers, TEXT))
    assert 0 < np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_an_operator_between_dense_layers(form: str) -> None:
    proto = inverse_of_scores()
    mod = compiler.from_onnx(proto, engines=ENGINES)
    x = RNG.standard_normal((3, 4, 6)).astype(np.float32)
    (wanted,) = by_onnxruntime(proto, x=x)
    if form == "int8":
        mod = quantize.quantize(mod, [x, -x])
    elif form != "float32":
        mod = datatypes.change_dtype(mod, "float32", form)
    (got,) = both(mod, x)
    assert nodes_handed(mod) == [("inverse",)]
    assert got.shape == wanted.shape
    near = {"float32": 1e-4, "bfloat16": 0.2, "int8": 0.3}[form]
    assert np.abs(got - wanted).mean() < near * np.abs(wanted).mean()
    if form == "bfloat16":  # the region computes in float32, with casts around it
        assert 'cast(%h, dtype="float32")' in str(mod).replace("%h_1", "%h")


def test_a_sequence_stays_inside_its_region() -> None:
    mod = compiler.from_onnx(chosen_part(), engines=ENGINES)
    assert nodes_handed(mod) == [("split", "same", "at")]
    x = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)
    for which in (0, 3, -1):
        wanted = by_onnxruntime(chosen_part(), x=x, which=np.array(which))
        for a, b in zip(both(mod, x, np.array(which)), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    with pytest.raises(MachineError, match="'at' \\(SequenceAt\\) failed in onnxruntime"):
        compiler.build(mod)(x, np.array(9))


# ---- borders -------------------------------------------------------------------------------------
def test_a_node_between_two_that_share_a_sequence_is_taken_too() -> None:
    make = helper.make_node
    proto = model(
        [
            make("SequenceConstruct", ["x", "x"], ["s"], "make"),
            make("SequenceAt", ["s", "zero"], ["a"], "first"),
            make("Relu", ["a"], ["b"], "between"),
            make("Neg", ["a"], ["apart"], "apart"),
            make("SequenceInsert", ["s", "b"], ["t"], "insert"),
            make("SequenceLength", ["t"], ["n"], "count"),
        ],
        {"x": (T.FLOAT, [2])},
        {"n": (T.INT64, []), "apart": (T.FLOAT, [2])},
        [onnx.numpy_helper.from_array(np.array(0), "zero")],
    )
    mod = compiler.from_onnx(proto, engines=ENGINES)
    assert nodes_handed(mod) == [("make", "first", "between", "insert", "count")]
    count, apart = both(mod, np.ones(2, np.float32))
    assert count == 3
    np.testing.assert_array_equal(apart, [-1, -1])


def test_strings_and_sequences_are_inputs_and_outputs() -> None:
    make = helper.make_node
    proto = model(
        [
            make("StringConcat", ["a", "b"], ["joined"], "concat"),
            make("SequenceInsert", ["s", "x"], ["longer"], "insert"),
            make("Relu", ["x"], ["r"], "relu"),
        ],
        {"a": (T.STRING, ["n"]), "b": (T.STRING, ["n"]), "s": sequence(), "x": (T.FLOAT, ["k"])},
        {"joined": (T.STRING, None), "longer": sequence(), "r": (T.FLOAT, None)},
    )
    mod = compiler.from_onnx(proto, engines=ENGINES)
    assert sorted(nodes_handed(mod)) == [("concat",), ("insert",)]
    x = np.array([1, -1], np.float32)
    given = (["ä", "", "longest"], ["1", "", "\0"], [np.zeros((2, 3), np.float32)], x)
    for run in (compiler.build(mod), lambda *a: compiler.evaluate(mod, *a)):
        joined, longer, r = run(*given)
        assert joined.tolist() == ["ä1", "", "longest\0"]
        assert [a.shape for a in longer] == [(2, 3), (2,)]
        np.testing.assert_array_equal(r, [1, 0])
    exe = compiler.build(mod)
    for bad, said in (
        ((given[0], given[1], given[2][0], x), "'s' must be a list"),
        ((given[0], given[1], [np.zeros(2)], x), "element 0, must be float32, not float64"),
        (([1, 2, 3], given[1], given[2], x), "'a' must be an array of str"),
        ((["a", None, "b"], given[1], given[2], x), "holds a NoneType"),
        ((["a\ud800", "", ""], given[1], given[2], x), "no text in UTF-8"),
    ):
        with pytest.raises(InputError, match=said):
            exe(*bad)


def test_models_that_take_sequences_are_quantized() -> None:
    make = helper.make_node
    proto = model(
        [make("SequenceAt", ["s", "which"], ["x"], "at"), make("MatMul", ["x", "w"], ["y"], "fc")],
        {"s": sequence(), "which": (T.INT64, [])},
        {"y": (T.FLOAT, ["n", 3])},
        weights(w=(8, 3)),
    )
    # Nobody says how many axes an element has: what follows is handed over until that is known.
    assert nodes_handed(compiler.from_onnx(proto, engines=ENGINES)) == [("at", "fc")]
    element = helper.make_tensor_type_proto(T.FLOAT, ["n", 8])
    proto.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(element))
    mod = compiler.from_onnx(proto, engines=ENGINES)
    assert nodes_handed(mod) == [("at",)]
    given = [RNG.standard_normal((4, 8)).astype(np.float32) for _ in range(2)]
    integers = quantize.quantize(mod, [{"s": given, "which": np.array(k)} for k in (0, 1)])
    (got,) = both(integers, given, np.array(1))
    (wanted,) = by_onnxruntime(proto, s=given, which=np.array(1))
    assert 0 < np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


def test_types_that_numpy_does_not_have_cross_the_border_as_floats() -> None:
    make = helper.make_node
    same = helper.make_graph(
        [make("Identity", ["h"], ["one"])], "same", [],
        [helper.make_tensor_value_info("one", T.BFLOAT16, None)],
    )  # fmt: skip
    wider = helper.make_graph(
        [make("Unsqueeze", ["h", "axes"], ["more"])], "wider", [],
        [helper.make_tensor_value_info("more", T.BFLOAT16, None)],
    )  # fmt: skip
    proto = model(
        [
            make("Cast", ["x"], ["h"], to=T.BFLOAT16),
            make("If", ["c"], ["i"], "branches", then_branch=same, else_branch=wider),
            make("Reshape", ["i", "shape"], ["r"]),
            make("Cast", ["r"], ["y"], to=T.FLOAT),
        ],
        {"x": (T.FLOAT, [2]), "c": (T.BOOL, [])},
        {"y": (T.FLOAT, None)},
        [
            onnx.numpy_helper.from_array(np.array([0]), "axes"),
            onnx.numpy_helper.from_array(np.array([2]), "shape"),
        ],
    )
    mod = compiler.from_onnx(proto, engines=ENGINES)
    assert nodes_handed(mod) == [("branches", "r")]  # of one or two axes until it is reshaped
    for c in (True, False):
        x = np.array([1 + 2**-7, 3e38], np.float32)
        np.testing.assert_array_equal(both(mod, x, np.array(c))[0], x.astype("bfloat16"))


def test_random_numbers_are_drawn_in_every_call_and_by_every_node() -> None:
    make = helper.make_node
    nodes = [make("RandomUniform", [], [y], shape=[3, 4]) for y in "ab"]
    mod = compiler.from_onnx(
        model(nodes, {}, {"a": (T.FLOAT, [3, 4]), "b": (T.FLOAT, [3, 4])}), engines=ENGINES
    )
    exe = compiler.build(mod)
    first, second = exe(), exe()
    assert len({a.tobytes() for a in (*first, *second)}) == 4


# ---- texts, files --------------------------------------------------------------------------------
def test_regions_are_in_the_text() -> None:
    mod = compiler.from_onnx(words_classifier(), engines=ENGINES)
    assert "nodes 'norm' (StringNormalizer), 'encode' (LabelEncoder)" in str(mod)
    again = compiler.parse(mod.astext(show_meta_data=True))
    assert compiler.structural_equal(mod, again)
    wanted = compiler.build(mod)(TEXT)
    np.testing.assert_array_equal(compiler.build(again)(TEXT), wanted)


@pytest.mark.thorough
def test_regions_are_in_files(tmp_path: Path) -> None:
    mod = compiler.from_onnx(words_classifier(), engines=ENGINES)
    wanted = compiler.build(mod)(TEXT)
    compiler.build(mod).save(tmp_path / "words.exe")
    np.save(tmp_path / "wanted.npy", wanted)
    code = (
        "import compiler, numpy as np, sys; folder = sys.argv[1];"
        "got = compiler.load(folder + '/words.exe')(np.array(sys.argv[2:]));"
        "assert np.array_equal(got, np.load(folder + '/wanted.npy'))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), *TEXT], check=True)


def test_a_region_whose_bytes_were_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = compiler.from_onnx(words_classifier(), engines=ENGINES).astext(show_meta_data=True)
    code = b"StringNormalizer".hex()
    assert code in text
    monkeypatch.setattr(session, "_sessions", OrderedDict())
    changed = compiler.parse(text.replace(code, b"Stringnormalizer".hex()))
    with pytest.raises(compiler.DtypelabError, match="damaged"):
        compiler.evaluate(changed, TEXT)


# ---- refusals ------------------------------------------------------------------------------------
def test_what_we_refuse_says_who_could_run_it() -> None:
    for proto in (words_classifier(), inverse_of_scores(), chosen_part()):
        with pytest.raises(UnsupportedError, match=r"engines=\['onnxruntime'\] .*hands such nodes"):
            compiler.from_onnx(proto)
    nodes = [helper.make_node("Odd", ["x"], ["y"], "odd", domain="my.own")]
    proto = model(nodes, {"x": (T.FLOAT, [2])}, {"y": (T.FLOAT, [2])})
    with pytest.raises(UnsupportedError, match=r"my\.own\.Odd") as said:
        compiler.from_onnx(proto)
    assert "engines" not in str(said.value)


def test_what_neither_has_is_one_sentence_that_names_both() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Odd", ["r"], ["y"], "odd", domain="my.own"),
    ]
    proto = model(nodes, {"x": (T.FLOAT, [2])}, {"y": (T.FLOAT, [2])})
    with pytest.raises(UnsupportedError) as said:
        compiler.from_onnx(proto, engines=ENGINES)
    text = str(said.value)
    assert "'odd' (Odd)" in text
    assert "onnxruntime" in text
    assert "my.own:Odd" in text
    assert "\n" not in text


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'dtypelab\[onnxruntime\]'"):
        compiler.from_onnx(words_classifier(), engines=ENGINES)
    with pytest.raises(UnsupportedError) as said:
        compiler.from_onnx(inverse_of_scores())
    assert "engines" not in str(said.value)


def test_other_engines_and_bad_lists_are_refused() -> None:
    with pytest.raises(ConfigError, match="'onnxrun' computes no nodes of files"):
        compiler.from_onnx(inverse_of_scores(), engines=["onnxrun"])
    with pytest.raises(ConfigError, match="engines is a list"):
        compiler.from_onnx(inverse_of_scores(), engines="onnxruntime")


def test_nothing_is_handed_over_that_we_can_do_and_nothing_unless_asked() -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (T.FLOAT, ["n", 4])},
        {"y": (T.FLOAT, None)},
        weights(w=(4, 3)),
    )
    asked, plain = (compiler.from_onnx(proto, engines=e) for e in (ENGINES, ()))
    assert str(asked) == str(plain)
    assert handed(asked) == ()
