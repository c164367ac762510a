"""Networks with all that oneDNN computes handed to it, beside ours alone, and mixed as measured
costs say: times in turns, ratios with intervals, and how far results are from ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from experiments.benchmarks import models, transformers
from experiments.measure import metrics
from experiments.measure.disturbance import pinned
from experiments.measure.speedup import Protocol, Speedup, measure_speedup

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

Array = NDArray[Any]
ENGINE = "onednn"
NETWORKS = ("resnet50", "bert")
FLOAT, INT8 = "float32", "int8"
NOISE = 0.98
"""Least ratio of the time of ours, and of oneDNN's, to that of the mixed program."""
FLOAT_SQNR_DB, INT8_SQNR_DB = 80.0, 40.0
"""Least signal-to-noise ratios of results, against ours of the same dtype."""


@dataclass(frozen=True)
class Row:
    """A network in one dtype: what the mixed program gains.

    Attributes:
        title: network, dtype and threads.
        over: name of the other program -> how much quicker the mixed one is.
        sqnr_db: name of a program -> of its results against ours.
    """

    title: str
    over: Mapping[str, Speedup]
    sqnr_db: Mapping[str, float]

    @property
    def problem(self) -> str:
        """What is wrong; or ''."""
        least = FLOAT_SQNR_DB if f" {FLOAT}," in self.title else INT8_SQNR_DB
        far = [f"{n} has {v:.1f} dB" for n, v in self.sqnr_db.items() if not v >= least]
        slow = [f"slower than {n}" for n, s in self.over.items() if not s.ratio >= NOISE]
        return "; ".join([*far, *slow])

    def __str__(self) -> str:
        ratios = ", ".join(f"{n} / mixed {_ratio(s)}" for n, s in self.over.items())
        verdict = "FAIL" if self.problem else "PASS"
        return f"  {verdict}  {self.title:<28} {ratios}  {self.problem}".rstrip()


def _ratio(s: Speedup) -> str:
    between = "" if s.low is None else f" [{s.low:.2f}, {s.high:.2f}]"
    noise = f" ({', '.join(s.noise)})" if s.noise else ""
    return f"{s.ratio:.2f}{between}{noise}"


def run(
    names: Sequence[str],
    threads: Sequence[int],
    quick: bool,
    whole: bool,
    given: Mapping[str, Path],
) -> bool:
    """Measure the named networks (all without names), print tables, and tell whether all rows pass.
    `whole`: BERT-base with all its layers.

    Raises:
        DtypelabError: oneDNN is not installed, or a file is missing.
    """
    from compiler.engines.engine import usable_engine

    usable_engine(ENGINE)
    rows = []
    for name in names or NETWORKS:
        for title, dtype, mod, feed in _subjects(name, whole, given):
            for count in sorted(threads):
                rows.append(
                    _measured(f"{title} {dtype}, {_threads(count)}", mod, feed, count, quick)
                )
                click.echo(f"{rows[-1]}\n")
    click.echo("\n".join(["summary (their time / that of the mixed program)", *map(str, rows)]))
    failed = [r for r in rows if r.problem]
    click.echo(f"{len(rows)} rows, {len(failed)} FAIL")
    return not failed


def _subjects(
    name: str, whole: bool, given: Mapping[str, Path]
) -> Iterator[tuple[str, str, IRModule, dict[str, Array]]]:
    """Title, dtype, module and input of a network in each dtype."""
    import compiler
    import quantize

    if name in transformers.NETWORKS:
        network = transformers.NETWORKS[name]
        layers = network.layers if whole else network.few
        calibration = [dict(x) for x in network.feeds(transformers.CALIBRATION_INPUTS, seed=1)]
        module = compiler.from_onnx(network.write(layers, calibration[0]))
        title, feed = f"{name} {layers} layers", dict(network.feeds(1, seed=2)[0])
    else:
        model = models.MODELS[name]
        path = models.locate(name, given)
        if path is None:
            click.echo(f"{name}: not available ({model.hint})\n")
            return
        entry = models.input_name(path)
        module = compiler.from_onnx(path, shapes={entry: model.shape})
        calibration = [{entry: x} for x in model.calibration()]
        title, feed = name, {entry: model.evaluation()[0]}
    yield title, FLOAT, module, feed
    plan = quantize.calibrate(module, calibration)
    yield title, INT8, quantize.realize(module, plan), feed


def _measured(
    title: str, mod: IRModule, feed: Mapping[str, Array], threads: int, quick: bool
) -> Row:
    import compiler

    with pinned(threads):
        exes = {
            "ours": compiler.build(mod, threads=threads),
            ENGINE: compiler.build(mod, threads=threads, engines=[ENGINE]),
            "mixed": compiler.build(mod, threads=threads, engines=[ENGINE], costs="measured"),
        }
        results = {n: _first(exe(**feed)) for n, exe in exes.items()}
        want = results.pop("ours")
        sqnr = {n: metrics.sqnr_db(y, want) for n, y in results.items()}
        click.echo(title)
        for d in exes["mixed"].decisions:
            click.echo(f"  {d}")
        protocol = Protocol(2, 6, 0.01, 1.0 if quick else 8.0)
        calls = {n: partial(exe, **feed) for n, exe in exes.items()}
        over = {
            n: measure_speedup(calls["mixed"], calls[n], protocol, threads=threads)
            for n in ("ours", ENGINE)
        }
    for n, s in over.items():
        theirs, mixed = s.latency.median * s.ratio, s.latency.median
        click.echo(f"  in turns: {n} {theirs:.3f} ms, mixed {mixed:.3f} ms")
    for n, y in results.items():
        click.echo(f"  {n:<8}{sqnr[n]:9.1f} dB from ours, {metrics.farthest(y, want):.3g} at most")
    handed = {n: len(exes[n].regions) for n in (ENGINE, "mixed")}
    click.echo("  regions: " + ", ".join(f"{n} {k}" for n, k in handed.items()))
    return Row(title, over, sqnr)


def _first(y: Any) -> Array:
    return np.asarray(y[0] if isinstance(y, list) else y)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
