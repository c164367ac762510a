"""Networks as the rules of schedules compile them beside the same networks tuned: how much quicker,
which kernels, how near these come to what the machine can do, and how the search went.

Rows go to a file as each network ends, and the tuning log beside it keeps every trial: what was
measured before is not measured again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from compiler.errors import ConfigError, DtypelabError, unknown
from compiler.target.registry import Target
from experiments.benchmarks.bounds import Machine
from experiments.benchmarks.peak import peak_float32
from experiments.benchmarks.report import Row
from experiments.benchmarks.row_files import read_rows, write_rows
from experiments.benchmarks.tuned_kernels import NEAR, KernelRow, kernel_rows
from experiments.benchmarks.tuned_networks import NETWORKS
from experiments.files import check_outputs
from experiments.measure.disturbance import pinned
from experiments.measure.speedup import Protocol, measure_speedup
from experiments.running import provenance

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from compiler.runtime.executable import Executable
    from compiler.tuning.trials import Trial
    from compiler.tuning.tuner import Tuning

Array = Any
SLOWEST = 0.98
"""Least ratio of the untuned time to the tuned one: never slower, but for the noise."""
RULED_GAIN, OTHER_GAIN = 1.15, 1.5
"""Geometric means of what tuning gains where rules were written, unless at the bound, and where
not."""
BUILDS = 3
"""Times that a network is built each way. Where its arrays lie in memory is chance, and one build
may take some percent longer than another for as long as it is there."""
CURVE = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Trials of every workload after which the curve of the best has a point."""


@dataclass(frozen=True)
class NetworkRow:
    """What tuning did to one network.

    Attributes:
        network, trials, threads: what was tuned, with so many trials a workload.
        workloads, measured: distinct kernels that have choices, and their candidates that were
            measured, in runs before this one, too.
        seconds: of tuning, of the kernels and of the whole, in this run.
        untuned_ms, tuned_ms: medians of the time that the thread worked on the whole network, built
            `BUILDS` times each way, taken in turns.
        ratio, low, high: the first over the second, and a 95 % interval of that.
        noise: what disturbed that measurement.
        choice: what was chosen for the network as a whole (see `NetworkChoice`).
        same_bits: whether the results are the same, bit for bit.
        ruled, ruled_gain, ruled_near: of the kernels for which rules were written, how many, the
            geometric mean of the gains of those that were tuned, and the share of their time that
            is spent in those that reach the bound (see `tuned_kernels.NEAR`) or gained so much.
        others, others_gain: of the kernels for which none were, how many, and the same mean.
        curve: (trials, milliseconds of the network with the best so far), by the kernels' times.
    """

    network: str
    trials: int
    threads: int
    workloads: int
    measured: int
    seconds: float
    untuned_ms: float
    tuned_ms: float
    ratio: float
    low: float
    high: float
    noise: str
    choice: str
    same_bits: bool
    ruled: int
    ruled_gain: float
    ruled_near: float
    others: int
    others_gain: float
    curve: str
    cpu: str
    git_rev: str
    started_utc: str


def run(
    names: Sequence[str], trials: int, quick: bool, output: Path | None, files: Mapping[str, Path]
) -> bool:
    """Tune the named networks (all without names), print rows, and tell whether all pass.

    Raises:
        ConfigError: there is no such network, or the output cannot be written or read.
        DtypelabError: this CPU has no known peak.
    """
    for name in names:
        if name not in NETWORKS:
            raise ConfigError(unknown("network to tune", name, NETWORKS))
    details = output.with_name(f"{output.stem}_kernels.csv") if output is not None else None
    if output is not None and details is not None:
        check_outputs([output, details], [])
    rows = read_rows(output, NetworkRow)
    known = {r.network for r in rows}
    kernels = [k for k in read_rows(details, KernelRow) if k.network in known]
    target = Target.parse("llvm")
    peak_float32(target)  # or an error, before anything is tuned
    for name in names or NETWORKS:
        held = next((r for r in rows if r.network == name and r.trials >= trials), None)
        if held is not None:
            click.echo(f"{name}: measured before, {held.trials} trials")
            continue
        try:
            mod = NETWORKS[name](files)
        except DtypelabError as error:
            click.echo(f"{name}: left out: {error}")
            continue
        with TemporaryDirectory() as folder:
            log = output.with_suffix(".jsonl") if output is not None else Path(folder, "log.jsonl")
            row, found = _network(name, mod, target, trials, quick, log)
        rows = [*(r for r in rows if r.network != name), row]
        kernels = [*(k for k in kernels if k.network != name), *found]
        if output is not None and details is not None:
            write_rows(details, kernels, KernelRow)
            write_rows(output, rows, NetworkRow)  # last: without it, the network is measured again
        click.echo(_text(row, found))
    chosen = [r for r in rows if not names or r.network in names]
    figures = summary_rows(chosen, [k for k in kernels if k.network in {r.network for r in chosen}])
    click.echo("\n".join(["summary", *map(str, figures)]))
    return all(f.passed for f in figures)


# ---- one network ---------------------------------------------------------------------------------
def _network(
    name: str, mod: IRModule, target: Target, trials: int, quick: bool, log: Path
) -> tuple[NetworkRow, list[KernelRow]]:
    import compiler
    from compiler.tuning.network import choose_network

    about, start = provenance.collect(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    tuning = tuned(mod, target, trials, log)
    whole = choose_network(mod, target, log)
    protocol = Protocol(2 * BUILDS, 10, 0.01, 1.0 if quick else 12.0)
    short = Protocol(1, 10, 0.02, 0.3 if quick else 1.0)
    untuned = [compiler.build(mod) for _ in range(BUILDS)]
    with compiler.apply_history_best(log) if log.exists() else nullcontext(), pinned(1):
        best = [compiler.build(mod) for _ in range(BUILDS)]
        machine = Machine.measured(target)  # as fast as it is now: its clock may have changed
        click.echo(_machine_text(machine))
        kernels, failed = kernel_rows(name, compiler.optimize(mod), target, machine, short)
    for sentence in failed:
        click.echo(f"{name}: not timed alone: {sentence}")
    arrays = random_inputs(untuned[0])
    same = _bytes(untuned[0], arrays) == _bytes(best[0], arrays)
    found = measure_speedup(by_turns(best, arrays), by_turns(untuned, arrays), protocol)
    ruled = [k for k in kernels if k.ruled]
    others = [k for k in kernels if not k.ruled]
    trials_of = logged(log, kernels, target)
    ms = found.worked_ms
    row = NetworkRow(
        name, trials, 1, tuning.workloads, sum(t.ms is not None for t in trials_of),
        round(tuning.seconds + whole.seconds, 1), ms * found.ratio, ms, found.ratio,
        found.low or math.nan, found.high or math.nan, ",".join(found.noise), str(whole.choice),
        same, len(ruled), mean_gain(ruled),
        near(ruled), len(others), mean_gain(others),
        json.dumps(curve(trials_of, kernels, ms * found.ratio)), about.cpu, about.git_rev, start,
    )  # fmt: skip
    return row, kernels


def tuned(mod: IRModule, target: Target, trials: int, log: Path) -> Tuning:
    """Tune a module with so many trials a workload, as long as that takes."""
    import compiler

    done: Tuning = compiler.tune(mod, target, budget_s=math.inf, log=log, trials=trials)
    return done


def random_inputs(exe: Executable) -> list[Array]:
    """Inputs of a network: standard normal floats, small positions; the same every time."""
    from compiler.tuning.measure import network_inputs

    return network_inputs(exe, 0)


def by_turns(builds: Sequence[Executable], arrays: Sequence[Array]) -> Callable[[], object]:
    """A call that runs another of several builds each time."""
    calls = cycle([partial(build, *arrays) for build in builds])
    return lambda: next(calls)()


def _bytes(exe: Executable, arrays: Sequence[Array]) -> bytes:
    results = exe(*arrays)
    return b"".join(r.tobytes() for r in (results if isinstance(results, list) else [results]))


def logged(log: Path, kernels: Iterable[KernelRow], target: Target) -> list[Trial]:
    """The trials of kernels, on this CPU, that a log has: of this run, and of others before it."""
    from compiler.tuning.trials import trials_here

    known = {k.workload for k in kernels}
    return [t for t in trials_here(log, target) if t.choice and t.workload in known]


def curve(
    trials: Iterable[Trial], kernels: Iterable[KernelRow], ms: float
) -> list[tuple[int, float]]:
    """The network's milliseconds after so many trials of every workload: what it takes untuned,
    less what the best trials so far gain on its kernels."""
    ratios: dict[str, list[float | None]] = {}
    for t in trials:
        ratio = t.ms / t.default_ms if t.ms is not None and t.default_ms else None
        ratios.setdefault(t.workload, []).append(ratio)
    longest = max(map(len, ratios.values()), default=0)
    points = [n for n in CURVE if n < longest] + [longest]
    out = []
    for n in points:
        gained = 0.0
        for k in kernels:
            seen = [r for r in ratios.get(k.workload, [])[:n] if r is not None]
            gained += k.count * k.default_ms * (1 - min([1.0, *seen]))
        out.append((n, round(ms - gained, 4)))
    return out


def mean_gain(kernels: Iterable[KernelRow]) -> float:
    """Geometric mean of the gains of the kernels that were tuned; 1 if none was."""
    gains = [k.gain for k in kernels if k.tuned]
    return math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 1.0


def time_gain(kernels: Iterable[KernelRow]) -> float:
    """What the kernels that were tuned take by the rules over what they take tuned, each as often
    as its network runs it; 1 if none was."""
    tuned = [k for k in kernels if k.tuned]
    after = sum(k.count * k.tuned_ms for k in tuned)
    return sum(k.count * k.default_ms for k in tuned) / after if after else 1.0


def at_bound(kernels: Sequence[KernelRow]) -> float:
    """The share of kernels' time, tuned, that is spent in those that reach the bound."""
    total = sum(k.count * k.tuned_ms for k in kernels)
    there = sum(k.count * k.tuned_ms for k in kernels if k.reached >= NEAR)
    return there / total if total else 1.0


def near(kernels: Sequence[KernelRow]) -> float:
    """The share of kernels' time, untuned, that is spent in those that reach the bound, or have
    gained as much as is asked for."""
    total = sum(k.count * k.default_ms for k in kernels)
    good = [k for k in kernels if k.reached >= NEAR or k.gain >= RULED_GAIN]
    return sum(k.count * k.default_ms for k in good) / total if total else 1.0


# ---- rows ----------------------------------------------------------------------------------------
def summary_rows(rows: Sequence[NetworkRow], kernels: Sequence[KernelRow]) -> list[Row]:
    """The figures, and those that are judged. Mean gains count every tuned kernel once; gains by
    time count it as its network does. Where rules were written, kernels at the bound have nothing
    to gain and do not count."""
    out = []
    for r in rows:
        mine = [k for k in kernels if k.network == r.network]
        out.append(Row(f"{r.network}: untuned / tuned", r.ratio, "x", least=SLOWEST))
        if mine:
            out.append(Row("  its tuned kernels, by time", time_gain(mine), "x"))
            share = 100 * at_bound(mine)
            out.append(Row(f"  time in kernels at {NEAR:.0%} of the bound", share, "%"))
    open_ = [k for k in kernels if k.ruled and k.tuned and k.reached < NEAR]
    if open_:
        title = f"{len(open_)} tuned kernels with rules, below the bound: "
        out.append(Row(title + "mean gain", mean_gain(open_), "x", least=RULED_GAIN))
        out.append(Row(title + "by time", time_gain(open_), "x"))
    others = [k for k in kernels if not k.ruled and k.tuned]
    if others:
        title = f"{len(others)} tuned kernels without rules: "
        out.append(Row(title + "mean gain", mean_gain(others), "x", least=OTHER_GAIN))
        out.append(Row(title + "by time", time_gain(others), "x"))
    if kernels:
        title = f"time of {len(kernels)} kernels in those at {NEAR:.0%} of the bound"
        out.append(Row(title, 100 * at_bound(kernels), "%"))
    if rows:
        mean = math.exp(sum(math.log(r.ratio) for r in rows) / len(rows))
        out.append(Row(f"geometric mean of {len(rows)} networks", mean, "x"))
    return out


def _machine_text(machine: Machine) -> str:
    """What one core can do."""
    rates = ", ".join(f"{r / 1e6:.0f} GB/s of {s >> 10} KiB" for s, r in machine.bytes)
    floats, integers = machine.float32 / 1e6, machine.int8 / 1e6
    return f"one core: {floats:.0f} GFLOP/s of float32, {integers:.0f} GOP/s of int8, {rates}"


def _text(row: NetworkRow, kernels: Sequence[KernelRow]) -> str:
    points = ", ".join(f"{n}: {ms:.4g}" for n, ms in json.loads(row.curve))
    lines = [
        f"{row.network}: {row.untuned_ms:.4f} ms -> {row.tuned_ms:.4f} ms, {row.ratio:.3f}x "
        f"[{row.low:.3f}, {row.high:.3f}], {row.measured} candidates of {row.workloads} workloads "
        f"in {row.seconds:.0f} s{'' if row.same_bits else ', OTHER RESULTS'}"
        f"{f' ({row.noise})' if row.noise else ''}",
        f"  network: {row.choice}",
        f"  with rules: {row.ruled} kernels, tuned {row.ruled_gain:.3f}x, "
        f"{100 * row.ruled_near:.0f} % of their time at the bound or {RULED_GAIN}x; without: "
        f"{row.others} kernels, tuned {row.others_gain:.3f}x",
        f"  ms after trials of every workload: {points}",
    ]
    total = sum(k.count * k.default_ms for k in kernels) or 1.0
    for k in [k for k in kernels if k.tuned][:8]:
        lines.append(
            f"  {100 * k.count * k.default_ms / total:5.1f} % {k.default_ms:.5f} -> "
            f"{k.tuned_ms:.5f} ms {k.gain:.2f}x, {100 * k.reached:.0f} % of the bound  "
            f"{k.text[:90]}"
        )
    return "\n".join(lines)


__all__ = [
    "NetworkRow", "at_bound", "by_turns", "curve", "logged", "mean_gain", "near", "run",
    "summary_rows", "time_gain",
]  # fmt: skip
