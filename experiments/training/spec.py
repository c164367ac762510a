"""Specifications of trainings: TOML (or a dict) -> the runs that it spans."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from experiments.files import sha256
from experiments.spec.identity import compiling, definitions
from experiments.spec.overrides import overridden
from experiments.spec.reader import Reader
from experiments.systems import number_systems, schemes
from experiments.zoo import model_files

from .data import MNIST, Examples, examples
from .formats import BACKWARD, FORWARD, LOSS, PARTS, STATISTICS, UPDATE, Computed, Formats
from .loss_scale import LossScale
from .optimizers import Optimizer
from .schedules import Schedule
from .step import Rules

T = TypeVar("T", Optimizer, Schedule, LossScale)

RANDOM, OF_MODEL = "random", "model"
KEYS = (
    *("models", "dataset", "formats", "seeds", "rates", "epochs", "batch", "n_train", "n_test"),
    *("initial", "clip_norm", "optimizer", "schedule", "loss_scale"),
    *("threads", "checkpoint_steps", "curve_steps"),
)
_FORMAT_KEYS = ("format", *PARTS, "accumulate", "loss_scale")


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        model, path, model_sha256: the network.
        dataset, dataset_sha256: the examples. n_train, n_test: how many of each, the first ones.
        formats, rules, schedule: how it is trained.
        seed: of the order of examples, and of random weights.
        initial: where the weights begin: RANDOM, or OF_MODEL, what the model file holds.
        epochs, batch: how long, and how many examples a step has; what is left of an epoch
            is left out.
    """

    model: str
    path: Path
    model_sha256: str
    dataset: str
    dataset_sha256: str
    n_train: int
    n_test: int
    formats: Formats
    rules: Rules
    schedule: Schedule
    seed: int
    initial: str
    epochs: int
    batch: int

    @property
    def steps_an_epoch(self) -> int:
        """How many whole batches the examples are."""
        return self.n_train // self.batch

    @property
    def steps(self) -> int:
        """How many steps the training has."""
        return self.epochs * self.steps_an_epoch

    def content(self) -> dict[str, Any]:
        """Everything that gives the row its meaning, as JSON values; paths and names stay out."""
        return {
            "training_version": 1,
            "model": self.model_sha256,
            "dataset": [self.dataset_sha256, self.n_train, self.n_test],
            "formats": self.formats.table(),
            "rules": asdict(self.rules),
            "schedule": asdict(self.schedule),
            "seed": self.seed,
            "initial": self.initial,
            "epochs": self.epochs,
            "batch": self.batch,
            "definitions": self._definitions(),
            "compiling": compiling(),
        }

    def _definitions(self) -> list[Any]:
        """What the formats mean that this process has defined."""
        parts = {getattr(self.formats, part) for part in PARTS}
        found = [definitions(scheme_of(c)) for c in sorted(parts, key=str)]
        return [f for f in found if f]

    @property
    def config_hash(self) -> str:
        """SHA-256 of `content`, as canonical JSON."""
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"), default=list)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class TrainSpec:
    """A validated specification.

    Attributes:
        source: what it was read from.
        runs: in the order they run.
        data: the examples.
        threads: of kernels; they change no bit.
        checkpoint_steps: steps between two checkpoints. curve_steps: between two lines of a curve.
    """

    source: str
    runs: tuple[Run, ...]
    data: Examples
    threads: int
    checkpoint_steps: int
    curve_steps: int


def scheme_of(c: Computed) -> schemes.Scheme:
    """A format with its accumulation, as sweeps name it."""
    plain = c.accumulate == Computed.accumulate
    return schemes.parse(c.format, {} if plain else {"accumulate": c.accumulate})


def load_training(
    spec: str | os.PathLike[str] | Mapping[str, Any] | TrainSpec, settings: Iterable[str] = ()
) -> TrainSpec:
    """Read and check a specification: a TOML file or a dict. `settings` KEY=VALUE replace its own.

    Raises:
        ConfigError: it cannot be read, or has an unknown key, a wrong type or value, or names a
            model, data set, format, accumulation, optimizer or schedule that does not exist.
    """
    if isinstance(spec, TrainSpec):
        return spec
    if isinstance(spec, Mapping):
        top, folder = Reader(spec, "the specification"), Path()
    else:
        top, folder = Reader.open(Path(spec)), Path(spec).parent
    return _read(overridden(top, settings), folder)


def _read(top: Reader, folder: Path) -> TrainSpec:
    top.only(KEYS)
    name = top.text("dataset", MNIST)
    data = top.checked(lambda: examples(name, folder), "dataset")
    epochs, batch = top.integer("epochs", 10, 1), top.integer("batch", 64, 1)
    n_train = _count(top, "n_train", len(data.x))
    n_test = _count(top, "n_test", len(data.x_test))
    if batch > n_train:
        top.fail(f"a batch of {batch} is more than the {n_train} examples", "batch")
    initial = top.text("initial", RANDOM)
    if initial not in (RANDOM, OF_MODEL):
        top.fail(f'initial must be "{RANDOM}" or "{OF_MODEL}", not {initial!r}', "initial")
    optimizer = _made(top.table("optimizer"), Optimizer)
    schedule = _made(top.table("schedule"), Schedule)
    scale = _made(top.table("loss_scale"), LossScale)
    clip = top.number("clip_norm", 0.0) if "clip_norm" in top.values else 0.0
    rates = [_rate(top, k, r) for k, r in enumerate(top.items("rates", (schedule.rate,)))]
    systems = [_system(top, k, f, scale) for k, f in enumerate(top.items("formats", ("float32",)))]
    models = [(m, *_model(top, k, m, folder)) for k, m in enumerate(top.texts("models"))]
    runs = tuple(
        Run(
            Path(model).stem, path, digest, data.name, data.sha256, n_train, n_test, formats,
            Rules(optimizer, loss_scale, clip), replace(schedule, rate=rate), seed, initial,
            epochs, batch,
        )
        for (model, path, digest), (formats, loss_scale), rate, seed in product(
            models, systems, rates, top.integers("seeds", (0,), 0)
        )
    )  # fmt: skip
    return TrainSpec(
        top.source, runs, data, top.integer("threads", 1, 1),
        top.integer("checkpoint_steps", 100, 1), top.integer("curve_steps", 10, 1),
    )  # fmt: skip


def _count(top: Reader, key: str, there: int) -> int:
    count = top.integer(key, there, 1)
    if count > there:
        top.fail(f"{key} is {count}, but there are {there} examples", key)
    return count


def _rate(top: Reader, k: int, rate: Any) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9:
        top.fail(f"rates are numbers above 0, not {rate!r}", "rates", k)
    return float(rate)


def _model(top: Reader, k: int, name: str, folder: Path) -> tuple[Path, str]:
    beside = folder / name
    found = str(beside) if beside.suffix == ".onnx" and beside.is_file() else name
    path = top.checked(lambda: model_files.model_file(found), "models", k)
    return path, sha256(path)


def _made(table: Reader, kind: type[T]) -> T:
    """A frozen dataclass of the values in a table, whose keys are its fields."""
    defaults = {f.name: f.default for f in fields(kind)}
    table.only(defaults)
    given: dict[str, Any] = {}
    for key, default in defaults.items():
        if key not in table.values:
            continue
        if isinstance(default, bool):
            given[key] = table.flag(key, default)
        elif isinstance(default, str):
            given[key] = table.text(key)
        elif isinstance(default, int):
            given[key] = table.integer(key, default, 0)
        elif isinstance(default, tuple):
            given[key] = tuple(table.items(key))
        else:
            given[key] = table.number(key, 0.0)
    return table.checked(lambda: kind(**given))


def _system(top: Reader, k: int, given: Any, scale: LossScale) -> tuple[Formats, LossScale]:
    """An element of `formats`: the name of one for every part, or a table."""
    if isinstance(given, str):
        return top.checked(lambda: Formats.all(given), "formats", k), scale
    if not isinstance(given, dict):
        top.fail(f"formats are names or tables, not {given!r}", "formats", k)
    table = top.at(given, "formats", k)
    table.only(_FORMAT_KEYS)
    own = _made(table.table("loss_scale"), LossScale) if "loss_scale" in given else scale
    sums = table.checked(lambda: number_systems.accumulation(given.get("accumulate", "sequential")))
    whole = given.get("format")
    if whole is None and FORWARD not in given:
        table.fail('the key "forward" is missing (or "format", for every part)')
    named: dict[str, Any] = dict.fromkeys(PARTS, whole) if whole is not None else {}
    if whole is None:
        named = {UPDATE: "float32", LOSS: "float32", STATISTICS: "float32"}
        named[BACKWARD] = given[FORWARD]
    named |= {part: given[part] for part in PARTS if part in given}
    parts = {part: _computed(table, part, value, sums) for part, value in named.items()}
    return table.checked(lambda: Formats(**parts)), own


def _computed(table: Reader, part: str, value: Any, sums: str) -> Computed:
    """A format by name, or a list of a format and an accumulation."""
    pair = value if isinstance(value, list) else [value]
    if not 1 <= len(pair) <= 2 or not isinstance(pair[0], str):
        table.fail(
            f"{part} must be the name of a format, or a list of one and an accumulation, not "
            f"{value!r}",
            *([part] if part in table.values else []),
        )
    if len(pair) == 2:
        own = table.checked(lambda: number_systems.accumulation(pair[1]), part)
        return Computed(pair[0], own)
    return Computed(pair[0], sums if pair[0] != "float32" else Computed.accumulate)


def program_key(run: Run) -> tuple[Any, ...]:
    """What the program of a run's step depends on."""
    return run.path, run.model_sha256, run.batch, run.formats, run.rules
