"""What `dtypelab tune` says of tunings: tables of a tuning, and of a log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compiler.scheduling.tuning_log import Record, read_log

from .common import cell, say, show

if TYPE_CHECKING:
    from compiler.target.registry import Target
    from compiler.tuning.trials import Trial
    from compiler.tuning.tuner import TaskResult, Tuning

STEPS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Numbers of trials after which a report says what was best."""


def results(tuning: Tuning, bounds: Mapping[str, str]) -> Any:
    """Workloads that were measured: times before and after, and what the network has of it.

    Args:
        tuning: what the tuner did.
        bounds: workload -> how far it is from what the processor can do.
    """
    total = math.fsum(t.count * t.default_ms for t in tuning.tasks)
    names = ("workload", "x", "trials", "before ms", "after ms", "share", "gain", "bound")
    table = _table(names)
    for t in tuning.tasks:
        gain = f"{t.default_ms / t.best_ms:.2f}x" if t.kept else "-"
        share = f"{t.count * t.default_ms / total:.1%}"
        times = f"{t.default_ms:.5f}", f"{t.best_ms:.5f}"
        row = cell(t.text), str(t.count), str(t.trials), *times, share, gain
        table.add_row(*row, bounds.get(t.workload, "-"))
    return table


def curve(tuning: Tuning) -> list[float]:
    """Milliseconds of all workloads that were measured, at best after each trial of this run and
    of those that it resumed, in the order of the workloads' own trials."""
    curves = [(t.count * t.default_ms, t.curve) for t in tuning.tasks]
    longest = max((len(c) for _, c in curves), default=0)
    return [
        round(math.fsum(ms * (c[min(k, len(c) - 1)] if c else 1.0) for ms, c in curves), 6)
        for k in range(longest)
    ]


def of_bounds(tasks: tuple[TaskResult, ...], target: Target) -> dict[str, str]:
    """How near workloads are to what this machine can do: the share of its peak of multiply-adds,
    or of the bandwidth from where their data fit, whichever binds. Nothing for those that have no
    multiply-adds of bytes or float32 and are not plain movements either."""
    from compiler.errors import UnsupportedError
    from experiments.benchmarks.bounds import Machine, Work

    try:
        machine = Machine.measured(target)
    except UnsupportedError:
        return {}
    out = {}
    for t in tasks:
        products = (2 * t.demand.float_products, 2 * t.demand.byte_products)
        if not any(products):
            continue
        bound = machine.least_ms(Work(*products, t.demand.bytes))
        alone = machine.least_ms(Work(*products, 0))
        out[t.workload] = f"{bound / t.best_ms:.0%} {'arithmetic' if alone >= bound else 'memory'}"
    return out


def report(log: str) -> None:
    """Print what a log has: for every workload and CPU the best after so many trials.

    Raises:
        ConfigError: the file is no tuning log.
    """
    from compiler.tuning.trials import bests, read_trials

    records, trials = read_log(log), read_trials(log)
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    names = {r.workload: r.text for r in records}
    for t in trials:
        names.setdefault(t.workload, t.text)
        if t.text:
            names[t.workload] = t.text
        group = groups.setdefault((t.workload, t.target, t.cpu), [])
        if t.choice:
            group.append(t)
    longest = max(map(len, groups.values()), default=0)
    steps = [n for n in STEPS if n < longest] + ([longest] if longest else [])
    table = _table(("workload", "cpu", "trials", *map(str, steps), "record"))
    kept: dict[tuple[str, str, str], Record] = {(r.workload, r.target, r.cpu): r for r in records}
    for key in dict.fromkeys([*groups, *kept]):
        found = groups.get(key, [])
        best = list(bests([t.ratio for t in found]))
        shown = [f"{best[n - 1]:.3f}" if n <= len(best) else "" for n in steps]
        r = kept.get(key)
        record = "" if r is None else f"{r.default_ms / r.best_ms:.2f}x"
        table.add_row(cell(names[key[0]] or key[0]), key[2], str(len(found)), *shown, record)
    show(table)
    tried = sum(map(len, groups.values()))
    say(
        f"{tried} trials of {len(groups)} workloads, {len(kept)} of them with a record; "
        "columns of numbers: the least share of the rules' time after as many trials"
    )


def _table(names: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        left = name in ("workload", "cpu")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    return table
