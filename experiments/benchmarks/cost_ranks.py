"""How well a model of time picks among measured candidates of kernels that it has not seen.

Kernels are split into folds, those of one structure in the same; candidates of each fold are ranked
by a model that learned from the others. Which kernels it has learned from decides as much as how it
learns (means of one split and another differ by a fifth), so that is done with several splits. All
that is needed is in the logs of a tuner, or of `cost_model`: nothing is measured.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import click
import numpy as np

from compiler.errors import ConfigError
from compiler.tuning.cost_model import CostModel, learns, unreported
from compiler.tuning.features import estimated
from compiler.tuning.trials import Trial, read_trials
from compiler.types.dtypes import Array

FOLDS = 5
"""How many parts there are."""
SPLITS = 10
"""Ways of splitting, over which is averaged."""
TOP = 0.05
"""Share of the candidates that the pick must be among."""
NOISE = 1.02
"""Times that differ by less are the same."""
LEAST = 10
"""Candidates of a kernel whose pick counts."""


@dataclass(frozen=True)
class Sample:
    """A kernel whose candidates were measured.

    Attributes:
        structure: see `tuning_log.structure_key`.
        text: its parameters and results, for people.
        rule: features of the rules' schedule.
        trials: its candidates, those rejected left out.
    """

    structure: str
    text: str
    rule: Array
    trials: tuple[Trial, ...]

    @cached_property
    def times(self) -> Array:
        """As shares of the rules'."""
        return np.array([t.ratio for t in self.trials], float)


@dataclass(frozen=True)
class Rank:
    """How a ranking did for one kernel.

    Attributes:
        position: share of the candidates that are faster than its pick, by more than noise.
        strict: the same, by however little.
        within, strictly: whether that is less than `TOP`; of several picks, of what share of them.
        loss: the pick's time as a share of the best candidate's.
        order: Spearman's rank correlation of predicted and measured times.
    """

    position: float
    strict: float
    within: float
    strictly: float
    loss: float
    order: float

    @staticmethod
    def mean(ranks: Sequence[Rank]) -> Rank:
        """Of several picks: the geometric mean of losses."""
        means = {f: statistics.fmean(getattr(r, f) for r in ranks) for f in _RANKS}
        return Rank(**means | {"loss": math.exp(statistics.fmean(math.log(r.loss) for r in ranks))})


_RANKS = [f.name for f in fields(Rank)]


def run(logs: Sequence[Path]) -> bool:
    """Print how the model ranks what each of several logs has, having learned from that log, and
    from all of them; tell whether the picks of the first are among the best.

    Raises:
        ConfigError: a log cannot be read, or has too few kernels.
    """
    found = [(path, samples_of(read_trials(path))) for path in logs]
    for path, samples in found:
        if sum(len(s.trials) >= LEAST for s in samples) < FOLDS:
            raise ConfigError(
                f"{path} has less than {FOLDS} kernels with {LEAST} candidates whose features this "
                "version computes"
            )
    every = [s for _, samples in found for s in samples]
    passed = True
    for path, samples in found:
        click.echo(f"{path}: {len(samples)} kernels, {sum(len(s.trials) for s in samples)} trials")
        own = ranked(samples)
        name = "learned from it" if learns() else "analysis"
        click.echo(summary(name, own))
        if len(found) > 1 and learns():
            others = [s for s in every if all(s is not t for t in samples)]
            click.echo(summary("learned from all", ranked(samples, more=others)))
        if path == logs[0]:
            passed = verdict(own)
    return passed


def samples_of(trials: Sequence[Trial]) -> list[Sample]:
    """The kernels of a log, in its order; those whose features are of another version are none."""
    rules = {(t.workload, t.cold): t for t in trials if not t.choice and t.features}
    found: dict[tuple[str, bool], list[Trial]] = {k: [] for k in rules}
    for t in trials:
        if t.choice and t.ratio and t.features and (t.workload, t.cold) in found:
            found[t.workload, t.cold].append(t)
    return [
        Sample(rules[k].structure, rules[k].text, rules[k].array, tuple(of))
        for k, of in found.items()
        if of
    ]


def ranked(
    samples: Sequence[Sample], learned: bool = True, more: Sequence[Sample] = ()
) -> list[tuple[Sample, Rank]]:
    """How a ranking does for each kernel with enough candidates, as they are before they are
    compiled; a learned one has seen no kernel of its structure: the mean of several splits.

    Args:
        samples: the kernels.
        learned: by a model; else by the analysis alone.
        more: further kernels to learn from.
    """
    found: dict[int, list[Rank]] = {}
    for split in range(SPLITS if learned else 1):
        for k, r in _ranked(samples, learned, more, split).items():
            found.setdefault(k, []).append(r)
    return [(s, Rank.mean(found[k])) for k, s in enumerate(samples) if k in found]


def _ranked(
    samples: Sequence[Sample], learned: bool, more: Sequence[Sample], split: int
) -> dict[int, Rank]:
    """The same with one split, by the number of the kernel."""
    structures = sorted({s.structure for s in samples})
    random.Random(split).shuffle(structures)
    fold = {s: k % FOLDS for k, s in enumerate(structures)}
    found: dict[int, Rank] = {}
    for part in range(FOLDS):
        model = CostModel(learning=learned)
        for s in (*samples, *more):
            if learned and fold.get(s.structure) != part:
                for trial, time in zip(s.trials, s.times, strict=True):
                    model.add(trial.array, s.rule, float(time))
        for k, s in enumerate(samples):
            if fold[s.structure] == part and len(s.trials) >= LEAST:
                features = [unreported(t.array) for t in s.trials]
                scores = (
                    model.predict(features, s.rule)
                    if learned
                    else np.array([estimated(f) for f in features])
                )
                found[k] = rank(scores, s.times)
    return found


def summary(name: str, ranks: Sequence[tuple[Sample, Rank]]) -> str:
    """What a ranking reaches on all kernels, in a line."""
    every = [r for _, r in ranks]
    mean = Rank.mean(every)
    return (
        f"{name}: the pick is in the top 5 % of {mean.within:.0%} of {len(every)} kernels "
        f"({mean.strictly:.0%} without allowing for 2 % of noise); {mean.position:.1%} of the "
        f"candidates are faster on average; it takes {mean.loss:.3f} of the best's time; median "
        f"rank correlation {statistics.median(r.order for r in every):.2f}"
    )


def verdict(ranks: Sequence[tuple[Sample, Rank]]) -> bool:
    """Print, and tell, whether less than 5 % of the candidates are faster on average."""
    passed = statistics.fmean(r.position for _, r in ranks) < TOP
    click.echo(f"{'PASS' if passed else 'FAIL'} on average less than 5 % are faster")
    return passed


def rank(scores: Array, times: Array) -> Rank:
    """How scores, the least of which is the pick, rank candidates of these times."""
    pick = times[int(np.argmin(scores))]
    faster, strict = float(np.mean(times * NOISE < pick)), float(np.mean(times < pick))
    within = float(faster < TOP), float(strict < TOP)
    return Rank(faster, strict, *within, float(pick / times.min()), _spearman(scores, times))


def _spearman(a: Array, b: Array) -> float:
    def places(x: Array) -> Array:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return np.asarray((ends - (counts - 1) / 2)[inverse])

    first, second = places(a), places(b)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
