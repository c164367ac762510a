"""Whether the tuner's model of time picks well among candidates that it has not seen, of kernels
that it has not seen: ranks of its pick.

Kernels of several networks are measured with candidates drawn at random. They are split into folds,
kernels of one structure in the same; candidates of each fold are ranked by a model that learned
from the others.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

import compiler
from compiler.errors import DtypelabError, ScheduleError
from compiler.scheduling.tuning_log import apply_records, machine_cpu
from compiler.target.registry import Target
from compiler.tuning.compilation import Compilers, spare_cores
from compiler.tuning.cost_model import CostModel, hopeless, learns
from compiler.tuning.features import estimated
from compiler.tuning.measure import quiet
from compiler.tuning.proposals import Candidate
from compiler.tuning.session import Session, Settings, Subject
from compiler.tuning.tasks import Task, tasks_of
from compiler.tuning.trials import Journal, Trial, read_trials
from compiler.tuning.tuner import MeasuringMachine
from experiments.benchmarks.tuned_networks import NETWORKS
from experiments.files import check_outputs

CASES = (
    "mobilenet_v3", "unet", "deformable", "lstm", "tcn", "mnist_dwsep.posit16_es1",
    "mnist_resnet8.float8_e4m3fn", "squeezenet", "squeezenet.int8", "swin_t.int8",
)  # fmt: skip
"""Networks whose kernels are measured, those that are here."""
KERNELS, CANDIDATES, FOLDS = 6, 48, 5
"""Of each network, of each kernel, and how many parts there are."""
TOP = 0.05
"""Share of the candidates that the pick must be among."""
NOISE = 1.02
"""Times that differ by less are the same."""


@dataclass(frozen=True)
class Rank:
    """How a ranking did for one kernel.

    Attributes:
        position: share of the candidates that are faster than its pick, by more than noise.
        strict: the same, by however little.
        loss: the pick's time as a share of the best candidate's.
        order: Spearman's rank correlation of predicted and measured times.
    """

    position: float
    strict: float
    loss: float
    order: float


def run(quick: bool, output: Path | None) -> bool:
    """Measure, print rank statistics, and tell whether the picks are among the best.

    Args:
        quick: a third of the kernels and candidates.
        output: the log that keeps trials; those that it has are not measured again.

    Raises:
        ConfigError: the log cannot be read or written.
    """
    if output is not None:
        check_outputs([output], [])
    target = Target.parse("llvm")
    few = 3 if quick else 1
    with TemporaryDirectory() as folder:
        log = output if output is not None else Path(folder, "trials.jsonl")
        tasks = _tasks(target, KERNELS // few)
        measured = _measured(tasks, CANDIDATES // few, target, log)
    kernels = [(t, trials) for t, trials in zip(tasks, measured, strict=True) if len(trials) > 9]
    click.echo(f"{len(kernels)} kernels, {sum(len(c) for _, c in kernels)} candidates")
    names = (["learned"] if learns() else []) + ["analysis"]
    figures = []
    for name in names:
        ranks = _ranks(kernels, learned=name == "learned")
        for (task, trials), r in zip(kernels, ranks, strict=True):
            click.echo(
                f"  {name:9} {r.position:6.1%} faster, {r.strict:6.1%} strictly, {r.loss:.3f} of "
                f"the best, order {r.order:+.2f}, {len(trials)} of {task.text[:70]}"
            )
        figures.append((name, ranks))
    passed = True
    for name, ranks in figures:
        within = statistics.fmean(r.position < TOP for r in ranks)
        strictly = statistics.fmean(r.strict < TOP for r in ranks)
        mean = statistics.fmean(r.position for r in ranks)
        loss = math.exp(statistics.fmean(math.log(r.loss) for r in ranks))
        order = statistics.median(r.order for r in ranks)
        click.echo(
            f"{name}: the pick is in the top 5 % of {within:.0%} of the kernels ({strictly:.0%} "
            f"without allowing for 2 % of noise); {mean:.1%} of the candidates are faster on "
            f"average; it takes {loss:.3f} of the best's time; median rank correlation {order:.2f}"
        )
        if name == names[0]:
            passed = mean < TOP
            click.echo(f"{'PASS' if passed else 'FAIL'} on average less than 5 % are faster")
    return passed


def _tasks(target: Target, most: int) -> list[Task]:
    """Distinct kernels of the networks that are here, those with most work."""
    found: dict[str, Task] = {}
    for name in CASES:
        try:
            mod = NETWORKS[name]({})
        except DtypelabError as error:
            click.echo(f"{name}: left out: {error}")
            continue
        with apply_records(()):
            new = tasks_of(compiler.optimize(mod, target), target)
        for t in [t for t in new if t.key not in found][:most]:
            found[t.key] = t
    return list(found.values())


def _measured(
    tasks: Sequence[Task], n: int, target: Target, log: Path
) -> list[list[tuple[Trial, Candidate]]]:
    """Candidates of each task with their times; trials of the log are taken as they are."""
    cores = spare_cores()
    past = read_trials(log) if log.exists() else []
    here = str(target), target.isa, machine_cpu()
    past = [t for t in past if (t.target, t.isa, t.cpu) == here and t.features]
    settings = Settings(target, machine_cpu(), math.inf, 0, None, time.perf_counter())
    out = []
    with quiet(), apply_records(()), contextlib.closing(Journal(log)) as journal:
        session = Session(tasks, MeasuringMachine(target, None), settings, journal, past)
        compilers = Compilers(tasks, cores)
        try:
            for k, s in enumerate(session.subjects):
                left = n - len(s.trials)
                drawn = list(_drawn(s, left)) if left > 0 else []
                for candidate in drawn:
                    compilers.submit(k, candidate.choice)
                for candidate in drawn:
                    session.measure(s, candidate, compilers.take())
                out.append([(t, Candidate(t.choice, t.program, t.array)) for t in s.trials])
                click.echo(f"  measured {len(drawn)} candidates of {s.task.text[:90]}")
        finally:
            compilers.close()
    return [[(t, c) for t, c in trials if t.ratio] for trials in out]


def _drawn(s: Subject, n: int) -> Iterator[Candidate]:
    """Candidates as a tuner's first batches have them, before anything is learned: a quarter near
    to the rules, the others at random; those that its analysis discards are none."""
    rng, space = random.Random(s.task.key), s.task.space
    given = space.neighbours()
    near = rng.sample(given, min(len(given), n // 4))
    known = {s.task.default[0], *s.search.programs}
    for k in range(n * 8):
        try:
            choice = near[k] if k < len(near) else space.sample(rng)
            program, features = s.task.seen(choice)
        except ScheduleError:
            continue
        if program in known or hopeless(features, s.task.default[1]):
            continue
        known.add(program)
        yield Candidate(choice, program, features)
        n -= 1
        if not n:
            return


def _ranks(
    kernels: Sequence[tuple[Task, Sequence[tuple[Trial, Candidate]]]], learned: bool
) -> list[Rank]:
    """How a ranking does for each kernel; a learned one has seen no kernel of its structure."""
    structures = sorted({t.structure for t, _ in kernels})
    random.Random(0).shuffle(structures)
    fold = {s: k % FOLDS for k, s in enumerate(structures)}
    found: dict[str, Rank] = {}
    for part in range(FOLDS):
        model = CostModel(learning=learned)
        for task, trials in kernels:
            if fold[task.structure] != part:
                for trial, candidate in trials:
                    assert trial.ratio is not None, "what was rejected is left out"
                    model.add(candidate.features, task.default[1], trial.ratio)
        for task, trials in kernels:
            if fold[task.structure] != part:
                continue
            times = np.array([t.ratio for t, _ in trials])
            features = [_unreported(c) for _, c in trials]
            rule = task.default[1]
            scores = (
                model.predict(features, rule)
                if learned
                else np.array([estimated(f) for f in features])
            )
            found[task.key] = _rank(scores, times)
    return [found[t.key] for t, _ in kernels]


def _unreported(c: Candidate) -> np.ndarray:
    """Features as they are before the candidate is compiled."""
    from compiler.tuning.features import NAMES

    out = c.features.copy()
    out[[NAMES.index("reloads"), NAMES.index("frame")]] = np.nan
    return out


def _rank(scores: np.ndarray, times: np.ndarray) -> Rank:
    pick = times[int(np.argmin(scores))]
    return Rank(
        float(np.mean(times * NOISE < pick)),
        float(np.mean(times < pick)),
        float(pick / times.min()),
        _spearman(scores, times),
    )


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    def ranked(x: np.ndarray) -> np.ndarray:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return np.asarray((ends - (counts - 1) / 2)[inverse])

    first, second = ranked(a), ranked(b)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
