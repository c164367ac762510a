"""Labelled examples to train on, and others to judge by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, unknown
from experiments import zoo
from experiments.data.datasets import read_npz
from experiments.files import sha256
from experiments.zoo.digits import normalise_mnist

from .network import Floats

MNIST = "mnist5k"
NAMES = (MNIST,)
"""Those that ship: 4000 digits to train on, and the 1000 of `mnist1k`."""


@dataclass(frozen=True, eq=False)
class Examples:
    """What a network is trained on and judged by.

    Attributes:
        name, sha256: what it is called, and the hash of its files.
        x, x_test: float32 inputs [n, ...].
        y, y_test: the number of each one's class, int64 [n]; None of data without labels, which
            float32's answers stand in for.
        group_test: int64 [n] numbers of what test examples show: those of one number, such as views
            of one photograph, count together where intervals are given; None: each for itself.
    """

    name: str
    sha256: str
    x: Floats
    y: NDArray[np.int64] | None
    x_test: Floats
    y_test: NDArray[np.int64] | None
    group_test: NDArray[np.int64] | None = None


def examples(name: str, folder: Path | None = None) -> Examples:
    """Examples by name, or of an .npz file with arrays x, y, x_test and y_test, or without labels
    x and x_test, and group_test if it has that; a relative path counts from `folder`.

    Raises:
        ConfigError: there are none, or the arrays are missing or do not fit together.
    """
    if name == MNIST:
        files = [zoo.FOLDER / "mnist4k.npz", zoo.FOLDER / "mnist1k.npz"]
        train, test = map(read_npz, files)
        return Examples(
            name, "+".join(map(sha256, files)),
            normalise_mnist(train["x_train"]), train["y_train"].astype(np.int64),
            normalise_mnist(test["x_test"]), test["y_test"].astype(np.int64),
        )  # fmt: skip
    path = (folder or Path()) / name
    if path.suffix != ".npz":
        raise ConfigError(f"{unknown('training data', name, NAMES)} (or the path of an .npz)")
    arrays = read_npz(path)
    labelled = "y" in arrays or "y_test" in arrays
    needed = ("x", "y", "x_test", "y_test") if labelled else ("x", "x_test")
    if missing := [k for k in needed if k not in arrays]:
        raise ConfigError(
            f"{name} has no array {missing[0]}; training needs x, y, x_test, y_test, or without "
            "labels x and x_test"
        )
    x, x_test = (_inputs(name, key, arrays[key]) for key in ("x", "x_test"))
    y, y_test = (_labels(name, k, arrays) if labelled else None for k in ("y", "y_test"))
    if x.shape[1:] != x_test.shape[1:]:
        raise ConfigError(f"{name}: x {x.shape} and x_test {x_test.shape} differ in shape")
    return Examples(path.stem, sha256(path), x, y, x_test, y_test, _groups(name, arrays))


def _inputs(name: str, key: str, array: NDArray[Any]) -> Floats:
    if array.dtype != np.float32 or not array.ndim or not len(array):
        raise ConfigError(
            f"{name}: {key} must hold float32 inputs, the batch first, not {array.dtype} of shape "
            f"{array.shape}"
        )
    return array


def _labels(name: str, key: str, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    y, x = arrays[key], arrays[key.replace("y", "x")]
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1] or y.min() < 0:
        raise ConfigError(
            f"{name}: {key} must be the number of a class for each of the {len(x)} inputs, not "
            f"{y.dtype} of shape {y.shape}"
        )
    return y.astype(np.int64)


def _groups(name: str, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    groups = arrays.get("group_test")
    if groups is None:
        return None
    count = len(arrays["x_test"])
    if groups.dtype.kind not in "iu" or groups.shape != (count,):
        raise ConfigError(
            f"{name}: group_test must be a whole number for each of the {count} inputs of x_test, "
            f"not {groups.dtype} of shape {groups.shape}"
        )
    if len(np.unique(groups)) < 2:
        raise ConfigError(f"{name}: group_test must tell two groups or more apart")
    return groups.astype(np.int64)
