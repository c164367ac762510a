"""Runs many random graphs, and counts what came of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from random_graphs import library  # noqa: F401  (its makers register themselves)
from random_graphs.comparing import check_nodes
from random_graphs.drawing import Graph, drawn_graph, ml_isfinite
from random_graphs.minimizing import save, smaller
from random_graphs.numbers_drawn import FLAVOURS, draw, is_float
from random_graphs.oracle import Unavailable
from random_graphs.rules import explained
from random_graphs.rules_whole import explained_whole
from random_graphs.settings import (
    TARGETS,
    Setting,
    drawn_config,
    drawn_setting,
    format_names,
)
from random_graphs.whole import check_whole, computable, imported


def first_seed(default: int) -> int:
    """Where seeds start: always at the same one, or, with RANDOM_GRAPHS=random, anywhere; a number
    in RANDOM_GRAPHS is the seed itself."""
    wanted = os.environ.get("RANDOM_GRAPHS", "same")
    if wanted == "random":
        return int(np.random.SeedSequence().generate_state(1)[0])
    return default if wanted == "same" else int(wanted)


@dataclass
class Outcome:
    """What many graphs came to.

    Attributes:
        nodes: nodes whose results were compared.
        drawn: how many of each operator were.
        rules: how often each rule explained a difference.
        refused: operator -> nodes that the importer refused in one clear sentence.
        faults: what no rule explains.
    """

    nodes: int = 0
    drawn: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.nodes} nodes of {len(self.drawn)} operators compared"]
        lines += [f"  {count:5} explained by: {name}" for name, count in self.rules.most_common()]
        lines += [f"  {sum(self.refused.values()):5} refused: {dict(self.refused.most_common(12))}"]
        lines += [f"  {len(self.faults)} not explained", *self.faults]
        return "\n".join(lines)


def compare_nodes(
    seeds: Iterable[int],
    size: int,
    folder: Path,
    build: bool = True,
    runs: int = 1,
    ops: Sequence[str] | None = None,
) -> Outcome:
    """Graphs of `size` nodes each, node by node, with onnxruntime and compiled code; `ops`: the
    operators that are drawn (None: all), here and below."""
    out = Outcome()
    for seed in seeds:
        g, _ = drawn_graph(seed, size, ops)
        refused: dict[str, list[str]] = {}
        for d in check_nodes(g, [g, *other_runs(g, runs - 1)], refused, build):
            names = explained(d)
            if names is None:
                out.faults.append(f"{d}; saved as {save(d, folder)}")
            else:
                out.rules.update(names)
        gone = {op: len(v) for op, v in refused.items()}
        out.refused.update(gone)
        counted = Counter(n.op for n in g.nodes)
        counted.subtract(gone)
        out.drawn.update(+counted)
        out.nodes += len(g.nodes) - sum(gone.values())
    return out


def other_runs(g: Graph, count: int) -> Iterator[Graph]:
    """The same graph on other numbers, of the same shapes; values that choose sizes and positions
    stay."""
    for k in range(count):
        rng = np.random.default_rng([g.seed, 2, k])
        flavour = str(rng.choice(FLAVOURS))
        inputs = {i: g.arrays[i] for i in g.inputs}
        fresh = {
            i: draw(rng, a.shape, a.dtype, flavour) if a.dtype.kind in "fV" else a
            for i, a in inputs.items()
        }
        try:
            made = g.rerun(fresh)
        except Unavailable:
            continue
        if all(made.arrays[n].shape == a.shape for n, a in g.arrays.items() if n in made.arrays):
            yield made


def compare_formats(
    seeds: Iterable[int],
    size: int,
    folder: Path,
    names: Sequence[str] = (),
    ops: Sequence[str] | None = None,
) -> Outcome:
    """Graphs of `size` nodes each in one format and setting each, compiled and interpreted."""
    out, names = Outcome(), names or format_names()
    for seed in seeds:
        drawn, _ = drawn_graph(seed, size, ops, home=np.float32)
        rng = np.random.default_rng([seed, 1])
        setting = drawn_setting(rng, names[seed % len(names)])
        refused: dict[str, int] = {}
        g = computable(drawn, setting, refused)
        outputs = g.ends if rng.random() < 0.5 else [o for n in g.nodes for o in n.gives]
        out.refused.update(refused)
        if not g.nodes or imported(g, outputs) is None:
            continue
        out.nodes += len(g.nodes)
        out.drawn.update(n.op for n in g.nodes)
        for d in check_whole([g, *other_runs(g, 1)], setting, outputs):
            name = explained_whole(d)
            if name is None:
                least = smaller(d)
                out.faults.append(f"{least}; saved as {save(least, folder)}")
            else:
                out.rules[name] += 1
    return out


def compare_quantized(
    seeds: Iterable[int], size: int, folder: Path, ops: Sequence[str] | None = None
) -> Outcome:
    """Graphs of `size` nodes each, quantized by a random scheme, compiled and interpreted."""
    out = Outcome()
    for seed in seeds:
        drawn, _ = drawn_graph(seed, size, ops, home=np.float32)
        rng = np.random.default_rng([seed, 3])
        setting = replace(
            Setting(scheme=drawn_config(rng)),
            target=str(rng.choice(TARGETS)),
            opt_level=int(rng.integers(0, 4)),
            threads=int(rng.integers(1, 3)),
        )
        g = computable(drawn, Setting(), dict(out.refused))
        runs = [r for r in (g, *other_runs(g, 1)) if calm(r)]
        if not runs or not g.nodes or imported(g, g.ends) is None:
            continue
        setting = replace(setting, batches=tuple({i: r.arrays[i] for i in r.inputs} for r in runs))
        out.nodes += len(g.nodes)
        out.drawn.update(n.op for n in g.nodes)
        for d in check_whole(runs, setting, g.ends):
            name = explained_whole(d)
            if name is None:
                out.faults.append(f"{d}; saved as {save(d, folder)}")
            else:
                out.rules[name] += 1
    return out


def calm(g: Graph) -> bool:
    """Whether all inputs are finite and have elements, which calibration asks for (and refuses the
    others by name)."""
    return all(
        g.arrays[i].size and (not is_float(g.arrays[i].dtype) or ml_isfinite(g.arrays[i]).all())
        for i in g.inputs
    )
