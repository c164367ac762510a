"""Gradients in number formats: compiled code gives the bits that the interpreter gives, whether a
program is retyped with its gradient or differentiated in the format."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, calls, tensor_type
from compiler.symbolic import Var
from compiler.types.dtypes import Array

FORMATS = ("bfloat16", "posit16_es1", "float8_e5m2", "posit8_es0", "fixed16_8")
SIZE = 4


def network(batch: int | Var = SIZE) -> IRModule:
    """A convolution, batch norm by the batch, pooling and two dense layers, with a loss."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()

    def weights(*shape: int) -> compiler.Constant:
        return b.const((0.5 * rng.standard_normal(shape)).astype(np.float32))

    y = b.call("nn.conv2d", b.param("x", (batch, 1, 6, 6)), weights(3, 1, 3, 3), padding=(1,) * 4)
    statistics = [b.const(np.ones(3, np.float32)) for _ in range(4)]
    y = b.call("nn.batch_norm", y, *statistics, name="norm")
    y = b.call("nn.relu", y)
    y = b.call("nn.max_pool2d", y, pool_size=(3, 3), strides=(2, 2))
    y = b.call("nn.dense", b.call("nn.batch_flatten", y), weights(5, 12), weights(5))
    y = b.call("nn.dense", b.call("nn.gelu", y), weights(4, 5), name="logits")
    mod, _ = compiler.with_batch_statistics(IRModule({"main": b.finish(y)}))
    return compiler.with_loss(mod, "cross_entropy", "labels")


def given(mod: IRModule) -> list[Array]:
    """Numbers for all parameters."""
    rng = np.random.default_rng(1)
    out: list[Array] = []
    for p in mod.main.params:
        t = tensor_type(p)
        shape = tuple(n if isinstance(n, int) else SIZE for n in t.shape)
        labels = rng.integers(0, 4, shape)
        out.append(labels if t.dtype.is_integer else rng.uniform(0.2, 1, shape).astype(np.float32))
    return out


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
def test_a_network_and_its_gradient(name: str) -> None:
    mod = network()
    names = list(compiler.parameters(mod))
    both = datatypes.change_dtype(compiler.gradient(mod, names), "float32", name)
    args = given(both)
    got, want = compiler.build(both)(*args), compiler.evaluate(both, *args)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(a).all() for a in got)
    assert any(np.asarray(a).any() for a in got[-len(names) :])


def test_a_format_for_what_flows_back() -> None:
    b = FunctionBuilder()
    w = b.const(np.ones((2, 3), np.float32))
    y = b.call("nn.dense", b.param("x", (2, 3)), w, name="y", origins=["layer"])
    mod = compiler.with_loss(IRModule({"main": b.finish(y)}), "squared_error")
    both = compiler.gradient(mod, list(compiler.parameters(mod)))
    formats = {"*/gradient": "float8_e5m2", "layer": "float8_e4m3fn"}
    changed = datatypes.change_dtype(both, formats)
    kinds = {str(tensor_type(v).dtype) for v, c in ((b.var, c) for b, c in calls(changed.main))
             if c.op.name in ("nn.matmul", "nn.dense")}  # fmt: skip
    assert len(kinds) == 2
    args = given(changed)
    for a, c in zip(compiler.build(changed)(*args), compiler.evaluate(changed, *args), strict=True):
        np.testing.assert_array_equal(a, c)


@pytest.mark.thorough
def test_an_open_batch() -> None:
    mod, fixed = network(Var("n")), network()
    names = list(compiler.parameters(mod))
    assert names == list(compiler.parameters(fixed))
    both, known = compiler.gradient(mod, names), compiler.gradient(fixed, names)
    args = given(both)
    for a, b in zip(compiler.evaluate(both, *args), compiler.evaluate(known, *args), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(compiler.build(both)(*args), compiler.evaluate(both, *args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
