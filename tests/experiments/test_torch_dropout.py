"""Dropout in compiled training: who drops, how much, by which generator, and what flows back.
Skipped where torch is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import UnsupportedError
from experiments.systems import pipeline

torch = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional

from experiments.torch_backend import backend  # noqa: E402  (it needs torch)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(f: Any, **options: Any) -> Any:
    return torch.compile(f, backend=backend.dtypelab, options=options or None)


def dropped(run: Any, shape: tuple[int, ...] = (40, 50)) -> tuple[Any, Any]:
    """Results for ones, and their gradients."""
    x = torch.ones(shape, requires_grad=True)
    y = run(x)
    y.sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
def test_a_share_is_dropped_and_the_rest_is_scaled(share: float) -> None:
    y, gradient = dropped(compiled(lambda x: F.dropout(x, share)))
    kept = y != 0
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - share)))
    deviation = (share * (1 - share) / y.numel()) ** 0.5
    assert abs(float((~kept).float().mean()) - share) < 4 * deviation
    assert torch.equal(gradient, y)  # the backward pass has the mask of the forward pass


def test_torchs_generator_says_which() -> None:
    run = compiled(lambda x: F.dropout(x, 0.5))
    first, second = dropped(run)[0], dropped(run)[0]
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(dropped(run)[0], first)
    assert torch.equal(dropped(run)[0], second)


def test_layers_draw_apart_from_each_other() -> None:
    a, b = compiled(lambda x: (F.dropout(x), F.dropout(x)))(torch.ones(2000, requires_grad=True))
    both = float(((a != 0) & (b != 0)).float().mean())
    assert abs(both - 0.25) < 4 * (0.25 * 0.75 / 2000) ** 0.5


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_or_nothing_is_as_in_torch(share: float) -> None:
    y, gradient = dropped(compiled(lambda x: F.dropout(x, share)))
    want = torch.full_like(y, 1 - share)
    assert torch.equal(y, want)
    assert torch.equal(gradient, want)


def test_whole_channels_are_dropped() -> None:
    y, gradient = dropped(compiled(nn.Dropout2d(0.5)), (20, 30, 3, 3))
    alike = y.flatten(2)
    assert torch.equal(alike, alike[:, :, :1].expand_as(alike))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(gradient, y)


def test_a_transformer_layer_learns_as_its_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward program, masks included, is the interpreter's; the gradients are those that
    torch finds for the same masks."""
    built: list[tuple[Any, Any, Any]] = []
    build = pipeline.build

    def recorded(module: Any, *args: Any) -> Any:
        run = build(module, *args)

        def call(*given: Any) -> Any:
            built.append((module, [np.array(a) for a in given], found := run(*given)))
            return found

        return call

    monkeypatch.setattr(pipeline, "build", recorded)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.25, batch_first=True)
    compiled(layer)(torch.randn(3, 5, 16)).square().sum().backward()
    assert len(built) == 2
    module, given, found = built[0]
    assert str(module).count("bernoulli(") == 4  # attention, its result, and the two of the MLP
    for a, b in zip(compiler.evaluate(module, *given), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())


def test_a_format_computes_with_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)), torch.randn(5, 8)
    run = compiled(layer, dtype="posit16_es1")
    torch.manual_seed(3)
    y = run(x)
    torch.manual_seed(3)
    assert torch.equal(run(x), y)
    share = float((y == 0).float().mean())
    assert 0.35 < share < 0.65


def test_training_with_dropout_learns() -> None:
    x = torch.randn(64, 8)
    y = (x[:, :1] * x[:, 1:2] > 0).long().squeeze(1)
    network = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
    step = compiled(lambda x, y: F.cross_entropy(network(x), y))
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = step(x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


def test_an_import_without_a_generator_refuses_it() -> None:
    with pytest.raises(UnsupportedError, match=r"call module.eval\(\) first"):
        compiler.from_torch(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), (torch.ones(2, 3),))
