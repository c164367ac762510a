"""Whether the tuner's model of time picks well among candidates that it has not seen, of kernels
that it has not seen: ranks of its pick (see `cost_ranks`).

Kernels of several networks are measured with candidates drawn at random, each as its network has
it, in warm or cold caches.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

import compiler
from compiler.errors import DtypelabError, ScheduleError
from compiler.scheduling.tuning_log import apply_records, machine_cpu
from compiler.target.registry import Target
from compiler.tuning.cost_model import hopeless, learns
from compiler.tuning.measure import quiet
from compiler.tuning.processes import Compilers, compiling_cores
from compiler.tuning.proposals import Candidate
from compiler.tuning.session import Session, Settings
from compiler.tuning.subject import Subject
from compiler.tuning.tasks import Task, tasks_of
from compiler.tuning.trials import Journal, Trial, trials_here
from compiler.tuning.tuner import MeasuringMachine
from experiments.benchmarks.cost_ranks import Sample, ranked, summary, verdict
from experiments.benchmarks.tuned_networks import NETWORKS
from experiments.files import check_outputs

CASES = (
    "mobilenet_v3", "unet", "deformable", "lstm", "tcn", "mnist_dwsep.posit16_es1",
    "mnist_resnet8.float8_e4m3fn", "squeezenet", "squeezenet.int8", "swin_t.int8",
)  # fmt: skip
"""Networks whose kernels are measured, those that are here."""
KERNELS, CANDIDATES = 12, 48
"""Of each network, and of each kernel."""
LEAST_S = 0.3
"""Seconds for which a candidate that is not plainly slower is measured: ranks are of small
differences."""


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
    samples = [
        Sample(t.structure, t.text, t.default[1], tuple(trials))
        for t, trials in zip(tasks, measured, strict=True)
        if trials
    ]
    click.echo(f"{len(samples)} kernels, {sum(len(s.trials) for s in samples)} candidates")
    names = (["learned"] if learns() else []) + ["analysis"]
    figures = [(name, ranked(samples, learned=name == "learned")) for name in names]
    for name, ranks in figures:
        for s, r in ranks:
            click.echo(
                f"  {name:9} {r.position:6.1%} faster, {r.strict:6.1%} strictly, {r.loss:.3f} of "
                f"the best, order {r.order:+.2f}, {len(s.trials)} of {s.text[:70]}"
            )
    for name, ranks in figures:
        click.echo(summary(name, ranks))
    return verdict(figures[0][1])


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


def _measured(tasks: Sequence[Task], n: int, target: Target, log: Path) -> list[list[Trial]]:
    """Candidates of each task with their times; trials of the log are taken as they are."""
    cores = compiling_cores()
    past = [t for t in trials_here(log, target) if t.features]
    start = time.perf_counter()
    where = target, machine_cpu()
    settings = Settings(*where, math.inf, 0, None, start, least_s=LEAST_S, exact=True)
    out = []
    with quiet(), apply_records(()), contextlib.closing(Journal(log)) as journal:
        session = Session(tasks, MeasuringMachine(target, None), settings, journal, past)
        compilers = Compilers(tasks, cores)
        try:
            for k, s in enumerate(session.subjects):
                left = n - len(s.trials)
                drawn = list(_drawn(s, left)) if left > 0 else []
                given = {compilers.submit(k, c.choice): c for c in drawn}
                for _ in drawn:
                    number, outcome = compilers.take()
                    session.measure(s, given[number], outcome)
                out.append([t for t in s.trials if t.ratio])
                click.echo(f"  measured {len(drawn)} candidates of {s.task.text[:90]}")
        finally:
            compilers.close()
    return out


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
