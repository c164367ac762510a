"""One command that measures speed: `python -m experiments.benchmarks [--runs N] [GROUP ...]`.

Every group times its cases interleaved with a named baseline, pinned to one core, and prints
medians and ratios (baseline / case: above 1 the case is faster). The group `threads` has all cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from experiments.benchmarks import calibration, emulation, kernels, threads
from experiments.benchmarks.report import Group

GROUPS: dict[str, Callable[[], list[Group]]] = {
    "kernels": kernels.groups,
    "calibration": calibration.groups,
    "emulation": emulation.groups,
    "threads": threads.groups,
}
ALL_CORES = {"threads"}
"""Groups that are not pinned to one core."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(GROUPS)), metavar="[GROUP]...")
@click.option("--runs", type=click.IntRange(min=1), default=30, show_default=True, metavar="N")
def main(names: tuple[str, ...], runs: int) -> None:
    """Measure kernels, calibration, emulation and threads against their baselines.

    Example: python -m experiments.benchmarks kernels --runs 50
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    for name in names or GROUPS:
        if cores:
            os.sched_setaffinity(0, cores if name in ALL_CORES else {max(cores)})
        for group in GROUPS[name]():
            click.echo(group.render(runs))


if __name__ == "__main__":
    main()
