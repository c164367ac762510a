"""The interpreter, the graph executor and the virtual machine give the same results."""

import numpy as np
import pytest
from language import PROGRAMS, RECURSION, Program

import compiler
from compiler.errors import InputError, UnsupportedError
from compiler.symbolic import Var as Dim


def mlp() -> compiler.Function:
    rng = np.random.default_rng(0)
    data = compiler.var("data", (Dim("n"), 1, 28, 28))
    y: compiler.Expr = compiler.call("nn.batch_flatten", data)
    for k, (units, inputs) in enumerate([(128, 784), (64, 128), (10, 64)]):
        w = (rng.standard_normal((units, inputs)) / inputs**0.5).astype(np.float32)
        b = rng.standard_normal(units).astype(np.float32)
        y = compiler.call("nn.bias_add", compiler.call("nn.dense", y, w), b)
        y = compiler.call("nn.relu" if k < 2 else "nn.softmax", y)
    return compiler.function([data], y)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["interpret", "debug", "graph", "vm"])
def test_every_executor_runs_a_network(kind: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 1, 28, 28)).astype(np.float32)
    want = compiler.evaluate(compiler.IRModule({"main": mlp()}), x)
    run = compiler.create_executor(kind).evaluate(mlp())
    np.testing.assert_allclose(run(x), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(data=x), want, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_control_flow_needs_the_machine(program: Program) -> None:
    mod, inputs = compiler.parse(program.source), program.inputs(2)
    with pytest.raises(UnsupportedError, match="use the vm executor"):
        compiler.create_executor("graph", mod).evaluate()
    want = compiler.create_executor("debug", mod).evaluate()(*inputs)
    got = compiler.create_executor("vm", mod, threads=2).evaluate()(*inputs)
    for a, b in zip(*(x if isinstance(x, list) else [x] for x in (got, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_any_function_of_the_module_can_be_run() -> None:
    mod = compiler.parse(RECURSION.source)
    x = np.ones((2, 4), np.float32)
    for kind in ("interpret", "vm"):
        run = compiler.create_executor(kind, mod).evaluate("times")
        np.testing.assert_array_equal(run(i=np.asarray(5), a=x), 32 * x)


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="unknown executor 'grap'; did you mean 'graph'"):
        compiler.create_executor("grap")
    with pytest.raises(InputError, match="threads must be at least 1"):
        compiler.create_executor("vm", threads=0)
    with pytest.raises(UnsupportedError):
        compiler.create_executor("vm", target="toaster")
