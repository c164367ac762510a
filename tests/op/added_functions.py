"""What scalar functions do of which there is nothing but a record: run in a copy of the packages
that has one more (see `test_added_function`, and CONTRIBUTING.md)."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import compiler
import quantize
from compiler.arithmetic.scalar_functions import UNARY
from compiler.ir import function_calls
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.script import Buffer, Tensor, tensor_program
from compiler.types.dtypes import Array
from datatypes.formats import get
from datatypes.proof import elementwise
from datatypes.proof.judge import Judge
from datatypes.proof.subject import Subject

NAMES = ("log1p", "softsign")
LOWERINGS = [
    ("posit8_es0", "table"), ("posit8_es0", "library"), ("float8_e4m3fn", "vector"),
    ("posit16_es1", "vector"), ("bfloat16", "library"), ("lns8_3", "library"),
    ("posit32_es2", "library"), ("posit32_es2", "vector"),
]  # fmt: skip


def applied(name: str, x: Array) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.finish(b.call(name, b.param("x", x.shape, str(x.dtype))))})


@pytest.mark.parametrize("name", NAMES)
def test_c_and_llvm_and_references_give_the_same_bits(name: str) -> None:
    for dtype in ("float16", "float32", "float64"):
        x = np.random.default_rng(0).uniform(-0.9, 9, 500).astype(dtype)
        mod = applied(name, x)
        want = compiler.evaluate(mod, x)
        np.testing.assert_allclose(want, UNARY[name].numpy(x.astype(np.float64)), rtol=4e-3)
        for target in ("llvm", "llvm -mcpu=x86-64-v2", "c"):
            np.testing.assert_array_equal(compiler.build(mod, target=target)(x), want, target)


@pytest.mark.parametrize(("fmt", "lowering"), LOWERINGS)
@pytest.mark.parametrize("name", NAMES)
def test_formats_have_it_correctly_rounded(name: str, fmt: str, lowering: str) -> None:
    """By the proof's judge, and its tables by exact bounds."""
    judge, rng = Judge(get(fmt)), np.random.default_rng(1)
    codes = rng.integers(0, judge.fmt.mask + 1, 2000).astype(judge.fmt.storage)
    subject = Subject(judge.fmt, "llvm", lowering)
    rows = [
        *elementwise.unary(subject, judge, name, codes),
        *elementwise.functions_judged(judge, name, rng),
    ]
    assert [r.wrong for r in rows] == [0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_scripts_have_it(name: str) -> None:
    function = getattr(importlib.import_module("compiler.script"), name)

    @tensor_program
    def f(X: Buffer((7,)), Y: Buffer((7,))):
        for i in range(7):
            Y[i] = function(X[i])

    x = np.linspace(-0.5, 3, 7).astype(np.float32)
    b = FunctionBuilder()
    out = function_calls.call_tir("f", [b.param("x", (7,))], Tensor((7,)).type)
    mod = IRModule({"f": f, "main": b.finish(b.bind(out))})
    again = compiler.parse(mod.astext(show_meta_data=True))
    want = compiler.evaluate(applied(name, x), x)
    np.testing.assert_array_equal(compiler.evaluate(again, x), want)
    np.testing.assert_array_equal(compiler.build(again)(x), want)


@pytest.mark.parametrize("op", ["softsign"])
def test_models_have_it(op: str) -> None:
    """Imported as one operator, as its record names ONNX's; onnxruntime agrees."""
    from onnx import TensorProto, helper
    from random_graphs import oracle
    from random_graphs.comparing import check_nodes
    from random_graphs.drawing import drawn_graph
    from random_graphs.running import explained

    theirs = str(UNARY[op].onnx)
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [5]) for n in ("x", "y"))
    graph = helper.make_graph([helper.make_node(theirs, ["x"], ["y"])], "g", [given], [made])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    mod = compiler.frontend.from_onnx(proto)
    assert [str(b.value.op) for b in mod.main.bindings] == [op]
    x = np.float32([-2, -0.25, 0, 1, 1e38])
    [want] = oracle.run(proto, {"x": x})
    np.testing.assert_allclose(compiler.build(mod)(x), want, rtol=1e-6)
    for seed in range(4):  # drawn with operands of every dtype and size, and judged like all others
        g, _ = drawn_graph(seed, 4, [theirs])
        refused: dict[str, list[str]] = {}
        assert {n.op for n in g.nodes} == {theirs}
        assert not [d for d in check_nodes(g, [g], refused) if explained(d) is None]
        assert not refused


@pytest.mark.parametrize("op", ["softsign"])
def test_quantized_it_is_a_table_and_exported_it_is_a_node(op: str, tmp_path: Path) -> None:
    import onnxruntime

    rng, b = np.random.default_rng(3), FunctionBuilder()
    first, last = (rng.normal(0, 0.3, s).astype(np.float32) for s in ((8, 3, 3, 3), (4, 8, 1, 1)))
    y = b.call("nn.conv2d", b.param("image", (2, 3, 9, 8)), b.const(first))
    y = b.call(op, b.call("nn.avg_pool2d", y, pool_size=(2, 2)))
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", y, b.const(last)))})
    x = rng.normal(size=(4, 2, 3, 9, 8)).astype(np.float32)
    plan = quantize.calibrate(mod, list(x))
    q = quantize.realize(mod, plan)
    assert "qnn.lookup" in q.astext()
    got = compiler.build(q)(x[0])
    np.testing.assert_array_equal(got, compiler.evaluate(q, x[0]))
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"))
    [theirs] = session.run(None, {"image": x[0]})
    np.testing.assert_allclose(theirs, got, atol=0.1)
