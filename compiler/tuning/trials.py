"""What was tried: a line of the tuning log for every candidate, written as soon as it is measured.

A tuner that is stopped, or killed, goes on from these lines without measuring them again; and
candidates that were good for loops of the same structure, or on another CPU, are tried first.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from compiler.errors import ConfigError, ScheduleError
from compiler.files.reading import read_text
from compiler.files.writing import check_writable
from compiler.scheduling.choices import Choice, decision_from_json
from compiler.scheduling.tuning_log import TRIAL, machine_cpu
from compiler.target.registry import Target
from compiler.tuning.features import NAMES
from compiler.tuning.features import VERSION as FEATURES
from compiler.types.dtypes import Array

VERSION = 2
SYNC_S = 30.0
"""Seconds after which lines are on the disk even if the machine fails; a process that is killed
loses none."""


@dataclass(frozen=True)
class Trial:
    """A candidate that was measured, or rejected unmeasured.

    Attributes:
        workload, structure: keys of its loop nest (see `tuning_log`).
        program: a digest of its scheduled loops.
        target, isa, cpu: where.
        choice: the candidate; {}: the rules' schedule itself, whose features others are compared
            with.
        default_ms, ms: median milliseconds of the rules' schedule and of this one, taken in turns;
            `ms` is None if it was rejected: its results differ, or it does not compile.
        low, high: an interval of 95 % of the ratio of its time to the rules'; 0 if rejected.
        reason: why it was rejected.
        cold: whether they were timed in cold caches, as their network has them.
        seed: of the tuner.
        features: see `features`; empty if they are of another version.
        text: parameters and results of the loop nest, for people; only in the rules' line.
    """

    workload: str
    structure: str
    program: str
    target: str
    isa: str
    cpu: str
    choice: Choice
    default_ms: float
    ms: float | None
    low: float
    high: float
    reason: str
    cold: bool
    seed: int
    features: tuple[float, ...] = field(default=(), compare=False)
    text: str = field(default="", compare=False)

    @property
    def ratio(self) -> float | None:
        """Its time as a share of the rules'."""
        return None if self.ms is None or not self.default_ms else self.ms / self.default_ms

    @property
    def array(self) -> Array:
        """Its features."""
        return np.array(self.features)

    def to_line(self) -> str:
        """One line of JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["choice"] = {k: c.to_json() for k, c in self.choice.items()}
        plain["features"] = [None if np.isnan(x) else round(x, 3) for x in self.features]
        return json.dumps({TRIAL: VERSION, "of": FEATURES, **plain}) + "\n"

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Trial:
        """The inverse of `to_line`.

        Raises:
            ConfigError: a field is missing, unknown or of the wrong kind.
        """
        given = {k: v for k, v in content.items() if k not in (TRIAL, "of")}
        if wrong := sorted(set(given) ^ {f.name for f in fields(Trial)}):
            raise ConfigError(f"fields missing or unknown: {', '.join(wrong)}")
        for name in ("workload", "structure", "program", "target", "isa", "cpu", "reason", "text"):
            if not isinstance(given[name], str):
                raise ConfigError(f"{name} must be a string")
        for name in ("default_ms", "ms", "low", "high", "seed"):
            empty = name == "ms" and given[name] is None
            if not empty and (
                isinstance(given[name], bool) or not isinstance(given[name], (int, float))
            ):
                raise ConfigError(f"{name} must be a number")
        if not isinstance(given["cold"], bool):
            raise ConfigError("cold must be true or false")
        numbers = given["features"]
        if not isinstance(numbers, list) or any(
            x is not None and (isinstance(x, bool) or not isinstance(x, (int, float)))
            for x in numbers
        ):
            raise ConfigError("features must be a list of numbers")
        if content.get("of") != FEATURES or len(numbers) != len(NAMES):
            numbers = []
        if not isinstance(given["choice"], dict):
            raise ConfigError("choice must be an object, stage -> what is chosen for it")
        try:
            choice = {k: decision_from_json(c) for k, c in given["choice"].items()}
        except ScheduleError as e:
            raise ConfigError(str(e)) from None
        features = tuple(float("nan") if x is None else float(x) for x in numbers)
        return Trial(**{**given, "choice": choice, "features": features})


def read_trials(path: str | os.PathLike[str]) -> list[Trial]:
    """Every trial of a log, in order.

    Raises:
        ConfigError: the file cannot be read, or a trial is damaged; one that a killed process left
            half written is passed over.
    """
    found = []
    for number, line in enumerate(read_text(path, "the tuning log").splitlines(), 1):
        try:
            content = json.loads(line) if f'"{TRIAL}"' in line else None
        except (ValueError, RecursionError):
            continue
        if not isinstance(content, dict) or content.get(TRIAL) != VERSION:
            continue
        try:
            found.append(Trial.from_json(content))
        except ConfigError as e:
            raise ConfigError(f"{path}, line {number}: {e}; correct or delete the line") from None
    return found


def trials_here(path: str | os.PathLike[str], target: Target) -> list[Trial]:
    """Those of a log that are of a target on this CPU, in order; none where there is no file.

    Raises:
        ConfigError: see `read_trials`.
    """
    where = (str(target), target.isa, machine_cpu())
    trials = read_trials(path) if os.path.exists(path) else []
    return [t for t in trials if (t.target, t.isa, t.cpu) == where]


class Journal:
    """Appends lines to a log, each in one write: other processes may append to it as well. The file
    is made with the first line."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = path
        self._file: int | None = None
        self._synced = 0.0

    def append(self, line: str) -> None:
        """Add a line at once.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            if self._file is None:
                check_writable(self.path, appended=True)
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
                self._file = os.open(self.path, flags, 0o666)
                size = os.lseek(self._file, 0, os.SEEK_END)
                if size and os.pread(self._file, 1, size - 1) != b"\n":
                    line = "\n" + line  # after half a line, of a process that was killed
                self._synced = time.monotonic()
            content = line.encode()
            if os.write(self._file, content) != len(content):
                raise ConfigError(f"cannot write the tuning log {self.path}: the disk is full")
            if time.monotonic() - self._synced > SYNC_S:
                self.sync()
        except OSError as e:
            raise ConfigError(f"cannot write the tuning log {self.path}: {e.strerror}") from None

    def sync(self) -> None:
        """See to it that all lines are on the disk."""
        if self._file is not None:
            os.fsync(self._file)
            self._synced = time.monotonic()

    def close(self) -> None:
        """Sync, and leave the file."""
        if self._file is not None:
            self.sync()
            os.close(self._file)
            self._file = None


def bests(ratios: list[float | None]) -> Iterator[float]:
    """The best ratio after each trial, 1 being the rules': the curve of a search."""
    best = 1.0
    for r in ratios:
        best = best if r is None else min(best, r)
        yield best
