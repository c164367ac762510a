"""Gradients of gradients: products of the second derivative with a vector, which fall out, against
differences of the gradient and, where it is installed, PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

SHAPES = {"w": (4, 5), "u": (3, 4)}


def perceptron() -> IRModule:
    """A loss of two layers."""
    x = compiler.var("x", ("n", 5), "float64")
    w, u = (compiler.var(n, s, "float64") for n, s in SHAPES.items())
    hidden = compiler.call("tanh", compiler.call("nn.dense", x, w))
    y = compiler.call("nn.log_softmax", compiler.call("nn.dense", hidden, u))
    return IRModule({"main": compiler.function([x, w, u], compiler.call("sum", y * y))})


def convolutional() -> IRModule:
    """The same of an image of any size: strides, pools, normalization."""
    x = compiler.var("x", ("n", 2, "h", "w"), "float64")
    k = compiler.var("k", (3, 2, 3, 3), "float64")
    y = compiler.call("nn.conv2d", x, k, padding=(1,) * 4, strides=(2, 2))
    y = compiler.call("nn.gelu", y)
    y = compiler.call("nn.max_pool2d", y, pool_size=(2, 2), strides=(1, 1))
    y = compiler.call("nn.avg_pool2d", y * y, pool_size=(2, 2), strides=(2, 2))
    return IRModule({"main": compiler.function([x, k], compiler.call("sum", y * y))})


def curvature(mod: IRModule, names: list[str]) -> IRModule:
    """(parameters, what flows into the loss, a vector for each name) -> loss, gradients, and the
    second derivative times the vectors."""
    once = compiler.gradient(mod, names)
    return compiler.gradient(once, names, cotangent=["into_loss", *(f"v_{n}" for n in names)])


@pytest.mark.parametrize("case", ["perceptron", "convolutional"])
def test_products_with_the_second_derivative(case: str) -> None:
    rng = np.random.default_rng(0)
    if case == "perceptron":
        mod, names, x = perceptron(), ["w", "u"], rng.standard_normal((3, 5))
        at = [rng.standard_normal(s) for s in SHAPES.values()]
    else:
        mod, names, x = convolutional(), ["k"], rng.standard_normal((2, 2, 7, 8))
        at = [rng.standard_normal((3, 2, 3, 3))]
    along = [rng.standard_normal(a.shape) for a in at]
    both = curvature(mod, names)
    compiler.verify(both)
    given = [x, *at, np.float64(0), *along]
    got = compiler.evaluate(both, *given)[-len(names) :]
    once, step = compiler.gradient(mod, names), 1e-6
    ends = [
        compiler.evaluate(once, x, *(a + sign * step * v for a, v in zip(at, along, strict=True)))
        for sign in (1, -1)
    ]
    for mine, up, down in zip(got, *(e[1:] for e in ends), strict=True):
        want = (np.asarray(up) - np.asarray(down)) / (2 * step)
        np.testing.assert_allclose(mine, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


@pytest.mark.thorough
def test_compiled_they_are_the_same() -> None:
    rng = np.random.default_rng(0)
    at = [rng.standard_normal(s) for s in ((3, 5), *SHAPES.values())]
    given = [*at, np.float64(0), *(rng.standard_normal(s) for s in SHAPES.values())]
    both = curvature(perceptron(), ["w", "u"])
    for a, b in zip(compiler.build(both)(*given), compiler.evaluate(both, *given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_pytorch_has_the_same() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(1)
    x, w, u, along_w, along_u = (
        rng.standard_normal(s) for s in ((3, 5), *SHAPES.values(), *SHAPES.values())
    )
    both = curvature(perceptron(), ["w", "u"])
    *_, of_w, of_u = compiler.evaluate(both, x, w, u, np.float64(0), along_w, along_u)

    def loss(w: Any, u: Any) -> Any:
        y = torch.log_softmax(torch.tanh(torch.from_numpy(x) @ w.T) @ u.T, -1)
        return (y * y).sum()

    at, along = (tuple(map(torch.from_numpy, pair)) for pair in ((w, u), (along_w, along_u)))
    _, theirs = torch.autograd.functional.hvp(loss, at, along)
    mine: tuple[Array, ...] = of_w, of_u
    for ours, t in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(ours, t.numpy(), rtol=1e-10, atol=1e-10)
