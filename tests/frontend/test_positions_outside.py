"""Positions outside an axis are an error, as ONNX says and onnxruntime does: known ones at import,
those that are inputs, or that count up to a size, when the program is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import assert_close, model, run_onnxruntime

import compiler
import datatypes
import quantize
from compiler.errors import InputError, ModelError

KINDS = (
    "Gather", "GatherElements", "GatherND", "GatherND in columns", "ScatterElements", "ScatterND",
)  # fmt: skip
DATA = np.arange(30, dtype=np.float32).reshape(5, 6)


def shape_of(kind: str) -> tuple[int, ...]:
    """Of three indices along the first axis, but two columns of those in columns."""
    columns = {"GatherND in columns": (3, 2), "Gather": (3,)}
    return columns.get(kind, (3, 1))


def reading(kind: str, indices: np.ndarray | None, steps: tuple[str, ...] = ()) -> onnx.ModelProto:
    """A node on DATA whose indices are known, or an input `at` that `steps` come before."""
    inputs: dict[str, Any] = {"x": DATA.shape}
    weights = {"one": np.array([1], np.int64), "shape": np.array(shape_of(kind), np.int64)}
    if indices is None:
        inputs["at"] = ["n", *shape_of(kind)[1:]] if not steps else [3 * len(shape_of(kind))]
    else:
        weights["at"] = indices
    if kind.startswith("Scatter"):
        weights["updates"] = np.ones((3, 6 if kind == "ScatterND" else 1), np.float32)
    if steps:
        inputs["at"] = [int(np.prod(shape_of(kind)))]
    nodes, at = [], "at"
    for k, op in enumerate(steps):
        args = [at, *{"Reshape": ["shape"], "Cast": []}[op]]
        more = {"to": TensorProto.INT64} if op == "Cast" else {}
        nodes.append(helper.make_node(op, args, [f"at{k}"], **more))
        at = f"at{k}"
    args = ["x", at, *(["updates"] if "updates" in weights else [])]
    nodes.append(helper.make_node(kind.split()[0], args, ["y"], name="reads"))
    kind_of = TensorProto.INT32 if "Cast" in steps else TensorProto.INT64
    return model(nodes, inputs, ["y"], weights, dtypes={"at": kind_of})


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.integers(-8, 8), min_size=3, max_size=3), st.booleans())
def test_positions_are_checked(kind: str, at: list[int], known: bool) -> None:
    indices = np.zeros(shape_of(kind), np.int64)
    indices[(slice(None), *[-1] * (indices.ndim - 1))] = at
    size = 6 if kind == "GatherND in columns" else 5
    proto = reading(kind, indices if known else None)
    feed = {"x": DATA} | ({} if known else {"at": indices})
    if all(-size <= k < size for k in at):
        got = compiler.evaluate(compiler.from_onnx(proto), **feed)
        assert_close(got, run_onnxruntime(proto, feed))
        return
    with pytest.raises(Exception, match=r"(?i)ind"):
        run_onnxruntime(proto, feed)
    if known:
        with pytest.raises(ModelError, match=rf"node 'reads' .*: the index .* length {size}"):
            compiler.from_onnx(proto)
        return
    mod = compiler.from_onnx(proto)
    with pytest.raises(InputError, match=rf"input 'at' holds .* node 'reads' .* length {size}"):
        compiler.evaluate(mod, **feed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["built", "optimized", "read back", "loaded", "graph", "vm"])
def test_every_way_of_running_checks_them(how: str, tmp_path: Path) -> None:
    mod = compiler.from_onnx(reading("Gather", None, ("Cast", "Reshape")))
    if how == "optimized":
        mod = compiler.optimize(mod)
    elif how == "read back":
        mod = compiler.parse(mod.astext(show_meta_data=True))
    if how in ("graph", "vm"):
        run = compiler.create_executor(how, mod).evaluate()
    else:
        run = compiler.build(mod)
    if how == "loaded":
        run.save(tmp_path / "m.bin")
        run = compiler.load(tmp_path / "m.bin")
    np.testing.assert_array_equal(run(DATA, np.array([0, -5, 4], np.int32)), DATA[[0, 0, 4]])
    for outside in (5, -6, 2**31 - 1):
        with pytest.raises(InputError, match=rf"'at' holds {outside}, .*: give -5 to 4"):
            run(DATA, np.array([0, outside, 1], np.int32))


def words(positions: int) -> onnx.ModelProto:
    """Rows of a table for words, and of another for their positions."""
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["w"], name="word"),
        helper.make_node("Shape", ["ids"], ["s"]),
        helper.make_node("Squeeze", ["s"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["at"]),
        helper.make_node("Gather", ["places", "at"], ["p"], name="place"),
        helper.make_node("Add", ["w", "p"], ["y"]),
    ]
    weights = {
        "words": np.arange(14, dtype=np.float32).reshape(7, 2),
        "places": np.arange(2 * positions, dtype=np.float32).reshape(positions, 2),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
    }
    return model(nodes, {"ids": ["n"]}, ["y"], weights, dtypes={"ids": TensorProto.INT64})


def test_sentences_longer_than_the_table_of_positions() -> None:
    proto = words(3)
    mod = compiler.from_onnx(proto)
    run, ids = compiler.build(mod), np.array([6, 0, 2], np.int64)
    assert_close(run(ids), run_onnxruntime(proto, {"ids": ids}))
    for call in (run, lambda x: compiler.evaluate(mod, x)):
        with pytest.raises(InputError, match=r"n - 1 is 3, but node 'place' .* length 3"):
            call(np.zeros(4, np.int64))
        with pytest.raises(InputError, match=r"'ids' holds 7, but node 'word' .* length 7"):
            call(np.array([1, 7], np.int64))


def test_positions_in_a_branch_that_does_not_run() -> None:
    """What is outside there is nobody's error."""
    bad = helper.make_node("Gather", ["x", "far"], ["b"])
    good = helper.make_node("Gather", ["x", "near"], ["g"])
    empty = helper.make_empty_tensor_value_info
    then = helper.make_graph([bad], "then", [], [empty("b")])
    other = helper.make_graph([good], "other", [], [empty("g")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    weights = {"far": np.array([9], np.int64), "near": np.array([1], np.int64)}
    inputs = {"x": DATA.shape, "c": []}
    proto = model([node], inputs, ["y"], weights, dtypes={"c": TensorProto.BOOL})
    mod = compiler.from_onnx(proto)
    np.testing.assert_array_equal(compiler.evaluate(mod, DATA, np.array(False)), DATA[1:2])


@pytest.mark.thorough
def test_quantized_and_retyped_models_check_them() -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="embed"),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    weights = {
        "table": rng.normal(size=(9, 8)).astype(np.float32),
        "w": rng.normal(size=(8, 5)).astype(np.float32),
    }
    proto = model(nodes, {"ids": ["n", 4]}, ["y"], weights, dtypes={"ids": TensorProto.INT64})
    mod, ids = compiler.from_onnx(proto), rng.integers(0, 9, (6, 4))
    retyped = datatypes.change_dtype(mod, "float32", "custom[bfloat16]16")
    for changed in (quantize.quantize(mod, [ids]), retyped):
        run = compiler.build(changed)
        run(ids)
        with pytest.raises(InputError, match=r"'ids' holds 9, but node 'embed'"):
            run(np.full((1, 4), 9))


@pytest.mark.parametrize(
    "rows", [5, [5], ["abcde"], [["7", "node", "at", "x", "0"]], [["7 +", "node", "at", -1, "0"]]]
)
def test_notes_that_are_none(rows: Any) -> None:
    mod = compiler.from_onnx(reading("Gather", None))
    mod = replace(mod, attrs={**mod.attrs, "indices": rows})
    with pytest.raises(ModelError):
        compiler.build(mod)
    with pytest.raises(ModelError):
        compiler.evaluate(mod, DATA, np.zeros(3, np.int64))


def test_notes_of_inputs_that_are_no_longer_there() -> None:
    mod = compiler.from_onnx(reading("GatherND in columns", None))
    rows = [
        ["5", "node", "gone", -1, "0"],
        ["5", "node", "at", 2, "0"],
        ["k", "node", "at", -1, "0"],
    ]
    mod = replace(mod, attrs={**mod.attrs, "indices": [*rows, *mod.attrs["indices"]]})
    with pytest.raises(InputError, match="'at' holds 6"):
        compiler.evaluate(mod, DATA, np.full((3, 2), 6))
