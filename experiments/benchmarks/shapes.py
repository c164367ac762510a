"""Unusual int8 convolutions beside the peak: along one axis, odd channels, groups, first layers,
batches. Each is a network of one layer, uint8 in and out; its longest kernel is timed alone, on
one thread, in the layout that the layer has inside a network."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import click
import numpy as np

from experiments.benchmarks.convolutions import taps_met
from experiments.benchmarks.peak import peak
from experiments.benchmarks.stages import kernel_calls
from experiments.benchmarks.turns import Contender, Effort, always, medians
from experiments.measure.disturbance import pinned

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule


@dataclass(frozen=True)
class Shape:
    """A convolution over images of `size` (rows, columns), padded by half its kernel."""

    inputs: int
    outputs: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: int = 1
    groups: int = 1
    batch: int = 1

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Top, left, bottom, right."""
        rows, columns = (k // 2 for k in self.kernel)
        return rows, columns, rows, columns

    @property
    def operations(self) -> int:
        """A multiply and an add count as two; those with zeros of the padding do not count."""
        met = 1
        for size, kernel, before in zip(self.size, self.kernel, self.padding, strict=False):
            outputs = (size + 2 * before - kernel) // self.stride + 1
            met *= taps_met(size, outputs, kernel, self.stride, before)
        return 2 * self.batch * self.outputs * met * self.inputs // self.groups

    def module(self) -> IRModule:
        """The layer: weights over the whole of int8, the result clipped as by a ReLU."""
        from compiler.ir.builder import FunctionBuilder
        from compiler.ir.expr import IRModule

        rng, b = np.random.default_rng(0), FunctionBuilder()
        taps = (self.inputs // self.groups, *self.kernel)
        weight = rng.integers(-127, 128, (self.outputs, *taps), np.int8)
        bias = rng.integers(-1000, 1000, self.outputs, np.int32)
        scale = rng.uniform(0.5, 1.0, self.outputs).astype(np.float32)
        scale *= np.float32(64 / (147 * 73 * prod(taps) ** 0.5))
        x = b.param("x", (self.batch, self.inputs, *self.size), "uint8")
        sums = b.call(
            "nn.conv2d", x, b.const(weight), b.const(bias), strides=(self.stride,) * 2,
            padding=self.padding, groups=self.groups, out_dtype="int32",
        )  # fmt: skip
        return IRModule({"main": b.finish(b.call("qnn.requantize", sums, b.const(scale)))})

    def __str__(self) -> str:
        extra = f" /{self.stride}" if self.stride > 1 else ""
        extra += f" {self.groups} groups" if self.groups > 1 else ""
        extra += f" batch {self.batch}" if self.batch > 1 else ""
        size, kernel = ("x".join(map(str, x)) for x in (self.size, self.kernel))
        return f"{self.inputs:>4} -> {self.outputs:<4} {size:>7} {kernel}{extra}"


SHAPES = {
    "along one axis": (
        Shape(64, 64, (1, 1000), (1, 3)),
        Shape(128, 256, (1, 400), (1, 5)),
        Shape(256, 256, (1, 160), (1, 9)),
        Shape(512, 512, (1, 100), (1, 1)),
        Shape(80, 384, (1, 1500), (1, 3)),
        Shape(96, 96, (80, 1), (3, 1)),
    ),
    "odd channels": (
        Shape(33, 47, (28, 28), (3, 3)),
        Shape(65, 129, (28, 28), (3, 3)),
        Shape(100, 100, (28, 28), (1, 1)),
        Shape(65, 257, (28, 28), (1, 1)),
        Shape(37, 53, (56, 56), (1, 1)),
    ),
    "groups": (
        Shape(128, 128, (28, 28), (3, 3), groups=2),
        Shape(256, 256, (14, 14), (3, 3), groups=8),
        Shape(128, 128, (56, 56), (3, 3), groups=32),
        Shape(240, 240, (28, 28), (1, 1), groups=3),
    ),
    "first layers": (
        Shape(3, 64, (224, 224), (7, 7), 2),
        Shape(3, 32, (224, 224), (3, 3), 2),
        Shape(3, 64, (224, 224), (3, 3)),
        Shape(1, 16, (28, 28), (3, 3)),
        Shape(1, 32, (28, 28), (5, 5)),
        Shape(1, 64, (224, 224), (3, 3)),
    ),
    "batches": (
        Shape(64, 64, (28, 28), (3, 3), batch=8),
        Shape(256, 256, (14, 14), (1, 1), batch=8),
        Shape(512, 512, (7, 7), (3, 3), batch=8),
        Shape(3, 32, (112, 112), (3, 3), 2, batch=8),
        Shape(1, 16, (28, 28), (3, 3), batch=8),
    ),
}  # fmt: skip


def run(effort: Effort) -> None:
    """Measure every shape and print a line each.

    Raises:
        DtypelabError: this CPU has no known peak.
    """
    import compiler

    plain = compiler.Target.parse("llvm").unasked  # nothing of these is done by tiles
    top = peak(plain)
    click.echo(f"kernels of unusual convolutions, 1 thread; peak by {top.instruction}")
    click.echo("".join(f"{h:>{w}}" for h, w in (("kernel us", 50), ("GOPS", 9), ("% peak", 9))))
    with pinned(1):
        for title, shapes in SHAPES.items():
            click.echo(f" {title}")
            for shape in shapes:
                kernels = kernel_calls(compiler.build(shape.module(), target=plain))
                contenders: dict[str, Contender] = {"peak": always(top.call)}
                contenders |= {f"kernel {k}": always(c) for k, c in enumerate(kernels)}
                times = medians(contenders, effort)
                most = top.operations / times.pop("peak") / 1e6
                longest = max(times.values())
                rate = shape.operations / longest / 1e6
                click.echo(f"  {shape!s:<38}{longest * 1e3:10.1f}{rate:9.0f}{rate / most:9.1%}")
    click.echo()
