"""Post-training quantization to 8 bits: our default and our best setting against onnxruntime's.

Settings see calibration data only: the best one of CANDIDATES is that whose results on it are the
closest to the float32 network's. onnxruntime is favoured: its best setting is the one with the best
final figure. What is measured on the data set aside is measured once for each network in the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from compiler.transform.analysis import cost
from experiments.benchmarks import accuracy_tasks as tasks
from experiments.benchmarks import calibration, models, peer
from experiments.benchmarks.accuracy_tasks import Task
from experiments.benchmarks.report import Row
from experiments.measure.statistics import PairedDifference, paired_difference

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize import QConfig

Array = NDArray[Any]

#: Settings that ours is chosen among, by name: fields that differ from the default's.
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "minmax": {"calibrate": "minmax"},
    "percentile 99.999": {"calibrate": "percentile"},
    "percentile 99.9999": {"calibrate": "percentile", "percentile": 99.9999},
    "kl": {"calibrate": "kl"},
    "no bias correction": {"bias_correction": "none"},
    "int8 activations": {"activation_dtype": "int8"},
}
QUICK_INPUTS, QUICK_BATCHES, QUICK_CANDIDATES = 100, 3, 2
"""What `--quick` measures."""
LEAST_SHARE = 0.95
"""Of the multiply-accumulates that must run on 8-bit integers."""


@dataclass(frozen=True)
class Targets:
    """Least figures: right answers in percent, SQNR in decibels; None where there is none."""

    default_right: float | None = None
    default_db: float | None = None
    best_right: float | None = None
    best_db: float | None = None


TARGETS: Mapping[str, Targets] = {
    "pp_ocrv4_rec": Targets(92.5, None, 95.0, None),
    # 341 photos of 376, as many as float32: the 90.7 % of tables.
    "efficientnet_lite0": Targets(90.5, 17.0, 100 * (341 / 376), 20.0),
    "mnist_resnet8": Targets(None, 33.5, None, 36.0),
    "mnist_dwsep": Targets(None, 34.0, None, 37.0),
    "mnist_vit": Targets(97.3, 30.5, 97.5, 34.0),
}


@dataclass(frozen=True)
class Figures:
    """What one setting gives: `right` in percent, `db` of SQNR against float32."""

    setting: str
    right: float
    db: float


#: onnxruntime's best figures (version 1.31, MinMax, Percentile and Entropy), for where it is not
#: installed.
RECORDED: Mapping[str, Figures] = {
    "pp_ocrv4_rec": Figures("recorded", 92.25, math.nan),
    "efficientnet_lite0": Figures("recorded", 91.5, 16.2),
    "mnist_resnet8": Figures("recorded", math.nan, 32.9),
    "mnist_dwsep": Figures("recorded", math.nan, 33.6),
    "mnist_vit": Figures("recorded", 97.4, 29.9),
}


@dataclass(frozen=True)
class Entry:
    """A network's line of the table.

    Attributes:
        n: inputs that the figures are over.
        share: of the multiply-accumulates in integers, on the realized graph of `best`.
        change: what `best` loses to float32, input by input.
        seconds: calibrator -> times of calibration, ours and onnxruntime's.
    """

    model: str
    metric: str
    n: int
    float32: float
    theirs: Figures | None
    default: Figures
    best: Figures
    share: float
    change: PairedDifference
    seconds: Mapping[str, calibration.Times]

    def rows(self) -> list[Row]:
        """Its figures with their targets."""
        t = TARGETS[self.model]
        found = []
        for name, figures, right, db in (
            ("default", self.default, t.default_right, t.default_db),
            (f"best ({self.best.setting})", self.best, t.best_right, t.best_db),
        ):
            what = f"{self.model} {name}"
            found.append(Row(f"{what}, {self.metric}", figures.right, "%", least=right))
            found.append(Row(f"{what}, SQNR", figures.db, "dB", least=db))
        title = f"{self.model} multiply-accumulates in integers"
        found.append(Row(title, 100 * self.share, "%", least=100 * LEAST_SHARE))
        return [*found, *calibration.rows(f"{self.model} calibration,", self.seconds)]


def run(names: Sequence[str], rounds: int, given: Mapping[str, Path], quick: bool = False) -> bool:
    """Measure the named networks (all without names), print the table, and tell whether all rows
    pass. Networks whose files are not at hand are named and passed over. onnxruntime is measured
    where it is installed; elsewhere its recorded figures stand for it.

    Args:
        names: keys of TARGETS.
        rounds: how often calibration is timed.
        given: network -> its file; those of others are passed over.
        quick: few inputs, batches and settings: rough figures.

    Raises:
        DtypelabError: a file is missing or does not fit.
    """
    files = {name: path for name, path in given.items() if name in tasks.TASKS}
    found = [(name, tasks.load(name, models.folder(), files)) for name in names or TARGETS]
    entries = []
    for name, task in found:
        if isinstance(task, str):
            click.echo(f"{name}: {task}\n")
            continue
        candidates = CANDIDATES
        if quick:
            task = task.shortened(QUICK_INPUTS, QUICK_BATCHES)
            candidates = dict(list(CANDIDATES.items())[:QUICK_CANDIDATES])
        entries.append(measure(task, candidates, rounds if peer.installed() else 0))
        click.echo(text(entries[-1]))
    failed = [row for entry in entries for row in entry.rows() if not row.passed]
    click.echo("\n".join([f"{len(entries)} networks, {len(failed)} FAIL", *map(str, failed)]))
    return not failed


def text(entry: Entry) -> str:
    """A network's part of the table as printed."""
    lines = [f"{entry.model}, {entry.metric} of {entry.n}: float32 {entry.float32:.2f} %"]
    if entry.theirs is not None:
        t = entry.theirs
        lines.append(f"  onnxruntime ({t.setting}): {t.right:.2f} %, {t.db:.1f} dB")
    lines += map(str, entry.rows())
    c = entry.change
    lines.append(
        f"  best loses {100 * c.drop:.2f} points of float32, 95 % interval "
        f"[{100 * c.low:.2f}, {100 * c.high:.2f}], p = {c.p_value:.2f}"
    )
    return "\n".join(lines) + "\n"


# ---- one network ---------------------------------------------------------------------------------
def measure(task: Task, candidates: Mapping[str, Mapping[str, Any]], rounds: int) -> Entry:
    """The line of a network. With `rounds` of timing, onnxruntime is measured, else recorded.

    Raises:
        DtypelabError: the network cannot be quantized.
    """
    import quantize

    module = task.module()
    configs = {name: quantize.QConfig(**fields) for name, fields in candidates.items()}
    best, realized = choose(task, module, configs)
    reference = scores(module, task.batches)
    default = scores(realized["default"], task.batches)
    ours = default if best == "default" else scores(realized[best], task.batches)
    return Entry(
        task.name,
        task.metric,
        len(task.inputs),
        100 * float(task.right(reference).mean()),
        _theirs(task, module, reference) if rounds else RECORDED.get(task.name),
        _figures("default", task, default, reference),
        _figures(best, task, ours, reference),
        cost(realized[best]).integer_share,
        paired_difference(task.right(reference), task.right(ours)),
        calibration.times(module, task.path, task.calibration, rounds) if rounds else {},
    )


def choose(
    task: Task, module: IRModule, configs: Mapping[str, QConfig]
) -> tuple[str, dict[str, IRModule]]:
    """The name of the setting that is best on calibration data; all settings' integer graphs."""
    import quantize

    reference = scores(module, task.calibration)
    realized, merits = {}, {}
    for name, config in configs.items():
        realized[name] = quantize.quantize(module, task.calibration, config)
        merits[name] = merit(task, scores(realized[name], task.calibration), reference)
    return max(merits, key=merits.__getitem__), realized


def merit(task: Task, found: Array, reference: Array) -> tuple[float, float]:
    """How good results on calibration data are: more is better."""
    agreement = task.agreement(found, reference) if task.by_answers else 0.0
    return agreement, sqnr_db(found, reference)


def sqnr_db(found: Array, reference: Array) -> float:
    """Signal to quantization noise ratio in decibels, input by input: all scores of a text
    recognizer in float64 would take gigabytes."""
    from quantize.search.accuracy_target import sqnr

    return sqnr(list(found), list(reference))


def scores(module: IRModule, batches: Sequence[Array]) -> Array:
    """The first output of a network for all inputs."""
    import compiler
    from quantize.calibration.running import processors

    network = compiler.build(module, threads=processors())
    outputs = [network(x) for x in batches]
    return np.concatenate([o[0] if isinstance(o, list) else o for o in outputs])


def _figures(setting: str, task: Task, found: Array, reference: Array) -> Figures:
    right = 100 * float(task.right(found).mean())
    return Figures(setting, right, sqnr_db(found, reference))


def _theirs(task: Task, module: IRModule, reference: Array) -> Figures | None:
    """onnxruntime's setting with the most right answers, or the best SQNR where answers are equally
    good; its recorded figures where its calibration does not fit this machine's memory."""
    if calibration.held(module, task.calibration) < len(task.calibration):
        return RECORDED.get(task.name)
    found = []
    size = len(task.calibration[0])
    inputs = [task.inputs[k : k + size] for k in range(0, len(task.inputs), size)]
    for method in calibration.METHODS.values():
        file = peer.quantized(task.path, task.calibration, models.folder(), method)
        with peer.session(file, threads=1) as session:
            results = np.concatenate([session(x) for x in inputs])
        found.append(_figures(method, task, results, reference))
    return max(found, key=lambda f: (f.right, f.db))
