"""From import to the first output of an int8 network, in processes of their own: with an empty
object cache, with a filled one, and by onnxruntime. Times, resident memory, PASS or FAIL."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from compiler.codegen import cache
from experiments.benchmarks import models, networks, peer
from experiments.benchmarks.first_output import Start
from experiments.benchmarks.turns import Effort

MODEL = "resnet50"
COLD_SECONDS, WARM_SECONDS = 2.5, 0.4


@dataclass(frozen=True)
class Row:
    """A figure and the most that it may be."""

    title: str
    value: float
    limit: float
    unit: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit and the results are right."""
        return not self.problem and self.value <= self.limit

    def __str__(self) -> str:
        verdict = "PASS" if self.passed else "FAIL"
        figures = f"{self.value:7.2f} {self.unit:<4} at most {self.limit:.2f}"
        return f"  {verdict}  {self.title:<58} {figures}  {self.problem}".rstrip()


def run(effort: Effort, given: Mapping[str, Path]) -> bool:
    """Measure, print, and tell whether all rows pass.

    Raises:
        DtypelabError: a missing file, or onnxruntime is not installed.
    """
    peer.onnxruntime()
    path = models.locate(MODEL, given)
    if path is None:
        click.echo(f"{MODEL}: not available ({models.MODELS[MODEL].hint})\n")
        return True
    network = networks.prepare(models.MODELS[MODEL], path)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        text, data = folder / "module.txt", folder / "input.npy"
        text.write_text(network.int8_module.astext(show_meta_data=True))
        np.save(data, network.model.inputs(1, seed=2)[0])
        cold, warm, peers = [], [], []
        _start("ours", text, data, folder / "unmeasured")  # what follows finds its files in memory
        for k in range(min(effort.rounds, 5)):
            kept = folder / f"objects{k}"
            cold.append(_start("ours", text, data, kept))
            warm.append(_start("ours", text, data, kept))
            peers.append(_start("peer", network.int8_file, data, kept))
    for title, starts in (("cold", cold), ("warm", warm), ("onnxruntime u8s8", peers)):
        click.echo(_summary(title, starts))
    found = rows(cold, warm, peers)
    click.echo("\n".join(map(str, found)))
    return all(row.passed for row in found)


def rows(cold: Sequence[Start], warm: Sequence[Start], peers: Sequence[Start]) -> list[Row]:
    """The claims: medians, and a problem where a process had another output."""
    differ = len({s.output for s in (*cold, *warm)}) > 1
    problem = "outputs of processes differ" if differ else ""

    def median(starts: Sequence[Start], name: str) -> float:
        return statistics.median(float(getattr(s, name)) for s in starts)

    start = f"{MODEL} int8, import to first output"
    memory = f"{MODEL} int8, growth of resident memory, warm"
    return [
        Row(f"{start}, empty cache", median(cold, "seconds"), COLD_SECONDS, "s", problem),
        Row(f"{start}, filled cache", median(warm, "seconds"), WARM_SECONDS, "s", problem),
        Row(memory, median(warm, "grown_mib"), median(peers, "grown_mib"), "MiB", problem),
    ]


def _summary(title: str, starts: Sequence[Start]) -> str:
    parts = []
    for name in ("imports", "read", "compiled", "ran"):
        parts.append(f"{name} {statistics.median(float(getattr(s, name)) for s in starts):.3f} s")
    grown = statistics.median(s.grown_mib for s in starts)
    return f"  {title:<18} {', '.join(parts)}, resident memory +{grown:.1f} MiB"


def _start(who: str, model: Path, data: Path, objects: Path) -> Start:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.first_output", who, str(model), str(data)],
        env={**environment, cache.VARIABLE: str(objects)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Start.from_json(done.stdout)
