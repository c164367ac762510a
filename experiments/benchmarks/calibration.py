"""Calibration against onnxruntime's: the same network, method and batches, on all processors.

What is timed on our side is `quantize.quantize` without bias correction, which they have not: from
an imported network to an integer graph. On theirs it is `quantize_static`: from a preprocessed file
to a quantized one.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from experiments.benchmarks import models, peer
from experiments.benchmarks.report import Row

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

METHODS: Mapping[str, str] = {"minmax": "MinMax", "percentile": "Percentile", "kl": "Entropy"}
"""Our calibrators, and what onnxruntime calls them."""
LEAST_RATIO = 2.0
"""How many times as long as ours theirs must take."""
NETWORKS = ("mnist_resnet8", "efficientnet_lite0", "pp_ocrv4_rec")
MEMORY_SHARE = 0.5
"""Of this machine's memory, what onnxruntime's calibration may fill."""


@dataclass(frozen=True)
class Times:
    """Median seconds of a method, ours and onnxruntime's."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Theirs over ours."""
        return self.theirs / self.ours


def run(rounds: int, given: Mapping[str, Path]) -> bool:
    """Time every method on the networks at hand, print rows, and tell whether all pass.

    Raises:
        DtypelabError: a file is missing, or onnxruntime is not installed.
    """
    import compiler

    passed = True
    for name in NETWORKS:
        path = models.locate(name, given)
        if path is None:
            click.echo(f"{name}: not available ({models.MODELS[name].hint})\n")
            continue
        model = models.MODELS[name]
        module = compiler.from_onnx(path, shapes={models.input_name(path): model.shape})
        click.echo(f"calibration of {name}, onnxruntime's time over ours")
        for row in rows(name, times(module, path, model.calibration(), rounds)):
            click.echo(str(row))
            passed &= row.passed
    return passed


def rows(name: str, found: Mapping[str, Times]) -> list[Row]:
    """A line per method, with the target."""
    return [
        Row(f"{name} {method}: {t.ours:.3f} s, {t.theirs:.3f} s", t.ratio, "x", least=LEAST_RATIO)
        for method, t in found.items()
    ]


def times(
    module: IRModule,
    path: Path,
    batches: Sequence[NDArray[Any]],
    rounds: int,
    methods: Sequence[str] = tuple(METHODS),
) -> dict[str, Times]:
    """Method -> times, the medians of `rounds` in which each has a turn, after a round of ours that
    compiles what the others need: kernels are kept on disk, for every network on this machine.

    Both see only as many of the batches as onnxruntime can hold, see `held`.

    Args:
        module: the float32 network in the file at `path`.
        batches: its only input, batch by batch.
    """
    import quantize

    peer.onnxruntime()
    batches = batches[: held(module, batches)]
    with tempfile.TemporaryDirectory() as work, peer.preprocessed(path, batches[0].shape) as file:
        found = {}
        for method in methods:
            config = quantize.QConfig(calibrate=method, bias_correction="none")

            def ours(config: quantize.QConfig = config) -> object:
                return quantize.quantize(module, batches, config)

            def theirs(method: str = METHODS[method]) -> None:
                peer.quantize(file, Path(work) / "quantized.onnx", batches, method)

            ours()
            taken = [(_seconds(ours), _seconds(theirs)) for _ in range(rounds)]
            found[method] = Times(*map(float, np.median(taken, axis=0)))
    return found


def held(module: IRModule, batches: Sequence[NDArray[Any]]) -> int:
    """How many of the batches onnxruntime can calibrate on here, at least 1: it keeps every value
    of the network for all of them at once, and copies the values when it counts them.

    Args:
        module: the float32 network; dimensions of no fixed size count as those of a batch.
    """
    from compiler.transform.preparation import prepare
    from compiler.types.tensor_types import TensorType

    rows = len(batches[0])
    shapes = [
        b.var.type.shape
        for b in prepare(module).main.bindings
        if isinstance(b.var.type, TensorType)
    ]
    values = sum(math.prod(d if isinstance(d, int) else rows for d in shape) for shape in shapes)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = max(2 * np.dtype(np.float32).itemsize * values, 1)
    return min(len(batches), max(1, int(MEMORY_SHARE * memory) // each))


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
