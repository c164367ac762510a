"""Programs in C for any compiler: how long the system's compiler takes at -O2, and how long the
program takes beside our LLVM code for a CPU of which it knows nothing either (`-mcpu=generic`): the
same loops, without instructions of their own. ResNet-8, in float32 and int8, one digit a call.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import click
import numpy as np

from compiler.codegen.c import system_compiler
from experiments.benchmarks.networks import Row as Ratio
from experiments.benchmarks.report import Row
from experiments.benchmarks.turns import Effort, always, medians
from experiments.data import datasets
from experiments.measure.disturbance import pinned
from experiments.zoo import model_files

MODEL = "mnist_resnet8"
LONGEST = 10.0
"""Seconds of a processor that the C compiler takes."""
LEAST = 1 / 1.5
"""Least ratio of LLVM's time to that of C."""


def run(effort: Effort) -> bool:
    """Measure, print rows, and tell whether all pass.

    Raises:
        LoweringError: there is no C compiler.
    """
    import compiler
    import quantize

    path = model_files.model_file(MODEL)
    plain = model_files.load_model(path)
    data = datasets.load("mnist1k").for_model(path)
    x = np.asarray(data.x[:1], np.float32)
    integers = quantize.quantize(plain, [np.asarray(data.calibration[:32], np.float32)])
    passed = True
    for name, module in (("float32", plain), ("int8", integers)):
        with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
            done = compiler.export(module, "c", Path(folder, "c"), forms=["source", "shared"])
            source = (done.folder / "net.c").read_text()
            exported = compiler.load(done.library)
        ours = compiler.build(module, target="llvm -mcpu=generic")
        start = os.times()
        system_compiler.shared_library(source)
        taken = sum(os.times()[2:4]) - sum(start[2:4])
        same = np.array_equal(exported(x), ours(x))
        runs = {"c": exported, "llvm": ours}
        calls = {kind: always(partial(run, x)) for kind, run in runs.items()}
        with pinned(1):
            times = medians(calls, effort)
        kib = len(source) / 1024
        row = Row(f"{MODEL} {name}: {kib:,.0f} KiB of C compiled", taken, "s", most=LONGEST)
        problem = "" if same else "its results are others than LLVM's"
        ratio = Ratio(
            f"{MODEL} {name}: C ({times['c']:.3f} ms) vs LLVM generic", times["llvm"] / times["c"],
            LEAST, problem,
        )  # fmt: skip
        click.echo(f"{row}\n{ratio}")
        passed &= row.passed and ratio.passed
    return passed
