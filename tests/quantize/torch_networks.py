"""Networks of torch for the tests of its quantization flow: the shipped digit classifiers with
their trained weights, and small ones drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from compiler.types.dtypes import Array
from experiments.benchmarks import torch_integers
from experiments.benchmarks.torch_integers import digits, with_powers
from quantize.torch import DtypelabQuantizer


def trained(name: str) -> Any:
    """A shipped classifier as the module that it was exported from, in evaluation mode."""
    return torch_integers.trained(f"mnist_{name}")


def exported(module: Any, *inputs: Array, **options: Any) -> Any:
    """The graph that torch's flow takes."""
    given = tuple(torch.from_numpy(np.asarray(a)) for a in inputs)
    return torch.export.export(module, given, **options).module()


def converted(module: Any, quantizer: DtypelabQuantizer, x: Array, *batches: Array) -> Any:
    """What the flow makes of a module."""
    prepared = prepare_pt2e(exported(module, x), quantizer)
    for batch in batches:
        prepared(torch.from_numpy(batch))
    return convert_pt2e(prepared)


def run(graph: Any, *inputs: Array) -> Array:
    """The result of a module of torch."""
    with torch.no_grad():
        found: Array = graph(*(torch.from_numpy(a) for a in inputs)).numpy()
    return found


__all__ = ["Residual", "converted", "digits", "exported", "run", "trained", "with_powers"]


class Residual(nn.Module):
    """A few layers between which values are added, moved, clipped and averaged."""

    def __init__(self, channels: int, kernel: int, seed: int, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        pad = kernel // 2
        self.first = nn.Conv2d(2, channels, kernel, padding=pad, bias=bias)
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_(std=0.1)
        self.norm.running_var.uniform_(0.5, 2.0)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=bias)
        self.last = nn.Linear(4 * channels, 5, bias=bias)
        self.eval()

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.first(x)))
        y = y + nn.functional.relu6(self.second(y))
        y = nn.functional.max_pool2d(y, 2)
        y = nn.functional.avg_pool2d(y, 2)
        return self.last(y.flatten(1))
