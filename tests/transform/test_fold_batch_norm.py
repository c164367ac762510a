"""FoldBatchNorm: what folds, what does not, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simplify_cases import Net, apply, conv, f, ops, origins, same_results, stats

from compiler.ir.expr import Var
from compiler.symbolic import Var as Dimension
from compiler.transform.fold_batch_norm import FoldBatchNorm

N = Dimension("n")


@settings(max_examples=25, deadline=None)
@given(st.booleans(), st.sampled_from([1, 2]), st.sampled_from(["float32", "float64"]))
def test_batch_norm_after_conv(bias: bool, groups: int, dtype: str) -> None:
    net = Net()
    x = net.param("x", (N, 4, 5, 5), dtype)
    c = conv(net, x, 6, groups, bias, dtype)
    bn = net.op("nn.batch_norm", c, *stats(6, dtype), name="bn", epsilon=1e-3)
    mod = net.module(net.op("nn.relu", bn, name="act"))
    out = apply(FoldBatchNorm(), mod)
    assert ops(out) == ["nn.conv2d", "nn.relu"]
    assert origins(out) == {"bn": ("conv", "bn"), "act": ("act",)}
    same_results(out, mod, f(3, 4, 5, 5, dtype=dtype))


@pytest.mark.parametrize("shape", [(N, 8), (N, 3, 8)])
def test_batch_norm_after_dense_needs_the_channel_axis(shape: tuple[Any, ...]) -> None:
    net = Net()
    x = net.param("x", shape)
    units = 3
    d = net.op("nn.dense", x, f(units, 8), name="fc")
    mod = net.module(net.op("nn.batch_norm", d, *stats(units), name="bn"))
    out = apply(FoldBatchNorm(), mod)
    folded = len(shape) == 2
    assert ops(out) == (["nn.dense"] if folded else ["nn.dense", "nn.batch_norm"])
    same_results(out, mod, f(2, *shape[1:]))


AFFINE: dict[str, tuple[str, bool, Any]] = {
    "add": ("add", False, (6, 1, 1)),
    "add_first": ("add", True, (1, 6, 1, 1)),
    "subtract": ("subtract", False, (6, 1, 1)),
    "subtract_from": ("subtract", True, (6, 1, 1)),
    "multiply": ("multiply", False, (6, 1, 1)),
    "multiply_scalar": ("multiply", True, ()),
    "divide": ("divide", False, (6, 1, 1)),
}


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("bias", [True, False])
def test_scale_and_shift_after_conv(name: str, bias: bool) -> None:
    op, first, shape = AFFINE[name]
    net = Net()
    c = conv(net, net.param("x", (N, 4, 5, 5)), 6, bias=bias)
    k = f(*shape) + 3
    args = (np.asarray(k, np.float32), c) if first else (c, np.asarray(k, np.float32))
    mod = net.module(net.op(op, *args, name="y"))
    out = apply(FoldBatchNorm(), mod)
    assert ops(out) == ["nn.conv2d"]
    assert origins(out) == {"y": ("conv", "y")}
    same_results(out, mod, f(2, 4, 5, 5))


def test_a_chain_folds_into_one() -> None:
    net = Net()
    d = net.op("nn.dense", net.param("x", (N, 5, 8)), f(3, 8), name="fc")
    a = net.op("add", f(3), d, name="bias")
    m = net.op("multiply", a, f(1, 3), name="scale")
    mod = net.module(net.op("nn.bias_add", m, f(3), name="shift", axis=-1))
    out = apply(FoldBatchNorm(), mod)
    assert ops(out) == ["nn.dense"]
    assert origins(out) == {"shift": ("fc", "bias", "scale", "shift")}
    same_results(out, mod, f(2, 5, 8))


def unchanged(net: Net, *results: Var) -> None:
    """The pass leaves the very same function."""
    mod = net.module(*results)
    assert apply(FoldBatchNorm(), mod).main is mod.main


def test_not_when_the_product_has_another_reader() -> None:
    net = Net()
    c = conv(net, net.param("x", (N, 4, 5, 5)), 6)
    bn = net.op("nn.batch_norm", c, *stats(6), name="bn")
    unchanged(net, net.op("add", bn, c, name="sum"))


def test_not_when_the_product_is_a_result() -> None:
    net = Net()
    c = conv(net, net.param("x", (N, 4, 5, 5)), 6)
    unchanged(net, net.op("nn.batch_norm", c, *stats(6), name="bn"), c)


def test_not_when_weights_or_statistics_are_inputs() -> None:
    net = Net()
    x, w = net.param("x", (N, 4, 5, 5)), net.param("w", (6, 4, 3, 3))
    c = net.op("nn.conv2d", x, w, name="conv")
    unchanged(net, net.op("nn.batch_norm", c, *stats(6), name="bn"))
    net = Net()
    x, gamma = net.param("x", (N, 4, 5, 5)), net.param("gamma", (6,))
    c = conv(net, x, 6)
    unchanged(net, net.op("nn.batch_norm", c, gamma, *stats(6)[1:], name="bn"))


def test_not_in_float16() -> None:
    net = Net()
    c = conv(net, net.param("x", (N, 4, 5, 5), "float16"), 6, dtype="float16")
    unchanged(net, net.op("nn.batch_norm", c, *stats(6, "float16"), name="bn"))


@pytest.mark.parametrize("shape", [(5,), (5, 5), (1, 6, 5, 1), (2, 1, 1, 1)])
def test_not_when_the_constant_varies_along_another_axis(shape: tuple[int, ...]) -> None:
    net = Net()
    c = conv(net, net.param("x", (1, 4, 5, 5)), 6)
    unchanged(net, net.op("add", c, f(*shape), name="y"))


def test_not_for_a_residual_sum() -> None:
    net = Net()
    x = net.param("x", (N, 4, 5, 5))
    unchanged(net, net.op("add", conv(net, x, 4), x, name="y"))


def test_not_when_the_scale_is_infinite() -> None:
    net = Net()
    c = conv(net, net.param("x", (N, 4, 5, 5)), 6)
    unchanged(net, net.op("divide", c, np.zeros((6, 1, 1), np.float32), name="y"))
