"""Networks of torch for the tests of its quantization flow: the shipped digit classifiers with
their trained weights, and small ones drawn at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from compiler.types.dtypes import Array
from experiments import zoo
from experiments.data import datasets
from experiments.zoo import train
from quantize.plan.params import WeightParams, power_of_two
from quantize.plan.plan import Plan
from quantize.torch import DtypelabQuantizer


def trained(name: str) -> Any:
    """A shipped classifier as the module that it was exported from, in evaluation mode."""
    module = {"mlp": train.mlp, "resnet8": train.resnet8, "dwsep": train.dwsep}[name]()
    model = onnx.load(zoo.FOLDER / f"mnist_{name}.onnx")
    arrays = [(i.name, onnx.numpy_helper.to_array(i)) for i in model.graph.initializer]
    given = [a for k, a in arrays if k.endswith((".weight", ".bias"))]
    given += [a for k, a in arrays if ".running_" in k]
    targets = [*module.parameters(), *(b for b in module.buffers() if b.ndim)]
    with torch.no_grad():
        for target, array in zip(targets, given, strict=True):
            target.copy_(torch.from_numpy(array.copy()))
    return module.eval()


def digits(count: int) -> tuple[Array, Array]:
    """Images to quantize, and others to calibrate with: [count, 1, 28, 28] float32."""
    data = datasets.load("mnist1k")
    return data.x[:count], data.calibration[:100]


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


def with_powers(plan: Plan) -> Plan:
    """A plan with all scales rounded up to powers of two, so that float32 sums of what its integers
    stand for are exact."""

    def weight(w: WeightParams) -> WeightParams:
        return replace(w, scales=tuple(map(power_of_two, w.scales)), shift=(), rounding="")

    return replace(
        plan,
        values={k: replace(v, scale=power_of_two(v.scale)) for k, v in plan.values.items()},
        weights={k: weight(w) for k, w in plan.weights.items()},
    )


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
