"""Whole networks, int8 and float32, against onnxruntime: times, ratios, PASS or FAIL. OpenVINO,
where it is installed, takes part without targets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from experiments.benchmarks import models, openvino, peer, variants
from experiments.benchmarks.turns import Contender, Effort, always, medians
from experiments.measure import metrics
from experiments.measure.disturbance import pinned

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule

Array = NDArray[Any]

OUR_INT8, OUR_FLOAT = "int8", "float32"
PEER_INT8, PEER_FLOAT = "onnxruntime u8s8", "onnxruntime float32"
OPENVINO_INT8, OPENVINO_FLOAT = "openvino u8s8", "openvino float32"
PEERS = (PEER_INT8, PEER_FLOAT, OPENVINO_INT8, OPENVINO_FLOAT)

#: (model, peer) -> least ratio of its time to that of our int8, by number of threads.
TARGETS: Mapping[tuple[str, str], Mapping[int, float]] = {
    ("resnet50", PEER_INT8): {1: 1.20, 2: 1.20},
    ("resnet50", PEER_FLOAT): {1: 3.7, 2: 3.4},
    ("vgg19", PEER_INT8): {1: 1.03, 2: 1.03},
    ("squeezenet", PEER_INT8): {1: 1.3, 2: 1.3},
    ("inception_v2", PEER_INT8): {1: 1.7, 2: 1.7},
    ("shufflenet", PEER_INT8): {1: 3.0, 2: 3.0},
    ("shufflenet", PEER_FLOAT): {1: 1.3, 2: 1.2},
    ("efficientnet_lite0", PEER_INT8): {1: 1.8, 2: 1.6},
    ("pp_ocrv4_rec", PEER_INT8): {1: 1.4, 2: 1.3},
    ("mnist_resnet8", PEER_INT8): {1: 2.0, 2: 2.0},
}
FLOAT_MEAN, FLOAT_LEAST = 1.0, 0.85
"""Least geometric mean of the float32 ratios over all networks, and least single one."""
SQNR_SLACK_DB = 1.0
FLOAT_SQNR_DB = 60.0
"""Our float32 results must agree with onnxruntime's at least this well."""
BUSY = 1.1
"""Where onnxruntime is slower by this on several threads than on one, something else had a core."""


@dataclass(frozen=True)
class Row:
    """One claim: a ratio (their time / ours) and its target, None where none is set."""

    title: str
    ratio: float
    target: float | None
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether the target, if any, is reached and the results are right."""
        return not self.problem and (self.target is None or self.ratio >= self.target)

    def __str__(self) -> str:
        verdict = ("PASS" if self.target is not None else "    ") if self.passed else "FAIL"
        target = "" if self.target is None else f"target {self.target:.2f}"
        problem = f"  {self.problem}" if self.problem else ""
        return f"  {verdict}  {self.title:<58} {self.ratio:6.2f}x  {target:<12}{problem}".rstrip()


@dataclass(frozen=True)
class Network:
    """A model ready to measure: our modules, and the files that onnxruntime runs."""

    model: models.Model
    float_file: Path
    int8_file: Path
    float_module: IRModule
    int8_module: IRModule


def run(
    names: Sequence[str], threads: Sequence[int], effort: Effort, given: Mapping[str, Path]
) -> bool:
    """Measure the named models (all without names), print tables, and tell whether all rows pass.

    Raises:
        DtypelabError: an unknown model, a missing file, or onnxruntime is not installed.
    """
    peer.onnxruntime()
    rows: list[Row] = []
    float_ratios: dict[int, list[float]] = {count: [] for count in threads}
    for name in names or models.MODELS:
        path = models.locate(name, given)
        if path is None:
            click.echo(f"{name}: not available ({models.MODELS[name].hint})\n")
            continue
        network = prepare(models.MODELS[name], path)
        alone: dict[str, float] = {}
        for count in sorted(threads):
            times, problem = measure(network, count, effort)
            problem = problem or disturbance(times, alone)
            if count == 1:
                alone = times
            float_ratios[count].append(times[PEER_FLOAT] / times[OUR_FLOAT])
            found = _rows(name, count, times, problem)
            rows += found
            click.echo("\n".join(map(str, found)) + "\n")
        if name == variants.MODEL and 1 in threads:
            found = _variant_rows(network, effort)
            rows += found
            click.echo("\n".join(map(str, found)) + "\n")
    for count, ratios in float_ratios.items():
        if ratios:
            rows += _float_rows(count, ratios)
    failed = [row for row in rows if not row.passed]
    click.echo("\n".join(["summary (their time / ours)", *map(str, rows)]))
    click.echo(f"{len(rows)} rows, {len(failed)} FAIL")
    return not failed


# ---- one network ---------------------------------------------------------------------------------
def prepare(model: models.Model, path: Path) -> Network:
    """Quantize the model at `path` in both worlds, from the same inputs."""
    import compiler
    import quantize

    module = compiler.from_onnx(path, shapes={models.input_name(path): model.shape})
    calibration = model.calibration()
    plan = quantize.calibrate(module, calibration)
    int8_file = peer.quantized(path, calibration, models.folder())
    return Network(model, path, int8_file, module, quantize.realize(module, plan))


def measure(network: Network, threads: int, effort: Effort) -> tuple[dict[str, float], str]:
    """Median milliseconds by contender, after a check of the results; what is wrong with those."""
    import compiler

    ours = {
        OUR_INT8: compiler.build(network.int8_module, threads=threads),
        OUR_FLOAT: compiler.build(network.float_module, threads=threads),
    }
    files = {PEER_INT8: network.int8_file, PEER_FLOAT: network.float_file}
    shape = "x".join(map(str, network.model.shape))
    click.echo(f"{network.model.name} {shape}, {_threads(threads)}")
    with pinned(threads):
        problem = _check(network.model.evaluation(), ours, files, threads)
        (x,) = network.model.inputs(1, seed=2)
        contenders: dict[str, Contender] = {}
        for (our_name, executable), (name, file) in zip(ours.items(), files.items(), strict=True):
            contenders[our_name] = always(_bound(executable, x))
            contenders[name] = _opened(file, threads, x)
        if openvino.installed():
            given = {models.input_name(network.float_file): x}
            for name, file in (
                (OPENVINO_INT8, network.int8_file), (OPENVINO_FLOAT, network.float_file),
            ):  # fmt: skip
                contenders[name] = _openvino(file, threads, given)
        times = medians(contenders, effort)
    for name, value in times.items():
        click.echo(f"  {name:<22} {value:9.3f} ms")
    return times, problem


def _check(
    inputs: Sequence[Array],
    ours: Mapping[str, Executable],
    files: Mapping[str, Path],
    threads: int,
) -> str:
    """Print the error of every contender against onnxruntime's float32; what is wrong, or ''."""
    results = {name: _outputs(executable, inputs) for name, executable in ours.items()}
    for name, file in files.items():
        with peer.session(file, threads) as session:
            results[name] = _outputs(session, inputs)
    reference = results.pop(PEER_FLOAT)
    sqnr = {name: metrics.sqnr_db(values, reference) for name, values in results.items()}
    click.echo("  SQNR dB: " + ", ".join(f"{name} {value:.1f}" for name, value in sqnr.items()))
    if not sqnr[OUR_FLOAT] >= FLOAT_SQNR_DB:
        return f"float32 differs: {sqnr[OUR_FLOAT]:.1f} dB"
    if not sqnr[OUR_INT8] >= sqnr[PEER_INT8] - SQNR_SLACK_DB:
        return f"SQNR {sqnr[OUR_INT8]:.1f} dB, onnxruntime has {sqnr[PEER_INT8]:.1f}"
    return ""


def disturbance(times: Mapping[str, float], alone: Mapping[str, float]) -> str:
    """What is wrong with `times` on several threads, given those on one thread (if any); or ''."""
    for name in (PEER_INT8, PEER_FLOAT):
        if name in alone and times[name] > BUSY * alone[name]:
            return f"disturbed: {name} is slower than on 1 thread; let the machine idle"
    return ""


def _outputs(call: Callable[[Array], Any], inputs: Sequence[Array]) -> Array:
    outputs = [call(x) for x in inputs]
    return np.stack([o[0] if isinstance(o, list) else o for o in outputs])


def _bound(executable: Executable, x: Array) -> Callable[[], object]:
    return lambda: executable(x)


def _opened(file: Path, threads: int, x: Array) -> Contender:
    @contextlib.contextmanager
    def open_session() -> Iterator[Callable[[], object]]:
        with peer.session(file, threads) as session:
            yield lambda: session(x)

    return open_session


def _openvino(file: Path, threads: int, given: Mapping[str, Array]) -> Contender:
    @contextlib.contextmanager
    def open_session() -> Iterator[Callable[[], object]]:
        with openvino.session(file, given, threads) as session:
            yield lambda: session(given)

    return open_session


# ---- rows ----------------------------------------------------------------------------------------
def _rows(name: str, threads: int, times: Mapping[str, float], problem: str) -> list[Row]:
    """The rows of one model: those with targets, and its float32 ratio."""
    rows = []
    for peer_name in (n for n in PEERS if n in times):
        target = TARGETS.get((name, peer_name), {}).get(threads)
        title = f"{name} int8 vs {peer_name}, {_threads(threads)}"
        rows.append(Row(title, times[peer_name] / times[OUR_INT8], target, problem))
    title = f"{name} float32 vs {PEER_FLOAT}, {_threads(threads)}"
    return [*rows, Row(title, times[PEER_FLOAT] / times[OUR_FLOAT], FLOAT_LEAST, problem)]


def _variant_rows(network: Network, effort: Effort) -> list[Row]:
    """Rows of the same network with other layouts and instruction sets."""
    (x,) = network.model.inputs(1, seed=2)
    claims, problem = variants.run(network.int8_module, network.float_module, x, effort)
    return [Row(c.title, c.ratio, c.target, problem) for c in claims]


def _float_rows(threads: int, ratios: Sequence[float]) -> list[Row]:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    title = f"float32, geometric mean of {len(ratios)}, {_threads(threads)}"
    return [Row(title, mean, FLOAT_MEAN)]


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
