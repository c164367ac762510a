# ruff: noqa: F821, N805
"""The network of the end-to-end tutorial, two linear layers with a relu between, in every way that
the tutorial writes it: tensor programs, library functions, both, and with bound parameters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import compiler
from compiler.boundary.external import register_func, remove_func
from compiler.script import (
    Buffer,
    Tensor,
    alloc_buffer,
    axis,
    block,
    call_tir,
    dataflow,
    float32,
    graph_function,
    grid,
    init,
    maximum,
    module,
    output,
    tensor_program,
)
from compiler.transform import BindParams
from compiler.types.dtypes import Array

rng = np.random.default_rng(0)
WEIGHTS = {
    "w0": rng.normal(size=(128, 784)).astype(np.float32) / 28,
    "b0": rng.normal(size=128).astype(np.float32),
    "w1": rng.normal(size=(10, 128)).astype(np.float32) / 11,
    "b1": rng.normal(size=10).astype(np.float32),
}
IMAGE = rng.random((1, 784), dtype=np.float32)


def numpy_mlp(x: Array, w0: Array, b0: Array, w1: Array, b1: Array) -> Array:
    return np.maximum(x @ w0.T + b0, 0) @ w1.T + b1


WANTED = numpy_mlp(IMAGE, **WEIGHTS)


@module
class MyModule:
    @tensor_program
    def relu0(X: Buffer((1, 128), "float32"), Y: Buffer((1, 128), "float32")):
        for i, j in grid(1, 128):
            with block("Y"):
                vi, vj = axis.remap("SS", [i, j])
                Y[vi, vj] = maximum(X[vi, vj], float32(0))

    @tensor_program
    def linear0(
        X: Buffer((1, 784), "float32"),
        W: Buffer((128, 784), "float32"),
        B: Buffer((128,), "float32"),
        Z: Buffer((1, 128), "float32"),
    ):
        Y = alloc_buffer((1, 128), "float32")
        for i, j, k in grid(1, 128, 784):
            with block("Y"):
                vi, vj, vk = axis.remap("SSR", [i, j, k])
                with init():
                    Y[vi, vj] = float32(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vj, vk]
        for i, j in grid(1, 128):
            with block("Z"):
                vi, vj = axis.remap("SS", [i, j])
                Z[vi, vj] = Y[vi, vj] + B[vj]

    @tensor_program
    def linear1(
        X: Buffer((1, 128), "float32"),
        W: Buffer((10, 128), "float32"),
        B: Buffer((10,), "float32"),
        Z: Buffer((1, 10), "float32"),
    ):
        Y = alloc_buffer((1, 10), "float32")
        for i, j, k in grid(1, 10, 128):
            with block("Y"):
                vi, vj, vk = axis.remap("SSR", [i, j, k])
                with init():
                    Y[vi, vj] = float32(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vj, vk]
        for i, j in grid(1, 10):
            with block("Z"):
                vi, vj = axis.remap("SS", [i, j])
                Z[vi, vj] = Y[vi, vj] + B[vj]

    @graph_function
    def main(
        x: Tensor((1, 784), "float32"),
        w0: Tensor((128, 784), "float32"),
        b0: Tensor((128,), "float32"),
        w1: Tensor((10, 128), "float32"),
        b1: Tensor((10,), "float32"),
    ):
        with dataflow():
            lv0 = call_tir(linear0, (x, w0, b0), (1, 128), dtype="float32")
            lv1 = call_tir(relu0, (lv0,), (1, 128), dtype="float32")
            out = call_tir(linear1, (lv1, w1, b1), (1, 10), dtype="float32")
            output(out)
        return out


@module
class MyModuleWithExternCall:
    @graph_function
    def main(
        x: Tensor((1, 784), "float32"),
        w0: Tensor((128, 784), "float32"),
        b0: Tensor((128,), "float32"),
        w1: Tensor((10, 128), "float32"),
        b1: Tensor((10,), "float32"),
    ):
        with dataflow():
            lv0 = call_tir("env.linear", (x, w0, b0), (1, 128), dtype="float32")
            lv1 = call_tir("env.relu", (lv0,), (1, 128), dtype="float32")
            out = call_tir("env.linear", (lv1, w1, b1), (1, 10), dtype="float32")
            output(out)
        return out


LINEAR0 = MyModule.functions["linear0"]


@module
class MyModuleMixture:
    linear0 = LINEAR0

    @graph_function
    def main(
        x: Tensor((1, 784), "float32"),
        w0: Tensor((128, 784), "float32"),
        b0: Tensor((128,), "float32"),
        w1: Tensor((10, 128), "float32"),
        b1: Tensor((10,), "float32"),
    ):
        with dataflow():
            lv0 = call_tir(linear0, (x, w0, b0), (1, 128), dtype="float32")
            lv1 = call_tir("env.relu", (lv0,), (1, 128), dtype="float32")
            out = call_tir("env.linear", (lv1, w1, b1), (1, 10), dtype="float32")
            output(out)
        return out


MAIN = """\
def @main(%x: Tensor[(1, 784), float32], %w0: Tensor[(128, 784), float32], \
%b0: Tensor[(128,), float32], %w1: Tensor[(10, 128), float32], %b1: Tensor[(10,), float32]) \
-> Tensor[(1, 10), float32] {
  %lv0 = call_tir(@linear0, (%x, %w0, %b0), Tensor[(1, 128), float32]); \
/* ty=Tensor[(1, 128), float32] */
  %lv1 = call_tir(@relu0, (%lv0,), Tensor[(1, 128), float32]); /* ty=Tensor[(1, 128), float32] */
  %out = call_tir(@linear1, (%lv1, %w1, %b1), Tensor[(1, 10), float32]); \
/* ty=Tensor[(1, 10), float32] */
  %out
}
"""
LINEAR1_TEXT = """\
primfunc @linear1(X: float32[1, 128], W: float32[10, 128], B: float32[10]) -> (Z: float32[1, 10]) {
  temp Y: float32[1, 10]
  for i in 1:
    for j in 10:
      for k in 128:
        Y: Y[i, j] += (X[i, k] * W[j, k])  (init float32(0.0))
  for i_1 in 1:
    for j_1 in 10:
      Z: Z[i_1, j_1] = (Y[i_1, j_1] + B[j_1])
}
"""
EVERY = {
    "tensor programs": MyModule,
    "library functions": MyModuleWithExternCall,
    "both": MyModuleMixture,
}


@pytest.fixture(params=["numpy", "torch"])
def library(request: pytest.FixtureRequest) -> Iterator[None]:
    """`env.linear` and `env.relu`, which take their tensors over by DLPack."""
    if request.param == "torch":
        torch = pytest.importorskip("torch")

        def linear(x: Array, w: Array, b: Array, out: Array) -> None:
            to, there = torch.from_dlpack, torch.from_dlpack(out)
            torch.mm(to(x), to(w).T, out=there)
            torch.add(there, to(b), out=there)

        def relu(x: Array, out: Array) -> None:
            torch.maximum(torch.from_dlpack(x), torch.Tensor([0.0]), out=torch.from_dlpack(out))

    else:

        def linear(x: Array, w: Array, b: Array, out: Array) -> None:
            there = np.from_dlpack(out)
            there[...] = np.from_dlpack(x) @ np.from_dlpack(w).T + np.from_dlpack(b)

        def relu(x: Array, out: Array) -> None:
            np.maximum(np.from_dlpack(x), 0, out=out)

    register_func("env.linear", linear, override=True)
    register_func("env.relu", relu, override=True)
    yield
    remove_func("env.linear")
    remove_func("env.relu")


def test_the_module_prints_as_written() -> None:
    text = MyModule.astext()
    assert text.endswith(MAIN)
    assert LINEAR1_TEXT in text


@pytest.mark.parametrize("name", EVERY)
def test_the_module_reads_back(name: str) -> None:
    text = EVERY[name].astext(show_meta_data=True)
    again = compiler.parse(text)
    assert again.astext(show_meta_data=True) == text
    assert compiler.structural_equal(again, EVERY[name])


@pytest.mark.parametrize("name", EVERY)
def test_every_way_of_writing_it_computes_the_network(name: str, library: None) -> None:
    for mod in (EVERY[name], compiler.parse(EVERY[name].astext(show_meta_data=True))):
        compiler.verify(mod)
        result = compiler.build(mod)(IMAGE, **WEIGHTS)
        np.testing.assert_allclose(result, WANTED, rtol=1e-4, atol=1e-5)
        assert result.argmax() == WANTED.argmax()


@pytest.mark.slow
def test_the_interpreter_agrees(library: None) -> None:
    result = compiler.evaluate(MyModuleMixture, IMAGE, **WEIGHTS)
    np.testing.assert_allclose(result, WANTED, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_bound_parameters_leave_the_data(name: str, library: None) -> None:
    bound = BindParams(WEIGHTS)(EVERY[name])
    assert [p.name for p in bound.main.params] == ["x"]
    assert "meta[Constant][0]" in bound.astext()
    result = compiler.build(bound)(IMAGE)
    np.testing.assert_allclose(result, WANTED, rtol=1e-4, atol=1e-5)
    again = compiler.parse(bound.astext(show_meta_data=True))
    assert (compiler.build(again)(IMAGE) == result).all()


def test_a_schedule_of_the_tutorial_keeps_the_bits() -> None:
    s = compiler.schedule(MyModule, "linear0")
    outer, inner = s.split("j", 16)
    s.reorder("i", outer, "k", inner)
    s.vectorize(inner)
    faster = MyModule.with_function("linear0", s.func)
    exe = compiler.build(faster)
    assert "vector for ji in 16:" in exe.as_text()
    np.testing.assert_allclose(exe(IMAGE, **WEIGHTS), WANTED, rtol=1e-4, atol=1e-5)
    s = compiler.schedule(MyModule, "linear0")  # as it is written
    plain = compiler.build(MyModule.with_function("linear0", s.func))
    assert (plain(IMAGE, **WEIGHTS) == exe(IMAGE, **WEIGHTS)).all()
