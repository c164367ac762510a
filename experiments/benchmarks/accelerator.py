"""A simulated accelerator: how busy the convolutions of ResNet-50 keep its multipliers, and how
many products it simulates a second.

The core multiplies a vector of 16 by a block of 16 x 16 a cycle, from buffers of 32 KiB (data),
256 KiB (weights) and 128 KiB (accumulators), and moves 16 bytes a cycle. Beside each layer stands
what its bytes bound: the utilization that a bus that never waits would allow, every byte moved
once.
"""

from __future__ import annotations

import time

import click
import numpy as np

from compiler.codegen.accel.convolution import Finish
from compiler.runtime.accel.choosing import best_tile
from compiler.runtime.accel.layer import Layer, Weights
from compiler.scheduling.accelerator_tiles import Convolution
from compiler.target.accelerator import Design
from experiments.benchmarks.report import Row

DESIGN = "accel -block=16 -input=32K -weight=256K -acc=128K -bandwidth=16"
LEAST = 0.85
"""Least utilization of a convolution of 3 x 3."""
SIMULATED = 1e7
"""Least products a second."""
LAYERS = (
    (64, 64, 56, 3, 1), (128, 128, 56, 3, 2), (128, 128, 28, 3, 1), (256, 256, 28, 3, 2),
    (256, 256, 14, 3, 1), (512, 512, 14, 3, 2), (512, 512, 7, 3, 1),
    (64, 256, 56, 1, 1), (256, 64, 56, 1, 1), (256, 128, 56, 1, 1), (512, 128, 28, 1, 1),
    (1024, 256, 14, 1, 1), (256, 1024, 14, 1, 1), (2048, 512, 7, 1, 1), (512, 2048, 7, 1, 1),
)  # fmt: skip
"""Channels of the data and of the results, size of the data, kernel, stride."""


def run() -> bool:
    """Print all layers, and the speed of the simulator; whether all bounds are kept."""
    design = Design.parse(DESIGN)
    click.echo(f"convolutions of ResNet-50 on {design}: utilization of the multipliers")
    passed = True
    for ins, outs, size, kernel, stride in LAYERS:
        c = shape(design, ins, outs, size, kernel, stride)
        tile, report = best_tile(c, design)
        title = f"{ins} to {outs}, {kernel} x {kernel} / {stride}, {size} x {size}"
        row = Row(title, report.utilization, "", least=LEAST if kernel == 3 else None)
        moved = report.loaded + report.stored
        bound = min(1.0, c.steps / (least_bytes(c, design) / design.bandwidth))
        share = moved / (report.cycles * design.bandwidth)
        click.echo(f"{row}  bus {100 * share:3.0f} %, bounds {bound:.3f}; {tile}")
        passed &= row.passed
    speed = Row("simulated products a second", simulated(design) / 1e6, "M", least=SIMULATED / 1e6)
    click.echo(str(speed))
    return passed and speed.passed


def shape(design: Design, ins: int, outs: int, size: int, kernel: int, stride: int) -> Convolution:
    """A convolution of ResNet-50, padded so that stride 1 keeps the size."""
    edge, block = kernel // 2, design.block
    return Convolution(
        -(-ins // block), -(-outs // block), size, size, (kernel, kernel), (stride, stride),
        (edge, edge, edge, edge),
    )  # fmt: skip


def least_bytes(c: Convolution, design: Design) -> int:
    """Bytes of data, weights, parameters and results, each moved once."""
    tall, wide = c.out_size
    data = c.ins * c.height * c.width + c.outs * tall * wide
    weights = c.outs * c.summed * c.taps
    parameters = 2 * c.outs * design.acc_bytes
    return data * design.input_bytes + weights * design.weight_bytes + parameters


def simulated(design: Design) -> float:
    """Products a second of a whole layer: packed, run, unpacked; the best of three."""
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (128, 128, 3, 3)).astype(np.int8)
    parameters = np.zeros(128, np.int32), np.full(128, 1e-4, np.float32)
    layer = Layer(Weights("y", w, parameters, Finish(), padding=(1, 1, 1, 1)), design)
    x = rng.integers(0, 256, (1, 128, 28, 28)).astype(np.uint8)
    layer(x)
    found = []
    for _ in range(3):
        start = time.perf_counter()
        layer(x)
        found.append(w.size * 28 * 28 / (time.perf_counter() - start))
    return max(found)
