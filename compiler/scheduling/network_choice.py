"""What may be chosen for a network as a whole, beside the schedules of its kernels: which passes
run, and their options. Choices are lines of the tuning log, and builds with a log apply those for
the module they are given.

A line is one of these when it is a JSON object with `"tuning": "network"`; of several for one
module, target, CPU and number of threads the last counts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from compiler.errors import ConfigError
from compiler.files.reading import read_text
from compiler.ir.expr import IRModule
from compiler.passes.manager import PassContext
from compiler.scheduling.tuning_log import active_source, append_lines, machine_cpu
from compiler.target.registry import Target
from compiler.types.names import digest

NETWORK = "network"
"""What a line of the log has for "tuning" if it is for a network."""
APPLIED = "tune.network"
"""The option of PassContext that says whether choices for networks hold; they do by default."""
_FLOAT = re.compile(r"-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf|nan)(?=float\d)")


@dataclass(frozen=True)
class NetworkChoice:
    """Passes, and options of theirs, that a network is compiled with; see `PassContext`.

    Attributes:
        config: options, numbers all.
        required: passes that run whatever their level.
        disabled: passes that do not run.
    """

    config: Mapping[str, int] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()

    def __or__(self, more: NetworkChoice) -> NetworkChoice:
        """Both, `more` where they disagree."""
        required = [p for p in self.required if p not in more.disabled]
        disabled = [p for p in self.disabled if p not in more.required]
        return NetworkChoice(
            {**self.config, **more.config},
            tuple(sorted({*required, *more.required})),
            tuple(sorted({*disabled, *more.disabled})),
        )

    def within(self, context: PassContext) -> PassContext:
        """The context with this choice for all that it says nothing of itself.

        Raises:
            ConfigError: there is no such pass or option.
        """
        named = {*context.required_pass, *context.disabled_pass}
        return replace(
            context,
            config={**self.config, **context.config, APPLIED: False},
            required_pass=(*context.required_pass, *(p for p in self.required if p not in named)),
            disabled_pass=(*context.disabled_pass, *(p for p in self.disabled if p not in named)),
        )

    def to_json(self) -> dict[str, Any]:
        """Names and values, for a log."""
        return {"config": dict(self.config), "required": [*self.required],
                "disabled": [*self.disabled]}  # fmt: skip

    @staticmethod
    def from_json(content: Any) -> NetworkChoice:
        """The inverse of `to_json`.

        Raises:
            ConfigError: a field is missing, unknown or of the wrong kind, or names no pass or
                option.
        """
        if not isinstance(content, dict) or content.keys() != {"config", "required", "disabled"}:
            raise ConfigError("a choice for a network has config, required and disabled")
        config, *lists = content["config"], content["required"], content["disabled"]
        if not isinstance(config, dict) or any(type(v) is not int for v in config.values()):
            raise ConfigError("config must be an object, option -> whole number")
        if not all(isinstance(x, list) and all(isinstance(p, str) for p in x) for x in lists):
            raise ConfigError("required and disabled must be lists of passes")
        required, disabled = map(tuple, lists)
        PassContext(config=config, required_pass=required, disabled_pass=disabled)
        return NetworkChoice(config, required, disabled)

    def __str__(self) -> str:
        parts = [f"{k}={v}" for k, v in sorted(self.config.items())]
        return ", ".join([*parts, *self.required, *(f"no {p}" for p in self.disabled)]) or "rules"


@dataclass(frozen=True)
class NetworkRecord:
    """What was found out about one network.

    Attributes:
        module: its key (see `module_key`).
        text: what it takes and gives, for people.
        target, isa, cpu, threads: where it was measured.
        choice: what was chosen.
        default_ms, best_ms: median milliseconds without the choice and with it, taken in turns,
            both with the kernels' records.
        seed: of the tuner.
        date: UTC, ISO 8601.
    """

    module: str
    text: str
    target: str
    isa: str
    cpu: str
    threads: int
    choice: NetworkChoice
    default_ms: float
    best_ms: float
    seed: int
    date: str

    def to_line(self) -> str:
        """One line of JSON."""
        plain = asdict(self) | {"choice": self.choice.to_json()}
        return json.dumps({"tuning": NETWORK, **plain}) + "\n"

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> NetworkRecord:
        """The inverse of `to_line`.

        Raises:
            ConfigError: a field is missing, unknown or of the wrong kind.
        """
        given = {k: v for k, v in content.items() if k != "tuning"}
        kinds = {f.name: f.type for f in fields(NetworkRecord)}
        if wrong := sorted(given.keys() ^ kinds.keys()):
            raise ConfigError(f"fields missing or unknown: {', '.join(wrong)}")
        for name, kind in kinds.items():
            value = given[name]
            if kind == "str" and not isinstance(value, str):
                raise ConfigError(f"{name} must be a string")
            if kind in ("int", "float") and type(value) not in (int, float)[: 1 + (kind != "int")]:
                raise ConfigError(f"{name} must be a number")
        return NetworkRecord(**{**given, "choice": NetworkChoice.from_json(given["choice"])})


def module_key(mod: IRModule) -> str:
    """16 hexadecimal digits for a module: its text, without the numbers of its constants."""
    return digest(_FLOAT.sub("#", mod.astext()))


def read_networks(path: str | os.PathLike[str]) -> list[NetworkRecord]:
    """Every record of a network in a log, in order.

    Raises:
        ConfigError: the file cannot be read, or holds a damaged record.
    """
    start, records = json.dumps({"tuning": NETWORK})[:-1], []
    for number, line in enumerate(read_text(path, "the tuning log").splitlines(), 1):
        if not line.startswith(start):
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):  # half a line, of a process that was killed
            continue
        try:
            records.append(NetworkRecord.from_json(content))
        except ConfigError as e:
            raise ConfigError(f"{path}, line {number}: {e}; correct or delete the line") from None
    return records


def append_networks(path: str | os.PathLike[str], records: Sequence[NetworkRecord]) -> None:
    """Add records at the end of a log; see `tuning_log.append_records`.

    Raises:
        ConfigError: the file cannot be written.
    """
    append_lines(path, [r.to_line() for r in records])


def active_choice(mod: IRModule, target: Target, threads: int) -> NetworkChoice | None:
    """What the log in use has for a module, on this machine.

    Raises:
        ConfigError: the log cannot be read.
    """
    source = active_source()
    if source is None or isinstance(source, tuple):  # a tuner's own records: of kernels
        return None
    if not PassContext.current().config.get(APPLIED, True):
        return None
    here = (str(target), target.isa, machine_cpu(), threads)
    mine = [r for r in read_networks(source) if (r.target, r.isa, r.cpu, r.threads) == here]
    if not mine:
        return None
    key = module_key(mod)
    return next((r.choice for r in reversed(mine) if r.module == key), None)


@contextmanager
def as_chosen(mod: IRModule, target: Target, threads: int = 1) -> Iterator[None]:
    """Passes inside run as the log in use says for the module, where the PassContext does not say
    otherwise.

    Raises:
        ConfigError: the log cannot be read.
    """
    choice = active_choice(mod, target, threads)
    if choice is None:
        yield
        return
    with choice.within(PassContext.current()):
        yield
