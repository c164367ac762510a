"""The integers of torch's quantization flow beside ours: how many are the same, and by how much the
others differ, layer by layer and end to end.

Where float32 arithmetic is exact (sums below 2^24, scales that are powers of two) all are the same.
Elsewhere every value is at most one code from what the plan makes of the same integers; end to end
what differs early is read by all that follows. Functions (softmax, hard swish, layer norm) are
float32 in torch, whose last bits are its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from compiler.errors import UnsupportedError
from experiments import zoo
from experiments.benchmarks.report import Row
from experiments.benchmarks.torch_untrained import torch_module

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from compiler import IRModule
    from quantize import Plan
    from quantize.torch.comparing import Agreement

BATCH = 8
BATCHES = 5
"""Batches that a plan is calibrated on."""


@dataclass(frozen=True)
class Case:
    """A network of torch in evaluation mode.

    Attributes:
        make: the module.
        exact: it has no functions, and so the same integers in float32 and in ours where scales
            are powers of two.
    """

    make: Callable[[], Any]
    exact: bool = True


@dataclass(frozen=True)
class Compared:
    """Integers of torch and ours.

    Attributes:
        powers: with scales that are powers of two, end to end; `powers_apart` value by value.
        whole: with the plan's own scales, end to end.
        apart: the same value by value, each computed from the plan's integers of those before it.
    """

    powers: Agreement
    powers_apart: Agreement
    whole: Agreement
    apart: Agreement


def run() -> bool:
    """Compare and print all networks, value by value where they differ; whether all rows passed.

    Raises:
        UnsupportedError: torch or torchao is not installed.
    """
    passed = True
    for name, case in NETWORKS.items():
        click.echo(f"integers of {name} in torch's flow")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compared(case.make(), *digits())
        click.echo(f"  value by value: {found.apart}\n  end to end: {found.whole}")
        for row in rows(name, case, found):
            click.echo(str(row))
            passed &= row.passed
    return passed


def rows(name: str, case: Case, found: Compared) -> list[Row]:
    """The figures of one network."""
    powers = found.powers if case.exact else found.powers_apart
    return [
        Row(f"{name}, powers of two", powers.most, "codes", most=0 if case.exact else 1),
        Row(f"{name}, value by value", found.apart.most, "codes", most=1),
        Row(f"{name}, value by value, others of a million", _others(found.apart), ""),
        Row(f"{name}, end to end", found.whole.most, "codes"),
        Row(f"{name}, end to end, others of a million", _others(found.whole), ""),
    ]


def _others(a: Agreement) -> float:
    return 1e6 * (1 - a.share)


def compared(module: Any, x: NDArray[Any], calibration: NDArray[Any]) -> Compared:
    """A network quantized by the recommended scheme, in torch's flow and by us.

    Args:
        module: of torch, in evaluation mode.
        x: the batch that is compared, float32; calibration: examples, a few times as many.

    Raises:
        UnsupportedError: torch or torchao is not installed, or torch's flow cannot say the plan.
    """
    import compiler
    import quantize

    try:
        import torch
        import torchao  # noqa: F401
    except ImportError as e:
        raise UnsupportedError(f"this needs torch and torchao: {e}") from None
    mod = compiler.from_torch(module, (torch.from_numpy(x),))
    starts = range(0, BATCHES * len(x), len(x))
    plan = quantize.calibrate(mod, [calibration[i : i + len(x)] for i in starts])
    return Compared(
        *agreements(module, mod, with_powers(plan), x), *agreements(module, mod, plan, x)
    )


def agreements(
    module: Any, mod: IRModule, plan: Plan, x: NDArray[Any]
) -> tuple[Agreement, Agreement]:
    """How a plan's integers and torch's agree, end to end and value by value."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from quantize.torch import DtypelabQuantizer, compare

    graph = torch.export.export(module, (torch.from_numpy(x),)).module()
    converted = convert_pt2e(prepare_pt2e(graph, DtypelabQuantizer(plan, mod)))
    whole = compare(converted, mod, plan, x)
    return whole, compare(converted, mod, plan, x, step_by_step=True)


def with_powers(plan: Plan) -> Plan:
    """A plan with all scales rounded up to powers of two, so that float32 sums of what its integers
    stand for are exact."""
    from quantize.plan.params import WeightParams, power_of_two

    def weight(w: WeightParams) -> WeightParams:
        return replace(w, scales=tuple(map(power_of_two, w.scales)), shift=(), rounding="")

    return replace(
        plan,
        values={k: replace(v, scale=power_of_two(v.scale)) for k, v in plan.values.items()},
        weights={k: weight(w) for k, w in plan.weights.items()},
    )


# ---- networks ------------------------------------------------------------------------------------
def digits(count: int = BATCH) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images to quantize, and others to calibrate with: [count, 1, 28, 28] float32."""
    from experiments.data import datasets

    data = datasets.load("mnist1k")
    return data.x[:count], data.calibration[:100]


def trained(name: str) -> Any:
    """A shipped classifier as the module that it was exported from, in evaluation mode."""
    import onnx
    import torch

    from experiments.zoo import train

    module = train.RECIPES[name].make()
    model = onnx.load(zoo.FOLDER / f"{name}.onnx")
    arrays = [(i.name, onnx.numpy_helper.to_array(i)) for i in model.graph.initializer]
    given = [a for k, a in arrays if k.endswith((".weight", ".bias"))]
    given += [a for k, a in arrays if ".running_" in k]
    targets = [*module.parameters(), *(b for b in module.buffers() if b.ndim)]
    with torch.no_grad():
        for target, array in zip(targets, given, strict=True):
            target.copy_(torch.from_numpy(array.copy()))
    return module.eval()


def untrained(name: str) -> Any:
    """One of `experiments.zoo.untrained` with random weights."""
    import torch

    torch.manual_seed(0)
    return torch_module(name)[0].eval()


def inverted() -> Any:
    """Two inverted residuals with squeeze and excitation, as mobile networks have them (Howard et
    al., Searching for MobileNetV3, 2019), with random weights and statistics."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    def layer(inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> list[Any]:
        made = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
        norm = nn.BatchNorm2d(outputs)
        norm.running_mean.normal_(std=0.1)
        norm.running_var.uniform_(0.5, 2.0)
        return [made, norm]

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            wide = 4 * inputs
            self.wide = nn.Sequential(*layer(inputs, wide, 1, 1), nn.Hardswish())
            self.deep = nn.Sequential(*layer(wide, wide, 3, stride, wide), nn.Hardswish())
            squeezed = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, inputs, 1), nn.ReLU()]
            self.gate = nn.Sequential(*squeezed, nn.Conv2d(inputs, wide, 1), nn.Hardsigmoid())
            self.narrow = nn.Sequential(*layer(wide, outputs, 1, 1))
            self.adds = inputs == outputs and stride == 1

        def forward(self, x: Any) -> Any:
            y = self.deep(self.wide(x))
            y = self.narrow(y * self.gate(y))
            return x + y if self.adds else y

    first = [*layer(1, 8, 3, 2), nn.Hardswish()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(*first, Block(8, 8, 1), Block(8, 16, 2), *last).eval()


NETWORKS: Mapping[str, Case] = {
    "mnist_mlp": Case(lambda: trained("mnist_mlp")),
    "mnist_resnet8": Case(lambda: trained("mnist_resnet8")),
    "mnist_dwsep": Case(lambda: trained("mnist_dwsep")),
    "mnist_cnn": Case(lambda: untrained("mnist_cnn")),
    "mnist_vit_small": Case(lambda: untrained("mnist_vit_small"), exact=False),
    "inverted residuals": Case(inverted, exact=False),
}
