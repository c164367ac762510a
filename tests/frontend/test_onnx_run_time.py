"""Sizes and positions that are symbolic, or that the model computes while it runs: one build serves
all of them, and its results are those of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import assert_close, model, run_onnxruntime

from compiler.build import build
from compiler.errors import InputError
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate
from compiler.ir.parser import parse
from compiler.ir.verifier import verify

node = helper.make_node
INT = TensorProto.INT64
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def same(proto: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> None:
    """Interpreted, and compiled once, for all of `data`."""
    mod = from_onnx(proto)
    verify(mod)
    text = mod.astext(show_meta_data=True)
    assert parse(text).astext(show_meta_data=True) == text
    executable = build(mod)
    for arrays in ({k: np.asarray(a) for k, a in d.items()} for d in data):
        want = run_onnxruntime(proto, arrays)
        for run in (evaluate(mod, arrays), executable(**arrays)):
            assert_close(run, want)


# ---- Range ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_range_of_run_time_ends(dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = {n: [] for n in "abd"}
    proto = model([node("Range", ["a", "b", "d"], ["y"])], names, ["y"],
                  dtypes=dict.fromkeys(names, kind))  # fmt: skip
    ends = [(0, 5, 1), (2, 11, 3), (7, -4, -2), (3, 4, 9), (3, 3, 1), (5, 2, 1), (-3, 3, 2)]
    same(proto, [dict(zip("abd", np.array(e, dtype), strict=True)) for e in ends])


@pytest.mark.parametrize(("start", "delta"), [(0, 1), (2, 1), (1, 2), (-3, 4)])
def test_range_up_to_a_dimension_stays_without_control_flow(start: int, delta: int) -> None:
    weights = {"a": np.int64(start), "d": np.int64(delta), "axis": np.int64(0)}
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "axis"], ["n"]),
        node("Range", ["a", "n", "d"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": ["n", 3]}, ["y"], weights)
    same(proto, [{"x": np.zeros((n, 3), np.float32)} for n in (3, 4, 5, 17)])
    assert "match_shape" not in from_onnx(proto).astext()


def test_range_whose_delta_is_zero_is_refused_when_it_runs() -> None:
    names = {n: [] for n in "abd"}
    proto = model([node("Range", ["a", "b", "d"], ["y"])], names, ["y"],
                  dtypes=dict.fromkeys(names, INT))  # fmt: skip
    mod = from_onnx(proto)
    for run in (build(mod), lambda *a: evaluate(mod, *a)):
        with pytest.raises(InputError):
            run(*map(np.asarray, ints(0, 5, 0)))


# ---- Slice ---------------------------------------------------------------------------------------
@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_slice_by_run_time_bounds(step: int) -> None:
    weights = {"axes": ints(1, -2), "steps": ints(step, 1)}
    proto = model([node("Slice", ["x", "a", "b", "axes", "steps"], ["y"])],
                  {"x": [4, 6], "a": [2], "b": [2]}, ["y"], weights,
                  dtypes={"a": INT, "b": INT})  # fmt: skip
    far = 2**63 - 1
    bounds = [((0, 0), (6, 4)), ((-1, 1), (-far, 3)), ((5, -3), (0, far)), ((2, 3), (4, 1)),
              ((-far, -far), (far if step > 0 else -far, far)), ((4, 1), (-5, -1))]  # fmt: skip
    same(proto, [{"x": X, "a": ints(*a), "b": ints(*b)} for a, b in bounds])


def test_slice_up_to_a_dimension_of_another_input() -> None:
    """Position tables are cut to the length of the text; both then have that dimension."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Slice", ["s", "one", "two"], ["n"]),
        node("Slice", ["table", "zero", "n"], ["p"]), node("Add", ["x", "p"], ["y"]),
    ]  # fmt: skip
    weights = {"table": X, "zero": ints(0), "one": ints(0), "two": ints(1)}
    proto = model(nodes, {"x": ["n", 6]}, ["y"], weights)
    same(proto, [{"x": X[:n] * 2} for n in (1, 3, 4)])
    mod = from_onnx(proto)
    for run in (build(mod), lambda x: evaluate(mod, x)):
        with pytest.raises(InputError, match="a size of 4"):
            run(np.ones((5, 6), np.float32))


def test_slice_of_symbolic_size_from_its_end() -> None:
    nodes = [
        node("Shape", ["m"], ["s"]), node("Neg", ["s"], ["back"]),
        node("Slice", ["x", "back", "far"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": ["n", 6], "m": ["k"]}, ["y"], {"far": ints(2**63 - 1)})
    same(proto, [{"x": X[:n], "m": np.ones(k, np.float32)} for n, k in ((4, 1), (3, 3), (4, 2))])


# ---- others --------------------------------------------------------------------------------------
def test_expand_tile_and_constants_of_run_time_sizes() -> None:
    data = [ints(*s) for s in ((2, 4, 6), (1, 1, 6), (3, 4, 1), (1, 1, 1))]
    expand = model([node("Expand", ["x", "s"], ["y"])], {"x": [4, 6], "s": [3]}, ["y"],
                   dtypes={"s": INT})  # fmt: skip
    same(expand, [{"x": X, "s": s} for s in data])
    row = model([node("Expand", ["x", "s"], ["y"])], {"x": [4, 1], "s": [3]}, ["y"],
                dtypes={"s": INT})  # fmt: skip
    same(row, [{"x": X[:, :1], "s": s} for s in data])
    with pytest.raises(InputError, match="a size of 5"):
        build(from_onnx(expand))(X, ints(2, 5, 6))
    tile = model([node("Tile", ["x", "s"], ["y"])], {"x": [4, "n"], "s": [2]}, ["y"],
                 dtypes={"s": INT})  # fmt: skip
    same(tile, [{"x": X[:, :n], "s": ints(*s)} for n, s in ((6, (2, 3)), (2, (1, 1)), (1, (3, 0)))])
    filled = model([node("ConstantOfShape", ["s"], ["y"])], {"s": [2]}, ["y"], dtypes={"s": INT})
    same(filled, [{"s": ints(*s)} for s in ((2, 3), (1, 1), (0, 4), (5, 0))])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_by_run_time_widths(mode: str) -> None:
    proto = model([node("Pad", ["x", "p", "v"], ["y"], mode=mode)],
                  {"x": [4, 6], "p": [4], "v": []}, ["y"], opset=19, dtypes={"p": INT})  # fmt: skip
    widths = [(1, 2, 2, 1), (0, 0, 0, 0), (3, 0, 0, 5), (-1, 1, 2, -3)]
    data = widths[:3] if mode == "wrap" else widths
    same(proto, [{"x": X, "p": ints(*p), "v": np.float32(7)} for p in data])


@pytest.mark.parametrize("upper", [0, 1])
def test_triangle_of_a_symbolic_matrix_by_a_run_time_diagonal(upper: int) -> None:
    proto = model([node("Trilu", ["x", "k"], ["y"], upper=upper)], {"x": ["n", "m"], "k": []},
                  ["y"], dtypes={"k": INT})  # fmt: skip
    same(proto, [{"x": X[:n, :m], "k": np.int64(k)}
                 for n, m, k in ((4, 6, 0), (3, 3, 1), (4, 2, -2), (1, 1, 5))])  # fmt: skip


# ---- nothing found -------------------------------------------------------------------------------
def found_then(nodes: list[Any], outputs: list[str]) -> onnx.ModelProto:
    """The rows of `x` where `c` is true, as `r`, and then `nodes`."""
    weights = {"axis": np.int64(0), "none": np.int64(0), "w": X.T.copy(), "nil": ints(0),
               "first": ints(1)}  # fmt: skip
    found = [node("Compress", ["x", "c"], ["r"], axis=0)]
    return model([*found, *nodes], {"x": [4, 6], "c": [4]}, outputs, weights,
                 dtypes={"c": TensorProto.BOOL})  # fmt: skip


CHOICES = [np.array(c, bool) for c in ([1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1])]


def test_that_nothing_is_found_is_seen_by_the_model() -> None:
    def branch(name: str, value: float) -> onnx.GraphProto:
        made = node("Constant", [], [name], value_float=value)
        return helper.make_graph([made], name, [], [helper.make_empty_tensor_value_info(name)])

    nodes = [
        node("Shape", ["r"], ["s"]), node("Gather", ["s", "axis"], ["n"]),
        node("Equal", ["n", "none"], ["e"]),
        node("If", ["e"], ["y"], then_branch=branch("no", -1.0), else_branch=branch("yes", 1.0)),
    ]  # fmt: skip
    same(found_then(nodes, ["y", "n"]), [{"x": X, "c": c} for c in CHOICES])


def test_what_is_computed_from_nothing_is_empty() -> None:
    nodes = [
        node("MatMul", ["r", "w"], ["p"]), node("Softmax", ["p"], ["y"], axis=1),
        node("ReduceMax", ["y"], ["m"], axes=[1], keepdims=0), node("Neg", ["x"], ["z"]),
        node("Slice", ["r", "nil", "first"], ["top"]),
    ]  # fmt: skip
    same(found_then(nodes, ["y", "m", "z", "top"]), [{"x": X, "c": c} for c in CHOICES])


def test_a_reduction_of_nothing_is_refused() -> None:
    proto = found_then([node("ReduceMax", ["r"], ["y"], axes=[0], keepdims=0)], ["y"])
    mod = from_onnx(proto)
    for run in (build(mod), lambda *a: evaluate(mod, *a)):
        with pytest.raises(InputError):
            run(X, CHOICES[1])


# ---- Reshape -------------------------------------------------------------------------------------
SHAPES = [(4, 6), (2, 12), (0, 2, -1), (3, -1), (0, -1), (24,), (-1,), (2, 3, 4), (0, 0), (1, -1)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("open_size", [False, True])
def test_reshape_to_a_shape_that_is_computed(rank: int, open_size: bool) -> None:
    nodes = [node("Reshape", ["x", "s"], ["r"]), node("Relu", ["r"], ["y"])]
    given = {"x": ["n" if open_size else 4, 6], "s": [rank]}
    proto = model(nodes, given, ["y"], dtypes={"s": INT})
    same(proto, [{"x": X, "s": ints(*s)} for s in SHAPES if len(s) == rank])


@pytest.mark.parametrize("rest", ["-1", "2", "n"])
def test_reshape_to_a_shape_of_which_one_size_is_computed(rest: str) -> None:
    weights = {"minus": ints(-1), "two": ints(2), "zero": ints(0), "one": ints(1)}
    nodes = [
        node("Shape", ["x"], ["all"]),
        node("Slice", ["all", "zero", "one"], ["n"]),
        node("Concat", [{"-1": "minus", "2": "two", "n": "n"}[rest], "s"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    proto = model(nodes, {"x": ["n", 6], "s": [1]}, ["y"], weights, dtypes={"s": INT})
    sizes = {"-1": (6, 12, 24, 1), "2": (12, -1), "n": (6, -1)}[rest]
    same(proto, [{"x": X, "s": ints(k)} for k in sizes])


@pytest.mark.parametrize("shape", [(5, 5), (7, -1), (-1, -1), (0, 5)])
def test_reshape_to_a_shape_of_other_size_is_refused(shape: tuple[int, ...]) -> None:
    proto = model([node("Reshape", ["x", "s"], ["y"])], {"x": [4, 6], "s": [2]}, ["y"],
                  dtypes={"s": INT})  # fmt: skip
    mod = from_onnx(proto)
    for run in (lambda **a: evaluate(mod, a), build(mod)):
        with pytest.raises(InputError, match=r"match_shape|size"):
            run(x=X, s=ints(*shape))
