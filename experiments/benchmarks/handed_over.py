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
NOISE = 0.98
"""Least ratio of the time of ours, and of oneDNN's, to that of the mixed program."""
FLOAT_SQNR_DB = 80.0
"""Least signal-to-noise ratio of float32 results, against ours."""
SLACK_DB = 1.0
"""How much less int8 results may have against float32 than ours have. Against ours there is no
bound: in BERT, one step in the first layer is as far away in the last as quantization itself."""


@dataclass(frozen=True)
class Row:
    """A network in one dtype: what the mixed program gains.

    Attributes:
        title: network, dtype and threads.
        over: name of the other program -> how much quicker the mixed one is.
        sqnr_db: name of a program -> signal-to-noise ratio of its results: in float32 against ours,
            in int8 against our float32.
        least_db: what that must be.
    """

    title: str
    over: Mapping[str, Speedup]
    sqnr_db: Mapping[str, float]
    least_db: float

    @property
    def problem(self) -> str:
        """What is wrong; or ''."""
        far = [f"{n} has {v:.1f} dB" for n, v in self.sqnr_db.items() if not v >= self.least_db]
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
        for title, mod, feed, exact in _subjects(name, whole, given):
            for count in sorted(threads):
                row = _measured(f"{title}, {_threads(count)}", mod, feed, exact, count, quick)
                click.echo(f"{row}\n")
                rows.append(row)
    click.echo("\n".join(["summary (their time / that of the mixed program)", *map(str, rows)]))
    failed = [r for r in rows if r.problem]
    click.echo(f"{len(rows)} rows, {len(failed)} FAIL")
    return not failed


def _subjects(
    name: str, whole: bool, given: Mapping[str, Path]
) -> Iterator[tuple[str, IRModule, dict[str, Array], Array | None]]:
    """Title, module and input of a network in each dtype; in int8 also what float32 gives."""
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
    yield f"{title} float32", module, feed, None
    exact = _first(compiler.build(module)(**feed))
    plan = quantize.calibrate(module, calibration)
    yield f"{title} int8", quantize.realize(module, plan), feed, exact


def _measured(
    title: str,
    mod: IRModule,
    feed: Mapping[str, Array],
    exact: Array | None,
    threads: int,
    quick: bool,
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
        apart = f"{metrics.sqnr_db(y, want):.1f} dB, {metrics.farthest(y, want):.3g} at most"
        click.echo(f"  {n} from ours: {apart}")
    handed = {n: len(exes[n].regions) for n in (ENGINE, "mixed")}
    click.echo("  regions: " + ", ".join(f"{n} {k}" for n, k in handed.items()))
    if exact is None:
        return Row(
            title, over, {n: metrics.sqnr_db(y, want) for n, y in results.items()}, FLOAT_SQNR_DB
        )
    ours = metrics.sqnr_db(want, exact)
    sqnr = {n: metrics.sqnr_db(y, exact) for n, y in results.items()}
    shown = ", ".join(f"{n} {v:.1f}" for n, v in {"ours": ours, **sqnr}.items())
    click.echo(f"  dB from float32: {shown}")
    return Row(title, over, sqnr, ours - SLACK_DB)


def _first(y: Any) -> Array:
    return np.asarray(y[0] if isinstance(y, list) else y)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
