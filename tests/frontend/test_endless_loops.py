"""Loops that need not end: a limit of turns, the same in every executor, in words that name the
node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import model

import compiler
from compiler.errors import ConfigError, InputError
from compiler.interpret.iterations import VARIABLE

node = helper.make_node


def info(name: str, kind: int = TensorProto.FLOAT, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def counting(name: str, inner: list[Any], total: str) -> Any:
    """v -> v - 1 as long as that is positive; `inner` makes `total` of it, which is collected."""
    nodes = [
        node("Constant", [], [f"{name}.one"], value_floats=[1.0]),
        node("Sub", [f"{name}.v", f"{name}.one"], [f"{name}.next"]),
        node("ReduceSum", [f"{name}.next"], [f"{name}.sum"], keepdims=0),
        node("Constant", [], [f"{name}.zero"], value_float=0.0),
        node("Greater", [f"{name}.sum", f"{name}.zero"], [f"{name}.again"]),
        *inner,
    ]
    inputs = [info(f"{name}.i", TensorProto.INT64), info(f"{name}.go", TensorProto.BOOL)]
    inputs.append(info(f"{name}.v", TensorProto.FLOAT, 1))
    outputs = [info(f"{name}.again", TensorProto.BOOL), info(f"{name}.next", TensorProto.FLOAT, 1)]
    return helper.make_graph(nodes, name, inputs, [*outputs, info(total, TensorProto.FLOAT, 1)])


def nested() -> compiler.IRModule:
    """From x: as many turns as it has ones; in every one as many turns of an inner loop from x."""
    inner = node("Loop", ["", "", "x"], ["last", "rows"], name="within",
                 body=counting("inner", [node("Neg", ["inner.v"], ["row"])], "row"))  # fmt: skip
    body = counting("outer", [inner, node("Identity", ["last"], ["kept"])], "kept")
    outer = node("Loop", ["", "", "x"], ["y", "ys"], name="around", body=body)
    return compiler.from_onnx(model([outer], {"x": [1]}, ["y"]))


def test_a_limit_counts_the_turns_of_each_loop_in_every_executor(tmp_path: Path) -> None:
    mod = nested()
    built = compiler.build(mod)
    built.save(tmp_path / "loops.dtl")
    x = np.array([7.0], np.float32)
    ways = {
        "evaluate": lambda: compiler.evaluate(mod, x),
        "compiled": lambda: built(x),
        "loaded": lambda: compiler.load(tmp_path / "loops.dtl")(x),
    }
    for name, run in ways.items():
        with compiler.limit_iterations(7):  # 49 turns of the inner one, 7 at a time
            assert run() == 0, name
        with (
            compiler.limit_iterations(6),
            pytest.raises(InputError, match=r"loop .* \(node .*\) goes on after 6 iterations"),
        ):
            run()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_without_end_is_refused(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mod = nested()
    run = compiler.build(mod) if compiled else lambda x: compiler.evaluate(mod, x)
    monkeypatch.setenv(VARIABLE, "200")
    with pytest.raises(InputError, match="goes on after 200 iterations: is there an end"):
        run(np.array([np.inf], np.float32))


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1e9", "9" * 40])
def test_a_limit_is_a_positive_number(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mod, x = nested(), np.array([1.0], np.float32)
    monkeypatch.setenv(VARIABLE, wrong)
    with pytest.raises(ConfigError, match=f"{VARIABLE}='{wrong}' is no positive number"):
        compiler.evaluate(mod, x)
    with (
        pytest.raises(ConfigError, match="a positive number of times"),
        compiler.limit_iterations(0),
    ):
        pass
