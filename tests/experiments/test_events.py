"""Overflows, underflows, NaNs and absorbed additions are counted where they happen."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.transform.preparation import prepare
from compiler.types import dtypes
from datatypes.custom.events import Events
from experiments import zoo
from experiments.data import datasets
from experiments.measure.layer_errors import layer_errors


def events_of(op: str, dtype: str, a: list[float], b: list[float]) -> Events:
    f = FunctionBuilder()
    x, y = (f.param(name, (len(a),)) for name in "xy")
    mod = IRModule({"main": f.finish(f.call(op, x, y, name="result"))})
    changed = datatypes.change_dtype(mod, "float32", dtype)
    arrays = [np.array(v, np.float32) for v in (a, b)]
    (error,) = layer_errors(prepare(mod), changed, arrays, events=True)
    assert error.events is not None
    return error.events


@pytest.mark.parametrize(
    ("op", "dtype", "a", "b", "want"),
    [
        ("multiply", "fixed8_4", [4.0, 2.0], [4.0, 2.0], Events(overflow=1)),
        ("multiply", "posit8_es0", [64.0, 1 / 64], [64.0, 1 / 64], Events(overflow=1, underflow=1)),
        ("multiply", "fixed8_4", [1 / 16, 0.0], [1 / 4, 1.0], Events(underflow=1)),
        ("add", "float8_e4m3fn", [256.0, 256.0, 1.0], [1.0, 0.0, 1.0], Events(absorbed=1)),
        ("add", "float8_e4m3fn", [448.0], [448.0], Events(overflow=1, nan=1)),
        ("divide", "posit16_es1", [0.0, 1.0], [0.0, 1.0], Events(nan=1)),
        ("add", "fixed8_4", [100.0, 0.0], [0.0, 0.01], Events(overflow=1, underflow=1)),
    ],
)
def test_events_by_hand(op: str, dtype: str, a: list[float], b: list[float], want: Events) -> None:
    assert events_of(op, dtype, a, b) == want


@pytest.mark.thorough
def test_layers_of_a_net_and_nothing_is_left_behind() -> None:
    net = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    digits = datasets.load("mnist1k").x[:2]
    changed = datatypes.change_dtype(net, "float32", "float8_e4m3fn")
    before = dtypes.custom("float8_e4m3fn")
    counted = layer_errors(prepare(net), changed, [digits], events=True)
    plain = layer_errors(prepare(net), changed, [digits])
    assert dtypes.custom("float8_e4m3fn") is before
    assert [e.sqnr_db for e in counted] == [e.sqnr_db for e in plain]
    assert all(e.events is None for e in plain)
    absorbed = {e.operator: e.events.absorbed for e in counted if e.events is not None}
    assert absorbed["nn.dense"] > 0
    assert absorbed.get("nn.relu", 0) == 0
