"""One command that measures speed: `python -m experiments.benchmarks [--runs N] [GROUP ...]`.

Every group times its cases interleaved with a named baseline, pinned to one core, and prints
medians and ratios (baseline / case: above 1 the case is faster).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from experiments.benchmarks import calibration, emulation, kernels
from experiments.benchmarks.report import Group

GROUPS: dict[str, Callable[[], list[Group]]] = {
    "kernels": kernels.groups,
    "calibration": calibration.groups,
    "emulation": emulation.groups,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(GROUPS)), metavar="[GROUP]...")
@click.option("--runs", type=click.IntRange(min=1), default=30, show_default=True, metavar="N")
def main(names: tuple[str, ...], runs: int) -> None:
    """Measure kernels, calibration and emulation against their baselines.

    Example: python -m experiments.benchmarks kernels --runs 50
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in names or GROUPS:
        for group in GROUPS[name]():
            click.echo(group.render(runs))


if __name__ == "__main__":
    main()
