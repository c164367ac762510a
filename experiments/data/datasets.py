"""Labelled data to evaluate and calibrate on: by name, or a user's .npz file or adapter."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, InputError, unknown
from experiments import zoo
from experiments.feeds import ROWS, WHOLE, Examples, Feed
from experiments.files import sha256
from experiments.user_code import activity, adapters
from experiments.zoo import model_files
from experiments.zoo.digits import normalise_mnist

Array = NDArray[Any]

#: Ends the names of arrays that hold the calibration inputs for an input.
CALIB = "_calib"
#: Names that a single array may have when the model has one input.
_ANONYMOUS = {"x", "arr_0"}
NO_LABELS: Array = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Dataset:
    """Inputs ready for a network, batch dimension first.

    `x` [n, ...] are the evaluation inputs (a `Feed` for networks with several), `y` [n, ...] their
    labels (none at all: the outputs of the float32 network stand in), `calibration` [m, ...] inputs
    that are not among them (m is 0 when there are none). `sha256` is that of the file, or of the
    arrays. `metric` judges outputs where a specification names no other (empty: what fits, see
    `metric_choice.default`); `classes` are the texts of the classes of a network that reads text.
    `others` are arrays beside x: more inputs, or, where they may be `notes`, what a network with
    one input does not take.
    """

    name: str
    sha256: str
    x: Examples
    y: Array
    calibration: Examples
    metric: str = ""
    classes: tuple[str, ...] = ()
    others: Mapping[str, Array] = field(default_factory=dict)
    notes: bool = False

    @classmethod
    def of(cls, name: str, content: Mapping[str, Any] | Dataset) -> Dataset:
        """A data set of arrays x and, optionally, y, x_calib, metric and classes; or, for networks
        with several inputs, of arrays by their names, and NAME_calib.

        Raises:
            ConfigError: there is no input, or the arrays do not fit together.
        """
        if isinstance(content, Dataset):
            # It may be made of another one, whose hash it then carries.
            d = content
            return replace(d, sha256=_digest(d.x, d.y, d.calibration, d.classes, d.others))
        metric, classes = str(content.get("metric", "")), tuple(content.get("classes", ()))
        arrays = {k: np.asarray(v) for k, v in content.items() if k not in ("metric", "classes")}
        x, y, calibration, others = _parts(f"data set {name!r}", arrays)
        key = _digest(x, y, calibration, classes, others)
        return cls(name, key, x, y, calibration, metric, classes, others)

    def for_model(self, path: Path) -> Dataset:
        """This data set with a row for every example of the model at `path`: an array for a model
        with one input of that rank, else a `Feed`.

        Raises:
            InputError: an array is missing, is no input of the model, or does not fit it.
        """
        names = model_files.input_names(path)
        what = f"data set {self.name!r}"
        if isinstance(self.x, Feed):
            return self._fed(path, names, what, self.x.arrays, self.calibration.arrays)
        if len(names) == 1 and self.others and not self.notes:
            extra = ", ".join(map(repr, self.others))
            raise InputError(f"{what} has {extra}, but {path.name} has one input, {names[0]!r}")
        if len(names) == 1 and model_files.takes_rows(path, self.x):
            return self
        if len(names) > 1 and not self.others:
            listed = ", ".join(map(repr, names))
            raise InputError(
                f"{what} has one array, x, but {path.name} has the inputs {listed}: give an "
                "array for each of them, by these names"
            )
        more = self.others if len(names) > 1 else {}
        calib = {k: a for k, a in more.items() if k.endswith(CALIB) and k not in names}
        inputs = {"x": self.x, **{k: a for k, a in more.items() if k not in calib}}
        held = {k.removesuffix(CALIB): a for k, a in calib.items()}
        if len(self.calibration):
            held["x"] = self.calibration
        return self._fed(path, names, what, inputs, held)

    def _fed(
        self,
        path: Path,
        names: list[str],
        what: str,
        inputs: Mapping[str, Array],
        held: Mapping[str, Array],
    ) -> Dataset:
        """With the `inputs` and those `held` for calibration, by name, as examples."""
        feed = model_files.feed(path, named_arrays(what, inputs, names), what)
        calib = feed[:0]
        if held:
            # What has no calibration inputs of its own goes whole, or it would be missing.
            given = {k: a for k, a in feed.arrays.items() if feed.kinds[k] == WHOLE}
            given |= named_arrays(what, held, names)
            calib = model_files.feed(path, given, f"{what} (calibration inputs)")
        if self.labelled and len(self.y) != len(feed):
            raise InputError(
                f"{what} needs one label in y for each of its {len(feed)} inputs, got {len(self.y)}"
            )
        if len(names) == 1 and feed.kinds[names[0]] == ROWS:
            return replace(self, x=feed.arrays[names[0]], calibration=calib.arrays[names[0]])
        return replace(self, x=feed, calibration=calib)

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""
        return bool(self.y.size)

    def calibration_sample(self, count: int, seed: int) -> Examples:
        """`count` calibration inputs, chosen without replacement by `seed`.

        Raises:
            ConfigError: the data set has fewer than `count` calibration inputs, or the seed is
                negative.
        """
        if seed < 0:
            raise ConfigError(f"seed must not be negative, not {seed}")
        if count > len(self.calibration):
            have = f"has only {len(self.calibration)}" if len(self.calibration) else "has no"
            names = list(self.x.arrays) if isinstance(self.x, Feed) else ["x"]
            calib = ", ".join(f"{name}{CALIB}" for name in names)
            raise ConfigError(
                f"data set {self.name!r} {have} calibration inputs (array {calib}), "
                f"but {count} are wanted; lower n_calib or add some"
            )
        order = np.random.default_rng(seed).permutation(len(self.calibration))
        return self.calibration[order[:count]]


@dataclass(frozen=True)
class _Shipped:
    """How to read a shipped file: its name in the zoo and the preprocessing of its raw arrays."""

    file: str
    preprocess: Callable[[Array], Array]


_SHIPPED = {"mnist1k": _Shipped("mnist1k.npz", normalise_mnist)}
#: Shipped archives whose arrays are called what the networks' inputs are: name -> file.
_ARCHIVES = {name: f"{name}.npz" for name in ("stdlib_pieces", "stdlib_text")}


Build = Callable[[], Mapping[str, Any] | Dataset]
_REGISTERED: dict[str, Build] = {}


def names() -> list[str]:
    """Names of the data sets, those made of installed packages and the user's included."""
    return sorted({*_SHIPPED, *_ARCHIVES, *zoo.DATASETS, *_REGISTERED})


def register_dataset(name: str, build: Build) -> None:
    """Make `build` a data set that specifications can name: `dataset = "NAME"`.

    Args:
        name: what specifications and results call it.
        build: gives a `Dataset`, or the arrays x [n, ...] (preprocessed, batch dimension first)
            and, optionally, y [n, ...] (labels), x_calib [m, ...], and the texts metric and
            classes; the same whenever it is called.

    Raises:
        ConfigError: a shipped data set has this name.
    """
    if name in {*_SHIPPED, *_ARCHIVES, *zoo.DATASETS}:
        raise ConfigError(f"the data set {name!r} ships with dtypelab; choose another name")
    _REGISTERED[name] = build


def is_registered(name: str) -> bool:
    """Whether `register_dataset` made `name` a data set."""
    return name in _REGISTERED


def _built(name: str, build: Build) -> Mapping[str, Any] | Dataset:
    with activity.calling(f"data set {name}"):
        return build()


def load(name_or_path: str, *, relative_to: Path | None = None) -> Dataset:
    """The data set of that name, of FILE.py:FUNCTION (as `register_dataset` takes it), or an .npz
    file with arrays x and, optionally, y and x_calib.

    A user's arrays are taken as they are: already preprocessed, batch dimension first. Without
    labels y the float32 network's outputs stand in. A relative path counts from `relative_to`
    (default: the current folder).

    Raises:
        ConfigError: no such name or file, a package that it is made of is not installed, or the
            arrays are missing or do not fit together.
    """
    if name_or_path in _REGISTERED:
        content = _built(name_or_path, _REGISTERED[name_or_path])
        return replace(Dataset.of(name_or_path, content), name=name_or_path)
    if name_or_path in zoo.DATASETS:
        return _generated(name_or_path)
    if adapters.is_reference(name_or_path):
        reference = str((relative_to or Path()) / name_or_path)
        build = adapters.function(reference)
        return Dataset.of(name_or_path.rpartition(":")[2], _built(name_or_path, build))
    shipped = _SHIPPED.get(name_or_path)
    if shipped:
        path = zoo.FOLDER / shipped.file
        arrays = read_npz(path)
        x, y, calibration = arrays["x_test"], arrays["y_test"], arrays["x_calib"]
        x, calibration = shipped.preprocess(x), shipped.preprocess(calibration)
        return Dataset(name_or_path, sha256(path), x, y.astype(np.int64), calibration)
    if name_or_path in _ARCHIVES:
        return _user_dataset(zoo.FOLDER / _ARCHIVES[name_or_path])
    path = (relative_to or Path()) / name_or_path
    if path.suffix != ".npz" and not os.path.exists(path):
        raise ConfigError(f"{unknown('data set', name_or_path, names())} (or the path of an .npz)")
    return _user_dataset(path)


def read_npz(path: str | Path) -> dict[str, Array]:
    """All arrays of an .npz file.

    Raises:
        ConfigError: it is no file or no .npz, holds pickled objects, or more than may be read.
    """
    from .archives import arrays_of

    return arrays_of(path)


def named_arrays(
    what: str, arrays: Mapping[str, Array], names: Sequence[str], calibration: bool = False
) -> dict[str, Array]:
    """The arrays for the inputs `names` of a model, among those of a data set.

    Labels (y or labels) and calibration inputs (NAME_calib) are left out if they are no inputs
    themselves; with `calibration`, what has calibration inputs is replaced by them. The array of a
    single input may also be called x or arr_0; there may be notes of any name beside it.

    Raises:
        InputError: there is another array.
    """
    from compiler.boundary.inputs import input_called

    labels = {"y", "labels"} - {*names}
    found = {k: a for k, a in arrays.items() if k not in labels}
    known = {*names, *(_ANONYMOUS if len(names) == 1 else ())}
    spare = [k for k in found if k not in names and k.removesuffix(CALIB) in known - {k}]
    extra = {k.removesuffix(CALIB): found.pop(k) for k in spare}
    if calibration:
        found |= extra
    nameless = [k for k in found if k in _ANONYMOUS]
    if len(names) == len(nameless) == 1 and names[0] not in found:
        found = {names[0]: found[nameless[0]]}
    try:
        return {input_called(name, names): array for name, array in found.items()}
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _user_dataset(path: Path) -> Dataset:
    x, y, calibration, others = _parts(f"data set {path}", read_npz(path))
    return Dataset(path.stem, sha256(path), x, y, calibration, others=others, notes=True)


def _parts(
    what: str, arrays: Mapping[str, Array]
) -> tuple[Examples, Array, Examples, Mapping[str, Array]]:
    """Inputs, labels and calibration inputs of named arrays, and what else there is: arrays if they
    are called x and x_calib, else by name; which rows they have is seen when the model is known.

    Raises:
        ConfigError: there are no inputs, or the arrays do not fit together.
    """
    y = arrays.get("y", NO_LABELS)
    inputs = {k: a for k, a in arrays.items() if k != "y"}
    calib = {k: inputs.pop(k) for k in list(inputs) if k.removesuffix(CALIB) in {*arrays} - {k}}
    if not inputs:
        raise ConfigError(f"{what} has no array x; it holds {', '.join(sorted(arrays)) or 'none'}")
    if "x" in inputs and inputs["x"].ndim:
        x = inputs["x"]
        calibration = calib.get("x_calib", x[:0])
        _check(what, x, y, calibration)
        used = ("x", "y", "x_calib")
        return x, y, calibration, {k: a for k, a in arrays.items() if k not in used}
    held = {k.removesuffix(CALIB): a for k, a in calib.items()}
    return _unfit(inputs, y), y, _unfit(held, NO_LABELS), {}


def _unfit(arrays: Mapping[str, Array], y: Array) -> Feed:
    """Arrays by name before the model is known: as many as there are labels, or rows of the
    first."""
    rows = next((len(a) for a in arrays.values() if a.ndim), 0)
    return Feed(arrays, dict.fromkeys(arrays, WHOLE), len(y) if y is not NO_LABELS else rows)


@lru_cache(maxsize=4)
def _generated(name: str) -> Dataset:
    generated = zoo.DATASETS[name]
    if generated.missing:
        raise ConfigError(
            f"the data set {name!r} needs {' and '.join(generated.missing)}: pip install "
            "'dtypelab[zoo]'"
        )
    return Dataset.of(name, generated.build())


def _check(what: str, x: Array, y: Array, calibration: Array) -> None:
    if y is not NO_LABELS and (y.ndim == 0 or len(x) != len(y)):
        raise ConfigError(
            f"{what} needs one label in y for each of the inputs in x, got y of shape {y.shape} "
            f"and x of shape {x.shape}"
        )
    kinds = [(a.ndim, a.shape[1:], a.dtype) for a in (calibration, x)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"{what}: x_calib ({calibration.dtype}, shape {calibration.shape}) and x ({x.dtype}, "
            f"shape {x.shape}) must hold inputs of one kind"
        )


def _digest(
    x: Examples,
    y: Array,
    calibration: Examples,
    classes: tuple[str, ...],
    others: Mapping[str, Array],
) -> str:
    """SHA-256 of everything that a network and a metric see."""
    digest = hashlib.sha256(repr(classes).encode())
    parts: list[Array] = []
    for part in (x, y, calibration, others):
        named = part.arrays if isinstance(part, Feed) else part
        if isinstance(named, Mapping):
            digest.update(repr(list(named)).encode() if named else b"")
            parts += named.values()
        else:
            parts.append(named)
    for array in parts:
        digest.update(f"{array.dtype}{array.shape}".encode())
        plain = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        digest.update(plain)
    return digest.hexdigest()
