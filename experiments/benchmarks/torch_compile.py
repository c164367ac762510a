"""torch.compile with our backend beside torch itself: eager, and inductor with frozen weights, as
ours are. And a module imported without a detour beside the same through an ONNX file.

Weights are random: what is compared is time, and that results are torch's. One image, sentence or
sequence a call, in float32; int8 as `int8_channel` calibrates it on the first call, which compiles.
Of recurrent layers torch makes no graph, whatever the backend: there, only imports tell anything.
"""

from __future__ import annotations

import io
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from experiments.benchmarks import torch_bert
from experiments.benchmarks.networks import FLOAT_SQNR_DB, Row
from experiments.benchmarks.torch_networks import NETWORKS, network_of
from experiments.benchmarks.turns import Contender, Effort, always, medians
from experiments.measure import metrics
from experiments.measure.disturbance import pinned

Array = NDArray[Any]
Module = Any

EAGER, INDUCTOR, OURS, INT8 = "torch eager", "torch inductor", "dtypelab", "dtypelab int8"
IMPORTED, BY_FILE = "imported from torch", "through ONNX"
LEAST = {(OURS, INDUCTOR): 1.0, (INT8, EAGER): 2.97}
"""Least geometric mean, over all networks, of the time of the second to that of the first. (2.97 is
what torch's own int8 backend for x86 reports over eager float32.)"""
SAME = 0.97
"""Least ratio of the time through a file to that without one."""


def run(names: Sequence[str], threads: Sequence[int], effort: Effort) -> bool:
    """Measure, print rows, and tell whether all pass; geometric means have targets where no
    networks are named, so that all are measured.

    Raises:
        UnsupportedError: torch or torchvision is not installed.
    """
    passed = True
    for count in sorted(threads):
        ratios: dict[tuple[str, str], list[float]] = {pair: [] for pair in LEAST}
        for name in names or NETWORKS:
            times, rows = _measured(name, count, effort)
            for fast, slow in LEAST:
                ratio = times[slow] / times[fast]
                ratios[fast, slow].append(ratio)
                rows.append(Row(f"{name}: {fast} vs {slow}, {count} threads", ratio, None))
            click.echo("\n".join(map(str, rows)) + "\n")
            passed &= all(row.passed for row in rows)
        for (fast, slow), found in ratios.items():
            mean = math.exp(float(np.mean(np.log(found))))
            target = None if names else LEAST[fast, slow]
            row = Row(f"geometric mean of {len(found)}: {fast} vs {slow}", mean, target)
            click.echo(str(row))
            passed &= row.passed
    return passed


def _measured(name: str, threads: int, effort: Effort) -> tuple[dict[str, float], list[Row]]:
    import compiler
    from experiments.torch_backend import dtypelab

    torch: Any = torch_bert.needed()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch._dynamo.reset()
    network, x = network_of(torch, name)
    given = x.numpy()
    compiled: dict[str, Callable[[Any], Any]] = {
        EAGER: network,
        INDUCTOR: torch.compile(network, options={"freezing": True}),
        OURS: torch.compile(network, backend=dtypelab),
        INT8: torch.compile(network, backend=dtypelab, options={"scheme": "int8_channel"}),
    }
    programs = {
        IMPORTED: compiler.build(compiler.from_torch(network, (x,)), threads=threads),
        BY_FILE: compiler.build(compiler.from_onnx(onnx_of(torch, network, x)), threads=threads),
    }
    click.echo(f"{name}, torch {torch.__version__}, {threads} thread{'s' * (threads > 1)}")
    with pinned(threads), torch.inference_mode():
        found, first = {}, {}
        for k, f in compiled.items():
            start = time.perf_counter()
            found[k] = np.asarray(f(x).numpy())
            first[k] = f"   first call {time.perf_counter() - start:6.1f} s"
        found |= {k: np.asarray(run(given)) for k, run in programs.items()}
        contenders: dict[str, Contender] = {k: always(_call(f, x)) for k, f in compiled.items()}
        contenders |= {k: always(_call(run, given)) for k, run in programs.items()}
        times = medians(contenders, effort)
    for k, value in times.items():
        click.echo(f"  {k:<26} {value:9.3f} ms{first.get(k, '')}")
    noise = min(metrics.sqnr_db(found[k], found[EAGER]) for k in (OURS, IMPORTED, BY_FILE))
    wrong = "" if noise >= FLOAT_SQNR_DB else f"differs from torch: {noise:.1f} dB"
    ratio = times[BY_FILE] / times[IMPORTED]
    return times, [Row(f"{name}: {IMPORTED} vs {BY_FILE}", ratio, SAME, wrong)]


def _call(f: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    return lambda: f(x)


def onnx_of(torch: Any, network: Module, x: Any) -> bytes:
    """The ONNX file that torch writes of a network."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (x,), file, dynamo=False)
    return file.getvalue()
