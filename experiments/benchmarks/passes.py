"""Graph passes: ResNet-50 from the file to a build with an empty object cache, in a process of its
own, and seconds of every pass on 500 and 5000 bindings. Prints PASS or FAIL a row."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import numpy as np

import compiler
from compiler import transform
from compiler.codegen import cache
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from experiments.benchmarks import models
from experiments.benchmarks.turns import Effort

MODEL = "resnet50"
COLD_SECONDS = 3.5
SIZES = (500, 5000)
MOST_RATIO = 15.0


def run(effort: Effort, given: Mapping[str, Path]) -> bool:
    """Measure, print, and tell whether all rows pass.

    Raises:
        DtypelabError: a model file is missing.
    """
    passed = _cold(effort, given)
    small, large = map(network, SIZES)
    click.echo(f"  passes on {SIZES[0]} and {SIZES[1]} bindings of residual blocks, milliseconds")
    for name, act in actions().items():
        first, second = (seconds(act, mod, effort.rounds) for mod in (small, large))
        ratio = second / first
        passed &= ratio <= MOST_RATIO
        verdict = "PASS" if ratio <= MOST_RATIO else "FAIL"
        click.echo(f"  {verdict}  {name:<28} {first * 1e3:8.2f} {second * 1e3:9.2f}  x{ratio:.1f}")
    return passed


def actions() -> dict[str, Callable[[IRModule], object]]:
    """Passes by name, and what else goes through whole programs."""
    passes: list[Callable[[], transform.Pass]] = [
        transform.InferType, transform.SimplifyInference, transform.FoldConstant,
        transform.FoldBatchNorm, transform.DeadCodeElimination, transform.CanonicalizeOps,
        transform.FoldScaleAxis, transform.EliminateCommonSubexpr, transform.CombineParallelConv2D,
        transform.CombineParallelDense, transform.CombineParallelBatchMatmul,
        transform.CombineSlices, transform.Inline, transform.LambdaLift, transform.AlterOpLayout,
        transform.SplitTransposed, transform.FuseOps,
    ]  # fmt: skip
    made: dict[str, Callable[[IRModule], object]] = {p.name: p for p in (make() for make in passes)}
    return made | {"verify": compiler.verify, "astext": IRModule.astext}


def network(n: int) -> IRModule:
    """Residual blocks of convolution, batch norm, activation and addition, `n` bindings."""
    b = FunctionBuilder()
    y = b.param("x", (1, 16, 8, 8))
    weight = b.const(np.full((16, 16, 1, 1), 0.25, np.float32))
    statistics_ = [b.const(np.ones(16, np.float32)) for _ in range(4)]
    for _ in range(n // 4):
        x = y
        y = b.call("nn.batch_norm", b.call("nn.conv2d", y, weight), *statistics_)
        y = b.call("add", b.call("nn.relu", y), x)
    return IRModule({"main": b.finish(y)})


def seconds(act: Callable[[IRModule], object], mod: IRModule, rounds: int) -> float:
    """The median of some runs, without garbage collection."""
    act(mod)
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            begin = time.perf_counter()
            act(mod)
            times.append(time.perf_counter() - begin)
    finally:
        gc.enable()
    return statistics.median(times)


def _cold(effort: Effort, given: Mapping[str, Path]) -> bool:
    path = models.locate(MODEL, given)
    if path is None:
        click.echo(f"{MODEL}: not available ({models.MODELS[MODEL].hint})\n")
        return True
    code = (
        "import sys, time; begin = time.perf_counter(); import compiler;"
        "compiler.build(compiler.from_onnx(sys.argv[1])); print(time.perf_counter() - begin)"
    )
    taken = []
    for _ in range(min(effort.rounds, 5)):
        with tempfile.TemporaryDirectory() as objects:
            done = subprocess.run(
                [sys.executable, "-c", code, str(path)],
                env={**os.environ, cache.VARIABLE: objects},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        taken.append(float(done.stdout))
    median = statistics.median(taken)
    verdict = "PASS" if median <= COLD_SECONDS else "FAIL"
    title = f"{MODEL} float32: import, optimize and build, empty cache"
    click.echo(f"  {verdict}  {title:<58} {median:7.2f} s    at most {COLD_SECONDS:.2f}")
    return median <= COLD_SECONDS
