"""Control flow whose course is known during import is written out, if it is short; the rest becomes
branches and loops of the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import assert_close, check, model, run_onnxruntime

from compiler.build import build
from compiler.errors import UnsupportedError
from compiler.frontend.onnx_importer import from_onnx
from compiler.ir.parser import parse

node = helper.make_node


def info(name: str, kind: int = TensorProto.FLOAT, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def doubling(stop: float = 99.0) -> object:
    """v -> v + v, as long as the counter is below `stop`; the counter times v is collected."""
    nodes = [
        node("Add", ["v", "v"], ["next"]),
        node("Cast", ["i"], ["count"], to=TensorProto.FLOAT),
        node("Constant", [], ["stop"], value_float=stop),
        node("Less", ["count", "stop"], ["again"]),
        node("Mul", ["next", "count"], ["row"]),
    ]
    inputs = [info("i", TensorProto.INT64), info("go", TensorProto.BOOL), info("v", 1, 2)]
    outputs = [info("again", TensorProto.BOOL), info("next", 1, 2), info("row", 1, 2)]
    return helper.make_graph(nodes, "body", inputs, outputs)


@pytest.mark.parametrize(("trips", "stop"), [(4, 99.0), (9, 2.0), (1, 99.0)])
def test_a_loop_is_written_out_until_its_condition_ends_it(trips: int, stop: float) -> None:
    loop = node("Loop", ["m", "", "x"], ["y", "rows"], body=doubling(stop))
    proto = model([loop], {"x": [2]}, ["y", "rows"], {"m": np.array(trips, np.int64)})
    check(proto, {"x": np.array([1.5, -2], np.float32)})


@pytest.mark.parametrize("chosen", [True, False])
def test_a_known_condition_chooses_its_branch_which_sees_values_around_it(chosen: bool) -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op, ["x", "around"], ["out"])], name, [], [info("out", 1, 2)]
        )
        for name, op in (("then", "Add"), ("else", "Mul"))
    }
    nodes = [node("Exp", ["x"], ["around"]), node("If", ["c"], ["y"], **branches)]
    proto = model(nodes, {"x": [2]}, ["y"], {"c": np.array(chosen)})
    check(proto, {"x": np.array([0.5, -2], np.float32)})


@pytest.mark.parametrize("back", [0, 1])
def test_a_scan_runs_over_its_axis_in_both_directions(back: int) -> None:
    nodes = [node("Add", ["s", "e"], ["t"]), node("Mul", ["t", "e"], ["o"])]
    body = helper.make_graph(
        nodes, "body", [info("s", 1, 2), info("e", 1, 2)], [info("t", 1, 2), info("o", 1, 2)]
    )
    scan = node(
        "Scan", ["s0", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[back], scan_output_axes=[1], scan_output_directions=[1 - back],
    )  # fmt: skip
    proto = model([scan], {"s0": [2], "x": [2, 5]}, ["last", "all"])
    x = np.linspace(-1, 2, 10, dtype=np.float32).reshape(2, 5)
    check(proto, {"s0": np.array([1, -1], np.float32), "x": x})


@pytest.mark.parametrize("steps", [5, 70])
def test_a_scan_of_opset_8_runs_for_each_member_of_its_batch(steps: int) -> None:
    nodes = [node("Add", ["s", "e"], ["t"]), node("Mul", ["t", "e"], ["o"])]
    body = helper.make_graph(
        nodes, "body", [info("s", 1, 2), info("e", 1, 2)], [info("t", 1, 2), info("o", 1, 2)]
    )
    for back in (0, 1):
        scan = node("Scan", ["", "s0", "x"], ["last", "all"], body=body, num_scan_inputs=1,
                    directions=[back])  # fmt: skip
        proto = model([scan], {"s0": [3, 2], "x": [3, steps, 2]}, ["last", "all"], opset=8)
        x = np.linspace(-1, 1.5, 6 * steps, dtype=np.float32).reshape(3, steps, 2)
        check(proto, {"s0": np.float32([[1, -1], [0, 3], [2, 2]]), "x": x})
    lengths = model([scan], {"s0": ["n", 2], "x": ["n", 5, 2]}, ["last"], opset=8)
    with pytest.raises(UnsupportedError, match="batches"):
        from_onnx(lengths)
    lengths.graph.node[0].input[0] = "s0"
    with pytest.raises(UnsupportedError, match="sequence_lens"):
        from_onnx(lengths)


# ---- found while the program runs ----------------------------------------------------------------
def all_ways(proto: onnx.ModelProto, arrays: dict[str, np.ndarray], **options: Any) -> None:
    """Import, print and parse; interpreted and compiled results are those of onnxruntime."""
    mod = check(proto, arrays, **options)
    text = mod.astext(show_meta_data=True)
    assert parse(text).astext(show_meta_data=True) == text
    assert_close(build(mod)(**arrays), run_onnxruntime(proto, arrays))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("trips", [0, 1, 5])
@pytest.mark.parametrize("stop", [99.0, 2.0])
def test_a_loop_whose_trip_count_is_an_input(trips: int, stop: float) -> None:
    loop = node("Loop", ["m", "c", "x"], ["y", "rows"], body=doubling(stop))
    proto = model([loop], {"x": [2], "m": [], "c": []}, ["y", "rows"],
                  dtypes={"m": TensorProto.INT64, "c": TensorProto.BOOL})  # fmt: skip
    x = np.array([1.5, -2], np.float32)
    for start in (True, False):
        all_ways(proto, {"x": x, "m": np.array(trips, np.int64), "c": np.array(start)})


def test_a_long_loop_stays_a_loop() -> None:
    loop = node("Loop", ["m", "", "x"], ["y", "rows"], body=doubling(1e9))
    proto = model([loop], {"x": [2]}, ["y", "rows"], {"m": np.array(100, np.int64)})
    assert len(from_onnx(proto).main.bindings) < 10
    all_ways(proto, {"x": np.float32([1e-30, -2e-30])})


@pytest.mark.parametrize("chosen", [True, False])
def test_a_condition_that_is_an_input(chosen: bool) -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op, ["x", "around"], [f"{name}_o"]), node("Neg", ["around"], [f"{name}_p"])],
            name, [], [info(f"{name}_o", 1, 2), info(f"{name}_p", 1, 2)],
        )
        for name, op in (("then", "Add"), ("else", "Mul"))
    }  # fmt: skip
    nodes = [node("Exp", ["x"], ["around"]), node("If", ["c"], ["y", "z"], **branches)]
    proto = model(nodes, {"x": [2], "c": [1]}, ["y", "z"], dtypes={"c": TensorProto.BOOL})
    all_ways(proto, {"x": np.float32([0.5, -2]), "c": np.array([chosen])})


def bubble_sort() -> onnx.ModelProto:
    """Loop over passes, as long as one swapped something; in it a Loop over neighbours, with an If
    that swaps them."""
    f, i64, flag = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    swap = helper.make_graph(
        [node("Concat", ["pos", "after"], ["at"], axis=0), node("Identity", ["yes"], ["did"]),
         node("Concat", ["b", "a"], ["ba"], axis=0),
         node("ScatterElements", ["v", "at", "ba"], ["swapped"])],
        "swap", [], [info("swapped", f, "n"), info("did", flag)],
    )  # fmt: skip
    keep = helper.make_graph(
        [node("Identity", ["v"], ["kept"]), node("Identity", ["any"], ["same"])],
        "keep", [], [info("kept", f, "n"), info("same", flag)],
    )  # fmt: skip
    inner = helper.make_graph(
        [node("Unsqueeze", ["j", "zero"], ["pos"]), node("Add", ["pos", "one"], ["after"]),
         node("Gather", ["v", "pos"], ["a"]), node("Gather", ["v", "after"], ["b"]),
         node("Greater", ["a", "b"], ["wrong"]),
         node("If", ["wrong"], ["v2", "any2"], then_branch=swap, else_branch=keep),
         node("Identity", ["go_in"], ["go_out"])],
        "inner", [info("j", i64), info("go_in", flag), info("v", f, "n"), info("any", flag)],
        [info("go_out", flag), info("v2", f, "n"), info("any2", flag)],
    )  # fmt: skip
    outer = helper.make_graph(
        [node("Loop", ["pairs", "", "w", "no"], ["w2", "more"], body=inner),
         node("Identity", ["more"], ["again"])],
        "outer", [info("k", i64), info("go", flag), info("w", f, "n")],
        [info("again", flag), info("w2", f, "n")],
    )  # fmt: skip
    nodes = [
        node("Size", ["x"], ["size"]),
        node("Sub", ["size", "unit"], ["pairs"]),
        node("Loop", ["size", "yes", "x"], ["y"], body=outer),
    ]
    weights = {"zero": np.int64([0]), "one": np.int64([1]), "unit": np.int64(1),
               "yes": np.array(True), "no": np.array(False)}  # fmt: skip
    return model(nodes, {"x": ["n"]}, ["y"], weights)


def test_a_sort_made_of_loops_and_branches() -> None:
    proto = bubble_sort()
    rng = np.random.default_rng(1)
    mod = from_onnx(proto)
    executable = build(mod)
    for n in (1, 2, 3, 8):  # one build for every length
        x = rng.permutation(n).astype(np.float32)
        np.testing.assert_array_equal(executable(x), np.sort(x))
    check(proto, {"x": x})


def beam_step() -> onnx.ModelProto:
    """Three steps of a beam search of width 2 over 5 symbols: scores of beams x symbols, the two
    best, and the symbols and beams they come from; it ends early when the best symbol is 0."""
    f, i64, flag = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [
            node("Gather", ["table", "last"], ["row"]),
            node("LogSoftmax", ["row"], ["logp"], axis=1),
            node("Unsqueeze", ["score", "one"], ["column"]),
            node("Add", ["logp", "column"], ["all"]),
            node("Reshape", ["all", "flat"], ["line"]),
            node("TopK", ["line", "two"], ["best", "where"]),
            node("Mod", ["where", "five"], ["symbol"]),
            node("Div", ["where", "five"], ["beam"]),
            node("Gather", ["symbol", "zero"], ["first"]),
            node("Equal", ["first", "zero"], ["end"]),
            node("Not", ["end"], ["again"]),
        ],
        "body",
        [info("i", i64), info("go", flag), info("last", i64, 2), info("score", f, 2)],
        [info("again", flag), info("symbol", i64, 2), info("best", f, 2), info("symbol", i64, 2),
         info("beam", i64, 2)],
    )  # fmt: skip
    loop = node("Loop", ["steps", "", "start", "none"],
                ["last_symbols", "scores", "symbols", "beams"], body=body)  # fmt: skip
    weights = {
        "one": np.int64([1]), "flat": np.int64([-1]), "two": np.int64([2]), "five": np.int64(5),
        "zero": np.int64(0), "start": np.int64([1, 2]), "none": np.float32([0, -1]),
    }  # fmt: skip
    outputs = ["last_symbols", "scores", "symbols", "beams"]
    return model([loop], {"table": [5, 5], "steps": []}, outputs, weights, dtypes={"steps": i64})


@pytest.mark.parametrize("seed", [0, 2])
def test_steps_of_a_beam_search(seed: int) -> None:
    table = np.random.default_rng(seed).standard_normal((5, 5)).astype(np.float32)
    all_ways(beam_step(), {"table": table, "steps": np.array(6, np.int64)})


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_recurrent_model(op: str, direction: str) -> None:
    rng = np.random.default_rng(3)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    ways = 2 if direction == "bidirectional" else 1
    hidden, features, steps = 6, 5, 7
    shapes = {
        "w": (ways, gates * hidden, features), "r": (ways, gates * hidden, hidden),
        "b": (ways, 2 * gates * hidden), "m": (ways * hidden, 3),
    }  # fmt: skip
    weights = {k: rng.standard_normal(s).astype(np.float32) / 2 for k, s in shapes.items()}
    weights["shape"] = np.int64([steps, -1, ways * hidden])
    attrs = {"linear_before_reset": 1} if op == "GRU" else {}
    nodes = [
        node(op, ["x", "w", "r", "b"], ["h"], hidden_size=hidden, direction=direction, **attrs),
        node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "shape"], ["f"]),
        node("MatMul", ["f", "m"], ["o"]),
        node("Softmax", ["o"], ["y"]),
    ]
    proto = model(nodes, {"x": [steps, "n", features]}, ["y"], weights)
    executable = build(from_onnx(proto))
    for n in (1, 4):  # one build for every batch
        x = rng.standard_normal((steps, n, features)).astype(np.float32)
        assert_close(executable(x), run_onnxruntime(proto, {"x": x}))
    check(proto, {"x": x})


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("length", ["n", 70])
def test_a_scan_of_any_length(back: int, length: Any) -> None:
    nodes = [node("Add", ["s", "e"], ["t"]), node("Mul", ["t", "e"], ["o"])]
    body = helper.make_graph(
        nodes, "body", [info("s", 1, 2), info("e", 1, 2)], [info("t", 1, 2), info("o", 1, 2)]
    )
    scan = node(
        "Scan", ["s0", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[back], scan_output_axes=[1],
        scan_output_directions=[0 if length == "n" else 1],
    )  # fmt: skip
    proto = model([scan], {"s0": [2], "x": [2, length]}, ["last", "all"])
    for steps in (1, 70) if length == "n" else (70,):
        x = np.linspace(-1, 1.5, 2 * steps, dtype=np.float32).reshape(2, steps)
        all_ways(proto, {"s0": np.array([1, -1], np.float32), "x": x})


def test_loops_may_grow_what_they_carry_and_branches_differ_in_sizes() -> None:
    grow = helper.make_graph(
        [node("Concat", ["v", "v"], ["w"], axis=0), node("Identity", ["go"], ["again"])], "grow",
        [info("i", TensorProto.INT64), info("go", TensorProto.BOOL), info("v", 1, 2)],
        [info("again", TensorProto.BOOL), info("w", 1, 4)],
    )  # fmt: skip
    loop = node("Loop", ["m", "", "x"], ["y"], body=grow)
    proto = model([loop], {"x": [2], "m": []}, ["y"], dtypes={"m": TensorProto.INT64})
    x = np.array([1, -2], np.float32)
    for times in (0, 1, 3):
        all_ways(proto, {"x": x, "m": np.array(times)})
    one, two = (
        helper.make_graph([node("Concat", ["x"] * k, [f"o{k}"], axis=0)], "b", [],
                          [info(f"o{k}", 1, 2 * k)])
        for k in (1, 2)
    )  # fmt: skip
    choice = node("If", ["c"], ["y"], then_branch=one, else_branch=two)
    proto = model([choice], {"x": [2], "c": []}, ["y"], dtypes={"c": TensorProto.BOOL})
    for flag in (True, False):
        all_ways(proto, {"x": x, "c": np.array(flag)})


def test_branches_that_differ_in_rank_are_refused() -> None:
    one, two = (
        helper.make_graph([node(*op, [f"o{k}"], **attrs)], "b", [], [info(f"o{k}", 1, None)])
        for k, (op, attrs) in enumerate(
            [(("Identity", ["x"]), {}), (("Flatten", ["x"]), {"axis": 0})]
        )
    )
    choice = node("If", ["c"], ["y"], then_branch=one, else_branch=two)
    proto = model([choice], {"x": [2], "c": []}, ["y"], dtypes={"c": TensorProto.BOOL})
    with pytest.raises(UnsupportedError, match="branches whose output"):
        from_onnx(proto)


def test_a_loop_that_never_ends_is_refused() -> None:
    stay = helper.make_graph(
        [node("Identity", ["v"], ["w"]), node("Identity", ["go"], ["again"])], "stay",
        [info("i", TensorProto.INT64), info("go", TensorProto.BOOL), info("v", 1, 2)],
        [info("again", TensorProto.BOOL), info("w", 1, 2)],
    )  # fmt: skip
    proto = model([node("Loop", ["", "", "x"], ["y"], body=stay)], {"x": [2]}, ["y"])
    with pytest.raises(UnsupportedError, match="never ends"):
        from_onnx(proto)


def test_an_unknown_operator_in_a_branch_is_named() -> None:
    branch = helper.make_graph([node("Det", ["x"], ["out"])], "b", [], [info("out", 7, 1, 2)])
    cond = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    with pytest.raises(UnsupportedError, match="Det"):
        from_onnx(model([cond], {"x": [2]}, ["y"], {"c": np.array(True)}))
