"""Values of a network in a format are the interpreter's, bit for bit, whoever computes them."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.interpret.graph import call_reference, trace
from compiler.ir.expr import IRModule
from experiments.measure import traced
from experiments.measure.layer_errors import layer_errors


@pytest.fixture(scope="module")
def network() -> IRModule:
    from onnx import TensorProto, helper, numpy_helper

    g = np.random.default_rng(3)
    shapes = {"k": (4, 3, 3, 3), "l": (2, 4, 3, 3)}
    weights = [
        numpy_helper.from_array(g.standard_normal(s).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Softmax", ["r"], ["s"], axis=1),
        helper.make_node("Conv", ["s", "l"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [2, 3, 6, 6]), ("y", [2, 2, 2, 2]))
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    return compiler.from_onnx(helper.make_model(graph, opset_imports=opset, ir_version=9))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("accumulate", ["sequential", "fma", "exact", "float32"])
@pytest.mark.parametrize("name", ["bfloat16", "posit8_es0", "fixed16_8"])
def test_long_sums_are_compiled(
    monkeypatch: pytest.MonkeyPatch, network: IRModule, name: str, accumulate: str
) -> None:
    module = datatypes.change_dtype(network, "float32", name, accumulate=accumulate)
    x = np.random.default_rng(5).standard_normal((2, 3, 6, 6)).astype(np.float32)
    want = list(trace(module, x))
    assert sum(traced.terms(b) > 0 for b, _ in want) == 3  # two convolutions, one softmax
    monkeypatch.setattr(traced, "LONG", 300)
    monkeypatch.setattr(traced, "WORTH_COMPILING", 1000)
    monkeypatch.setattr("compiler.interpret.graph.call_reference", _never_sums)
    found = list(traced.traced(module, [x]))
    assert [b for b, _ in found] == [b for b, _ in want]
    for (b, got), (_, exact) in zip(found, want, strict=True):
        assert np.array_equal(got, exact), b.var.name


def _never_sums(call: object, *args: object) -> object:
    assert str(call.op) != "nn.conv2d", "interpreted"  # type: ignore[attr-defined]
    return call_reference(call, *args)  # type: ignore[arg-type]


def test_float32_is_interpreted(monkeypatch: pytest.MonkeyPatch, network: IRModule) -> None:
    monkeypatch.setattr(traced, "WORTH_COMPILING", 1)
    monkeypatch.setattr(traced, "LONG", 1)
    assert not any(traced.terms(b) for b in network.main.bindings)


def test_errors_of_layers_do_not_depend_on_it(
    monkeypatch: pytest.MonkeyPatch, network: IRModule
) -> None:
    module = datatypes.change_dtype(network, "float32", "bfloat16")
    x = np.random.default_rng(5).standard_normal((2, 3, 6, 6)).astype(np.float32)
    plain = layer_errors(network, module, [x])
    monkeypatch.setattr(traced, "WORTH_COMPILING", 1)
    monkeypatch.setattr(traced, "LONG", 1)
    assert layer_errors(network, module, [x]) == plain
