"""Sweep specifications: TOML (or a dict) -> the cells it spans."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from compiler.errors import ConfigError, unknown
from experiments.data.datasets import Dataset
from experiments.devices.client import check_address
from experiments.layers.gaps import GapRequest
from experiments.layers.table import LayerRequest
from experiments.systems.prices import check_source
from experiments.systems.rounding_seeds import random_formats
from experiments.user_code import adapters, isolation

from . import own_code
from .axes import AXES, SETTINGS, Axes, AxesReader, Overrides, common_settings, settings_of, settled
from .cells import Cell, Settings, SweepSpec, Workload
from .overrides import overridden
from .price_tables import price_tables, read_price_tables
from .reader import Reader
from .rules import Rule, rules, tables
from .shipped import FOLDER, shipped

T = TypeVar("T")

_RULES = ("include", "exclude", "override")
KEYS = (
    *AXES,
    *("seed", "repeat", "dataset", "metric", "output", "adapters", "energy", "gates"),
    *("area", "certificates", "layers", "gap", "latency", "device"),
    *("n_eval", "n_calib", "timeout_s", "memory_gib", *_RULES),
)


def load_spec(
    spec: str | os.PathLike[str] | Mapping[str, Any] | SweepSpec, overrides: Iterable[str] = ()
) -> SweepSpec:
    """Read and check a specification: a TOML file, the name of a shipped one, or a dict.

    Relative paths in a file count from the file's folder, those in a dict from the current folder.

    Args:
        spec: the specification.
        overrides: settings KEY=VALUE that replace its own, for example "latency.runs=5".

    Raises:
        ConfigError: it cannot be read, or has an unknown key, a wrong type or value, or names a
            model, data set, scheme, format, calibrator or target that does not exist. The message
            starts with FILE:LINE, or with the setting.
    """
    if isinstance(spec, SweepSpec):
        return spec
    return _validate(*_opened(spec, overrides))


def load_apart(
    spec: str | os.PathLike[str] | Mapping[str, Any] | SweepSpec, overrides: Iterable[str] = ()
) -> tuple[SweepSpec, bool]:
    """As `load_spec`, and whether the specification, or what its cells do, runs code of a user.

    Where reading it does so, that happens in a process of its own: nothing is defined in this one,
    and whatever that code does ends as a ConfigError.
    """
    if isinstance(spec, SweepSpec):
        return spec, own_code.in_specification(spec)
    return apart(spec, overrides, _settled)


def apart(
    spec: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Iterable[str],
    use: Callable[[SweepSpec], T],
) -> tuple[T, bool]:
    """What `use` gives for a specification, which is read as `load_apart` does."""
    top, folder = _opened(spec, overrides)
    if not own_code.in_specification(top.values):
        return use(_validate(top, folder)), False
    timeout_s = top.optional("timeout_s", "seconds") or isolation.SILENCE_S
    silence_s = min(timeout_s, isolation.SILENCE_S)
    found = isolation.call(
        lambda: use(_validate(top, folder)), silence_s=silence_s, memory=_memory(top)
    )
    return found, True


def _settled(spec: SweepSpec) -> SweepSpec:
    return replace(spec, cells=tuple(cell.settled() for cell in spec.cells))


def _memory(top: Reader) -> int | None:
    gib = top.optional("memory_gib", "GiB")
    return None if gib is None else int(gib * 2**30)


def _opened(
    spec: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str]
) -> tuple[Reader, Path]:
    """A specification, not yet checked, and the folder that its paths count from."""
    if isinstance(spec, Mapping):
        return overridden(Reader(spec, "spec"), overrides), Path()
    path = Path(spec)
    if not os.path.exists(path) and path.suffix != ".toml":
        if str(spec) not in shipped():
            raise ConfigError(
                f"{unknown('sweep specification', str(spec), shipped())} (or the path of a .toml)"
            )
        path = FOLDER / f"{spec}.toml"
    return overridden(Reader.open(path), overrides), path.parent


def _validate(top: Reader, folder: Path) -> SweepSpec:
    top.only(KEYS)
    files = tuple(str(folder / name) for name in top.texts("adapters", ()))
    for index, file in enumerate(files):
        top.checked(partial(_install, file), "adapters", index)
    reading = AxesReader(folder, top)
    axes = reading.read(top)
    changes, left_out = rules(top, "override", SETTINGS), rules(top, "exclude")
    grid = _Grid(top, common_settings(top), changes, files, folder)
    cells = list(grid.cells(axes, {}, left_out))
    _distinct(top, cells)
    for entry in tables(top, "include"):
        cells += grid.cells(_included(reading, entry, axes), settings_of(entry))
    for rule in (*left_out, *changes):
        if id(rule) not in grid.applied:
            rule.reader.fail("no cell is like this rule; mend or remove it")
    if not cells:
        top.fail("every cell is excluded; leave some", "exclude")
    unique = tuple({cell.config_hash: cell for cell in cells}.values())
    timeout_s = top.optional("timeout_s", "seconds")
    return SweepSpec(top.source, Workload.of(unique, grid.data), unique, timeout_s, _memory(top))


@dataclass(frozen=True)
class _Grid:
    """Makes cells of axes, with what is the same for all of them; gathers their `data`, and which
    rules `applied`."""

    top: Reader
    common: Overrides
    changes: list[Rule]
    adapters: tuple[str, ...]
    folder: Path = Path()
    data: dict[str, Dataset] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)

    def cells(self, axes: Axes, last: Overrides, left_out: Sequence[Rule] = ()) -> Iterator[Cell]:
        """The product of the axes, without what is `left_out`; settings in `last` come before all
        others."""
        prices = _prices(self.top, self.folder)
        gap, device = _gap(self.top.table("gap")), _device(self.top)
        places = product(axes.models, axes.targets, axes.threads, axes.engines)
        for model, target, threads, engine in places:
            subject = model.value
            self.data[subject.data.sha256] = subject.given
            layers = _layers(self.top.table("layers"), len(subject.data.x))
            for scheme in axes.columns():
                # Only what is calibrated, or rounded at random, depends on the seed.
                seeds = axes.seeds if scheme.value.calibrated else axes.seeds[:1]
                if random_formats(scheme.value):
                    seeds = axes.seeds
                for seed, repeat in product(seeds, axes.repeats):
                    cell = Cell(
                        model=subject.model,
                        dataset=subject.data.name,
                        dataset_source=subject.source,
                        dataset_sha256=subject.data.sha256,
                        metric=subject.metric,
                        output=subject.output,
                        default_metric=subject.default_metric,
                        scheme=scheme.value,
                        target=target,
                        threads=threads,
                        settings=Settings(1, 1, 0, 0, 1),
                        seed=seed,
                        repeat=repeat,
                        adapters=self.adapters,
                        certificates=self.top.flag("certificates", False),
                        **prices,
                        layers=layers,
                        gap=gap,
                        device=device,
                        engine=engine,
                    )
                    if self._matching(left_out, cell):
                        continue
                    changed = {**self.common, **model.settings, **scheme.settings}
                    for rule in self._matching(self.changes, cell):
                        changed |= rule.settings
                    settings = settled({**changed, **last}, scheme, subject.data)
                    yield replace(cell, settings=settings)

    def _matching(self, among: Sequence[Rule], cell: Cell) -> list[Rule]:
        found = [rule for rule in among if rule.matches(cell)]
        self.applied.update(map(id, found))
        return found


def _install(file: str) -> None:
    adapters.install(adapters.Adapter.read(file))


def _included(reading: AxesReader, entry: Reader, axes: Axes) -> Axes:
    """The axes of an entry of `include`: its keys name one element or a list of them, and what it
    leaves out is as in the whole specification."""
    entry.only([*AXES.values(), *SETTINGS])
    lists = {
        axis: value if isinstance(value, list) else [value]
        for axis, name in AXES.items()
        if name != "repeat" and (value := entry.values.get(name)) is not None
    }
    if "repeat" in entry.values:
        lists["repeat"] = entry.values["repeat"]
    return reading.read(replace(entry, values=lists), axes)


def _distinct(top: Reader, cells: Iterable[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.config_hash, cell)
        if other is not cell:
            top.fail(f"{other.label!r} and {cell.label!r} are the same configuration", "schemes")


def _prices(top: Reader, folder: Path) -> dict[str, Any]:
    """The prices of a specification, or the name of a source of them, as attributes of `Cell`."""
    energy = top.table("energy")
    if "source" not in energy.values:
        return {**price_tables(top)}
    source = energy.text("source")
    if len(energy.values) > 1 or any(top.table(name).values for name in ("gates", "area")):
        energy.fail(f"prices beside those of {source}: sources are not mixed", "source")
    if source.endswith(".toml"):
        return {**energy.checked(partial(read_price_tables, folder / source), "source")}
    energy.checked(partial(check_source, source), "source")
    return {"energy_source": source}


def _layers(table: Reader, most: int) -> LayerRequest:
    table.only([f.name for f in fields(LayerRequest)])
    images = table.integer("images", 0, 0)
    if images > most:
        table.fail(f"images is {images}, but the data set has {most}", "images")
    return LayerRequest(images, table.flag("events", False))


def _device(top: Reader) -> str:
    """The address of the device that cells run on; empty: they run here."""
    if "device" not in top.values:
        return ""
    address = top.text("device")
    top.checked(partial(check_address, address), "device")
    if "gap" in top.values:
        top.fail("the steps of [gap] are taken on this machine: leave out one of them", "device")
    return address


def _gap(table: Reader) -> GapRequest:
    table.only([f.name for f in fields(GapRequest)])
    return GapRequest(table.integer("inputs", 0, 0))
