"""Gradients of whole networks beside PyTorch's, where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.types.dtypes import Array
from experiments import zoo

torch = pytest.importorskip("torch", reason="torch is not installed")


def digits(count: int) -> tuple[Array, Array]:
    held = np.load(zoo.FOLDER / "mnist1k.npz")
    return held["x_test"][:count].astype(np.float32), held["y_test"][:count].astype(np.int64)


def theirs(module: Any, names: Mapping[str, str], weights: Mapping[str, Array]) -> Any:
    """The module with our weights: PyTorch's names -> ours."""
    state = {k: torch.from_numpy(np.array(weights[n])) for k, n in names.items()}
    module.load_state_dict(state, strict=False)
    return module


def gradients(module: Any, x: Array, y: Array) -> tuple[Array, dict[str, Array]]:
    """PyTorch's loss and gradients."""
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    return loss.detach().numpy(), {n: p.grad.numpy() for n, p in module.named_parameters()}


@pytest.mark.parametrize(
    "name",
    [
        "mnist_mlp",
        pytest.param("mnist_resnet8", marks=pytest.mark.thorough),
        pytest.param("mnist_dwsep", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_networks_of_digits(name: str, training: bool) -> None:
    from experiments.zoo import train

    x, y = digits(4)
    mod = compiler.from_onnx(zoo.model_path(name), shapes={"input": x.shape})
    weights = compiler.parameters(mod)
    module = getattr(train, name.removeprefix("mnist_"))()
    mine = [n for n in weights if not n.startswith("val_")]  # biases of zero that the export adds
    stored = [n for n in module.state_dict() if not n.endswith("num_batches_tracked")]
    names = dict(zip(stored, mine, strict=True))
    theirs(module, names, weights).train(training)
    statistics: tuple[str, ...] = ()
    if training:
        mod, statistics = compiler.with_batch_statistics(mod)
    value, want = gradients(module, x, y)
    asked = [names[n] for n in want]
    both = compiler.gradient(compiler.with_loss(mod, "cross_entropy", "labels"), asked)
    given = {n: weights[n] for n in (*statistics, *asked)}
    got = compiler.build(both)(x, *given_in_order(both, given, y))
    np.testing.assert_allclose(got[0], value, rtol=1e-5)
    for n, ours in zip(want, got[-len(asked) :], strict=True):
        scale = np.abs(want[n]).max() + 1e-3
        np.testing.assert_allclose(ours / scale, want[n] / scale, atol=1e-4, err_msg=n)
    state = {names[n]: v.numpy() for n, v in module.state_dict().items() if n in names}
    for n, ours in zip(statistics, got[2:], strict=False):
        np.testing.assert_allclose(ours, state[n], rtol=1e-4, atol=1e-5, err_msg=n)


def given_in_order(both: compiler.IRModule, given: Mapping[str, Array], y: Array) -> list[Array]:
    """Values of all parameters but the first."""
    return [{**given, "labels": y}[p.name] for p in both.main.params[1:]]


@pytest.mark.thorough
def test_a_vision_transformer(tmp_path: Path) -> None:
    from experiments.zoo import train

    x, y = digits(2)
    torch.manual_seed(0)
    module = train.vit().eval()
    with torch.no_grad():
        for p in module.parameters():  # so that each holds other numbers
            p += 0.02 * torch.randn(p.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter that needs no further package
        path = str(tmp_path / "vit.onnx")
        torch.onnx.export(module, (torch.from_numpy(x),), path, dynamo=False, opset_version=17)
    mod = compiler.from_onnx(tmp_path / "vit.onnx")
    weights = compiler.parameters(mod)
    value, want = gradients(module, x, y)
    stored = {n: p.detach().numpy() for n, p in module.named_parameters()}
    names = {n: same(stored[n], weights) for n in stored}
    asked = [names[n] for n in want if names[n]]
    assert len(asked) > 20
    both = compiler.gradient(compiler.with_loss(mod, "cross_entropy", "labels"), asked)
    got = compiler.build(both)(x, *given_in_order(both, weights, y))
    np.testing.assert_allclose(got[0], value, rtol=1e-5)
    ours = dict(zip(asked, got[-len(asked) :], strict=True))
    for n, g in want.items():
        if names[n]:
            there = g if ours[names[n]].shape == g.shape else g.T
            np.testing.assert_allclose(ours[names[n]], there, atol=2e-5 * np.abs(g).max() + 1e-8)


def test_a_recursive_program() -> None:
    from test_gradient_control import RECURSION

    rng = np.random.default_rng(0)
    x, w = rng.uniform(-1, 1, (2, 4)), rng.uniform(-1, 1, 4)
    both = compiler.gradient(compiler.parse(RECURSION), ["x", "w"])

    def times(k: int, a: Any, b: Any) -> Any:
        return times(k - 1, torch.tanh(a) * b, b) + a if k > 0 else a

    for depth in (0, 1, 7):
        theirs = [torch.from_numpy(a.copy()).requires_grad_() for a in (x, w)]
        times(depth, *theirs).sum().backward()
        got = compiler.build(both)(x, w, np.asarray(depth))
        for mine, t in zip(got[1:], theirs, strict=True):
            want = np.zeros(t.shape) if t.grad is None else t.grad.numpy()
            np.testing.assert_allclose(mine, want, rtol=1e-12, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_every_parameter_of_a_module_has_its_name(name: str) -> None:
    """Tokens and tables of positions, too, which are small: import computes nothing of them."""
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    torch.manual_seed(0)
    module = (
        models.VisionTransformer(32, 16, 1, 2, 16, 32, num_classes=4)
        if name == "vit"
        else models.SwinTransformer([2, 2], 16, [2, 2], [2, 2], [7, 7], num_classes=4)
    ).eval()
    x, y = np.random.default_rng(0).standard_normal((3, 3, 32, 32), np.float32), np.arange(3)
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    value, want = gradients(module, x, y)
    both = compiler.gradient(compiler.with_loss(mod, "cross_entropy", "labels"), list(want))
    weights = compiler.parameters(mod)
    got = compiler.evaluate(both, x, *given_in_order(both, weights, y))
    np.testing.assert_allclose(got[0], value, rtol=1e-5)
    for n, ours in zip(want, got[-len(want) :], strict=True):
        scale = np.abs(want[n]).max() + 1e-6
        np.testing.assert_allclose(ours / scale, want[n] / scale, atol=1e-4, err_msg=n)


def same(a: Array, among: Mapping[str, Array]) -> str:
    """The name of the only constant that holds these numbers, as they are or transposed; empty:
    there is none, or several."""
    found = [
        n for n, b in among.items()
        if any(b.shape == v.shape and np.array_equal(b, v) for v in (a, a.T))
    ]  # fmt: skip
    return found[0] if len(found) == 1 else ""
