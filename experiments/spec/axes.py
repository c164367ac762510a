"""The axes of a specification: what its lists hold, each element with the settings it brings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Generic, TypeVar

from compiler.errors import ModelError, UnsupportedError, unknown
from experiments import zoo
from experiments.data import datasets
from experiments.files import sha256
from experiments.measure import metric_choice, outputs, scoring
from experiments.systems import number_systems, schemes
from experiments.systems.engine_choice import OURS_NAME, EngineChoice
from experiments.systems.schemes import Scheme
from experiments.user_code import activity, adapters
from experiments.zoo.model_files import external_files

from .cells import LATENCY, ModelFile, Settings
from .reader import Reader

T = TypeVar("T")

#: Settings that an element of an axis, or a rule, may override, with their smallest values: those
#: of a float are numbers, the others integers.
SETTINGS: dict[str, int | float] = {
    "n_eval": 1,
    "n_calib": 1,
    "warmup": 0,
    "runs": 0,
    "batch": 1,
    "precision": 0.0,
    "budget_s": 0.0,
}

#: Axis -> what an element is called in rules and in tables of its own.
AXES = {
    "models": "model",
    "schemes": "scheme",
    "calibrators": "calibrator",
    "accumulations": "accumulate",
    "targets": "target",
    "threads": "threads",
    "engines": "engine",
    "seeds": "seed",
    "repeats": "repeat",
}

#: Options of schemes that are lists themselves; any other that is one spans schemes.
LIST_OPTIONS = ("skip",)

#: What the table of a network may say of it, besides settings.
ELEMENT_KEYS = ("model", "dataset", "metric", "output")


@dataclass(frozen=True)
class Given:
    """A setting, and the table that it stands in (None: a default)."""

    value: int | float
    reader: Reader | None = None


Overrides = Mapping[str, Given]


@dataclass(frozen=True)
class Item(Generic[T]):
    """An element of an axis, the settings it brings, and where it stands."""

    value: T
    settings: Overrides
    reader: Reader


@dataclass(frozen=True)
class Subject:
    """A network with the data, the metric and the output it is judged by.

    `data` has a row for every example of the network; `given` is the same as it was read. `output`
    is empty for networks that have one; `default_metric` is what would judge it if none were named.
    """

    model: ModelFile
    data: datasets.Dataset
    given: datasets.Dataset
    source: str
    metric: str
    default_metric: str
    output: str


@dataclass(frozen=True)
class Axes:
    """All lists; `schemes` are not yet crossed with calibrators and accumulations."""

    models: tuple[Item[Subject], ...]
    schemes: tuple[Item[Scheme], ...]
    calibrators: tuple[str, ...]
    accumulations: tuple[str, ...]
    targets: tuple[str, ...]
    threads: tuple[int, ...]
    engines: tuple[str, ...]
    seeds: tuple[int, ...]
    repeats: tuple[int, ...]

    def columns(self) -> list[Item[Scheme]]:
        """The schemes crossed with the calibrators and accumulations that they take."""
        out = []
        for item in self.schemes:
            crossed = dict.fromkeys(map(item.value.with_calibrator, self.calibrators))
            for scheme in crossed or [item.value]:
                ways = [scheme.with_accumulation(m) for m in self.accumulations if scheme.takes(m)]
                out += [replace(item, value=s) for s in dict.fromkeys(ways or [scheme])]
        return out


@dataclass(frozen=True)
class AxesReader:
    """Reads axes of the specification `spec`; relative paths count from `folder`."""

    folder: Path
    spec: Reader
    #: The data sets that have been loaded, by name.
    loaded: dict[str, datasets.Dataset] = field(default_factory=dict)

    def read(self, reader: Reader, default: Axes | None = None) -> Axes:
        """The axes of a table; those that it leaves out are those of `default`."""
        d = default
        given = {axis for axis in AXES if axis in reader.values}
        models = reader.items("models") if d is None or "models" in given else []
        items = reader.items("schemes") if d is None or "schemes" in given else []
        if "seed" in reader.values and "seeds" in reader.values:
            reader.fail("give either seed or seeds", "seed")
        seed = reader.integer("seed", 0, 0)
        read = Axes(
            models=tuple(self._subject(reader, k, item) for k, item in enumerate(models)),
            schemes=tuple(
                s for k, item in enumerate(items) for s in self._schemes(reader, k, item)
            ),
            calibrators=reader.texts("calibrators", ()),
            accumulations=_accumulations(reader),
            targets=reader.texts("targets", ("llvm",)),
            threads=reader.integers("threads", (1,), 1),
            engines=_engines(reader),
            seeds=reader.integers("seeds", (seed,), 0),
            repeats=_repeats(reader),
        )
        _check(reader, read, "device" in self.spec.values)
        if d is None:
            return read
        if "seed" in reader.values:
            given.add("seeds")
        if "repeat" in reader.values:
            given.add("repeats")
        return replace(d, **{axis: getattr(read, axis) for axis in given})

    def _schemes(self, top: Reader, index: int, item: Any) -> list[Item[Scheme]]:
        """A scheme, or as many as the lists among its options span."""
        reader = _table(top, "schemes", index, item, "scheme")
        own = {k: v for k, v in reader.values.items() if k not in ("scheme", *SETTINGS)}
        file = self._configuration(reader) if own.pop("config", None) is not None else {}
        options = {**file, **own}
        given = reader.values.get("scheme")
        if isinstance(given, dict):  # formats by layer
            pairs = (f"{json.dumps(k)} = {json.dumps(v)}" for k, v in given.items())
            name = "{" + ", ".join(pairs) + "}"
        else:
            name = reader.text("scheme", schemes.of_config(options) if file else None)
        lists = {k: v for k, v in options.items() if isinstance(v, list) and k not in LIST_OPTIONS}
        for key, values in lists.items():
            if not values:
                reader.fail(f"{key} lists nothing: give at least one value", key)
        made = []
        for chosen in product(*lists.values()):
            one = {**options, **dict(zip(lists, chosen, strict=True))}
            scheme = reader.checked(partial(schemes.parse, name, one), "scheme")
            made.append(Item(scheme, settings_of(reader), reader))
        return made

    def _configuration(self, reader: Reader) -> dict[str, Any]:
        """What the file that a scheme names says: fields of `quantize.QConfig`, at least one."""
        from quantize.config.file import read_toml

        if "scheme" in reader.values:
            reader.fail("give either a scheme or the file of its config", "config")
        file = self.folder / reader.text("config")
        fields = reader.checked(lambda: read_toml(file), "config")
        if not fields:
            reader.fail(f"{file} says nothing: it has no field of quantize.QConfig", "config")
        return fields

    def _subject(self, top: Reader, index: int, item: Any) -> Item[Subject]:
        """A network: a name, or a table with the key model."""
        reader = _table(top, "models", index, item, "model")
        reader.only([*ELEMENT_KEYS, *SETTINGS])
        name = reader.text("model")
        model = self._model(reader, name)
        keys = ("dataset", "metric", "output")
        says = {k: reader if k in reader.values else self.spec for k in keys}
        named = says["dataset"].text("dataset", _natural(name))
        given = says["dataset"].checked(lambda: self._data(named), "dataset")
        data = says["dataset"].checked(lambda: _fitted(given, model.path), "dataset")
        source = named if named in datasets.names() else str(self.folder / named)
        chosen = self._judged(says["metric"], says["output"], model, data)
        subject = Subject(
            model, data, given, source, chosen.metric, chosen.default_metric, chosen.name
        )
        return Item(subject, settings_of(reader), reader)

    def _judged(
        self, says_metric: Reader, says_output: Reader, model: ModelFile, data: datasets.Dataset
    ) -> outputs.Choice:
        """The output and the metric that are named in tables, or those that fit."""
        metric = says_metric.text("metric") if "metric" in says_metric.values else ""
        if adapters.is_reference(metric):
            metric = str(self.folder / metric)
            says_metric.checked(lambda: adapters.refresh(metric), "metric")
        if metric:
            says_metric.checked(lambda: scoring.find(metric), "metric")
        wanted = says_output.text("output", "")
        chosen = says_output.checked(
            lambda: outputs.chosen(model.path, data, metric, wanted), "output"
        )
        says_metric.checked(
            lambda: metric_choice.check(chosen.metric, chosen.judged, data), "metric"
        )
        return chosen

    def _data(self, name: str) -> datasets.Dataset:
        if name not in self.loaded:
            if adapters.is_reference(name):
                adapters.refresh(str(self.folder / name))
            self.loaded[name] = datasets.load(name, relative_to=self.folder)
        return self.loaded[name]

    def _model(self, reader: Reader, name: str) -> ModelFile:
        if adapters.is_reference(name):
            source = str(self.folder / name)
            reader.checked(lambda: adapters.refresh(source), "model")
            path = Path(reader.checked(lambda: _called(name, adapters.function(source)), "model"))
            short = name.rpartition(":")[2]
        else:
            found = reader.checked(lambda: _found(name), "model")
            path, source, short = found or self.folder / name, name, name
            if found is None:
                source, short = str(path), path.stem
                if not os.path.isfile(path):
                    hint = unknown("model", name, zoo.sources())
                    missing = f"{hint} (or the path of an .onnx file)"
                    reader.fail(
                        missing if path.suffix != ".onnx" else f"no model file {path}", "model"
                    )
        if not os.path.isfile(path):
            reader.fail(f"model {name!r}: there is no file {path}", "model")
        key = reader.checked(lambda: sha256(path), "model")
        beside = reader.checked(lambda: external_files(path), "model")
        weights = tuple(sha256(file) for file in beside if os.path.isfile(file))
        return ModelFile(short, path, key, source, weights)


def _fitted(data: datasets.Dataset, model: Path) -> datasets.Dataset:
    """The data with a row for every example of the model, if that can be read: else its rows of the
    results will say why."""
    try:
        return data.for_model(model)
    except (ModelError, UnsupportedError):
        return data


def _called(name: str, function: Callable[[], Any]) -> Any:
    with activity.calling(f"model {name}"):
        return function()


def _found(name: str) -> Path | None:
    return _called(name, lambda: zoo.find(name)) if zoo.is_registered(name) else zoo.find(name)


def _natural(model: str) -> str:
    source = zoo.sources().get(model)
    return source.dataset if source else "mnist1k"


def _repeats(reader: Reader) -> tuple[int, ...]:
    """`repeats` N are the repetitions 0 to N - 1; `repeat` names one of them."""
    if "repeat" in reader.values:
        return (reader.integer("repeat", 0, 0),)
    return tuple(range(reader.integer("repeats", 1, 1)))


def _table(top: Reader, axis: str, index: int, item: Any, key: str) -> Reader:
    """The table of an element, which may be written as a bare name."""
    if not isinstance(item, str | dict):
        top.fail(f"a {key} is a name or a table with the key {key}", axis, index)
    return top.at({key: item} if isinstance(item, str) else item, axis, index)


def settings_of(reader: Reader) -> Overrides:
    """The settings that stand in a table."""
    return {
        key: Given(_number(reader, key, least), reader)
        for key, least in SETTINGS.items()
        if key in reader.values
    }


def _number(reader: Reader, key: str, least: int | float) -> int | float:
    if isinstance(least, int):
        return reader.integer(key, least, least)
    return reader.number(key, least)


def common_settings(top: Reader) -> Overrides:
    """The settings of the whole specification; `n_eval` is missing where it says nothing."""
    latency = top.table("latency")
    latency.only(LATENCY)
    found = {"n_calib": 100, "warmup": 3, "runs": 20, "batch": 1}
    defaults = {key: Given(value) for key, value in found.items()}
    return {**defaults, **settings_of(top), **settings_of(latency)}


def settled(overrides: Overrides, item: Item[Scheme], data: datasets.Dataset) -> Settings:
    """The settings of a cell, which must fit its data."""
    values = {"n_eval": Given(len(data.x)), **overrides}
    n_eval, n_calib = values["n_eval"], values["n_calib"]
    if n_eval.value > len(data.x):
        (n_eval.reader or item.reader).fail(
            f"n_eval is {n_eval.value}, but data set {data.name!r} has {len(data.x)} examples",
            "n_eval",
        )
    if item.value.calibrated:
        (n_calib.reader or item.reader).checked(
            lambda: data.calibration_sample(int(n_calib.value), 0), "n_calib"
        )
    chosen: dict[str, Any] = {key: given.value for key, given in values.items()}
    return Settings(**chosen)


def _accumulations(reader: Reader) -> tuple[str, ...]:
    """How sums are formed: texts, and tables that describe an accumulator."""
    out = []
    for index, item in enumerate(reader.items("accumulations", ())):
        read = partial(number_systems.accumulation, item)
        out.append(reader.checked(read, "accumulations", index))
        if not isinstance(out[-1], str):
            reader.fail(f"accumulations lists {item!r}; it must be a name or a table with a format",
                        "accumulations", index)  # fmt: skip
    return tuple(out)


def _engines(reader: Reader) -> tuple[str, ...]:
    """Engines that compute parts of networks, as one text each; empty: none."""
    given = reader.texts("engines", (OURS_NAME,))
    read = [
        str(reader.checked(partial(EngineChoice.parse, text), "engines", index))
        for index, text in enumerate(given)
    ]
    for index, text in enumerate(read):
        if text in read[:index]:
            reader.fail(f"engines lists {given[index]!r} twice", "engines", index)
    return tuple(read)


def _check(reader: Reader, axes: Axes, elsewhere: bool) -> None:
    for index, calibrator in enumerate(axes.calibrators):
        options = {"calibrate": calibrator}
        reader.checked(partial(number_systems.check_qconfig, options), "calibrators", index)
    for index, mode in enumerate(axes.accumulations):
        reader.checked(partial(number_systems.accumulated_kinds, mode), "accumulations", index)
        if axes.schemes and not any(item.value.takes(mode) for item in axes.schemes):
            reader.fail(f"no scheme takes accumulation {mode!r}", "accumulations", index)
    for index, target in enumerate(axes.targets):
        check = number_systems.check_target_elsewhere if elsewhere else number_systems.check_target
        reader.checked(partial(check, target), "targets", index)
    for index, engine in enumerate(axes.engines if elsewhere else ()):
        if engine:
            reader.fail("engines run in this process, not on a device", "engines", index)
    for index, threads in enumerate(axes.threads if elsewhere else ()):
        if threads != 1:
            reader.fail(
                f"programs on devices run on one thread, not on {threads}", "threads", index
            )
