"""Specifications of trainings: TOML (or a dict) -> the runs that it spans."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from compiler.errors import unknown
from experiments.files import sha256
from experiments.spec.identity import compiling, definitions
from experiments.spec.overrides import overridden
from experiments.spec.reader import Reader
from experiments.systems import number_systems, schemes
from experiments.user_code import adapters
from experiments.zoo import model_files

from .data import MNIST, Examples, examples
from .formats import (
    BACKWARD,
    FLOAT32,
    FORWARD,
    LOSS,
    PARTS,
    ROUNDINGS,
    STATISTICS,
    UPDATE,
    Computed,
    Formats,
)  # fmt: skip
from .loss_scale import LossScale
from .optimizers import Optimizer
from .qat import Qat, check_layers
from .schedules import Schedule
from .step import Rules

T = TypeVar("T", Optimizer, Schedule, LossScale)

RANDOM, OF_MODEL = "random", "model"
LABELS = "labels"
TARGETS = (LABELS, OF_MODEL)
KEYS = (
    *("models", "dataset", "formats", "seeds", "rates", "epochs", "batch", "n_train", "n_test"),
    *("initial", "clip_norm", "optimizer", "schedule", "loss_scale", "qat", "targets", "shift"),
    *("temperature", "mirror", "views", "judge_epochs"),
    *("adapters", "threads", "checkpoint_steps", "curve_steps"),
)
_FORMAT_KEYS = ("format", *PARTS, "accumulate", "rounding", "loss_scale")


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
        qat: how the network is quantized while it is trained, if it is.
        adapters: paths of Python files that were run before, as they define formats.
        targets: what the scores are to be: LABELS, or OF_MODEL: the shares that the model file in
            float32 gives the classes, at the temperature of `rules` (distillation; Hinton, Vinyals
            and Dean 2015).
        shift: by how many pixels, at most, the images of a step are moved in each direction.
        mirror: whether half of the images of a step are mirrored, left to right.
        views: where only some layers are trained, how many times an example is moved and mirrored:
            what is before these layers is computed for so many views of it.
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
    qat: Qat | None = None
    adapters: tuple[str, ...] = ()
    targets: str = LABELS
    shift: int = 0
    mirror: bool = False
    views: int = 1

    @property
    def of_model(self) -> bool:
        """Whether the targets are float32's."""
        return self.targets == OF_MODEL

    @property
    def judged_only(self) -> bool:
        """Whether nothing is trained."""
        return self.qat is not None and not self.qat.train

    @property
    def system(self) -> str:
        """What it is trained in."""
        plain = not self.formats.forward.plain or self.formats != Formats()
        kinds = [str(self.formats)] * (plain or self.qat is None)
        t = self.rules.temperature
        by = "" if t == 1 else f" at temperature {t:g}"
        learned = [f"from float32's shares{by}"] if self.of_model else []
        learned += [f"shifted by {self.shift}"] if self.shift else []
        learned += ["mirrored"] if self.mirror else []
        learned += [f"{self.views} views"] if self.views > 1 else []
        learned = [] if self.judged_only else learned
        return ", ".join([*([str(self.qat)] if self.qat else []), *kinds, *learned])

    @property
    def steps_an_epoch(self) -> int:
        """How many whole batches the examples are."""
        return self.n_train // self.batch

    @property
    def steps(self) -> int:
        """How many steps the training has."""
        return 0 if self.judged_only else self.epochs * self.steps_an_epoch

    def content(self) -> dict[str, Any]:
        """Everything that gives the row its meaning, as JSON values; paths and names stay out."""
        return {
            "training_version": 1,
            "model": self.model_sha256,
            "dataset": [self.dataset_sha256, self.n_train, self.n_test],
            "formats": self.formats.table(),
            "rules": self.rules.table(),
            "schedule": asdict(self.schedule),
            "seed": self.seed,
            "initial": self.initial,
            "epochs": self.epochs,
            "batch": self.batch,
            "definitions": self._definitions(),
            "compiling": compiling(),
            **({} if self.qat is None else {"qat": self.qat.table()}),
            **({"adapters": self._adapters()} if self.adapters else {}),
            **({} if self.targets == LABELS else {"targets": self.targets}),
            **({"shift": self.shift} if self.shift else {}),
            **({"mirror": True} if self.mirror else {}),
            **({"views": self.views} if self.views > 1 else {}),
        }

    def _adapters(self) -> list[str]:
        return sorted(adapters.current(path).sha256 for path in self.adapters)

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
        judge_epochs: epochs between two judgements on the test examples.
    """

    source: str
    runs: tuple[Run, ...]
    data: Examples
    threads: int
    checkpoint_steps: int
    curve_steps: int
    judge_epochs: int

    @property
    def quantized(self) -> bool:
        """Whether any run is of a quantized network."""
        return any(run.qat for run in self.runs)


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
    own = tuple(str(folder / file) for file in top.texts("adapters", ()))
    for k, file in enumerate(own):
        top.checked(partial(_run_file, file), "adapters", k)
    name = top.text("dataset", MNIST)
    data = top.checked(lambda: examples(name, folder), "dataset")
    epochs, batch = top.integer("epochs", 10, 1), top.integer("batch", 64, 1)
    n_train = _count(top, "n_train", len(data.x))
    n_test = _count(top, "n_test", len(data.x_test))
    if batch > n_train:
        top.fail(f"a batch of {batch} is more than the {n_train} examples", "batch")
    quantized = _quantized(top, n_train)
    targets = top.text("targets", LABELS)
    if targets not in TARGETS:
        top.fail(f'targets must be "{LABELS}" or "{OF_MODEL}", not {targets!r}', "targets")
    if data.y is None and targets == LABELS:
        top.fail(f'{name} has no labels to train on: targets = "{OF_MODEL}"', "dataset")
    shift, mirror, views = _images(top, data, quantized)
    initial = top.text("initial", OF_MODEL if quantized != [None] else RANDOM)
    if initial not in (RANDOM, OF_MODEL):
        top.fail(f'initial must be "{RANDOM}" or "{OF_MODEL}", not {initial!r}', "initial")
    if initial == RANDOM and quantized != [None]:
        top.fail(
            f'with qat, training begins at the weights of the plan: initial = "{OF_MODEL}"',
            "initial",
        )
    optimizer = _made(top.table("optimizer"), Optimizer)
    schedule = _made(top.table("schedule"), Schedule)
    scale = _made(top.table("loss_scale"), LossScale)
    temperature = _temperature(top, targets)
    clip = top.number("clip_norm", 0.0) if "clip_norm" in top.values else 0.0
    rates = [_rate(top, k, r) for k, r in enumerate(top.items("rates", (schedule.rate,)))]
    systems = [_system(top, k, f, scale) for k, f in enumerate(top.items("formats", ("float32",)))]
    if quantized != [None]:
        _check_forward(top, [f for f, _ in systems])
    seeds = top.integers("seeds", (0,), 0)
    models = [(m, *_model(top, k, m, folder)) for k, m in enumerate(top.texts("models"))]
    for qat in quantized:
        for k, (_, path, _) in enumerate(models):
            if qat and qat.layers:
                top.checked(partial(check_layers, path, qat.layers), "models", k)
    runs = tuple(
        Run(
            Path(model).stem, path, digest, data.name, data.sha256, n_train, n_test, formats,
            Rules(optimizer, loss_scale, clip, temperature), replace(schedule, rate=rate), seed,
            initial, epochs, batch, qat, own, targets, shift, mirror, views,
        )
        for (model, path, digest), (formats, loss_scale), qat, rate, seed in product(
            models, systems, quantized, rates, seeds
        )
        if not (qat and not qat.train and (rate, seed) != (rates[0], seeds[0]))
    )  # fmt: skip
    return TrainSpec(
        top.source, runs, data, top.integer("threads", 1, 1),
        top.integer("checkpoint_steps", 100, 1), top.integer("curve_steps", 10, 1),
        top.integer("judge_epochs", 1, 1),
    )  # fmt: skip


def _quantized(top: Reader, n_train: int) -> list[Qat | None]:
    """The elements of `qat`: tables, or false for a training without."""
    if "qat" not in top.values:
        return [None]
    found: list[Qat | None] = []
    given = top.values["qat"]
    for k, table in enumerate([given] if isinstance(given, dict) else top.items("qat")):
        if table is False:
            found.append(None)
            continue
        if not isinstance(table, dict):
            top.fail(f"qat holds tables, or false for training without, not {table!r}", "qat", k)
        one = top.checked(partial(Qat.of, table), "qat", k)
        if one.n_calib > n_train:
            top.fail(f"n_calib is {one.n_calib}, but there are {n_train} examples", "qat", k)
        found.append(one)
    return found


def _images(top: Reader, data: Examples, quantized: list[Qat | None]) -> tuple[int, bool, int]:
    """How images are moved, whether mirrored, and how many views an example has."""
    shift, mirror = top.integer("shift", 0, 0), top.flag("mirror", False)
    shape = data.x.shape[1:]
    if shift and (data.x.ndim != 4 or shift >= min(data.x.shape[2:])):
        top.fail(
            f"shift moves images [n, channels, height, width] by less than their size, not by "
            f"{shift} what has shape {shape}",
            "shift",
        )
    if mirror and data.x.ndim != 4:
        top.fail(
            f"mirror is for images [n, channels, height, width], not for shape {shape}", "mirror"
        )
    views = top.integer("views", 1, 1)
    if "views" in top.values and not any(q and q.layers for q in quantized):
        top.fail("views are for qat with layers: others have a new one in every step", "views")
    if views > 1 and not (shift or mirror):
        top.fail("views differ by shift and mirror, of which there is neither", "views")
    return shift, mirror, views


def _temperature(top: Reader, targets: str) -> float:
    """What scores are divided by; labels have none."""
    if "temperature" not in top.values:
        return 1.0
    found = top.number("temperature", 0.0)
    if not 0.01 <= found <= 1000:
        top.fail(f"temperature must be from 0.01 to 1000, not {found}", "temperature")
    if found != 1 and targets != OF_MODEL:
        top.fail(f'temperature is for targets = "{OF_MODEL}": labels have none', "temperature")
    return found


def _check_forward(top: Reader, formats: list[Formats]) -> None:
    """Refuse formats beside integers in one forward pass."""
    for f in formats:
        if not f.forward.plain:
            top.fail(f"with qat, the forward pass is of integers and float32, not {f.forward}")


def _run_file(path: str) -> None:
    adapters.install(adapters.Adapter.read(path))


def _count(top: Reader, key: str, there: int) -> int:
    count = top.integer(key, there, 1)
    if count > there:
        top.fail(f"{key} is {count}, but there are {there} examples", key)
    return count


def _rate(top: Reader, k: int, rate: Any) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9:
        top.fail(f"rates are numbers above 0 and below 1e9, not {rate!r}", "rates", k)
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
    parts = _rounded(table, parts, given.get("rounding", {}))
    return table.checked(lambda: Formats(**parts)), own


def _rounded(table: Reader, parts: Mapping[str, Computed], given: Any) -> dict[str, Computed]:
    """The parts with the rounding that is given: of all but float32 by a name, or part by part."""
    wanted = given
    if isinstance(given, str):
        wanted = {part: given for part, c in parts.items() if c.format != FLOAT32}
    if not isinstance(wanted, dict):
        table.fail(f"rounding is a name, or a table of parts, not {given!r}", "rounding")
    for part, rounding in wanted.items():
        if part not in PARTS:
            table.fail(unknown("part of a step", part, PARTS), "rounding")
        if rounding not in ROUNDINGS:
            table.fail(unknown("rounding", rounding, ROUNDINGS), "rounding")
    return {
        part: table.checked(partial(c.rounded, wanted[part]), "rounding") if part in wanted else c
        for part, c in parts.items()
    }


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
