"""Which kernel gets the next trials: the one whose trials the network gains most by.

This is the task scheduler of Ansor (Zheng et al., OSDI 2020, section 6) for one network, whose time
is the sum over its kernels of count times time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ALPHA = 0.2
"""Weight of what the last trials gained against what further ones may."""
BETA = 2.0
"""A kernel may become this much quicker than others of its structure are for their work."""
WINDOW = 16
"""Trials whose gain says what the next ones gain."""


@dataclass
class Progress:
    """How far a kernel has come.

    Attributes:
        count: how often the network runs it.
        work: its innermost iterations.
        structure: equal for kernels that differ in their extents alone.
        default_ms: by the rules; 0: not measured yet.
        curve: (trials, best milliseconds) after every trial.
        trials: how many it was given.
        exhausted: whether there is nothing left to try.
    """

    count: int
    work: int
    structure: str
    default_ms: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)
    trials: int = 0
    exhausted: bool = False

    @property
    def best_ms(self) -> float:
        """The least time so far."""
        return self.curve[-1][1] if self.curve else self.default_ms


def next_task(tasks: Sequence[Progress]) -> int | None:
    """The number of the task that gets the next batch; None: all are exhausted. Those that have had
    none come first, in their order."""
    open_ = [k for k, t in enumerate(tasks) if not t.exhausted]
    if not open_:
        return None
    fresh = next((k for k in open_ if not tasks[k].trials), None)
    return fresh if fresh is not None else max(open_, key=lambda k: (expected_gain(k, tasks), -k))


def expected_gain(k: int, tasks: Sequence[Progress]) -> float:
    """Milliseconds of the network that one more trial of a task may gain."""
    t = tasks[k]
    best = t.best_ms
    if not best:
        return float("inf") if not t.trials else 0.0  # its first batch is under way
    backward = 0.0
    if len(t.curve) > 1:
        n, before = t.curve[max(0, len(t.curve) - 1 - WINDOW)]
        backward = (before - best) / max(1, t.trials - n)
    forward = best / max(1, t.trials)
    alike = [
        other.work / other.best_ms
        for j, other in enumerate(tasks)
        if j != k and other.structure == t.structure and other.best_ms
    ]
    if alike:
        forward = min(forward, max(0.0, best - t.work / (BETA * max(alike))))
    return t.count * (ALPHA * backward + (1 - ALPHA) * forward)
