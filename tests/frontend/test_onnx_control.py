"""Control flow whose course is known during import is written out; what is not is refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import check, model

from compiler.errors import UnsupportedError
from compiler.frontend.onnx_importer import from_onnx

node = helper.make_node


def info(name: str, kind: int = TensorProto.FLOAT, *shape: int) -> object:
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


def test_loops_that_are_too_long_or_unknown_are_refused() -> None:
    loop = node("Loop", ["m", "", "x"], ["y", "rows"], body=doubling(1e9))
    proto = model([loop], {"x": [2]}, ["y", "rows"], {"m": np.array(2000, np.int64)})
    with pytest.raises(UnsupportedError, match="at most 1024"):
        from_onnx(proto)
    proto = model([loop], {"x": [2], "m": []}, ["y"], dtypes={"m": TensorProto.INT64})
    with pytest.raises(UnsupportedError, match="trip count"):
        from_onnx(proto)


def test_an_unknown_operator_in_a_branch_is_named() -> None:
    branch = helper.make_graph([node("NonZero", ["x"], ["out"])], "b", [], [info("out", 7, 1, 2)])
    cond = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    with pytest.raises(UnsupportedError, match="NonZero"):
        from_onnx(model([cond], {"x": [2]}, ["y"], {"c": np.array(True)}))
