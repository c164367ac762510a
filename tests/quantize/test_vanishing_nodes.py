"""Plans of models with open sizes hold where given sizes leave nodes of them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.expr import Call, IRModule
from compiler.transform.preparation import prepare
from quantize.plan.fingerprint import _fingerprint

ROWS = 4


def network(cut: tuple[int, int] | None, batch: int | str, step: int = 1) -> onnx.ModelProto:
    """Two layers, whose operand is cut along the batch before each, or taken to be one row."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((8, 8)).astype(np.float32),
        "v": rng.standard_normal((8, 3)).astype(np.float32),
        "one": np.array([1, 8]),
        "axis": np.array([0]),
        "step": np.array([step]),
    }
    nodes = []

    def kept(x: str, y: str) -> None:
        if cut is None:
            nodes.append(helper.make_node("Reshape", [x, "one"], [y]))
            return
        arrays.update(start=np.array([cut[0]]), end=np.array([cut[1]]))
        nodes.append(helper.make_node("Slice", [x, "start", "end", "axis", "step"], [y]))

    kept("x", "y")
    nodes.append(helper.make_node("MatMul", ["y", "w"], ["m"]))
    nodes.append(helper.make_node("Relu", ["m"], ["r"]))
    kept("r", "s")
    nodes.append(helper.make_node("MatMul", ["s", "v"], ["out"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def names(mod: IRModule) -> set[str]:
    return {b.var.name for b in prepare(mod).main.bindings if isinstance(b.value, Call)}


CUTS = {
    "beyond": (0, 10**9),
    "int32": (0, 2**31 - 1),
    "int64": (0, 2**63 - 1),
    "first": (0, 6),
    "some": (0, 3),
    "one row": None,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CUTS)
def test_a_plan_of_open_sizes_holds_for_given_ones(case: str) -> None:
    cut = CUTS[case]
    rows = 1 if cut is None else ROWS
    x = np.random.default_rng(1).standard_normal((rows, 8)).astype(np.float32)
    open_mod = compiler.from_onnx(network(cut, "N"))
    fixed = compiler.from_onnx(network(cut, "N"), shapes={"x": (rows, 8)})
    some_vanish = case in ("beyond", "first", "some", "one row")
    assert (names(open_mod) > names(fixed)) == some_vanish
    plan = quantize.calibrate(open_mod, [x])
    assert quantize.calibrate(fixed, [x]).model == plan.model
    for form in (quantize.realize, quantize.simulate):
        wanted = compiler.evaluate(form(open_mod, plan), x)
        np.testing.assert_array_equal(compiler.evaluate(form(fixed, plan), x), wanted)
    own = quantize.realize(fixed, quantize.calibrate(fixed, [x]))
    got = compiler.evaluate(quantize.realize(fixed, plan), x)
    np.testing.assert_array_equal(compiler.evaluate(own, x), got)


def test_other_nodes_do_not_vanish() -> None:
    """Slices with steps are there for every size; layers are; plans of before still fit theirs."""
    x = np.ones((ROWS, 8), np.float32)
    mod = compiler.from_onnx(network((0, 9), "N"))
    plan = quantize.calibrate(mod, [x])
    before = replace(plan, model=_fingerprint(prepare(mod), whole=True))
    assert before.model != plan.model
    quantize.realize(mod, before)
    stepped = quantize.calibrate(compiler.from_onnx(network((0, 9), "N", step=2)), [x])
    fixed = compiler.from_onnx(network((0, 9), ROWS))
    with pytest.raises(ConfigError, match="made for another model"):
        quantize.realize(fixed, stepped)
    more = {**plan.nodes, "other": plan.nodes["m"]}
    with pytest.raises(ConfigError, match="unknown node 'other'"):
        quantize.realize(fixed, replace(plan, nodes=more))
