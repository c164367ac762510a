"""torch.compile with our backend where gradients are wanted: backward graphs are compiled, too.
Skipped where torch is not installed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import compiler
from experiments.systems import pipeline

torch = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional

from experiments.torch_backend import backend  # noqa: E402  (it needs torch)
from experiments.torch_backend.options import Options  # noqa: E402

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


def perceptron() -> tuple[Any, Any]:
    layers = nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)
    return nn.Sequential(*layers), torch.randn(5, 8)


def convolutional() -> tuple[Any, Any]:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2), nn.SiLU(), nn.Flatten(),
        nn.Linear(48, 3),
    )  # fmt: skip
    return nn.Sequential(*layers), torch.randn(5, 3, 11, 9)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 16)
        self.layer = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.words(x)).mean(1))


def transformer() -> tuple[Any, Any]:
    return Block(), torch.randint(0, 10, (5, 6))


def loss(network: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(network(x), y)


def trained(f: Any, network: Any, x: Any, y: Any, steps: int = 3) -> list[float]:
    """Losses of some steps of SGD with momentum, which change the network."""
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        found = f(network, x, y)
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


@pytest.mark.parametrize("made", [perceptron, convolutional, transformer])
def test_steps_of_training_are_those_of_torch(made: Callable[[], tuple[Any, Any]]) -> None:
    network, x = made()
    y = torch.randint(0, 3, (5,))
    theirs = copy.deepcopy(network)
    ours = trained(compiled(loss), network, x, y)
    np.testing.assert_allclose(ours, trained(loss, theirs, x, y), rtol=1e-5)
    both = zip(network.state_dict().values(), theirs.state_dict().values(), strict=True)
    for a, b in both:
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Any]]:
    """What is compiled from here on: modules, inputs of calls, and results."""
    calls: list[tuple[Any, Any, Any]] = []
    build = pipeline.build

    def built(module: Any, *args: Any) -> Any:
        run = build(module, *args)

        def call(*given: Any) -> Any:
            found = run(*given)
            calls.append((module, [np.array(a) for a in given], found))
            return found

        return call

    monkeypatch.setattr(pipeline, "build", built)
    return calls


@pytest.mark.parametrize("made", [perceptron, convolutional])
def test_backward_graphs_in_a_format_are_its_interpreters_bits(
    made: Callable[[], tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded(monkeypatch)
    network, x = made()
    trained(compiled(loss, dtype="posit16_es1"), network, x, torch.randint(0, 3, (5,)), 1)
    assert len(calls) == 2  # forward and backward
    for module, given, found in calls:
        assert "custom[posit16_es1]16" in str(module)
        for a, b in zip(compiler.evaluate(module, *given), found, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_linear_layers_gradients_are_rounded_products() -> None:
    layer, x = nn.Linear(4, 3, bias=False), torch.randn(5, 4)
    compiled(lambda x: layer(x).sum(), dtype="bfloat16", accumulate="exact")(x).backward()
    columns = x.to(torch.bfloat16).double().sum(0).to(torch.bfloat16).float()
    assert torch.equal(layer.weight.grad, columns.expand(3, 4))


def test_backward_graphs_may_be_in_another_format_or_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = recorded(monkeypatch)
    x, y = torch.randn(5, 8), torch.randint(0, 3, (5,))
    for how, formats in {
        "float32": [{"bfloat16"}, set()],
        "float16": [{"bfloat16"}, {"float16"}],
        "torch": [{"bfloat16"}],
    }.items():
        torch._dynamo.reset()
        calls.clear()
        network, _ = perceptron()
        trained(compiled(loss, dtype="bfloat16", backward=how), network, x, y, 1)
        found = [{f for f in ("bfloat16", "float16") if f"[{f}]" in str(m)} for m, _, _ in calls]
        assert found == formats


class Attending(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.given = causal, nn.Linear(8, 24)

    def forward(self, x: Any) -> Any:
        q, k, v = self.given(x).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    "dilated": (lambda: nn.Conv2d(3, 4, (3, 2), padding=(2, 1), dilation=(2, 1)), (2, 3, 7, 6)),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 4, 5),
    ),
    "transposed 1d": (lambda: nn.ConvTranspose1d(3, 4, 4, stride=3, bias=False), (2, 3, 5)),
    "no gradient of data": (lambda: nn.Conv2d(3, 4, 3, bias=False), (2, 3, 6, 6)),
    "mean pool": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.AvgPool2d(3, 2, 1, ceil_mode=True)),
        (2, 2, 8, 7),
    ),
    "mean pool inside": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.AvgPool2d(2, 2, 1, count_include_pad=False)),
        (2, 2, 8, 7),
    ),
    "adaptive": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.AdaptiveAvgPool2d((2, 3))),
        (2, 2, 8, 6),
    ),
    "norms": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 8), nn.LayerNorm(8)),
        (4, 8),
    ),
    "group norm": (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4)), (2, 4, 5)),
    "softmax": (lambda: nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1)), (3, 8)),
    "log_softmax": (lambda: nn.Sequential(nn.Linear(8, 4), nn.LogSoftmax(0)), (3, 8)),
    "attention": (lambda: Attending(causal=False), (2, 5, 8)),
    "causal attention": (lambda: Attending(causal=True), (2, 5, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_the_gradients_of_torch(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    theirs, x = copy.deepcopy(layer), torch.randn(shape)
    given = [x.clone().requires_grad_(name != "no gradient of data") for _ in range(2)]
    for f, v in zip((compiled(layer), theirs), given, strict=True):
        y = f(v)
        (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    pairs = [*zip(layer.parameters(), theirs.parameters(), strict=True), given]
    for a, b in pairs:
        if b.grad is not None:
            np.testing.assert_allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    assert (given[0].grad is None) == (name == "no gradient of data")


def test_one_backward_graph_serves_every_batch() -> None:
    network, _ = perceptron()
    theirs, run = copy.deepcopy(network), compiled(network)
    for n in (4, 2, 7):
        x = torch.randn(n, 8)
        for f, m in ((run, network), (theirs, theirs)):
            m.zero_grad()
            f(x).square().sum().backward()
        for a, b in zip(network.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5)


REFUSED = {
    "calibrated": {"dtype": "bfloat16", "backward": "int8_channel"},
    "unknown": {"backward": "posit8es0"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_backward_is_a_format(case: str) -> None:
    with pytest.raises(compiler.DtypelabError, match=r"backward='int8|unknown scheme or format"):
        Options.of(REFUSED[case])


def test_a_scheme_that_quantizes_weights_is_refused_where_they_are_inputs() -> None:
    network, x = perceptron()
    with pytest.raises(RuntimeError, match=r"int8_channel.*within torch\.no_grad"):
        compiled(network, scheme="int8_channel")(x)
