"""Squeeze without axes where sizes are open: the rank of its result must not depend on them, so
that they are taken to be other than 1, which is printed, kept by passes and checked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, run_onnxruntime

import compiler
import datatypes
from compiler.errors import InputError

SHAPES: list[list[Any]] = [["n", 1, "h"], ["n", "n", 3], [1, "h", 1], ["n", "h"]]


def squeeze(shape: list[Any], then: str = "Relu") -> onnx.ModelProto:
    nodes = [
        helper.make_node("Squeeze", ["x"], ["s"], name="drop"),
        helper.make_node(then, ["s"], ["y"]),
    ]
    return model(nodes, {"x": shape}, ["y"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("then", ["Relu", "Shape"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_shape_is_what_onnx_says_or_refused(shape: list[Any], then: str) -> None:
    proto = squeeze(shape, then)
    mod = compiler.from_onnx(proto)
    compiler.verify(mod)
    opened = list(dict.fromkeys(d for d in shape if isinstance(d, str)))
    assert [str(a) for a in compiler.assumptions(mod)] == [
        f"node 'drop' (Squeeze) needs {d} other than 1" for d in opened
    ]
    runs = [mod, compiler.parse(mod.astext(show_meta_data=True)), compiler.optimize(mod)]
    assert len({compiler.assumptions(m) for m in runs}) == 1
    for sizes in itertools.product((1, 2, 3), repeat=len(opened)):
        at = dict(zip(opened, sizes, strict=True))
        x = np.arange(np.prod([at.get(d, d) for d in shape]), dtype=np.float32)
        x = x.reshape([at.get(d, d) for d in shape])
        for m in runs:
            if 1 in sizes:
                with pytest.raises(InputError, match=r"= 1 .*does not fit: .*; the nearest"):
                    compiler.evaluate(m, x)
            else:
                (want,) = run_onnxruntime(proto, {"x": x})
                np.testing.assert_array_equal(compiler.evaluate(m, x), want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("then", ["Relu", "Shape"])
def test_compiled_retyped_and_saved_programs_check_it(then: str, tmp_path: Path) -> None:
    mod = datatypes.change_dtype(
        compiler.from_onnx(squeeze(["n", 1, 4], then)), "float32", "bfloat16"
    )
    exe = compiler.build(mod)
    exe.save(tmp_path / "net.exe")
    machine = compiler.create_executor("vm", mod).evaluate()
    for call in (exe, compiler.load(tmp_path / "net.exe"), machine):
        x = np.ones((2, 1, 4), np.float32)
        np.testing.assert_array_equal(call(x), compiler.evaluate(mod, x))
        with pytest.raises(InputError, match=r"n = 1 .axis 0 of input 'x'. does not fit: node 'dr"):
            call(x[:1])


def test_sizes_that_are_given_or_never_1_are_not_assumed() -> None:
    given = compiler.from_onnx(squeeze(["n", 1, "h"]), shapes={"x": (1, 1, 5)})
    assert compiler.assumptions(given) == ()
    assert compiler.evaluate(given, np.zeros((1, 1, 5), np.float32)).shape == (5,)
    twice = [
        helper.make_node("Concat", ["x", "x"], ["c"], axis=0),
        helper.make_node("Squeeze", ["c"], ["y"]),
    ]
    mod = compiler.from_onnx(model(twice, {"x": ["n", 1, 3]}, ["y"]))
    assert compiler.assumptions(mod) == ()
    assert compiler.evaluate(mod, np.zeros((1, 1, 3), np.float32)).shape == (2, 3)


def test_a_size_that_is_assumed_to_be_1_is_dropped() -> None:
    nodes = [
        helper.make_node("Squeeze", ["x", "axis"], ["a"], name="is_one"),
        helper.make_node("Squeeze", ["x"], ["b"], name="drop"),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    proto = model(nodes, {"x": ["n", 3]}, ["y"], {"axis": np.array([0])})
    mod = compiler.from_onnx(proto)
    assert [a.differs for a in compiler.assumptions(mod)] == [False]
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(compiler.evaluate(mod, x), run_onnxruntime(proto, {"x": x})[0])
