"""Networks with data to calibrate on, data to judge them by, and what counts as a right answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import IRModule
from experiments import zoo
from experiments.benchmarks import models
from experiments.data import datasets
from experiments.measure.scoring import greedy_text

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Task:
    """A trained network and its data.

    Attributes:
        name: of the network.
        metric: what the share of right answers is called.
        path: its ONNX file.
        shapes: shape of its input, where the batch size cannot stay open.
        calibration: batches that a quantizer may see.
        inputs: [n, ...], for the final figure only.
        batch: how many inputs are run at a time.
        answers: scores of n inputs -> answers [n].
        accepted: [n, k] answers that are right, for each input.
        by_answers: whether settings are compared by how many answers they change, before SQNR.
    """

    name: str
    metric: str
    path: Path
    shapes: Mapping[str, tuple[int, ...]] | None
    calibration: tuple[Array, ...]
    inputs: Array
    batch: int
    answers: Callable[[Array], Array]
    accepted: Array
    by_answers: bool = False

    def module(self) -> IRModule:
        """The float32 network.

        Raises:
            DtypelabError: it cannot be imported.
        """
        import compiler

        module: IRModule = compiler.from_onnx(self.path, shapes=self.shapes)
        return module

    @property
    def batches(self) -> list[Array]:
        """The inputs in batches."""
        return [self.inputs[k : k + self.batch] for k in range(0, len(self.inputs), self.batch)]

    def right(self, scores: Array) -> NDArray[np.bool_]:
        """Which answers are accepted: [n]. A score that is NaN is no answer."""
        finite = np.isfinite(scores.reshape(len(scores), -1)).all(axis=1)
        found: NDArray[np.bool_] = finite & (
            self.answers(scores)[:, np.newaxis] == self.accepted
        ).any(axis=1)
        return found

    def agreement(self, scores: Array, reference: Array) -> float:
        """Share of inputs with the same answer."""
        return float(np.mean(self.answers(scores) == self.answers(reference)))

    def shortened(self, inputs: int, batches: int) -> Task:
        """The same with few inputs and few calibration batches."""
        return replace(
            self,
            inputs=self.inputs[:inputs],
            accepted=self.accepted[:inputs],
            calibration=self.calibration[:batches],
        )


#: Gives a task from (folder of data or None, the network's file or None), or says what it lacks.
Loader = Callable[[Path | None, Path | None], Task | str]


def largest(scores: Array) -> Array:
    """The class with the largest score [n, classes] -> [n]."""
    classes: Array = scores.argmax(axis=-1)
    return classes


def _in_batches(x: Array, size: int) -> tuple[Array, ...]:
    return tuple(x[k : k + size] for k in range(0, len(x), size))


def _digits(name: str) -> Loader:
    def load(data: Path | None, file: Path | None) -> Task | str:
        path = file or zoo.model_path(name) or _in(data, f"{name}.onnx")
        if path is None:
            return _lacking(f"{name}.onnx")
        digits = datasets.load("mnist1k")
        calibration = _in_batches(digits.calibration, 20)
        labels = digits.y[:, np.newaxis]
        return Task(name, "top-1", path, None, calibration, digits.x, 100, largest, labels)

    return load


def _photos(data: Path | None, file: Path | None) -> Task | str:
    path = file or _in(data, "efficientnet_lite0_bn_clean.onnx")
    seen, judged = _in(data, "photos_calib224.npz"), _in(data, "photos_dev224.npz")
    if path is None or seen is None or judged is None:
        return _lacking("efficientnet_lite0_bn_clean.onnx, photos_calib224.npz, photos_dev224.npz")

    def read(x: Array) -> Array:
        scaled = (x.astype(np.float32) - np.float32(127)) / np.float32(128)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))

    arrays = datasets.read_npz(judged)
    calibration = _in_batches(read(datasets.read_npz(seen)["x"]), 8)
    return Task(
        "efficientnet_lite0", "top-1", path, None, calibration, read(arrays["x"]), 8, largest,
        np.asarray(arrays["y"]),
    )  # fmt: skip


def _text(data: Path | None, file: Path | None) -> Task | str:
    path = file or models.locate("pp_ocrv4_rec", {})
    seen, judged = _in(data, "ocr_calib.npz"), _in(data, "ocr_eval.npz")
    if path is None or seen is None or judged is None:
        return _lacking("ocr_calib.npz, ocr_eval.npz") + ", and --model-file pp_ocrv4_rec=PATH"

    def read(x: Array) -> Array:
        scaled = (x.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))

    characters = ["", *_metadata(path, "character").splitlines(), " "]
    arrays = datasets.read_npz(judged)
    calibration = _in_batches(read(datasets.read_npz(seen)["x"]), 1)
    shapes = {models.input_name(path): calibration[0].shape}
    return Task(
        "pp_ocrv4_rec", "words exact", path, shapes, calibration, read(arrays["x"]), 1,
        lambda scores: greedy_text(scores, characters), np.asarray(arrays["y"])[:, np.newaxis],
        by_answers=True,
    )  # fmt: skip


def _metadata(path: Path, key: str) -> str:
    import onnx

    entries = onnx.load(path, load_external_data=False).metadata_props
    found = [entry.value for entry in entries if entry.key == key]
    if not found:
        raise ConfigError(f"{path} has no metadata {key!r}; give the file of PP-OCRv4's recognizer")
    return str(found[0])


def _in(data: Path | None, name: str) -> Path | None:
    path = None if data is None else data / name
    return path if path is not None and os.path.isfile(path) else None


def _lacking(files: str) -> str:
    return f"not available: put {files} in the folder ${models.FOLDER_VARIABLE}"


TASKS: Mapping[str, Loader] = {
    "mnist_mlp": _digits("mnist_mlp"),
    "mnist_resnet8": _digits("mnist_resnet8"),
    "mnist_dwsep": _digits("mnist_dwsep"),
    "mnist_vit": _digits("mnist_vit"),
    "efficientnet_lite0": _photos,
    "pp_ocrv4_rec": _text,
}


def load(name: str, data: Path | None, given: Mapping[str, Path]) -> Task | str:
    """The task called `name`, or a sentence that says which files it lacks.

    Args:
        name: a key of TASKS.
        data: folder with models and data that are not shipped.
        given: network -> its file.

    Raises:
        ConfigError: there is no task of this name, no such folder or file, or one that does not
            fit.
    """
    for known in (name, *given):
        if known not in TASKS:
            raise ConfigError(unknown("network", known, TASKS))
    if data is not None and not os.path.isdir(data):
        raise ConfigError(f"there is no folder {data}")
    file = given.get(name)
    if file is not None and not os.path.isfile(file):
        raise ConfigError(f"there is no model file {file}")
    return TASKS[name](data, file)
