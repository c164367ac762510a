"""The networks of the benchmarks: where their files come from, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, ModelError, unknown
from experiments import zoo
from experiments.data import datasets
from experiments.zoo import light
from experiments.zoo.light import FOLDER_VARIABLE as FOLDER_VARIABLE
from experiments.zoo.light import folder as folder
from experiments.zoo.light import picture

Array = NDArray[Any]
#: (shape with the batch first, generator) -> float32 input.
Draw = Callable[[tuple[int, ...], np.random.Generator], Array]

CALIBRATION_INPUTS = 8
EVALUATION_INPUTS = 4


# ---- inputs --------------------------------------------------------------------------------------
def bright_picture(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """A picture with values in [-1, 1]."""
    return np.clip(picture(shape, rng) / 2, -1, 1).astype(np.float32)


def strokes(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """A line of dark strokes on light paper, values in [-1, 1]."""
    *_, height, width = shape
    image = np.full((height, width), rng.uniform(0.6, 1.0))
    y, x = np.mgrid[:height, :width]
    for left in range(4, width - 16, 16):
        for _ in range(int(rng.integers(2, 5))):
            top, bottom = rng.uniform(0.15, 0.85, 2) * height
            start, end = left + rng.uniform(0, 13, 2)
            t = rng.uniform(0, 1, (40, 1, 1))
            distance = np.hypot(x - (start + t * (end - start)), y - (top + t * (bottom - top)))
            image[distance.min(axis=0) < 1.5] = rng.uniform(-1.0, -0.6)
    return np.broadcast_to(image, shape).astype(np.float32)


def digits(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Shipped digits."""
    images: Array = datasets.load("mnist1k").x
    return images[rng.choice(len(images), shape[0], replace=False)]


# ---- models --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Model:
    """A network to measure: `shape` is its input's, batch first; `draw` makes such inputs; `find`
    gives its file in a folder (made there if need be), or None where it is not available."""

    name: str
    shape: tuple[int, ...]
    draw: Draw
    find: Callable[[Path], Path | None]
    hint: str

    def inputs(self, count: int, seed: int) -> list[Array]:
        """`count` float32 inputs of `shape`; the same for the same seed."""
        rng = np.random.default_rng(seed)
        return [self.draw(self.shape, rng) for _ in range(count)]

    def calibration(self) -> list[Array]:
        """The inputs that every quantizer is calibrated with."""
        return self.inputs(CALIBRATION_INPUTS, seed=1)

    def evaluation(self) -> list[Array]:
        """Other inputs, for comparing results."""
        return self.inputs(EVALUATION_INPUTS, seed=2)


def _light(name: str, folder: Path) -> Path | None:
    """A light model of the onnx package with weights, made once."""
    source = zoo.light_source(name)
    return None if source is None else light.model(name, source)


def _shipped(name: str, folder: Path) -> Path | None:
    return zoo.model_path(name)


def _given(name: str, folder: Path) -> Path | None:
    path = folder / f"{name}.onnx"
    return path if path.is_file() else None


def _text_recognition(name: str, folder: Path) -> Path | None:
    """The file that the package rapidocr_onnxruntime carries, or the one in the folder."""
    return zoo.sources()["ppocr_rec"].find() or _given(name, folder)


_FILE = f"give its file with --model-file NAME=PATH, or put NAME.onnx in ${FOLDER_VARIABLE}"
_LIGHT_NAMES = ("resnet50", "vgg19", "squeezenet", "inception_v2", "shufflenet")
_PICTURES = {
    name: Model(
        name, (1, 3, 224, 224), picture, partial(_light, name), "the onnx package lacks its graph"
    )
    for name in _LIGHT_NAMES
}
MODELS: Mapping[str, Model] = {
    **_PICTURES,
    "efficientnet_lite0": Model(
        "efficientnet_lite0",
        (1, 3, 224, 224),
        bright_picture,
        partial(_given, "efficientnet_lite0"),
        _FILE,
    ),
    "pp_ocrv4_rec": Model(
        "pp_ocrv4_rec",
        (1, 3, 48, 320),
        strokes,
        partial(_text_recognition, "pp_ocrv4_rec"),
        f"install rapidocr_onnxruntime, or {_FILE}",
    ),
    "mnist_resnet8": Model(
        "mnist_resnet8",
        (64, 1, 28, 28),
        digits,
        partial(_shipped, "mnist_resnet8"),
        "the zoo lacks its file",
    ),
}


def input_name(path: Path) -> str:
    """Name of a model's only input.

    Raises:
        ModelError: it has several.
    """
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {t.name for t in graph.initializer}
    names = [i.name for i in graph.input if i.name not in weights]
    if len(names) != 1:
        raise ModelError(f"{path.name} has the inputs {names}; benchmark models have one")
    return str(names[0])


def locate(name: str, given: Mapping[str, Path]) -> Path | None:
    """The file of a benchmark model: the one given by hand, or what `Model.find` finds.

    Raises:
        ConfigError: there is no model of this name, or no such file.
    """
    for known in (name, *given):
        if known not in MODELS:
            raise ConfigError(unknown("benchmark model", known, MODELS))
    if name not in given:
        return MODELS[name].find(folder())
    if not given[name].is_file():
        raise ConfigError(f"there is no model file {given[name]}")
    return given[name]
