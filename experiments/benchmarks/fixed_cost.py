"""What quantizing takes before there is much data: ResNet-18 by the default scheme, two images.

Ours runs in processes of its own, with an empty object cache and with a filled one; what is timed
is `quantize.quantize`, from an imported network to an integer graph, bias correction included. The
baseline is onnxruntime's `quantize_static` on the same images, by percentiles, without correction.
`python -m experiments.benchmarks.fixed_cost MODEL` is one such process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from compiler.codegen import cache
from experiments.benchmarks import peer, resnet18
from experiments.benchmarks.report import Row

LIMIT = 2.0
"""Seconds, whatever is in the cache."""
IMAGES = 2


def run(rounds: int) -> bool:
    """Measure, print rows, and tell whether all pass.

    Raises:
        DtypelabError: onnxruntime is not installed.
    """
    peer.onnxruntime()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        model = resnet18.write(folder / "resnet18.onnx")
        seconds(model, folder / "unmeasured")  # what follows finds its files in memory
        cold, warm, theirs = [], [], []
        for k in range(min(rounds, 5)):
            cold.append(seconds(model, folder / f"objects{k}"))
            warm.append(seconds(model, folder / f"objects{k}"))
            theirs.append(_peer(model, folder / "theirs.onnx"))
    baseline = statistics.median(theirs)
    click.echo(f"quantizing resnet18 with {IMAGES} images; quantize_static takes {baseline:.2f} s")
    passed = True
    for title, taken in (("empty cache", cold), ("filled cache", warm)):
        row = Row(f"resnet18, {IMAGES} images, {title}", statistics.median(taken), "s", most=LIMIT)
        click.echo(str(row))
        passed &= row.passed
    return passed


def seconds(model: Path, objects: Path) -> float:
    """What one process takes that keeps its objects in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(model)],
        env={**os.environ, cache.VARIABLE: str(objects)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout)["seconds"])


def main(model: Path) -> float:
    """Seconds that quantizing takes in this process, with what it imports."""
    import compiler
    import quantize

    module = compiler.from_onnx(model)
    start = time.perf_counter()
    quantize.quantize(module, images())
    return time.perf_counter() - start


def images() -> list[NDArray[Any]]:
    """Batches of one image."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal(resnet18.SHAPE).astype(np.float32) for _ in range(IMAGES)]


def _peer(model: Path, out: Path) -> float:
    with peer.preprocessed(model, resnet18.SHAPE) as file:
        start = time.perf_counter()
        peer.quantize(file, out, images(), "Percentile")
        return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps({"seconds": main(Path(sys.argv[1]))}))
