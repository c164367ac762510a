"""Networks and data by name: those that ship (README.md states their sources), those that installed
packages bring, and those that a user registers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compiler.errors import ConfigError

FOLDER = Path(__file__).resolve().parent

#: What shipped networks are evaluated on, where that is not the digits.
_DATA = {"stdlib_encoder": "stdlib_pieces", "stdlib_lm": "stdlib_text"}
_LIGHT = ("squeezenet", "shufflenet", "inception_v2", "resnet50")


@dataclass(frozen=True)
class Source:
    """A network by name.

    `find` gives its file, None where a package that it comes from is not installed; `install` says
    what to do then. `dataset` is the data set it is evaluated on where nobody names one.
    """

    name: str
    origin: str
    dataset: str
    find: Callable[[], Path | None]
    install: str = ""
    #: Whether it is here, for what takes long to find because it is made first.
    here: Callable[[], bool] | None = None

    def present(self) -> bool:
        """Whether it can be had."""
        return self.here() if self.here else self.find() is not None


@dataclass(frozen=True)
class Generated:
    """A data set that is made when it is asked for: `build` as `register_dataset` takes it."""

    origin: str
    needs: tuple[str, ...]
    build: Callable[[], Mapping[str, Any]]

    @property
    def missing(self) -> list[str]:
        """The packages among those it needs that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def model_names() -> list[str]:
    """Names of the shipped networks, for example "mnist_mlp"."""
    return sorted(path.stem for path in FOLDER.glob("*.onnx"))


def model_path(name: str) -> Path | None:
    """Path of the shipped network called `name`, or None."""
    return FOLDER / f"{name}.onnx" if name in model_names() else None


def _in_package(package: str, file: str) -> Path | None:
    """A file that an installed package carries; the package is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / file
    return path if os.path.isfile(path) else None


def light_source(name: str) -> Path | None:
    """The graph of a light model of the onnx package, None if it has none of this name."""
    return _in_package("onnx", f"backend/test/data/light/light_{name}.onnx")


def _has_light(name: str) -> bool:
    return light_source(name) is not None


def _light(name: str) -> Path | None:
    source = light_source(name)
    if source is None:
        return None
    from .light import model

    return model(name, source)


def _words() -> Mapping[str, Any]:
    from .words import words

    return words()


def _upright() -> Mapping[str, Any]:
    from .words import upright

    return upright()


def _pictures() -> Mapping[str, Any]:
    from .light import pictures

    return pictures()


def _vit() -> Path | None:
    from .light import FOLDER_VARIABLE

    folder = os.environ.get(FOLDER_VARIABLE)
    path = Path(folder) / "mnist_vit.onnx" if folder else None
    return path if path is not None and os.path.isfile(path) else None


_OCR = "rapidocr_onnxruntime"
_INSTALL = "pip install 'dtypelab[zoo]'"
DATASETS = {
    "pictures224": Generated("coloured noise of many scales", (), _pictures),
    "words": Generated("rendered words", ("PIL", _OCR), _words),
    "words_upright": Generated("rendered words, half of them upside down", ("PIL",), _upright),
}
_PACKAGED = {
    source.name: source
    for source in (
        Source(
            "ppocr_rec",
            "rapidocr-onnxruntime",
            "words",
            partial(_in_package, _OCR, "models/ch_PP-OCRv4_rec_infer.onnx"),
            _INSTALL,
        ),
        Source(
            "ppocr_cls",
            "rapidocr-onnxruntime",
            "words_upright",
            partial(_in_package, _OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
            _INSTALL,
        ),
        Source(
            "mnist_vit",
            "a folder of yours",
            "mnist1k",
            _vit,
            "python -m experiments.zoo.train mnist_vit --out FOLDER, and DTYPELAB_BENCH_DIR=FOLDER",
        ),
        *(
            Source(
                f"light_{name}",
                "onnx (generated weights)",
                "pictures224",
                partial(_light, name),
                "pip install onnx with its test data",
                partial(_has_light, name),
            )
            for name in _LIGHT
        ),
    )
}
_REGISTERED: dict[str, Source] = {}


def register_model(
    name: str, path: str | os.PathLike[str] | Callable[[], Any], *, dataset: str = "mnist1k"
) -> None:
    """Make an ONNX file a model that specifications can name: `models = ["NAME"]`.

    Args:
        name: what specifications and results call it.
        path: of the file, or a function that gives its path.
        dataset: what it is evaluated on where a specification names no data set.

    Raises:
        ConfigError: a network of the zoo has this name.
    """
    if name in _PACKAGED or name in model_names():
        raise ConfigError(f"the zoo has a network {name!r}; choose another name")
    given = path if callable(path) else partial(Path, path)
    _REGISTERED[name] = Source(name, "registered", dataset, lambda: Path(given()))


def is_registered(name: str) -> bool:
    """Whether `register_model` made `name` a network."""
    return name in _REGISTERED


def sources() -> dict[str, Source]:
    """Every network by name: the shipped ones first."""
    shipped = {
        name: Source(name, "shipped", _DATA.get(name, "mnist1k"), partial(model_path, name))
        for name in model_names()
    }
    return shipped | _PACKAGED | _REGISTERED


def find(name: str) -> Path | None:
    """The file of the network of that name, None if there is no such name.

    Raises:
        ConfigError: the package that it comes from is not installed.
    """
    source = sources().get(name)
    if source is None:
        return None
    path = source.find()
    if path is None:
        raise ConfigError(
            f"the model {name!r} comes from {source.origin}, which is not installed: "
            f"{source.install}"
        )
    return path
