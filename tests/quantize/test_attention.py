"""Products of two activations in integers: attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule, tensor_type
from compiler.symbolic import Var as SymbolicVar
from experiments.measure import metrics
from quantize import QConfig

VIT = Path(__file__).parents[2].parent / "shared" / "data" / "mnist_vit.onnx"


def attention(tokens: int = 9, heads: int = 2, size: int = 6) -> IRModule:
    """One attention layer over [2, tokens, width] with a residual connection."""
    rng = np.random.default_rng(tokens)
    width = heads * size
    b = FunctionBuilder()
    x = b.param("x", (2, tokens, width))

    def dense(y: Any, units: int) -> Any:
        w = rng.normal(0, width**-0.5, (units, width)).astype(np.float32)
        return b.call("nn.dense", y, b.const(w), b.const(np.zeros(units, np.float32)))

    def heads_of(y: Any, *order: int) -> Any:
        parts = b.call("reshape", y, newshape=(0, 0, heads, size))
        return b.call("transpose", parts, axes=order)

    q, k, v = (dense(x, width) for _ in range(3))
    scores = b.call("nn.matmul", heads_of(q, 0, 2, 1, 3), heads_of(k, 0, 2, 3, 1))
    seen = b.call("nn.softmax", scores)
    mixed = b.call("nn.matmul", seen, heads_of(v, 0, 2, 1, 3))
    flat = b.call("reshape", b.call("transpose", mixed, axes=(0, 2, 1, 3)), newshape=(0, 0, width))
    return IRModule({"main": b.finish(b.call("add", dense(flat, width), x))})


def batches(mod: IRModule, count: int = 6) -> list[Any]:
    shape = tensor_type(mod.main.params[0]).shape
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(count)]


def products(mod: IRModule) -> list[tuple[str, str]]:
    """Operand dtypes of every matmul."""
    return [
        tuple(str(tensor_type(a).dtype) for a in b.value.args)  # type: ignore[misc]
        for b in mod.main.bindings
        if isinstance(b.value, Call) and str(b.value.op) == "nn.matmul"
    ]


@pytest.mark.thorough
def test_every_product_of_attention_is_one_of_bytes() -> None:
    mod = attention()
    data = batches(mod)
    plan = quantize.calibrate(mod, data)
    assert plan.coverage == 1.0
    q = quantize.realize(mod, plan)
    assert products(q) == [("uint8", "uint8")] * 2
    got, want = compiler.build(q)(data[0]), compiler.evaluate(mod, data[0])
    assert got.tobytes() == compiler.evaluate(q, data[0]).tobytes()
    assert metrics.sqnr_db(got, want) > 32
    simulated = compiler.evaluate(quantize.simulate(mod, plan), data[0])
    assert np.abs(simulated - got).max() < 1e-5


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "config",
    [
        QConfig(activation_dtype="int8"),
        QConfig(activation_symmetric=True),
        QConfig(activation_bits=5, weight_granularity="tensor"),
    ],
)
def test_every_scheme(config: QConfig) -> None:
    mod = attention(tokens=5)
    data = batches(mod)
    q = quantize.quantize(mod, data, config)
    assert compiler.build(q)(data[1]).tobytes() == compiler.evaluate(q, data[1]).tobytes()


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.sampled_from(["int8", "uint8"]),
    st.sampled_from(["int8", "uint8"]),
    st.data(),
)
def test_zero_points(size: tuple[int, int, int], left: str, right: str, draw: Any) -> None:
    m, k, n = size
    zeros = [
        draw.draw(st.integers(int(np.iinfo(t).min), int(np.iinfo(t).max))) for t in (left, right)
    ]
    b = FunctionBuilder()
    x, w = b.param("x", (2, m, k), left), b.param("w", (k, n), right)
    y = b.call(
        "nn.matmul",
        *(x, w),
        out_dtype="int32",
        input_zero_point=zeros[0],
        weight_zero_point=zeros[1],
    )
    mod = IRModule({"main": b.finish(y)})
    rng = np.random.default_rng(m * 81 + k * 9 + n)
    xs = rng.integers(*_range(left), (2, m, k)).astype(left)
    ws = rng.integers(*_range(right), (k, n)).astype(right)
    want = (xs.astype(np.int64) - zeros[0]) @ (ws.astype(np.int64) - zeros[1])
    np.testing.assert_array_equal(compiler.evaluate(mod, xs, ws), want)
    np.testing.assert_array_equal(compiler.build(mod)(xs, ws), want)


def _range(dtype: str) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1


def test_products_that_could_overflow_stay_float() -> None:
    reasons = {}
    for inner in (33_000, 33_100, SymbolicVar("k")):
        b = FunctionBuilder()
        x, w = b.param("x", (1, inner)), b.param("w", (inner, 2))
        module = IRModule({"main": b.finish(b.call("nn.matmul", x, w))})
        (node,) = quantize.annotate(module).nodes.values()
        reasons[str(inner)] = node.reason
    assert reasons["33000"] == ""
    assert reasons["33100"] == "sums of 33100 products could overflow an int32 accumulator"
    assert reasons["k"] == ""  # programs assume that there are not so many: test_open_sums.py


@pytest.mark.thorough
def test_other_runtimes_agree(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    mod = attention()
    data = batches(mod)
    plan = quantize.calibrate(mod, data)
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    session = ort.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"x": data[0]})[0]
    ours = compiler.build(quantize.realize(mod, plan))(data[0])
    assert metrics.sqnr_db(ours, theirs) > 40


@pytest.mark.thorough
@pytest.mark.skipif(not VIT.is_file(), reason="needs the shared ViT")
def test_a_trained_transformer_keeps_its_accuracy() -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from quantize_nets import images

    calibration, x, y = images()
    mod = compiler.from_onnx(VIT)
    plan = quantize.calibrate(mod, [calibration[k : k + 20] for k in range(0, 200, 20)])
    assert plan.coverage == 1.0
    q = quantize.realize(mod, plan)
    assert products(q) == [("uint8", "uint8")] * 6
    reference, ours = compiler.build(mod)(x), compiler.build(q)(x)
    assert metrics.top1(ours, y) >= 0.973
    assert metrics.sqnr_db(ours, reference) >= 34
