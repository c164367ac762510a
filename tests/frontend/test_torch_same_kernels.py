"""A module imported from torch has no more kernels than through an ONNX file, and no more work in
them: counted, since a time says it to some percent only. Skipped where torch is not installed."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.runtime.profile import profile

torch = pytest.importorskip("torch")
nn: Any = torch.nn

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


class First(nn.Module):
    """The first result of a module."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)[0]


def recurrent(kind: str) -> tuple[Any, Any]:
    layers = getattr(nn, kind)(8, 16, 2, batch_first=True)
    return First(layers), torch.randn(1, 6, 8)


class Excited(nn.Module):
    """A convolution whose channels are weighed, as in networks for telephones."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 16, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, x: Any) -> Any:
        y = nn.functional.hardswish(self.wide(x))
        return self.up(y * self.scale(y))


class Attention(nn.Module):
    """A causal layer of a transformer: a layer norm, attention, and two dense layers."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            t.view(1, -1, self.heads, 8).transpose(1, 2)
            for t in self.joint(self.norm(x)).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


MODULES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"),
    "excited": lambda: (Excited(), torch.randn(1, 3, 16, 16)),
    "attention": lambda: (Attention(), torch.randn(1, 12, 32)),
}


def by_file(module: Any, x: Any) -> Any:
    """The module through an ONNX file."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, dynamo=False)
    return compiler.from_onnx(file.getvalue())


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_no_more_kernels_and_work_than_through_a_file(name: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name]()
    runs = [
        compiler.build(m) for m in (compiler.from_torch(module.eval(), (x,)), by_file(module, x))
    ]
    given = x.numpy()
    ours, theirs = (profile(run, given, runs=1) for run in runs)
    np.testing.assert_allclose(*(run(given) for run in runs), rtol=1e-3, atol=1e-5)
    assert len(ours) <= len(theirs)
    assert sum(s.work for s in ours) <= 1.01 * sum(s.work for s in theirs)
