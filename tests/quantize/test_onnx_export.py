"""QDQ models: onnxruntime executes them and agrees with the integer graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from quantize_nets import images, mixed_net, net, noise, plan_of

import compiler
import quantize
from compiler.errors import DtypelabError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, IRModule
from compiler.symbolic import Var, imin
from compiler.types.dtypes import Array
from quantize import QConfig
from quantize.onnx.export import to_model

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
ort.set_default_logger_severity(3)


def run(path: Path, x: Array) -> list[Array]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: x}))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("config", [QConfig(), QConfig(activation_dtype="int8", activation_bits=6)])
@pytest.mark.parametrize("name", ["mlp", "resnet8", "dwsep"])
def test_onnxruntime_agrees_with_the_integer_graph(
    name: str, config: QConfig, tmp_path: Path
) -> None:
    plan = plan_of(name, config)
    path = tmp_path / "q.onnx"
    quantize.export_onnx(net(name), plan, path)
    assert list(tmp_path.iterdir()) == [path]
    x = images()[1][:200]
    (got,) = run(path, x)
    real = compiler.build(net(name))(x)
    ints = compiler.build(quantize.realize(net(name), plan))(x)
    assert (got.argmax(1) == ints.argmax(1)).mean() >= 0.99
    # The same integers but for ties of float32 sums: far nearer to each other than to float32.
    assert np.abs(got - ints).mean() < 0.3 * np.abs(real - ints).mean()


def test_weights_are_integers_with_scales_per_channel() -> None:
    plan = plan_of("resnet8")
    model = to_model(net("resnet8"), plan)
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    by_result = {o: n for n in model.graph.node for o in n.output}
    convolutions = [n for n in model.graph.node if n.op_type == "Conv"]
    assert len(convolutions) == 9
    for n in convolutions:
        weight, bias = (by_result[i] for i in n.input[1:])
        assert weight.op_type == bias.op_type == "DequantizeLinear"
        q, scale = stored[weight.input[0]], stored[weight.input[1]]
        assert q.dtype == np.int8
        assert scale.shape == (q.shape[0],)
        assert stored[bias.input[0]].dtype == np.int32


def test_interface_keeps_names_and_symbolic_dimensions() -> None:
    graph = to_model(net("mlp"), plan_of("mlp")).graph
    assert [i.name for i in graph.input] == ["input"]
    assert [o.name for o in graph.output] == ["logits"]
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param


def test_skipped_nodes_keep_their_float_weights() -> None:
    plan = plan_of("mlp", QConfig(skip=("logits",)))
    graph = to_model(net("mlp"), plan).graph
    made = {o: n.op_type for n in graph.node for o in n.output}
    dense = [n for n in graph.node if n.op_type == "Gemm"]
    assert [[made.get(i) for i in n.input[1:]] for n in dense] == [
        ["DequantizeLinear"] * 2,
        [None] * 2,
    ]


def test_float_weights_keep_their_names() -> None:
    skip = tuple(b.var.name for b in net("mlp").main.bindings)
    model = to_model(net("mlp"), plan_of("mlp", QConfig(skip=skip)))
    stored = {i.name for i in model.graph.initializer}
    assert {"a.weight", "b.weight"} <= stored


def test_every_form_of_the_mixed_graph(tmp_path: Path) -> None:
    mod = mixed_net()
    plan = quantize.calibrate(mod, [noise(8)])
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    x = noise(4)
    for got, want in zip(
        run(tmp_path / "q.onnx", x), compiler.evaluate(quantize.realize(mod, plan), x), strict=True
    ):
        assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


FLOAT_STEPS = [
    ("nn.hard_swish", {}), ("nn.gelu", {}), ("nn.gelu", {"approximate": "tanh"}),
    ("nn.leaky_relu", {"alpha": 0.2}), ("nn.hard_sigmoid", {}), ("sigmoid", {}), ("tanh", {}),
    ("clip", {"a_min": -0.5}), ("nn.log_softmax", {"axis": 1}), ("abs", {}), ("negative", {}),
    ("mean", {"axis": (1,), "keepdims": True}), ("max", {"axis": 0}), ("sum", {"axis": (0, 1)}),
    ("transpose", {"axes": (1, 0, 2)}), ("expand_dims", {"axes": (1,)}), ("flatten", {"axis": 2}),
    ("strided_slice", {"begin": (1, -1), "end": (4, -9), "strides": (2, -1), "axes": (1, 2)}),
    ("nn.pad", {"pad_width": ((0, 0), (1, 2), (0, 1)), "mode": "reflect"}),
    ("broadcast_to", {"shape": (3, 2, 4, 4)}), ("reshape", {"newshape": (4, -1)}),
    ("cast", {"dtype": "float64"}), ("floor", {}), ("exp", {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attrs"), FLOAT_STEPS)
def test_float_operators_are_written(op: str, attrs: dict[str, object], tmp_path: Path) -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 4, 4))
    mod = IRModule({"main": b.finish(b.call(op, x, name="y", **attrs))})
    values = np.random.default_rng(0).normal(0, 1, (2, 4, 4)).astype(np.float32)
    plan = quantize.calibrate(mod, [values])
    assert plan.skipped.keys() == {"y"} - ({"y"} if op == "cast" else set())
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    (got,) = run(tmp_path / "q.onnx", values)
    want = compiler.evaluate(mod, values)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


TESTS: dict[str, Callable[[FunctionBuilder, Atom], Atom]] = {
    "isnan": lambda b, x: b.call("isnan", b.call("log", x)),
    "isinf": lambda b, x: b.call("isinf", b.call("exp", x), detect_negative=False),
    "logical_not": lambda b, x: b.call("logical_not", b.call("isnan", b.call("log", x))),
    **{
        f"logical_{op}": lambda b, x, op=op: b.call(
            f"logical_{op}",
            b.call("isnan", b.call("log", x)),
            b.call("less_equal", x, b.const(np.float32(-1))),
        )
        for op in ("and", "or", "xor")
    },
    "less_equal": lambda b, x: b.call("less_equal", x, b.const(np.float32(1))),
    "greater_equal": lambda b, x: b.call("greater_equal", x, b.const(np.float32(1))),
}


@pytest.mark.parametrize("name", TESTS)
def test_tests_of_numbers_are_written(name: str, tmp_path: Path) -> None:
    """As masks are made of them."""
    b = FunctionBuilder()
    x = b.param("x", (2, 6))
    far, near = (b.const(np.float32(v)) for v in (-8, 1))
    y = b.call("where", TESTS[name](b, x), far, near, name="y")
    mod = IRModule({"main": b.finish(y)})
    values = np.array([[-1, 1, 0.5, -0.5, 0, 200], [3, -3, 1, 2, -200, 0.1]], np.float32)
    quantize.export_onnx(mod, quantize.calibrate(mod, [values]), tmp_path / "q.onnx")
    (got,) = run(tmp_path / "q.onnx", values)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, values))
    assert set(got.ravel().tolist()) == {-8.0, 1.0}


_AT = np.array([[1, 0], [0, 1]])
MOVES: dict[str, Callable[[FunctionBuilder, Atom], Atom]] = {
    "gather_elements": lambda b, x: b.call("gather_elements", x, b.const(_AT), axis=1),
    "gather_nd": lambda b, x: b.call("gather_nd", x, b.const(_AT)),
    **{
        f"scatter_{reduction}": lambda b, x, reduction=reduction: b.call(
            "scatter_elements", x, b.const(_AT), b.call("gather_elements", x, b.const(1 - _AT)),
            axis=1, reduction=reduction,
        )
        for reduction in ("none", "add", "max")
    },
    "scatter_nd": lambda b, x: b.call("scatter_nd", x, b.const(_AT), b.call("gather_nd", x,
                                      b.const(1 - _AT)), reduction="add"),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_operators_on_positions_are_written(name: str, tmp_path: Path) -> None:
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(MOVES[name](b, b.param("x", (2, 3))))})
    values = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    quantize.export_onnx(mod, quantize.calibrate(mod, [values]), tmp_path / "q.onnx")
    (got,) = run(tmp_path / "q.onnx", values)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, values))


N, M = Var("n"), Var("m")


def _numbers(b: FunctionBuilder, x: Atom) -> Atom:
    at = b.call("cast", b.call("arange", size=(N * 3 + M) // 2), dtype="float32")
    return b.call("multiply", b.call("sum", x), at)


OPEN: dict[str, Callable[[FunctionBuilder, Atom], Atom]] = {
    "numbers": _numbers,
    "turned": lambda b, x: b.call("reshape", x, newshape=(M, N * 2, 2)),
    "pairs": lambda b, x: b.call("reshape", x, newshape=(N * M, 2, 2)),
    "repeated": lambda b, x: b.call("broadcast_to", x, shape=((M + 5) // 3, N, M, 4)),
    "least": lambda b, x: b.call("broadcast_to", x, shape=(imin(N, M), N, M, 4)),
    "remainder": lambda b, x: b.call("broadcast_to", x, shape=(N % 3 + 1, N, M, 4)),
    "negative": lambda b, x: b.call("broadcast_to", x, shape=(9 + (-N) // 2, N, M, 4)),
}


@pytest.mark.parametrize("name", OPEN)
def test_sizes_that_depend_on_those_of_inputs_are_written(name: str, tmp_path: Path) -> None:
    b = FunctionBuilder()
    mod = IRModule({"main": b.finish(OPEN[name](b, b.param("x", (N, M, 4))))})
    values = np.random.default_rng(0).normal(0, 1, (3, 4, 4)).astype(np.float32)
    plan = quantize.calibrate(mod, [values])
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    for x in (values, values[:1, :3], values[:2, :1]):
        (got,) = run(tmp_path / "q.onnx", x)
        want = compiler.evaluate(mod, x)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_written_is_listed_and_leaves_nothing(tmp_path: Path) -> None:
    b = FunctionBuilder()
    y = b.call("rsqrt", b.param("x", (2, 3, 4)), name="bent")
    mod = IRModule({"main": b.finish(b.call("tanh", y))})
    plan = quantize.calibrate(mod, [np.ones((2, 3, 4), np.float32)])
    with pytest.raises(UnsupportedError, match=r"cannot be written as ONNX: rsqrt \(%bent\)"):
        quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DtypelabError, match=r"cannot write .*no folder"):
        quantize.export_onnx(net("mlp"), plan_of("mlp"), tmp_path / "no" / "q.onnx")
