"""A network for pictures of 32 x 32, in int8, on Cortex-M processors that QEMU emulates: how many
instructions a multiply-accumulate takes, by layer and in total, flash and RAM.

The network is the ResNet-8 of MLPerf Tiny (Banbury et al., 2021), with weights drawn at random, as
no count depends on them. Instructions are not cycles. Anchors to stand beside are cycles for a
multiply-accumulate on Cortex-M4 hardware: TVM and CMSIS-NN 3.74, ST 2.13, Plumerai 1.66. Where
CMSIS_NN names CMSIS-NN's folder, its convolutions are counted too (see `cmsis_nn`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from experiments.benchmarks import cmsis_nn
from experiments.benchmarks.report import Row

TARGETS = {
    "cortex-m4": ("llvm -mtriple=thumbv7em -mcpu=cortex-m4", 2.0, 1.7),
    "cortex-m7": ("llvm -mtriple=thumbv7em -mcpu=cortex-m7", 2.0, 1.7),
    "cortex-m55": ("llvm -mtriple=thumbv8.1m -mcpu=cortex-m55", 0.6, 0.45),
}
"""Target, and the most instructions for a multiply-accumulate: of the network, of layers of 3 x 3
over 16 channels or more."""
SIZE = 32
CLASSES = 10


@dataclass(frozen=True)
class Layer:
    """A convolution or dense layer: its name, what it multiplies, and whether it has a bound; of a
    convolution also its channels, the rows of its result, its stride, and its kernel's taps (0: it
    is none)."""

    name: str
    macs: int
    counted: bool
    inputs: int = 0
    outputs: int = 0
    size: int = 0
    stride: int = 0
    kernel: int = 0


class ResNet8:
    """The network in float32, and its layers in order.

    Attributes:
        module: it.
        layers: those that multiply.
    """

    def __init__(self, seed: int = 0):
        self._b, self._rng = FunctionBuilder(), np.random.default_rng(seed)
        self.layers: list[Layer] = []
        x = self._conv("first", self._b.param("x", (1, 3, SIZE, SIZE)), 3, 16, SIZE)
        x = self._relu(x)
        size, inputs = SIZE, 16
        for stage, outputs in enumerate((16, 32, 64)):
            stride = 1 if stage == 0 else 2
            size //= stride
            y = self._relu(self._conv(f"stage{stage}.a", x, inputs, outputs, size, stride))
            y = self._conv(f"stage{stage}.b", y, outputs, outputs, size)
            if stage:
                x = self._conv(f"stage{stage}.short", x, inputs, outputs, size, stride, kernel=1)
            x, inputs = self._relu(self._b.call("add", x, y)), outputs
        mean = self._b.call("reshape", self._b.call("nn.global_avg_pool2d", x), newshape=(1, 64))
        weight = self._rng.normal(0, 0.2, (CLASSES, 64)).astype(np.float32)
        y = self._b.call("nn.dense", mean, self._b.const(weight), name="logits", origins=["logits"])
        self.layers.append(Layer("logits", 64 * CLASSES, False))
        self.module = IRModule({"main": self._b.finish(y)})

    def inputs(
        self, count: int, seed: int = 1
    ) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        """Random pictures [1, 3, 32, 32]."""
        rng = np.random.default_rng(seed)
        return [rng.normal(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32) for _ in range(count)]

    def _relu(self, x: Var) -> Var:
        return self._b.call("nn.relu", x)

    def _conv(
        self,
        name: str,
        x: Var,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        kernel: int = 3,
    ) -> Var:
        taps = inputs * kernel * kernel
        shape = (outputs, inputs, kernel, kernel)
        weight = self._rng.normal(0, (2 / taps) ** 0.5, shape).astype(np.float32)
        bias = self._rng.normal(0, 0.1, outputs).astype(np.float32)
        pad = (kernel // 2,) * 4
        macs, counted = size * size * outputs * taps, kernel == 3 and inputs >= 16
        self.layers.append(Layer(name, macs, counted, inputs, outputs, size, stride, kernel))
        return self._b.call(
            "nn.conv2d", x, self._b.const(weight), self._b.const(bias), name=name,
            strides=(stride, stride), padding=pad, origins=[name],
        )  # fmt: skip


def run(chosen: Sequence[str] = ()) -> bool:
    """Count, print rows, and tell whether all pass.

    Args:
        chosen: of TARGETS; empty: all.

    Raises:
        UnsupportedError: the emulator or the linker is not installed; says how to install it.
        MachineError: a program fails.
    """
    import compiler
    import quantize
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from compiler.runtime.machines.instruction_counts import instruction_counts

    beside, network = cmsis_nn.folder(), ResNet8()
    module = quantize.quantize(network.module, network.inputs(8))
    (x,) = network.inputs(1, seed=2)
    macs = sum(layer.macs for layer in network.layers)
    passed = True
    for cpu in chosen or TARGETS:
        target, most, most_3x3 = TARGETS[cpu]
        exe = compiler.build(module, target=target)
        counts = instruction_counts(exe, x)
        if not np.array_equal(counts.outputs[0], compiler.evaluate(module, x)):
            raise AssertionError(f"{cpu} computes other results than the interpreter")
        rest = counts.instructions
        for layer in network.layers:
            mine = [k for k in counts.kernels if layer.name in k.nodes.replace(",", " ").split()]
            n = sum(k.instructions for k in mine)
            rest -= n
            limit = most_3x3 if layer.counted else None
            row = Row(
                f"{cpu} {layer.name}: {layer.macs:,} MACs", n / layer.macs, "instr/MAC", most=limit
            )
            click.echo(str(row))
            passed &= row.passed
        click.echo(f"  {cpu} between layers: {rest:,} instructions")
        row = Row(
            f"{cpu} ResNet-8, {macs:,} MACs", counts.instructions / macs, "instr/MAC", most=most
        )
        assert isinstance(exe, ElsewhereExecutable)
        weights = sum(a.nbytes for a in exe.program.constants)
        arena = exe.program.workspace.constant()
        click.echo(
            f"{row}\n  flash {counts.code + weights:,} bytes (weights {weights:,}), RAM {arena:,}"
            f" (stack {counts.stack:,} besides)"
        )
        passed &= row.passed
        theirs = 0, 0
        of_theirs = () if beside is None else cmsis_nn.counted(beside, exe.target, network.layers)
        for layer, n in of_theirs:
            click.echo(str(Row(f"{cpu} {layer.name} by CMSIS-NN", n / layer.macs, "instr/MAC")))
            theirs = theirs[0] + n, theirs[1] + layer.macs
        if beside is not None:
            all_of_them = f"{cpu} convolutions by CMSIS-NN"
            click.echo(str(Row(all_of_them, theirs[0] / theirs[1], "instr/MAC")))
    return passed
