"""The cells of a sweep: frozen data, one for each row of the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from compiler.target.accelerator import KIND
from experiments.data.datasets import Dataset
from experiments.layers.gaps import GapRequest
from experiments.layers.table import LayerRequest
from experiments.systems import rounding_seeds, schemes
from experiments.systems.schemes import Scheme
from experiments.user_code import adapters
from experiments.user_code.adapters import Adapter
from experiments.zoo import model_files

from . import identity

LATENCY = ("warmup", "runs", "batch", "precision", "budget_s")


@dataclass(frozen=True)
class ModelFile:
    """A network by name; `sha256` is that of the file, `source` what a specification calls it,
    `weights` the SHA-256 of the files beside it that hold weights of it."""

    name: str
    path: Path
    sha256: str
    source: str
    weights: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """How much is measured: evaluated and calibration images, and the latency protocol.

    `runs` 0 leaves latency out; see `speedup.Protocol` for `warmup`, `runs`, `precision` and
    `budget_s`.
    """

    n_eval: int
    n_calib: int
    warmup: int
    runs: int
    batch: int
    precision: float = 0.02
    budget_s: float = 2.0

    @property
    def protocol(self) -> list[float]:
        """Of latency, for the hash: what came later counts only where it is not the default."""
        later = (self.precision, self.budget_s)
        return [self.warmup, self.runs, self.batch, *(later if later != _LATER else ())]


_LATER = (Settings.precision, Settings.budget_s)


@dataclass(frozen=True)
class Cell:
    """One combination, and so one row of the results.

    `metric` is a name of `scoring.find`; `repeat` counts cells that are otherwise the same;
    `adapters` are the paths of the files that the specification imports.
    """

    model: ModelFile
    dataset: str
    dataset_source: str
    dataset_sha256: str
    metric: str
    scheme: Scheme
    target: str
    threads: int
    settings: Settings
    seed: int
    repeat: int = 0
    adapters: tuple[str, ...] = ()
    #: Operand dtypes, as "uint8 x int8", or one dtype -> picojoules of a multiply-accumulate;
    #: operator and dtype, as "nn.relu float32" -> picojoules of an element of its results; "memory"
    #: -> picojoules of moving a byte.
    energy: tuple[tuple[str, float], ...] = ()
    #: What has these prices instead; see `systems.prices`.
    energy_source: str = ""
    #: Operand dtypes, as those of `energy` -> gates and square micrometres of a unit that does one
    #: multiply-accumulate.
    gates: tuple[tuple[str, float], ...] = ()
    area: tuple[tuple[str, float], ...] = ()
    #: Whether the widths that accumulators need are looked for.
    certificates: bool = False
    layers: LayerRequest = field(default_factory=LayerRequest)
    gap: GapRequest = field(default_factory=GapRequest)
    #: Which output is judged, of a model that has several.
    output: str = ""
    #: The address of the device that runs it; empty: this machine.
    device: str = ""
    #: The engines that compute parts of it, as `systems.engine_choice` writes them; empty: none.
    engine: str = ""
    #: What it would be judged by if its specification named no metric.
    default_metric: str = field(default="top1", repr=False, compare=False)
    #: The hash that a sweep gave it (see `settled`).
    settled_hash: str = field(default="", repr=False, compare=False)

    @property
    def label(self) -> str:
        """What a progress display calls it."""
        return f"{self.model.name} {self.scheme.label} {self.engine}".rstrip()

    @property
    def is_baseline(self) -> bool:
        """Whether it is float32 as we compute it, which others are measured beside."""
        own = not self.engine and self.target == self.reference_target
        return self.scheme.kind == "float32" and own

    @property
    def reference_target(self) -> str:
        """What computes the float32 that it is judged by: its target, or this machine beside an
        accelerator."""
        return "llvm" if self.target.split()[:1] == [KIND] else self.target

    @property
    def config_hash(self) -> str:
        """SHA-256 of everything that gives the row its meaning, as canonical JSON.

        Names and paths of the model and the data stay out; their bytes count. So do the machine
        and the versions: they are columns of their own. What this process defined counts with all
        that it means (see `identity`): formats, block formats, lowering functions and the C
        libraries that they call, metrics, rules and contexts of the compiler; adapters with their
        text and that of the modules beside them.
        """
        return self.settled_hash or self._hash()

    def settled(self) -> Cell:
        """This cell with its hash as it is now, also in processes that know fewer definitions."""
        return replace(self, settled_hash=self._hash())

    def _hash(self) -> str:
        calibrates, scheme = self.scheme.calibrated, self.scheme
        metric = identity.metric_content(self.metric)
        later = {
            "metric": metric,
            "repeat": self.repeat,
            "energy": sorted(self.energy),
            "energy_source": self.energy_source,
            "gates": sorted(self.gates),
            "area": sorted(self.area),
            "certificates": self.certificates,
            **identity.definitions(self.scheme),
            "adapters": identity.adapter_content(self),
            "compiling": identity.compiling(),
            "weights": self.model.weights,
            # A format that has the seed anyway counts with it among the definitions.
            "rounding_seed": rounding_seeds.other_seed(self.scheme, self.seed),
            "layers": asdict(self.layers) if self.layers.images else None,
            "gap": asdict(self.gap) if self.gap.inputs else None,
            "output": self.output,
            "device": self.device,
            "engine": self.engine,
        }
        content = {
            "schema_version": 1,  # of this content, not of the results file
            "model": self.model.sha256,
            "dataset": self.dataset_sha256,
            "scheme": [scheme.kind, scheme.dtype, list(map(_ordered, scheme.options))],
            "target": self.target,
            "threads": self.threads,
            "n_eval": self.settings.n_eval,
            "calibration": [self.settings.n_calib, self.seed] if calibrates else None,
            "latency": self.settings.protocol,
            # What came later counts only where there is any: older rows keep their hash.
            **{key: value for key, value in later.items() if value},
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def specification(self) -> dict[str, Any]:
        """A specification, as `load_spec` takes it, of this cell alone.

        What has no name of its own is named by its path from the current folder.
        """
        s = self.scheme
        scheme: dict[str, Any] = {"scheme": s.kind if s.calibrated else s.dtype}
        options = {k: schemes.thaw(v) for k, v in s.options}
        return {
            "models": [self.model.source],
            "dataset": self.dataset_source,
            "schemes": [scheme | options],
            "targets": [self.target],
            "threads": [self.threads],
            "n_eval": self.settings.n_eval,
            "n_calib": self.settings.n_calib,
            "seed": self.seed,
            "latency": {key: getattr(self.settings, key) for key in LATENCY},
            **({"metric": self.metric} if {self.metric, self.default_metric} != {"top1"} else {}),
            **({"output": self.output} if self.output else {}),
            **({"device": self.device} if self.device else {}),
            **({"engines": [self.engine]} if self.engine else {}),
            **({"repeat": self.repeat} if self.repeat else {}),
            **({"adapters": list(self.adapters)} if self.adapters else {}),
            **({"energy": dict(self.energy)} if self.energy else {}),
            **({"energy": {"source": self.energy_source}} if self.energy_source else {}),
            **{key: dict(table) for key in ("gates", "area") if (table := getattr(self, key))},
            **({"certificates": True} if self.certificates else {}),
            **({"layers": asdict(self.layers)} if self.layers.images else {}),
            **({"gap": asdict(self.gap)} if self.gap.inputs else {}),
        }


def _ordered(option: tuple[str, Any]) -> tuple[str, Any]:
    """An option for the hash: of overrides the order of patterns has a meaning, that of the fields
    of one has none."""
    name, value = option
    if name != "overrides" or not isinstance(value, tuple):
        return option
    return name, [[pattern, sorted(given)] for pattern, given in value]


@dataclass(frozen=True)
class Workload:
    """What cells need besides themselves, on any machine.

    `data` are their data sets by SHA-256. `images` says for a model's and a data set's SHA-256 how
    many inputs the float32 reference is computed for: the most that any cell evaluates, so that it
    does not depend on which cells a resumed sweep has left. `adapters` are to be run first.
    """

    data: Mapping[str, Dataset]
    images: Mapping[tuple[str, str], int]
    adapters: tuple[Adapter, ...] = ()

    @classmethod
    def of(cls, cells: Iterable[Cell], data: Mapping[str, Dataset]) -> Workload:
        """That of a whole specification."""
        images: dict[tuple[str, str], int] = {}
        files: dict[str, None] = {}
        for cell in cells:
            key = (cell.model.sha256, cell.dataset_sha256)
            images[key] = max(images.get(key, 0), cell.settings.n_eval)
            files.update(dict.fromkeys([*cell.adapters, *adapters.files_of(cell.metric)]))
        return cls(data, images, tuple(adapters.current(path) for path in files))

    def part(self, cells: Iterable[Cell]) -> Workload:
        """What some of the cells need."""
        needed = {cell.dataset_sha256 for cell in cells}
        kept = {key: data for key, data in self.data.items() if key in needed}
        return Workload(kept, self.images, self.adapters)


@dataclass(frozen=True)
class SweepSpec:
    """A validated specification: what its cells need, and the cells, in the order they run.

    A cell may take `timeout_s` seconds (None is no limit), and one with code of a user `memory`
    bytes (None: what the machine has left).
    """

    source: str
    workload: Workload
    cells: tuple[Cell, ...]
    timeout_s: float | None = None
    memory: int | None = None

    @property
    def files(self) -> tuple[str | Path, ...]:
        """The files that it and its cells are read from; names of what ships are among them."""
        found: dict[str | Path, None] = {self.source: None}
        for cell in self.cells:
            found |= dict.fromkeys(model_files.files_of(str(cell.model.path)))
            found |= dict.fromkeys([cell.dataset_source, *cell.adapters])
            found |= dict.fromkeys(adapters.files_of(cell.metric, cell.model.source))
        return tuple(found)
