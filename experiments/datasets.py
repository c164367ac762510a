"""Labelled data to evaluate and calibrate on: shipped by name, or a user's .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, unknown

from . import zoo
from .files import sha256

Array = NDArray[np.generic]

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081


@dataclass(frozen=True)
class Dataset:
    """Images ready for a network, batch dimension first.

    `x` [n, ...] are the evaluation inputs, `y` [n] their integer labels, `calibration` [m, ...]
    inputs that are not among them (m is 0 when there are none). `sha256` is that of the file.
    """

    name: str
    sha256: str
    x: Array
    y: NDArray[np.int64]
    calibration: Array

    def calibration_sample(self, count: int, seed: int) -> Array:
        """`count` calibration inputs, chosen without replacement by `seed`.

        Raises:
            ConfigError: the data set has fewer than `count` calibration inputs.
        """
        if count > len(self.calibration):
            have = f"has only {len(self.calibration)}" if len(self.calibration) else "has no"
            raise ConfigError(
                f"data set {self.name!r} {have} calibration inputs (array x_calib), "
                f"but {count} are wanted; lower n_calib or add some"
            )
        order = np.random.default_rng(seed).permutation(len(self.calibration))
        return self.calibration[order[:count]]


def normalise_mnist(pixels: Array) -> NDArray[np.float32]:
    """uint8 digits [n, 28, 28] or [n, 1, 28, 28] -> ((x / 255) - mean) / std as float32 NCHW."""
    scaled = pixels.reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
    return (scaled - np.float32(MNIST_MEAN)) / np.float32(MNIST_STD)


@dataclass(frozen=True)
class _Shipped:
    """How to read a shipped file: its name in the zoo and the preprocessing of its raw arrays."""

    file: str
    preprocess: Callable[[Array], Array]


_SHIPPED = {"mnist1k": _Shipped("mnist1k.npz", normalise_mnist)}


def names() -> list[str]:
    """Names of the shipped data sets."""
    return sorted(_SHIPPED)


def load(name_or_path: str, *, relative_to: Path | None = None) -> Dataset:
    """The shipped data set of that name, or an .npz file with arrays x, y and, optionally, x_calib.

    A user's arrays are taken as they are: already preprocessed, batch dimension first. A relative
    path counts from `relative_to` (default: the current folder).

    Raises:
        ConfigError: no such name or file, or the arrays are missing or do not fit together.
    """
    shipped = _SHIPPED.get(name_or_path)
    if shipped:
        path = zoo.FOLDER / shipped.file
        arrays = read_npz(path)
        x, y, calibration = arrays["x_test"], arrays["y_test"], arrays["x_calib"]
        x, calibration = shipped.preprocess(x), shipped.preprocess(calibration)
        return Dataset(name_or_path, sha256(path), x, y.astype(np.int64), calibration)
    path = (relative_to or Path()) / name_or_path
    if path.suffix != ".npz" and not path.exists():
        raise ConfigError(f"{unknown('data set', name_or_path, names())} (or the path of an .npz)")
    return _user_dataset(path)


def read_npz(path: str | Path) -> dict[str, Array]:
    """All arrays of an .npz file.

    Raises:
        ConfigError: the file is missing, is not an .npz, or holds pickled objects.
    """
    try:
        with Path(path).open("rb") as source:
            archive = np.load(source, allow_pickle=False)
            # A lone .npy array loads as such, whatever the file is called.
            if isinstance(archive, Mapping):
                return dict(archive)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ConfigError(f"{path} is not an .npz archive of plain arrays: {error}") from error
    raise ConfigError(f"{path} is not an .npz archive but a single array; use numpy.savez")


def _user_dataset(path: Path) -> Dataset:
    arrays = read_npz(path)
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise ConfigError(
            f"data set {path} has no array {' and '.join(missing)}; it holds {sorted(arrays)}"
        )
    x, y = arrays["x"], arrays["y"]
    calibration = arrays.get("x_calib", x[:0])
    if y.ndim != 1 or len(x) != len(y) or not np.issubdtype(y.dtype, np.integer):
        raise ConfigError(
            f"data set {path} needs one integer label in y for each of {len(x)} inputs in x, "
            f"got {y.dtype} of shape {y.shape}"
        )
    if calibration.shape[1:] != x.shape[1:] or calibration.dtype != x.dtype:
        raise ConfigError(
            f"data set {path}: x_calib ({calibration.dtype}{list(calibration.shape[1:])}) "
            f"and x ({x.dtype}{list(x.shape[1:])}) must hold inputs of one kind"
        )
    return Dataset(path.stem, sha256(path), x, y.astype(np.int64), calibration)
