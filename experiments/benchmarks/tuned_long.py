"""What a short search leaves: tasks sampled over the networks, each searched much longer, and the
best of its first trials beside the best of all.

Searches are a task's own: what other kernels taught the model of time in a network's search they
have to find out. The first trials of a long search are those of a short one with the same seed. The
best of many measurements is flattered by that, so those that seemed best are measured again beside
each other and the winner beside the rules, as a tuner does; and the two that win, in turns, once
more: that ratio counts.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

import compiler
from compiler.errors import ConfigError, DtypelabError, unknown
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Choice
from compiler.scheduling.tuning_log import apply_records, machine_cpu
from compiler.target.registry import Target
from compiler.tuning.kernel_run import KernelRun, random_arrays
from compiler.tuning.measure import in_turns, quiet
from compiler.tuning.processes import compiling_cores
from compiler.tuning.session import Session, Settings
from compiler.tuning.tasks import Task, tasks_of
from compiler.tuning.trials import Journal, bests, read_trials
from compiler.tuning.tuner import MeasuringMachine
from experiments.benchmarks.report import Row
from experiments.benchmarks.row_files import read_rows, write_rows
from experiments.benchmarks.tuned_kernels import beside
from experiments.benchmarks.tuned_networks import NETWORKS
from experiments.files import check_outputs
from experiments.measure.disturbance import pinned
from experiments.measure.speedup import Protocol
from experiments.running import provenance

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

SEED = 0
"""Of the sample, and of the searches."""
LEAST_MS, MOST_MS = 0.02, 4.0
"""Times of sampled kernels by the rules: shorter ones are not worth tuning, longer ones take hours
to search."""
FINALISTS = 16
"""Candidates that are measured again: of thousands, more seem good by chance."""
SHARE = 0.99
"""The least share of the best of all that the best of the first trials must reach."""
_DTYPE = re.compile(r": (?:custom\[(\w+)\]|(\w+))")
"""Of the first parameter in the text of a kernel."""
POINTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Trials after which the curve of the best has a point."""


@dataclass(frozen=True)
class LongRow:
    """What the search of one task found.

    Attributes:
        network, kind, workload, text: where the kernel is from, its first operator and datatype,
            its key, and its parameters and results.
        first, trials, measured: trials of the short and the long search, and those that there were:
            fewer if the space was used up.
        default_ms, first_ms, best_ms: by the rules, by the best of the first trials and by the best
            of all; the rules', where none was quicker than they are.
        share, low, high: the last of these over the one before, and a 95 % interval of that; 1 if
            both are the same candidate.
        within: trials after which one had been measured within 1 % of the best of all; 0 where that
            is the rules'.
        curve: (trials, best measured time so far as a share of the rules').
        seconds: of the search.
        noise: what disturbed the last measurement.
    """

    network: str
    kind: str
    workload: str
    text: str
    first: int
    trials: int
    measured: int
    default_ms: float
    first_ms: float
    best_ms: float
    share: float
    low: float
    high: float
    within: int
    curve: str
    seconds: float
    noise: str
    cpu: str
    git_rev: str
    started_utc: str


def run(
    names: Sequence[str],
    first: int,
    trials: int,
    tasks: int,
    quick: bool,
    output: Path | None,
    files: Mapping[str, Path],
) -> bool:
    """Search tasks of the named networks (of all without names), print rows, and tell whether all
    pass.

    Args:
        names: networks to sample from.
        first, trials: of the short search and the long one.
        tasks: how many there should be in all, those of the output included.
        quick: the last measurement is short.
        output: where rows go; a log beside it keeps the trials.
        files: name -> where a network's file is.

    Raises:
        ConfigError: there is no such network, the long search is no longer than the short one, or
            the output cannot be written or read.
    """
    for name in names:
        if name not in NETWORKS:
            raise ConfigError(unknown("network to tune", name, NETWORKS))
    if trials <= first:
        raise ConfigError(f"a long search has more trials than the {first} of the short one")
    if output is not None:
        check_outputs([output], [])
    rows = read_rows(output, LongRow)
    target, order = Target.parse("llvm"), list(names or NETWORKS)
    random.Random(SEED).shuffle(order)
    done = [r for r in rows if r.trials >= trials and r.first == first and r.network in order]
    left_out: set[str] = set()
    while len(done) < tasks and len(left_out) < len(order):
        # The network that has fewest: each gives one before any gives a second one.
        counts = {n: sum(r.network == n for r in done) for n in order if n not in left_out}
        name = min(counts, key=lambda n: counts[n])
        try:
            task = sampled(name, NETWORKS[name](files), target, done)
        except DtypelabError as error:
            click.echo(f"{name}: left out: {error}")
            task = None
        if task is None:
            left_out.add(name)
            continue
        click.echo(f"{name}: {task.text[:110]}")
        with TemporaryDirectory() as folder:
            log = output.with_suffix(".jsonl") if output is not None else Path(folder, "log.jsonl")
            row = _searched(name, task, target, first, trials, quick, log)
        kept = [r for r in rows if (r.network, r.workload) != (row.network, row.workload)]
        rows, done = [*kept, row], [*done, row]
        if output is not None:
            write_rows(output, rows, LongRow)
        click.echo(_text(row))
    figures = summary_rows(done)
    click.echo("\n".join(["summary", *map(str, figures)]))
    return len(done) >= tasks and all(f.passed for f in figures)


def sampled(name: str, mod: IRModule, target: Target, done: Sequence[LongRow]) -> Task | None:
    """A task of a network at random, of a kind that there is none of yet if it has one; None: no
    other is long enough, and not too long."""
    with apply_records(()):
        found = tasks_of(compiler.optimize(mod, target), target)
    found.sort(key=lambda t: t.key)
    random.Random(f"{SEED} {name}").shuffle(found)
    known, kinds = {r.workload for r in done}, {r.kind for r in done}
    for task in sorted(found, key=lambda t: kind_of(t) in kinds):
        if task.key not in known and LEAST_MS <= default_ms(task) <= MOST_MS:
            return task
    return None


def kind_of(task: Task) -> str:
    """The first operator of a kernel and the datatype of its first operand."""
    name, _, rest = task.text.partition("(")
    found = _DTYPE.search(rest)
    return f"{name.partition('_')[0]} of {found[1] or found[2] if found else 'nothing'}"


def default_ms(task: Task) -> float:
    """Milliseconds of a kernel by the rules, roughly."""
    legal = legalize(task.function)
    inputs = random_arrays(legal, SEED)
    run = KernelRun(compile_kernel(legal, task.target), task.target, inputs)
    with pinned(1):
        return in_turns(run, run, 3)[0]


def _searched(
    name: str, task: Task, target: Target, first: int, trials: int, quick: bool, log: Path
) -> LongRow:
    about, now = provenance.collect(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    start, cores = time.perf_counter(), compiling_cores()
    here = task.key, str(target), target.isa, machine_cpu()
    past = read_trials(log) if log.exists() else []
    past = [t for t in past if (t.workload, t.target, t.isa, t.cpu) == here]
    settings = Settings(target, machine_cpu(), math.inf, SEED, trials, start)
    with quiet(), apply_records(()), closing(Journal(log)) as journal:
        session = Session([task], MeasuringMachine(target, None), settings, journal, past)
        session.search(cores)
        seconds = round(time.perf_counter() - start, 1)
        found = _judged(session, first, Protocol(1, 10, 0.002, 1.0 if quick else 20.0))
    tried = session.subjects[0].trials
    ratios = [t.ratio for t in tried]
    reached = found.best_ms / found.default_ms * (2 - SHARE)
    seen = enumerate(ratios, 1)
    within = next((n for n, r in seen if found.found and r is not None and r <= reached), 0)
    best = list(bests(ratios))
    points = [n for n in POINTS if n < len(best)] + [len(best)]
    curve = json.dumps([(n, round(best[n - 1], 4)) for n in points if best])
    return LongRow(
        name, kind_of(task), task.key, task.text, first, trials, len(tried), found.default_ms,
        found.first_ms, found.best_ms, found.share, found.low, found.high, within, curve, seconds,
        found.noise, about.cpu, about.git_rev, now,
    )  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """The best of the first trials and the best of all (see `LongRow`); whether the latter is not
    the rules'."""

    found: bool
    default_ms: float
    first_ms: float
    best_ms: float
    share: float
    low: float
    high: float
    noise: str


def _judged(session: Session, first: int, protocol: Protocol) -> Judged:
    """Measure the winner of the first trials and that of all in turns; the rules win where nothing
    was quicker than they are."""
    (s,) = session.subjects
    session.prepare(s)
    rules: tuple[Choice, KernelRun] = {}, s.run
    early, late = (
        kept[:2] if (kept := session.confirmed(s, trials, FINALISTS)) else rules
        for trials in (s.trials[:first], s.trials)
    )
    if early[0] != late[0] and session.careful(early[1], late[1]).ratio > 1:
        late = early  # the first trials are among all of them
    ruled = beside(late[1], None if late is rules else s.run, protocol)
    ms = ruled.ms
    if early[0] == late[0]:
        return Judged(late is not rules, ms * ruled.ratio, ms, ms, 1.0, 1.0, 1.0, ruled.noise)
    found = beside(late[1], early[1], protocol)
    ends = 1 / found.high, 1 / found.low
    return Judged(True, ms * ruled.ratio, ms * found.ratio, ms, 1 / found.ratio, *ends, found.noise)


# ---- rows ----------------------------------------------------------------------------------------
def summary_rows(rows: Sequence[LongRow]) -> list[Row]:
    """The figures that are judged, and how far off those are that fall short."""
    if not rows:
        return []
    good = sum(r.share >= SHARE for r in rows)
    first, trials = rows[0].first, rows[0].trials
    mean = math.exp(sum(math.log(r.share) for r in rows) / len(rows))
    title = f"tasks whose best of {first} is {SHARE} of the best of {trials}"
    return [
        Row(title, good, f"of {len(rows)}", least=len(rows)),
        Row("the least share of the best", min(r.share for r in rows), ""),
        Row("geometric mean of the shares", mean, ""),
    ]


def _text(row: LongRow) -> str:
    points = ", ".join(f"{n}: {1 / r:.3f}x" for n, r in json.loads(row.curve) if r)
    return (
        f"  {row.measured} trials in {row.seconds:.0f} s: rules {row.default_ms:.5f} ms, best of "
        f"{row.first} {row.first_ms:.5f} ms, of all {row.best_ms:.5f} ms: {row.share:.3f} of the "
        f"best [{row.low:.3f}, {row.high:.3f}], within 1 % after {row.within} trials"
        f"{f' ({row.noise})' if row.noise else ''}\n  measured after trials: {points}"
    )


__all__ = ["Judged", "LongRow", "default_ms", "kind_of", "run", "sampled", "summary_rows"]
