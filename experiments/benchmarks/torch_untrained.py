"""The networks of `experiments.zoo.untrained` in torch, with its names of our weights."""

from __future__ import annotations

from typing import Any


def torch_module(model: str) -> tuple[Any, dict[str, str]]:
    """The network in torch, and its names of our weights."""
    return _cnn() if model == "mnist_cnn" else _vit()


def _cnn() -> tuple[Any, dict[str, str]]:
    from torch import nn

    def conv(inputs: int, outputs: int) -> list[Any]:
        made = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        return [made, nn.BatchNorm2d(outputs), nn.ReLU()]

    module = nn.Sequential(*conv(1, 8), *conv(8, 16), nn.Flatten(), nn.Linear(784, 10))
    names = {"scores.weight": "7.weight", "scores.bias": "7.bias"}
    for k in (0, 1):
        names[f"conv{k + 1}.weight"] = f"{3 * k}.weight"
        names[f"conv{k + 1}_norm.gain"] = f"{3 * k + 1}.weight"
        names[f"conv{k + 1}_norm.shift"] = f"{3 * k + 1}.bias"
    return module, names


def _vit(width: int = 32, heads: int = 4, layers: int = 2, tokens: int = 16) -> Any:
    import torch
    from torch import nn

    norms = [f"norm{k}{x}" for k in range(layers) for x in "ab"] + ["norm"]
    parts = ("queries", "keys", "values", "out")
    sizes = {f"attention{k}_{p}": (width, width) for k in range(layers) for p in parts}
    for k in range(layers):
        sizes |= {f"wide{k}": (width, 2 * width), f"narrow{k}": (2 * width, width)}
    sizes["scores"] = (width, 10)

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, width, 7, 7)
            self.places = nn.Parameter(torch.zeros(tokens, width))
            self.norms = nn.ModuleDict({n: nn.LayerNorm(width) for n in norms})
            self.dense = nn.ModuleDict({n: nn.Linear(*s) for n, s in sizes.items()})

        def attention(self, k: int, x: Any) -> Any:
            q, key, v = (
                self.dense[f"attention{k}_{p}"](x).reshape(-1, tokens, heads, width // heads)
                .transpose(1, 2) for p in parts[:3]
            )  # fmt: skip
            shares = torch.softmax(q @ key.transpose(2, 3) * (width // heads) ** -0.5, -1)
            found = (shares @ v).transpose(1, 2).reshape(-1, tokens, width)
            return self.dense[f"attention{k}_out"](found)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2) + self.places
            for k in range(layers):
                x = x + self.attention(k, self.norms[f"norm{k}a"](x))
                wide = nn.functional.gelu(self.dense[f"wide{k}"](self.norms[f"norm{k}b"](x)))
                x = x + self.dense[f"narrow{k}"](wide)
            return self.dense["scores"](self.norms["norm"](x).mean(1))

    names = {f"patches.{p}": f"patches.{p}" for p in ("weight", "bias")} | {"placed.bias": "places"}
    for n in norms:
        names |= {f"{n}.gain": f"norms.{n}.weight", f"{n}.shift": f"norms.{n}.bias"}
    for n in sizes:
        names |= {f"{n}.weight": f"dense.{n}.weight", f"{n}_sum.bias": f"dense.{n}.bias"}
    return Vit(), names
