"""Sweep specifications: TOML (or a dict) -> frozen data, and the cells it spans."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError, unknown

from . import datasets, pipeline, schemes, zoo
from .files import sha256
from .layer_table import LayerRequest
from .schemes import Scheme
from .spec_reader import Reader

SPEC_FOLDER = Path(__file__).resolve().parent / "specs"

_KEYS = (
    *("models", "dataset", "schemes", "calibrators", "accumulations", "targets", "threads"),
    *("energy", "layers"),
)
_COUNTS = ("n_eval", "n_calib", "seed", "latency")
_LATENCY = ("warmup", "runs", "batch")
#: Settings that a scheme's own table may override, with their smallest values.
_OVERRIDES = {"n_eval": 1, "n_calib": 1, "warmup": 0, "runs": 0, "batch": 1}


@dataclass(frozen=True)
class ModelFile:
    """A network by name; `sha256` is that of the file."""

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class Settings:
    """How much is measured: evaluated and calibration images, and the latency protocol.

    `runs` 0 leaves latency out. `n_eval` 0 means all images of the data set.
    """

    n_eval: int
    n_calib: int
    warmup: int
    runs: int
    batch: int


@dataclass(frozen=True)
class Cell:
    """One combination, and so one row of the results."""

    model: ModelFile
    dataset: str
    dataset_source: str
    dataset_sha256: str
    scheme: Scheme
    target: str
    threads: int
    settings: Settings
    seed: int
    #: Operand dtypes, as "uint8 x int8", or one dtype -> picojoules of a multiply-accumulate.
    energy: tuple[tuple[str, float], ...] = ()
    layers: LayerRequest = field(default_factory=LayerRequest)

    @property
    def label(self) -> str:
        """What a progress display calls it."""
        return f"{self.model.name} {self.scheme.label}"

    @property
    def config_hash(self) -> str:
        """SHA-256 of everything that gives the row its meaning, as canonical JSON.

        Names and paths of the model and the data stay out; their bytes count. So do the machine
        and the versions: they are columns of their own. A format that this process defined counts
        with its whole description.
        """
        calibrates = self.scheme.kind == "int8"
        defined = {} if calibrates else pipeline.definitions(self.scheme.dtype)
        content = {
            "schema_version": 1,  # of this content, not of the results file
            "model": self.model.sha256,
            "dataset": self.dataset_sha256,
            "scheme": [self.scheme.kind, self.scheme.dtype, self.scheme.options],
            "target": self.target,
            "threads": self.threads,
            "n_eval": self.settings.n_eval,
            "calibration": [self.settings.n_calib, self.seed] if calibrates else None,
            "latency": [self.settings.warmup, self.settings.runs, self.settings.batch],
            **({"energy": self.energy} if self.energy else {}),
            **({"formats": defined} if defined else {}),
            **({"layers": asdict(self.layers)} if self.layers.images else {}),
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def specification(self) -> dict[str, Any]:
        """A specification, as `load_spec` takes it, of this cell alone.

        A model or data set that does not ship is named by its path from the current folder.
        """
        s = self.scheme
        scheme: dict[str, Any] = {"scheme": "int8" if s.kind == "int8" else s.dtype}
        options = {k: schemes.thaw(v) for k, v in s.options}
        return {
            "models": [self.model.name if _shipped(self.model) else str(self.model.path)],
            "dataset": self.dataset_source,
            "schemes": [scheme | options],
            "targets": [self.target],
            "threads": [self.threads],
            "n_eval": self.settings.n_eval,
            "n_calib": self.settings.n_calib,
            "seed": self.seed,
            "latency": {key: getattr(self.settings, key) for key in _LATENCY},
            **({"energy": dict(self.energy)} if self.energy else {}),
            **({"layers": asdict(self.layers)} if self.layers.images else {}),
        }


def _shipped(model: ModelFile) -> bool:
    return zoo.model_path(model.name) == model.path


@dataclass(frozen=True)
class SweepSpec:
    """A validated specification: the data set and the cells, in the order they run."""

    source: str
    dataset: datasets.Dataset
    cells: tuple[Cell, ...]


def load_spec(spec: str | os.PathLike[str] | Mapping[str, Any] | SweepSpec) -> SweepSpec:
    """Read and check a specification: a TOML file, the name of a shipped one, or a dict.

    Relative paths in a file count from the file's folder, those in a dict from the current folder.

    Raises:
        ConfigError: it cannot be read, or has an unknown key, a wrong type or value, or names a
            model, data set, scheme, format, calibrator or target that does not exist. The message
            starts with FILE:LINE.
    """
    if isinstance(spec, SweepSpec):
        return spec
    if isinstance(spec, Mapping):
        return _validate(Reader(spec, "spec"), Path())
    path = Path(spec)
    if not path.exists() and path.suffix != ".toml":
        shipped = sorted(p.stem for p in SPEC_FOLDER.glob("*.toml"))
        if str(spec) not in shipped:
            raise ConfigError(
                f"{unknown('sweep specification', str(spec), shipped)} (or the path of a .toml)"
            )
        path = SPEC_FOLDER / f"{spec}.toml"
    return _validate(Reader.open(path), path.parent)


def _validate(top: Reader, folder: Path) -> SweepSpec:
    top.only([*_KEYS, *_COUNTS])
    latency = top.table("latency")
    latency.only(_LATENCY)
    named = top.text("dataset", "mnist1k")
    data = top.checked(lambda: datasets.load(named, relative_to=folder), "dataset")
    source = named if named in datasets.names() else str(folder / named)
    energy, layers = _energy(top.table("energy")), _layers(top.table("layers"), len(data.x))
    common = Settings(
        n_eval=top.integer("n_eval", len(data.x), 1),
        n_calib=top.integer("n_calib", 100, 1),
        warmup=latency.integer("warmup", 3, 0),
        runs=latency.integer("runs", 20, 0),
        batch=latency.integer("batch", 1, 1),
    )
    if common.n_eval > len(data.x):
        top.fail(_too_many(common, data), "n_eval")
    for index, calibrator in enumerate(top.texts("calibrators", ())):
        top.checked(
            partial(pipeline.check_qconfig, {"calibrate": calibrator}), "calibrators", index
        )
    schemes_of = [
        (scheme, settings)
        for index, item in enumerate(top.items("schemes"))
        for scheme, settings in _schemes(top, index, item, common, data)
    ]
    columns = _accumulated(top, schemes_of)
    models = [_model(top, index, name, folder) for index, name in enumerate(top.texts("models"))]
    targets = top.texts("targets", ("llvm",))
    for index, target in enumerate(targets):
        top.checked(partial(pipeline.check_target, target), "targets", index)
    seed = top.integer("seed", 0, 0)
    cells = tuple(
        Cell(
            model=model,
            dataset=data.name,
            dataset_source=source,
            dataset_sha256=data.sha256,
            scheme=scheme,
            target=target,
            threads=threads,
            settings=settings,
            seed=seed,
            energy=energy,
            layers=layers,
        )
        for model in models
        for target in targets
        for threads in top.integers("threads", (1,), 1)
        for scheme, settings in columns
    )
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.config_hash, cell)
        if other is not cell:
            top.fail(f"{other.label!r} and {cell.label!r} are the same configuration", "schemes")
    return SweepSpec(top.source, data, cells)


def _model(top: Reader, index: int, name: str, folder: Path) -> ModelFile:
    path = zoo.model_path(name)
    if path is None:
        path = folder / name
        if not path.is_file():
            hint = f"{unknown('model', name, zoo.model_names())} (or the path of an .onnx file)"
            top.fail(hint if path.suffix != ".onnx" else f"no model file {path}", "models", index)
    return ModelFile(path.stem, path, top.checked(lambda: sha256(path), "models", index))


def _schemes(
    top: Reader, index: int, item: Any, common: Settings, data: datasets.Dataset
) -> list[tuple[Scheme, Settings]]:
    """The schemes of one list element: an int8 one is crossed with the calibrators."""
    if not isinstance(item, str | dict):
        top.fail("a scheme is a name or a table with the key scheme", "schemes", index)
    values = {"scheme": item} if isinstance(item, str) else item
    reader = Reader(values, top.source, (*top.path, "schemes", index), top.lines)
    given = values.get("scheme")
    if isinstance(given, dict):  # formats by layer
        name = "{" + ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in given.items()) + "}"
    else:
        name = reader.text("scheme")
    options = {k: v for k, v in values.items() if k != "scheme" and k not in _OVERRIDES}
    scheme = reader.checked(lambda: schemes.parse(name, options), "scheme")
    settings = _override(reader, common)
    if settings.n_eval > len(data.x):
        reader.fail(_too_many(settings, data), "n_eval")
    if scheme.kind != "int8":
        return [(scheme, settings)]
    reader.checked(lambda: data.calibration_sample(settings.n_calib, 0), "n_calib")
    crossed = dict.fromkeys(map(scheme.with_calibrator, top.texts("calibrators", ())))
    return [(chosen, settings) for chosen in crossed or [scheme]]


def _energy(table: Reader) -> tuple[tuple[str, float], ...]:
    """Picojoules by operand dtypes; see `Cell.energy`."""
    prices = table.numbers(0.0)
    for pair in prices:
        for part in pair.split(" x "):
            table.checked(partial(pipeline.check_dtype, part), pair)
    return tuple(prices.items())


def _layers(table: Reader, most: int) -> LayerRequest:
    table.only([f.name for f in fields(LayerRequest)])
    images = table.integer("images", 0, 0)
    if images > most:
        table.fail(f"images is {images}, but the data set has {most}", "images")
    return LayerRequest(images, table.flag("events", False))


def _accumulated(
    top: Reader, columns: list[tuple[Scheme, Settings]]
) -> list[tuple[Scheme, Settings]]:
    """Each scheme crossed with those of the `accumulations` that it takes."""
    modes = top.texts("accumulations", ())
    for index, mode in enumerate(modes):
        kinds = top.checked(partial(pipeline.accumulated_kinds, mode), "accumulations", index)
        if not any(scheme.kind in kinds for scheme, _ in columns):
            top.fail(f"no scheme takes accumulation {mode!r}", "accumulations", index)
    out = []
    for scheme, settings in columns:
        crossed = [scheme.with_accumulation(mode) for mode in modes if scheme.takes(mode)]
        out += [(chosen, settings) for chosen in dict.fromkeys(crossed or [scheme])]
    return out


def _too_many(settings: Settings, data: datasets.Dataset) -> str:
    return f"n_eval is {settings.n_eval}, but data set {data.name!r} has {len(data.x)} images"


def _override(reader: Reader, common: Settings) -> Settings:
    def value(key: str, default: int) -> int:
        return reader.integer(key, default, _OVERRIDES[key])

    return Settings(
        n_eval=value("n_eval", common.n_eval),
        n_calib=value("n_calib", common.n_calib),
        warmup=value("warmup", common.warmup),
        runs=value("runs", common.runs),
        batch=value("batch", common.batch),
    )
