"""A network of unknown image width against builds for one width each, in float32 and int8. Prints
PASS or FAIL a row: the time of the one over that of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np

import compiler
import quantize
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from experiments.benchmarks import models
from experiments.benchmarks.report import Row
from experiments.benchmarks.turns import Effort
from experiments.measure.disturbance import pinned
from experiments.measure.latency import measure_interleaved

MODEL = "pp_ocrv4_rec"
WIDTHS = (96, 320, 640)
MOST_RATIO = 1.3


def run(counts: Sequence[int], effort: Effort, given: Mapping[str, Path]) -> bool:
    """Measure, print, and tell whether all rows pass.

    Raises:
        DtypelabError: a model file is missing, or an import, quantization or build failed.
    """
    path = models.locate(MODEL, given)
    if path is None:
        click.echo(f"{MODEL}: not available ({models.MODELS[MODEL].hint})\n")
        return True
    name = models.input_name(path)
    symbolic = compiler.from_onnx(path, shapes={name: (1, 3, 48, "w")})
    plan = quantize.calibrate(symbolic, [images(w, seed=1) for w in WIDTHS])
    passed = True
    for number_system in ("float32", "int8"):
        for threads in counts:
            any_width = _build(symbolic, plan, number_system, threads)
            for w in WIDTHS:
                fixed = compiler.from_onnx(path, shapes={name: (1, 3, 48, w)})
                row = Row(
                    f"{number_system}, {threads} thread(s), width {w}: any / this width",
                    _ratio(any_width, _build(fixed, plan, number_system, threads), w, effort),
                    "x",
                    most=MOST_RATIO,
                )
                click.echo(str(row))
                passed &= row.passed
    return passed


def images(width: int, seed: int) -> Array:
    """A line of text of this width."""
    return models.strokes((1, 3, 48, width), np.random.default_rng(seed))


def _build(
    mod: IRModule, plan: quantize.Plan, number_system: str, threads: int
) -> compiler.Executable:
    wanted = quantize.realize(mod, plan) if number_system == "int8" else mod
    return compiler.build(wanted, threads=threads)


def _ratio(a: compiler.Executable, b: compiler.Executable, width: int, effort: Effort) -> float:
    """Median time of `a` over that of `b`."""
    x = images(width, seed=2)
    calls = [lambda: a(x), lambda: b(x)]
    with pinned(a.threads):
        first, second = measure_interleaved(calls, warmup=3, runs=effort.runs)
    return first.median / second.median
