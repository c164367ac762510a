"""Transformers, float32 and int8, against onnxruntime: its float32, and the better of its dynamic
and static int8. Ratios of medians, PASS or FAIL.

Weights are random and layers few (`--layers` takes the depth of the originals): what is compared is
time, beside that of all multiply-adds at the core's peak, and that results agree with onnxruntime's
float32 as well as its own int8 does, less a slack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError
from compiler.target.registry import Target
from experiments.benchmarks import models, peer, transformer_graphs
from experiments.benchmarks.networks import FLOAT_SQNR_DB, Row
from experiments.benchmarks.peak import Peak, peak, peak_float32
from experiments.benchmarks.turns import Contender, Effort, always, medians
from experiments.measure import metrics
from experiments.measure.disturbance import pinned

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule

Array = NDArray[Any]
Feed = Mapping[str, Array]

FLOAT_LEAST, FLOAT_MEAN = 1.05, 1.2
"""Least ratio of onnxruntime's float32 time to ours on each network, and their geometric mean."""
INT8_LEAST, INT8_MEAN = 1.4, 2.0
"""The same of int8, against the better of its dynamic and static int8."""
INT8_GAIN = {"whisper": 2.0}
"""Least ratio of our float32 time to that of our int8."""
OUR_FLOAT, OUR_INT8 = "float32", "int8"
PEER_FLOAT = "onnxruntime float32"
PEER_INT8 = ("onnxruntime dynamic int8", "onnxruntime static int8")
CALIBRATION_INPUTS = 4
SQNR_SLACK_DB = 3.0


@dataclass(frozen=True)
class Transformer:
    """A network: `layers` of the original and of the quick form; `draw` makes inputs, `write` the
    ONNX file of so many layers."""

    name: str
    layers: int
    few: int
    draw: Callable[[np.random.Generator], Feed]
    write: Callable[[int, Feed], bytes]

    def feeds(self, count: int, seed: int) -> list[Feed]:
        """`count` inputs; the same for the same seed."""
        rng = np.random.default_rng(seed)
        return [self.draw(rng) for _ in range(count)]


def _words(tokens: int, most: int) -> Callable[[np.random.Generator], Feed]:
    return lambda rng: {"input_ids": rng.integers(0, most, (1, tokens))}


def _masked(tokens: int, most: int) -> Callable[[np.random.Generator], Feed]:
    """The last eighth of the tokens is padding."""

    def draw(rng: np.random.Generator) -> Feed:
        mask = (np.arange(tokens) < tokens - tokens // 8).astype(np.int64)[None]
        return {**_words(tokens, most)(rng), "attention_mask": mask}

    return draw


def _normal(name: str, *shape: int) -> Callable[[np.random.Generator], Feed]:
    return lambda rng: {name: rng.standard_normal(shape, np.float32)}


NETWORKS: Mapping[str, Transformer] = {
    t.name: t
    for t in (
        Transformer("bert", 12, 2, _masked(128, 2000), transformer_graphs.bert),
        Transformer(
            "vit_b32", 12, 2, _normal("pixel_values", 1, 3, 224, 224), transformer_graphs.vit
        ),
        Transformer(
            "swin_t", 12, 8, _normal("pixel_values", 1, 3, 224, 224), transformer_graphs.swin
        ),
        Transformer("gpt2", 12, 2, _words(64, 2000), transformer_graphs.gpt2),
        Transformer("llama", 12, 2, _words(64, 2000), transformer_graphs.llama),
        Transformer(
            "whisper", 4, 1, _normal("input_features", 1, 80, 3000), transformer_graphs.whisper
        ),
    )
}


def run(names: Sequence[str], threads: Sequence[int], effort: Effort, whole: bool) -> bool:
    """Measure the named networks (all without names), print tables, and tell whether all rows pass.
    `whole`: with all layers of the originals.

    Raises:
        DtypelabError: onnxruntime is not installed.
    """
    peer.onnxruntime()
    rows: list[Row] = []
    ratios: dict[tuple[str, int], list[float]] = {}
    for name in names or NETWORKS:
        network = NETWORKS[name]
        subject = _prepare(network, network.layers if whole else network.few)
        for count in sorted(threads):
            times, problem = _measure(subject, count, effort)
            found = _rows(name, count, times, problem)
            rows += found
            click.echo("\n".join(map(str, found)) + "\n")
            for kind, row in zip((OUR_FLOAT, OUR_INT8), found, strict=False):
                ratios.setdefault((kind, count), []).append(row.ratio)
    for (kind, count), values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        least = FLOAT_MEAN if kind == OUR_FLOAT else INT8_MEAN
        title = f"{kind}, geometric mean of {len(values)}, {_threads(count)}"
        rows.append(Row(title, mean, least if len(values) == len(NETWORKS) else None))
    failed = [row for row in rows if not row.passed]
    click.echo("\n".join(["summary (their time / ours)", *map(str, rows)]))
    click.echo(f"{len(rows)} rows, {len(failed)} FAIL")
    return not failed


@dataclass(frozen=True)
class _Subject:
    """A network ready to measure, inputs to measure it with, and its multiply-adds."""

    title: str
    macs: int
    modules: Mapping[str, IRModule]
    sources: Mapping[str, Any]
    feeds: Sequence[Feed]


def _prepare(network: Transformer, layers: int) -> _Subject:
    import compiler
    import quantize
    from compiler.transform.analysis import cost

    calibration = network.feeds(CALIBRATION_INPUTS, seed=1)
    model = network.write(layers, calibration[0])
    module = compiler.from_onnx(model)
    plan = quantize.calibrate(module, [dict(x) for x in calibration])
    forms = peer.quantized_both(model, calibration, models.folder(), f"{network.name}-{layers}")
    return _Subject(
        f"{network.name}, {layers} of {network.layers} layers",
        cost(module).macs,
        {OUR_FLOAT: module, OUR_INT8: quantize.realize(module, plan)},
        {PEER_FLOAT: model, PEER_INT8[0]: forms["dynamic"], PEER_INT8[1]: forms["static"]},
        network.feeds(2, seed=2),
    )


def _measure(subject: _Subject, threads: int, effort: Effort) -> tuple[dict[str, float], str]:
    """Median milliseconds by contender, after a check of the results; what is wrong with those."""
    import compiler

    ours = {n: compiler.build(m, threads=threads) for n, m in subject.modules.items()}
    click.echo(f"{subject.title}, {_threads(threads)}")
    with pinned(threads):
        problem = _check(subject, ours, threads)
        feed = subject.feeds[0]
        contenders: dict[str, Contender] = {n: always(_bound(e, feed)) for n, e in ours.items()}
        for name, source in subject.sources.items():
            contenders[name] = peer.contender(source, threads, feed)
        peaks = _peaks() if threads == 1 else {}
        times = medians(contenders | {n: always(p.call) for n, p in peaks.items()}, effort)
    for name, value in times.items():
        if name not in peaks:
            click.echo(f"  {name:<26} {value:9.3f} ms")
    for name, top in peaks.items():
        least = subject.macs * 2 / top.operations * times[name]
        click.echo(f"  {_limit(name, top.instruction, least, times)}")
    return times, problem


def _peaks() -> dict[str, Peak]:
    """The most that a core can do for our int8 and float32, by their names; none on a CPU whose
    peak is not known."""
    target = Target.parse("llvm")
    try:
        return {f"peak {OUR_INT8}": peak(target), f"peak {OUR_FLOAT}": peak_float32(target)}
    except UnsupportedError:
        return {}


def _limit(name: str, instruction: str, least: float, times: Mapping[str, float]) -> str:
    """How near two contenders come to `least`, the milliseconds that all multiply-adds take at the
    peak, and the ratio where ours did nothing else, at the peak."""
    ours = name.removeprefix("peak ")
    theirs = PEER_FLOAT if ours == OUR_FLOAT else min(PEER_INT8, key=lambda n: times[n])
    shares = ", ".join(f"{n} {100 * least / times[n]:.0f} %" for n in (ours, theirs))
    most = times[theirs] / least
    return f"of the peak ({instruction}): {shares}; ratio at the peak {most:.2f}"


def _check(subject: _Subject, ours: Mapping[str, Executable], threads: int) -> str:
    """Print the error of every contender against onnxruntime's float32; what is wrong, or ''."""
    results = {n: np.stack([_bound(e, x)() for x in subject.feeds]) for n, e in ours.items()}
    for name, source in subject.sources.items():
        with peer.session(source, threads) as session:
            results[name] = np.stack([session(x) for x in subject.feeds])
    reference = results.pop(PEER_FLOAT)
    sqnr = {name: metrics.sqnr_db(values, reference) for name, values in results.items()}
    click.echo("  SQNR dB: " + ", ".join(f"{name} {value:.1f}" for name, value in sqnr.items()))
    if not sqnr[OUR_FLOAT] >= FLOAT_SQNR_DB:
        return f"float32 differs: {sqnr[OUR_FLOAT]:.1f} dB"
    static = sqnr[PEER_INT8[1]]
    if not sqnr[OUR_INT8] >= static - SQNR_SLACK_DB:
        return f"SQNR {sqnr[OUR_INT8]:.1f} dB, onnxruntime's static int8 has {static:.1f}"
    return ""


def _bound(executable: Executable, feed: Feed) -> Callable[[], Any]:
    return lambda: executable(**feed)


def _rows(name: str, threads: int, times: Mapping[str, float], problem: str) -> list[Row]:
    best = min(PEER_INT8, key=lambda n: times[n])
    ratio = times[PEER_FLOAT] / times[OUR_FLOAT]
    title = f"{name} float32 vs {PEER_FLOAT}, {_threads(threads)}"
    rows = [Row(title, ratio, FLOAT_LEAST, problem)]
    title = f"{name} int8 vs {best}, {_threads(threads)}"
    rows.append(Row(title, times[best] / times[OUR_INT8], INT8_LEAST, problem))
    gain = times[OUR_FLOAT] / times[OUR_INT8]
    title = f"{name} int8 vs our float32, {_threads(threads)}"
    return [*rows, Row(title, gain, INT8_GAIN.get(name), problem)]


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
