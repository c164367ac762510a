"""gather_sums: what one node adds up becomes one sum, in every operator that is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import compiler
import datatypes
from compiler.errors import TypeInferenceError
from compiler.frontend.onnx_importer import from_onnx
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Binding, Function, IRModule, tensor_type
from compiler.passes.rewrite import op_name
from compiler.transform.gather_sums import gather_sums
from compiler.transform.preparation import prepare
from compiler.types.dtypes import FLOAT32, Array
from compiler.types.tensor_types import TensorType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frontend"))

from onnx_cases import every_case
from onnx_models import Case, Const, model

RNG = np.random.default_rng(0)


def numbers(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return RNG.uniform(low, high, shape).astype(np.float32)


LONG: dict[str, Case] = {
    "InstanceNormalization": Case(
        "InstanceNormalization", (numbers(1, 2, 30, 30) + 1, Const(numbers(2)), Const(numbers(2)))
    ),
    "LpNormalization": Case("LpNormalization", (numbers(2, 300),), {"p": 2}),
    "ReduceSumSquare": Case(
        "ReduceSumSquare", (numbers(2, 300), Const(np.array([1]))), {"keepdims": 0}, opset=18
    ),
    "Sum": Case("Sum", tuple(numbers(2, 3, low=0.5) for _ in range(20))),
    "Mean": Case("Mean", tuple(numbers(2, 3, low=0.5) for _ in range(20))),
    "Resize": Case(
        "Resize",
        (numbers(1, 2, 9, 9), None, Const(np.array([1, 1, 2.5, 2.5], np.float32))),
        {"mode": "cubic"},
    ),
    "Conv": Case("Conv", (numbers(1, 2, 6, 6, 6), Const(numbers(3, 2, 3, 3, 3)))),
    "grouped Conv": Case(
        "Conv",
        (numbers(1, 4, 6, 6, 6), Const(numbers(4, 2, 3, 3, 3)), Const(numbers(4))),
        {"group": 2},
    ),
    **{
        op: Case(
            op,
            (numbers(3, 4, 50), *(Const(numbers(1, *s) / 4) for s in shapes)),
            {"hidden_size": 20, **more},
            opset=14,
        )
        for op, shapes, more in (
            ("LSTM", ((80, 50), (80, 20), (160,)), {}),
            ("GRU", ((60, 50), (60, 20), (120,)), {"linear_before_reset": 1}),
            ("RNN", ((20, 50), (20, 20), (40,)), {}),
        )
    },
    "DFT": Case("DFT", (numbers(1, 64, 2),), {"axis": 1}),
    "trained BatchNormalization": Case(
        "BatchNormalization",
        (numbers(4, 2, 9, 9) + 2, *(Const(numbers(2, low=0.5)) for _ in range(4))),
        {"training_mode": 1},
        opset=15,
    ),
}
"""Sums long enough for bfloat16 to lose them."""


def gathered(f: Function) -> Function:
    """All that can be gathered."""

    def alike(part: Binding, b: Binding) -> bool:
        t = b.var.type
        return isinstance(t, TensorType) and t.dtype == FLOAT32

    return gather_sums(f, alike)[0]


def left(f: Function) -> list[str]:
    """Additions of three terms and more, and sums of products, that one node wrote out."""
    made = {b.var: b for b in f.bindings}
    out = []

    def part(a: Any, b: Binding) -> Binding | None:
        p = made.get(a)
        shared = p is not None and {*p.origins} & {*b.origins}
        return p if shared and tensor_type(b.var).dtype == FLOAT32 else None

    for b in f.bindings:
        name = op_name(b.value)
        if name not in ("add", "sum", "mean"):
            continue
        before = part(b.value.args[0], b)  # type: ignore[union-attr]
        wanted = "add" if name == "add" else "multiply"
        if before is not None and op_name(before.value) == wanted:
            out.append(b.var.name)
    return out


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", every_case())
def test_no_node_keeps_a_sum_of_many_operators(name: str) -> None:
    case = every_case()[name]
    mod = prepare(from_onnx(case.model()))
    new = gathered(mod.main)
    if new is mod.main:
        assert not left(mod.main)
        return
    assert not left(new)
    values = [case.arrays[p.name] for p in mod.main.params]
    got, want = (compiler.evaluate(IRModule({"main": f}), *values) for f in (new, mod.main))
    many = isinstance(want, list)
    for g, w in zip(got if many else [got], want if many else [want], strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", LONG)
def test_sums_that_importers_write_out_take_an_accumulation(name: str) -> None:
    case = LONG[name]
    mod = compiler.from_onnx(case.model())
    args = list(case.arrays.values())
    real = np.asarray(compiler.evaluate(mod, *args))
    error = {}
    for mode in ("sequential", "float32", "exact"):
        changed = datatypes.change_dtype(mod, "float32", "bfloat16", accumulate=mode)
        result = np.asarray(compiler.evaluate(changed, *args))
        if mode == "float32":
            np.testing.assert_array_equal(np.asarray(compiler.build(changed)(*args)), result)
        error[mode] = float(np.abs(result - real).mean())
    assert error["float32"] < 0.8 * error["sequential"]
    assert error["exact"] == pytest.approx(error["float32"], rel=0.01)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["sequential", "float32"])
def test_sums_of_captured_values_in_a_branch_are_gathered(mode: str) -> None:
    names = [f"x{k}" for k in range(20)]
    branch = helper.make_graph(
        [helper.make_node("Sum", names, ["inside"])], "b", [],
        [helper.make_empty_tensor_value_info("inside")],
    )  # fmt: skip
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    shapes: dict[str, Any] = {"flag": ()} | dict.fromkeys(names, (2, 3))
    mod = compiler.from_onnx(model([node], shapes, ["y"], dtypes={"flag": TensorProto.BOOL}))
    args = [np.asarray(True), *(numbers(2, 3, low=0.5) for _ in names)]
    changed = datatypes.change_dtype(mod, "float32", "bfloat16", accumulate=mode)
    assert changed.astext().count('accumulate="float32"') == (2 if mode == "float32" else 0)
    want = compiler.evaluate(changed, *args)
    np.testing.assert_array_equal(np.asarray(compiler.build(changed)(*args)), want)


def test_products_of_a_node_are_not_rounded() -> None:
    x = np.array([[3.015625, 1.0, -3.015625]], np.float32)  # its squares need more than 8 bits
    case = Case("ReduceSumSquare", (x, Const(np.array([1]))), {"keepdims": 0}, opset=18)
    mod = datatypes.change_dtype(
        compiler.from_onnx(case.model()), "float32", "bfloat16", accumulate="float64"
    )
    rounded = datatypes.decode("bfloat16", datatypes.encode("bfloat16", x)).astype(np.float64)
    want = datatypes.decode("bfloat16", datatypes.encode("bfloat16", (rounded**2).sum(1)))
    np.testing.assert_array_equal(compiler.evaluate(mod, x), want)
    assert "sum_products" in mod.astext()


def test_additions_of_several_nodes_stay_operators_of_their_own() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 3))
    y: Any = x
    for k in range(4):
        y = b.call("add", y, x, origins=[f"node{k}"])
    mod = prepare(IRModule({"main": b.finish(y)}))
    assert gathered(mod.main) is mod.main


def test_both_factors_of_a_sum_of_products_have_one_type() -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (2, 3)), b.param("w", (3,))
    with pytest.raises(TypeInferenceError, match="both factors must be of one type"):
        b.call("sum_products", x, w)
