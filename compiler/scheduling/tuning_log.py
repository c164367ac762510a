"""The tuning log: JSON lines, one per workload that a choice made faster.

A line is a record when it is a JSON object with `"tuning": 1`. Other lines (comments, blank ones,
records of other versions, what was tried (`compiler.tuning.trials`), a line that a killed process
left half written) are passed over; a record with missing or wrong fields is an error that names its
line. Records hold for the target, instruction set and CPU they were measured on, and only there: a
log of other CPUs alone is refused. Of several for one workload the last one counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from compiler.errors import ConfigError, ScheduleError
from compiler.files.reading import read_text
from compiler.files.writing import behind_links, check_writable
from compiler.passes.manager import PassContext
from compiler.scheduling.choices import Choice, decision_from_json
from compiler.target.registry import Target, host_cpu
from compiler.tensor.stmt import PrimFunc
from compiler.types.names import digest

_LITERAL = re.compile(r"\b([a-z]+\d+)\((?:-?[\d.]+(?:e[+-]?\d+)?|-?inf|nan)\)")


def workload_key(f: PrimFunc, target: Target) -> str:
    """16 hexadecimal digits for an unscheduled loop nest and its target.

    Literal numbers of the arithmetic (scales, zero points) are left out: no tile depends on them,
    and they change with every calibration.
    """
    return digest(_LITERAL.sub(r"\1(#)", str(f)), str(target))


def summary(f: PrimFunc) -> str:
    """Name, parameters and results of a loop nest, in one line for people."""
    head = str(f).split("\n", 1)[0]
    return head.removeprefix("primfunc @").removesuffix(" {")


def structure_key(f: PrimFunc) -> str:
    """16 hexadecimal digits for what loop nests of other extents have in common: the loops without
    their numbers. Stages of equal structures have equal names."""
    return digest(_NUMBER.sub("#", _LITERAL.sub(r"\1(#)", str(f))))


_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\b")

VERSION = 1
TRIAL = "trial"
"""The field of lines that say what was tried, which are no records."""
_TRIAL_LINE = f'{{"{TRIAL}":'
CONFIG = "tune.log"
"""The option of PassContext that names a log."""


@dataclass(frozen=True)
class Record:
    """What was found out about one workload.

    Attributes:
        workload: its key.
        text: its parameters and results, for people.
        target, isa, cpu: where it was measured; `cpu` is the machine's, whatever the target.
        choice: stage -> its tile, or what else is chosen for it.
        default_ms, best_ms: median milliseconds of the rule's tile and of this one, taken in turns.
        seed: of the tuner.
        date: UTC, ISO 8601.
    """

    workload: str
    text: str
    target: str
    isa: str
    cpu: str
    choice: Choice
    default_ms: float
    best_ms: float
    seed: int
    date: str

    def to_line(self) -> str:
        """One line of JSON."""
        plain = asdict(self) | {"choice": {k: c.to_json() for k, c in self.choice.items()}}
        return json.dumps({"tuning": VERSION, **plain}) + "\n"

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Record:
        """The inverse of `to_line`.

        Raises:
            ConfigError: a field is missing, unknown or of the wrong kind.
        """
        given = {k: v for k, v in content.items() if k != "tuning"}
        names = [f.name for f in fields(Record)]
        if wrong := sorted(set(given) ^ set(names)):
            raise ConfigError(f"fields missing or unknown: {', '.join(wrong)}")
        for name in ("workload", "text", "target", "isa", "cpu", "date"):
            if not isinstance(given[name], str):
                raise ConfigError(f"{name} must be a string")
        for name in ("default_ms", "best_ms", "seed"):
            if isinstance(given[name], bool) or not isinstance(given[name], (int, float)):
                raise ConfigError(f"{name} must be a number")
        if not isinstance(given["choice"], dict):
            raise ConfigError("choice must be an object, stage -> tile")
        try:
            choice = {k: decision_from_json(c) for k, c in given["choice"].items()}
        except ScheduleError as e:
            raise ConfigError(str(e)) from None
        return Record(**{**given, "choice": choice})


class History:
    """The records that hold for one target on this machine (see `of_machine`); `source` says where
    they are from."""

    def __init__(self, records: Sequence[Record], target: Target, source: str):
        self.target, self.source = target, source
        here = (str(target), target.isa, machine_cpu())
        self.records = {r.workload: r for r in records if (r.target, r.isa, r.cpu) == here}

    def find(self, f: PrimFunc) -> Record | None:
        """The record for an unscheduled loop nest."""
        return self.records.get(workload_key(f, self.target)) if self.records else None


def read_log(path: str | os.PathLike[str]) -> list[Record]:
    """Every record of a log, in order.

    Raises:
        ConfigError: the file cannot be read, holds lines but no record, or a damaged record.
    """
    lines = read_text(path, "the tuning log").splitlines()
    records, known = [], False
    for number, line in enumerate(lines, 1):
        if line.startswith(_TRIAL_LINE):  # most lines, which no build needs read
            known = True
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):  # numbers of too many digits, nested too deep
            continue
        if not isinstance(content, dict) or content.keys().isdisjoint(("tuning", TRIAL)):
            continue
        known = True
        if content.get("tuning") != VERSION:
            continue
        try:
            records.append(Record.from_json(content))
        except ConfigError as e:
            raise ConfigError(f"{path}, line {number}: {e}; correct or delete the line") from None
    if not known and any(line.strip() for line in lines):
        raise ConfigError(
            f"{path} is no tuning log: no line has a record; `dtypelab tune` makes one"
        )
    return records


def append_records(path: str | os.PathLike[str], records: list[Record]) -> None:
    """Add records at the end of a log, in one write: other processes may append to it as well. A
    missing log is made, also for no records.

    Raises:
        ConfigError: the file cannot be written.
    """
    append_lines(path, [r.to_line() for r in records])


def append_lines(path: str | os.PathLike[str], lines: Sequence[str]) -> None:
    """The same of lines of whatever kind.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = "".join(lines)
    check_writable(path, appended=True)
    try:
        with open(path, "a+b", buffering=0) as log:
            size = log.seek(0, os.SEEK_END)
            if size and lines:
                log.seek(size - 1)
                if log.read(1) != b"\n":  # half a line, of a process that was killed
                    text = "\n" + text
            if text:
                log.write(text.encode())
                os.fsync(log.fileno())
    except OSError as e:
        raise ConfigError(f"cannot write the tuning log {path}: {e.strerror}") from None


def check_log(path: str | os.PathLike[str]) -> None:
    """Find out before any work whether records can be appended at `path`; nothing is left there.

    Raises:
        ConfigError: the file cannot be written, or holds something that is no log.
    """
    check_writable(path, appended=True)
    new = not os.path.exists(path)
    if not new:
        read_log(path)
    append_records(path, [])
    if new:
        behind_links(path).unlink(missing_ok=True)


_active: ContextVar[str | os.PathLike[str] | tuple[Record, ...] | None] = ContextVar(
    "tuning_log", default=None
)


@contextmanager
def apply_history_best(path: str | os.PathLike[str]) -> Iterator[None]:
    """`with compiler.apply_history_best("tune.jsonl"): compiler.build(mod)`: builds inside use the
    choices of the log for the workloads it knows; an inner one replaces it.

    Raises:
        ConfigError: the file is no tuning log.
    """
    read_log(path)
    token = _active.set(path)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def apply_records(records: Sequence[Record]) -> Iterator[None]:
    """Builds inside use these records and no log."""
    context = PassContext.current()
    config = {k: v for k, v in context.config.items() if k != CONFIG}
    token = _active.set(tuple(records))
    try:
        with replace(context, config=config):
            yield
    finally:
        _active.reset(token)


_cpu: ContextVar[str] = ContextVar("cpu", default="")


def machine_cpu() -> str:
    """LLVM's name of the CPU that builds are for: this machine's, unless `of_machine` names it."""
    return _cpu.get() or host_cpu()


@contextmanager
def of_machine(cpu: str) -> Iterator[None]:
    """Builds inside are for another machine, whose CPU LLVM calls so: records of that one hold."""
    token = _cpu.set(cpu)
    try:
        yield
    finally:
        _cpu.reset(token)


def active_source() -> str | os.PathLike[str] | tuple[Record, ...] | None:
    """The log that the current PassContext names (`{"tune.log": path}`), or else the one being
    applied, or a tuner's records; None: neither."""
    source: str | os.PathLike[str] | tuple[Record, ...] | None
    source = PassContext.current().config.get(CONFIG, _active.get())
    return source


def active_digest() -> str:
    """SHA-256 of the records that builds use now, on any target; empty if there are none."""
    source = active_source()
    if source is None:
        return ""
    if isinstance(source, tuple):
        lines = [r.to_line() for r in source]
    else:
        from compiler.scheduling.network_choice import read_networks

        lines = [r.to_line() for r in read_log(source)]
        lines += [r.to_line() for r in read_networks(source)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def active_history(target: Target) -> History | None:
    """The records in use that hold for a target (see `active_source`).

    Raises:
        ConfigError: they are all of other CPUs than the one that this build is for.
    """
    source = active_source()
    if source is None:
        return None
    if isinstance(source, tuple):
        return History(source, target, "the tuner")
    records, here = read_log(source), machine_cpu()
    others = sorted({r.cpu for r in records} - {here})
    if others and all(r.cpu != here for r in records):
        raise ConfigError(
            f"{source} was measured on {', '.join(others)} and says nothing of {here}: tune here, "
            f"`dtypelab tune --transfer {source}` tries its choices first"
        )
    return History(records, target, str(source))
