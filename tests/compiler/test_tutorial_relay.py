"""The tutorial on Relay: expressions, functions, modules, text, executors, a pass on devices."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.errors import TypeInferenceError
from compiler.ir.expr import Binding, Call, Value
from compiler.op.library import get_op
from compiler.passes.rewrite import call

RNG = np.random.default_rng(0)


# ---- language ------------------------------------------------------------------------------------
def test_variables_operators_functions_and_a_module() -> None:
    assert compiler.var("x").type == compiler.TensorType.of((), "float32")
    assert str(compiler.var("x", dtype="int32").type) == "Tensor[(), int32]"
    x = compiler.var("x", shape=(10, 1))
    w = compiler.call("add", x, x)
    z = x + x
    assert str(w) == str(z) == "free_var %x: Tensor[(10, 1), float32]\nadd(%x, %x)"
    f = compiler.function([x], z)
    mod = compiler.IRModule({"f": f})
    assert (
        str(mod)
        == """\
def @f(%x: Tensor[(10, 1), float32]) -> Tensor[(10, 1), float32] {
  %0 = add(%x, %x); /* ty=Tensor[(10, 1), float32] */
  %0
}
"""
    )
    assert compiler.structural_equal(mod, compiler.parse(str(mod)))
    data = RNG.standard_normal((10, 1)).astype(np.float32)
    for kind in ("debug", "graph", "vm"):
        run = compiler.create_executor(kind, mod).evaluate("f")
        np.testing.assert_array_equal(run(data), data + data)


# ---- the ResNet-18 export ------------------------------------------------------------------------
def resnet_tail(dtype_of_shape: str = "int64") -> str:
    """The end of the printed ResNet-18 that did not type-check in the tutorial."""
    return f"""
def @main(%85: Tensor[(10, 512, 7, 7), float32]) {{
  %86 = nn.global_avg_pool2d(%85);
  %87 = shape_of(%86);
  %c = cast(%87, dtype="{dtype_of_shape}");
  %88 = take(%c, 0int64, axis=0);
  %89 = expand_dims(%88, axes=0);
  %90 = expand_dims(-1int64, axes=0);
  %91 = concatenate(%89, %90, axis=0);
  %92 = reshape(%86, newshape=[10, -1]);
  (%91, %92)
}}
"""


def test_concatenate_of_two_integer_types_is_shown_where_it_is() -> None:
    with pytest.raises(TypeInferenceError) as e:
        compiler.parse(resnet_tail("int32"))
    first, *program = str(e.value).splitlines()
    assert "int32" in first
    assert "int64" in first
    at = next(k for k, line in enumerate(program) if "^^^^ error: " in line)
    assert program[at - 1].strip() == "%91 = concatenate(%89, %90);"
    assert program[at - 2].strip().startswith("%90 = expand_dims(-1int64")


def test_the_same_program_with_one_integer_type_runs() -> None:
    x = RNG.standard_normal((10, 512, 7, 7)).astype(np.float32)
    shape, flat = compiler.build(compiler.parse(resnet_tail()))(x)
    np.testing.assert_array_equal(shape, [10, -1])
    np.testing.assert_allclose(flat, x.mean((2, 3)), rtol=1e-4, atol=1e-6)


def exported_resnet(batch: int | str) -> onnx.ModelProto:
    """A residual network as PyTorch exported it then: Shape, Gather, Unsqueeze, Concat, Reshape."""
    weights = {
        "w1": RNG.standard_normal((8, 3, 7, 7)) / 12,
        "w2": RNG.standard_normal((8, 8, 3, 3)) / 9,
        "fc": RNG.standard_normal((5, 8)),
        "bias": RNG.standard_normal(5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["0"], strides=[2, 2], pads=[3, 3, 3, 3]),
        helper.make_node("Relu", ["0"], ["1"]),
        helper.make_node("Conv", ["1", "w2"], ["2"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["1", "2"], ["3"]),
        helper.make_node("GlobalAveragePool", ["3"], ["4"]),
        helper.make_node("Shape", ["4"], ["5"]),
        helper.make_node("Constant", [], ["6"], value=numpy_helper.from_array(np.array(0))),
        helper.make_node("Gather", ["5", "6"], ["7"], axis=0),
        helper.make_node("Constant", [], ["8"], value=numpy_helper.from_array(np.array(-1))),
        helper.make_node("Unsqueeze", ["7"], ["9"], axes=[0]),
        helper.make_node("Unsqueeze", ["8"], ["10"], axes=[0]),
        helper.make_node("Concat", ["9", "10"], ["11"], axis=0),
        helper.make_node("Reshape", ["4", "11"], ["12"]),
        helper.make_node("Gemm", ["12", "fc", "bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "resnet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(w.astype(np.float32), k) for k, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=7)


@pytest.mark.parametrize("batch", [10, "n"])
def test_the_export_imports_and_runs(batch: int | str) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = exported_resnet(batch)
    x = RNG.standard_normal((10, 3, 32, 32)).astype(np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mod = compiler.from_onnx(model)
    assert compiler.structural_equal(mod, compiler.parse(mod.astext(show_meta_data=True)))
    np.testing.assert_allclose(
        compiler.build(mod)(x), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5
    )


# ---- text ----------------------------------------------------------------------------------------
def mlp() -> tuple[compiler.Function, dict[str, np.ndarray]]:
    """The testing library's perceptron for a batch of 1, and its parameters."""
    data = compiler.var("data", (1, 1, 28, 28))
    params, variables = {}, [data]
    y: compiler.Expr = compiler.call("nn.batch_flatten", data)
    for k, (units, inputs) in enumerate([(128, 784), (64, 128), (10, 64)], 1):
        w = compiler.var(f"fc{k}_weight", (units, inputs))
        b = compiler.var(f"fc{k}_bias", (units,))
        variables += [w, b]
        params[w.name] = (RNG.standard_normal((units, inputs)) / inputs**0.5).astype(np.float32)
        params[b.name] = RNG.standard_normal(units).astype(np.float32)
        y = compiler.call("nn.bias_add", compiler.call("nn.dense", y, w), b)
        y = compiler.call("nn.relu" if k < 3 else "nn.softmax", y)
    return compiler.function(variables, y), params


def test_a_callback_annotates_every_binding() -> None:
    f, _ = mlp()
    mod = compiler.IRModule({"main": f})
    seen: list[Binding] = []

    def ann(b: Binding) -> str:
        seen.append(b)
        return f"<expression: {len(seen)}>"

    text = mod.astext(show_meta_data=True, annotate=ann)
    assert seen == list(f.bindings)
    assert "%1 = nn.dense(%0, %fc1_weight); /* ty=Tensor[(1, 128), float32] */" in text
    assert all(f"/* <expression: {k + 1}> */" in text for k in range(len(seen)))
    assert compiler.structural_equal(mod, compiler.parse(text))
    assert "*/ x" not in mod.astext(annotate=lambda _: "a */ x")


def test_the_perceptron_runs_under_the_three_executors() -> None:
    f, params = mlp()
    data = RNG.random((1, 1, 28, 28)).astype(np.float32)
    outs = [
        compiler.create_executor(kind).evaluate(f)(data, **params)
        for kind in ("debug", "graph", "vm")
    ]
    assert outs[0].shape == (1, 10)
    np.testing.assert_allclose(outs[0].sum(), 1, rtol=1e-5)
    for out in outs[1:]:
        np.testing.assert_allclose(out, outs[0], rtol=1e-5, atol=1e-6)


# ---- a pass --------------------------------------------------------------------------------------
class ScheduleConv2d(compiler.ExprMutator):
    """Marks every convolution to be computed on a device."""

    def __init__(self, device: str):
        self.device = device
        super().__init__()

    def visit_call(self, value: Call) -> Value:
        visited = super().visit_call(value)
        if value.op is not get_op("nn.conv2d"):
            return visited
        return call("annotation.on_device", self.emit(visited), device=self.device)


class OnlyCopies(compiler.ExprMutator):
    """Takes the marks away again."""

    def visit_call(self, value: Call) -> Value:
        annotated = value.op is get_op("annotation.on_device")
        return value.args[0] if annotated else value


class Count(compiler.ExprVisitor):
    """Counts calls by operator, wherever they are."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def visit_call(self, value: Call) -> None:
        super().visit_call(value)
        self.calls[str(value.op)] = self.calls.get(str(value.op), 0) + 1


def test_convolutions_are_scheduled_on_a_device() -> None:
    mod = compiler.from_onnx(exported_resnet(2))
    placed = ScheduleConv2d("gpu").visit(mod)
    compiler.verify(placed)
    count = Count()
    count.visit(placed)
    assert count.calls["nn.conv2d"] == count.calls["annotation.on_device"] == 2
    text = placed.astext()
    assert text.count("annotation.on_device(") == text.count(', device="gpu")') == 2
    assert compiler.structural_equal(placed, compiler.parse(placed.astext(show_meta_data=True)))
    x = RNG.standard_normal((2, 3, 32, 32)).astype(np.float32)
    want = compiler.evaluate(mod, x)
    np.testing.assert_array_equal(compiler.evaluate(placed, x), want)
    np.testing.assert_allclose(compiler.build(placed)(x), want, rtol=1e-4, atol=1e-5)
    back = OnlyCopies().visit(placed)
    again = Count()
    again.visit(back)
    assert "annotation.on_device" not in again.calls
    np.testing.assert_array_equal(compiler.evaluate(back, x), want)


def test_mutators_go_into_branches_loops_and_closures() -> None:
    x, c = compiler.var("x", (4,)), compiler.var("c", (), "bool")
    a = compiler.var("a", (4,))
    f = compiler.function([a], a * x)
    y = compiler.if_else(c, f(x + 1), x)
    z = compiler.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * y), (compiler.const(0), x))
    mod = compiler.IRModule({"main": compiler.function([x, c], z[1])})

    class Doubled(compiler.ExprMutator):
        def visit_call(self, value: Call) -> Value:
            if value.op is not get_op("multiply"):
                return value
            return call("add", self.emit(value), self.emit(value, "again"))

    doubled = Doubled().visit(mod)
    compiler.verify(doubled)
    count = Count()
    count.visit(doubled)
    assert count.calls["multiply"] == 4
    data = np.arange(4, dtype=np.float32)
    for flag in (True, False):
        y_ = 2 * (data + 1) * data if flag else data
        want = data * (2 * y_) ** 3
        for kind in ("interpret", "vm"):
            got = compiler.create_executor(kind, doubled).evaluate()(data, np.asarray(flag))
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_mutator_that_changes_nothing_returns_the_program() -> None:
    f, _ = mlp()
    assert compiler.ExprMutator().visit(f) is f
