"""A kernel as it is being tuned: what was measured of it so far, and the best of that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compiler.scheduling.choices import Choice
from compiler.tuning import allocation
from compiler.tuning.proposals import Search
from compiler.tuning.tasks import Task
from compiler.tuning.trials import Trial
from compiler.types.dtypes import Array

GAIN = 0.98
"""A choice must take less than this share of the default's time."""


@dataclass
class Subject:
    """A task on its way: its data, what it computes, and the best that was found."""

    task: Task
    search: Search
    state: allocation.Progress
    trials: list[Trial] = field(default_factory=list)
    inputs: list[Array] = field(default_factory=list)
    run: Any = None
    want: bytes = b""
    best: tuple[Choice, Any] | None = None
    ratio: float = GAIN
