"""Calls of tensor programs and of registered functions in graph functions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import compiler
import datatypes
from compiler.boundary.external import register_func, remove_func
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_dps_packed, call_packed, call_tir
from compiler.symbolic import IntLike, Var
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import const
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import FLOAT32, Array
from compiler.types.tensor_types import TensorType, TupleType

N = Var("n")


def dense(rows: IntLike, inner: int, outer: int) -> PrimFunc:
    """y[i, j] = sum over k of x[i, k] * w[j, k]."""
    b = PrimBuilder("dense")
    x = b.input("x", (rows, inner), FLOAT32)
    w = b.input("w", (outer, inner), FLOAT32)
    y = b.reduce(
        "y",
        (rows, outer),
        FLOAT32,
        {"k": inner},
        lambda i, j, k: x[i, k] * w[j, k],
        const(0.0),
    )
    return b.finish([y])


@pytest.fixture
def log() -> Iterator[list[float]]:
    """What `test.note` was called with."""
    seen: list[float] = []
    register_func("test.note", lambda x: seen.append(float(x.sum())))
    register_func("test.double", lambda x, y: np.multiply(x, 2, out=y))
    yield seen
    remove_func("test.note")
    remove_func("test.double")


def mixed(rows: IntLike) -> IRModule:
    """A tensor program, an operator, a registered function and one with effects."""
    b = FunctionBuilder()
    x = b.param("x", (rows, 6))
    w = b.const(np.arange(24, dtype=np.float32).reshape(4, 6))
    row = TensorType.of((rows, 4), "float32")
    y = b.bind(call_tir("dense", (x, w), row), "y")
    b.bind(call_packed("test.note", (y,)), "noted")
    z = b.call("nn.relu", y, name="z")
    d = b.bind(call_dps_packed("test.double", (z,), row), "d")
    return IRModule({"dense": dense(N, 6, 4), "main": b.finish(d)})


def test_tensor_programs_operators_and_functions_mix_in_one_module(log: list[float]) -> None:
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    want = 2 * np.maximum(x @ np.arange(24, dtype=np.float32).reshape(4, 6).T, 0)
    for mod in (mixed(3), mixed(Var("batch"))):
        compiler.verify(compiler.transform.InferType()(mod))
        oracle = compiler.evaluate(mod, x)
        run = compiler.build(mod)
        np.testing.assert_allclose(oracle, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(run(x), want, rtol=1e-5, atol=1e-5)
    assert len(log) == 4


def test_an_exception_of_an_external_function_reaches_the_caller() -> None:
    def broken(x: Array, y: Array) -> None:
        raise ValueError("broken on purpose")

    register_func("test.broken", broken)
    try:
        b = FunctionBuilder()
        x = b.param("x", (2,))
        y = b.bind(call_dps_packed("test.broken", (x,), TensorType.of((2,), "float32")))
        run = compiler.build(IRModule({"main": b.finish(y)}))
        with pytest.raises(ValueError, match="on purpose"):
            run(np.zeros(2, np.float32))
        register_func("test.broken", lambda x, y: np.copyto(y, x), override=True)
        assert (run(np.ones(2, np.float32)) == 1).all()
    finally:
        remove_func("test.broken")


def test_several_results_of_a_call() -> None:
    register_func("test.parts", lambda x, lo, hi: (np.copyto(lo, x[:2]), np.copyto(hi, x[2:])))
    try:
        b = FunctionBuilder()
        x = b.param("x", (5,))
        types = (TensorType.of((2,), "float32"), TensorType.of((3,), "float32"))
        t = b.bind(call_dps_packed("test.parts", (x,), TupleType(types)))
        mod = IRModule({"main": b.finish(b.get(t, 1), b.get(t, 0))})
        data = np.arange(5, dtype=np.float32)
        for got in (compiler.evaluate(mod, data), compiler.build(mod)(data)):
            assert [list(g) for g in got] == [[2, 3, 4], [0, 1]]
        assert compiler.structural_equal(mod, compiler.parse(mod.astext(show_meta_data=True)))
    finally:
        remove_func("test.parts")


@pytest.mark.parametrize(
    ("shape", "out", "message"),
    [
        ((3, 5), (3, 4), r"x: float32\[n, 6\] cannot be Tensor\[\(3, 5\), float32\]"),
        ((3, 6), (2, 4), r"y: float32\[n, 4\] cannot be .* where n = 3"),
        ((3, 6, 1), (3, 4), r"cannot be Tensor\[\(3, 6, 1\), float32\]"),
    ],
)
def test_a_call_that_does_not_fit_its_program_is_refused(
    shape: tuple[int, ...], out: tuple[int, ...], message: str
) -> None:
    b = FunctionBuilder()
    x, w = b.param("x", shape), b.param("w", (4, 6))
    y = b.bind(call_tir("dense", (x, w), TensorType.of(out, "float32")), "y")
    mod = IRModule({"dense": dense(N, 6, 4), "main": b.finish(y)})
    with pytest.raises(compiler.VerifyError, match=message):
        compiler.verify(mod)
    with pytest.raises(compiler.TypeInferenceError, match=message):
        compiler.build(mod)


def test_a_call_of_a_program_that_is_not_there_is_refused() -> None:
    b = FunctionBuilder()
    y = b.bind(call_tir("dence", (b.param("x", (3, 6)),), TensorType.of((3, 4), "float32")))
    mod = IRModule({"dense": dense(N, 6, 4), "main": b.finish(y)})
    for run in (compiler.verify, compiler.build):
        with pytest.raises(compiler.VerifyError, match="did you mean 'dense'"):
            run(mod)


def test_programs_keep_their_dtype_when_the_network_changes_its_own(log: list[float]) -> None:
    mod = datatypes.change_dtype(mixed(3), "float32", "posit16_es1")
    compiler.verify(mod)
    dtypes = {b.var.name: str(getattr(b.var.type, "dtype", "")) for b in mod.main.bindings}
    assert dtypes["y"] == dtypes["d"] == "float32"
    assert dtypes["z"] == "custom[posit16_es1]16"
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mod)(x), compiler.evaluate(mod, x))


@pytest.mark.parametrize("flag", [True, False])
def test_tensor_programs_in_branches(flag: bool) -> None:
    mod = compiler.parse(
        """
primfunc @twice(X: float32[2]) -> (Y: float32[2]) {
  for i in 2:
    Y: Y[i] = (X[i] * float32(2.0))
}

def @main(%x: Tensor[(2,), float32], %flag: Tensor[(), bool]) {
  %b = if (%flag) {
    %2 = call_tir(@twice, (%x,), Tensor[(2,), float32]);
    %2
  } else {
    %x
  };
  %b
}
"""
    )
    x = np.array([1, 2], np.float32)
    assert list(compiler.build(mod)(x, np.array(flag))) == ([2, 4] if flag else [1, 2])


def test_a_tensor_program_is_no_graph_function() -> None:
    with pytest.raises(compiler.DtypelabError, match=r"dense is a tensor program"):
        mixed(3)["dense"]
