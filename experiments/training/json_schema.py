"""A JSON schema of specifications of trainings, made of what checks them: for editors."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from experiments.systems.number_systems import format_names
from experiments.systems.schemes import ALIASES
from quantize.config.json_schema import DIALECT, MODE, TEXT, Schema, closed, config_properties

from . import optimizers, schedules
from .data import NAMES as EXAMPLES
from .formats import PARTS, ROUNDINGS
from .loss_scale import LossScale
from .optimizers import Optimizer
from .qat import ALIKE, BY_CHANNEL, FIXED, LEARNED
from .schedules import Schedule
from .spec import KEYS, OF_MODEL, RANDOM, TARGETS

_ABOUT = {
    "models": "Networks with one input and scores [N, classes]: names, paths of .onnx files.",
    "dataset": "Examples: a name, or an .npz with x, y, x_test and y_test (labels may be missing).",
    "formats": "What the parts of a step are computed in: a format for all, or a table.",
    "seeds": "Seeds of first weights, of the order of examples and of stochastic rounding.",
    "rates": "Learning rates, each instead of that of the schedule.",
    "epochs": "How often all examples are seen.",
    "batch": "Examples that a step has.",
    "n_train": "Examples that are trained on, the first ones; by default all.",
    "n_test": "Examples that are judged by, the first ones; by default all.",
    "initial": "Where the weights begin: drawn by the seed, or those of the model file.",
    "clip_norm": "What the norm of all gradients together is at most; 0: whatever it is.",
    "optimizer": "How weights follow their gradients.",
    "schedule": "Learning rates, by the step.",
    "loss_scale": "What the loss is multiplied by, unless a table of formats says so.",
    "qat": "Integers that the network computes on while it is trained: a table, or several.",
    "targets": "What scores are to be: the labels, or the shares that the model in float32 gives.",
    "shift": "Pixels by which the images of a step are moved, at most; 0: not at all.",
    "temperature": "What scores are divided by before their shares are compared with the model's.",
    "mirror": "Whether half of the images of a step are mirrored, left to right.",
    "views": "Where some layers are trained: how many times each image is moved and mirrored.",
    "adapters": "Python files of yours that are run first.",
    "threads": "Threads of kernels; they change no bit.",
    "checkpoint_steps": "Steps between two checkpoints.",
    "judge_epochs": "Epochs between two judgements on the test examples, for the curve.",
    "curve_steps": "Steps between two lines of the curve.",
}
_NAMES = {"optimizer": optimizers.NAMES, "schedule": schedules.NAMES}


def training_schema() -> Schema:
    """The schema of a specification of trainings, as JSON-compatible data."""
    known = _properties()
    described = {k: {"description": _ABOUT[k], **known[k]} for k in KEYS}
    top = closed(described, "models")
    return {"$schema": DIALECT, "title": "dtypelab train", **top}


def _properties() -> dict[str, Schema]:
    count: Schema = {"type": "integer", "minimum": 1}
    rate: Schema = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9}
    counts = ("epochs", "batch", "n_train", "n_test", "threads", "checkpoint_steps", "curve_steps",
              "views", "judge_epochs")  # fmt: skip
    return {
        "models": _list(TEXT),
        "dataset": {**TEXT, "examples": [*EXAMPLES]},
        "formats": _list(_system()),
        "seeds": _list({"type": "integer", "minimum": 0}),
        "rates": _list(rate),
        **dict.fromkeys(counts, count),
        "initial": {"enum": [RANDOM, OF_MODEL]},
        "clip_norm": {"type": "number", "minimum": 0},
        "optimizer": _of(Optimizer, "optimizer"),
        "schedule": _of(Schedule, "schedule"),
        "loss_scale": _of(LossScale),
        "qat": {"anyOf": [_qat(), _list({"anyOf": [_qat(), {"const": False}]})]},
        "shift": {"type": "integer", "minimum": 0},
        "mirror": {"type": "boolean"},
        "temperature": {"type": "number", "minimum": 0.01, "maximum": 1000},
        "targets": {"enum": [*TARGETS]},
        "adapters": {"type": "array", "items": TEXT, "uniqueItems": True},
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "uniqueItems": True, "minItems": 1}


def _of(kind: Any, names: str = "") -> Schema:
    """A table of the fields of a frozen dataclass, which all have a default."""
    known: dict[str, Schema] = {}
    for f in fields(kind):
        assert f.default is not MISSING
        if f.name == "name":
            known[f.name] = {"enum": [*_NAMES[names]]}
        elif isinstance(f.default, bool):
            known[f.name] = {"type": "boolean"}
        elif isinstance(f.default, int):
            known[f.name] = {"type": "integer", "minimum": 0}
        elif isinstance(f.default, tuple):
            known[f.name] = {"type": "array", "items": {"type": "number"}, "minItems": 1}
        else:
            known[f.name] = {"type": "number", "minimum": 0}
    return closed(known)


def _qat() -> Schema:
    """An element of `qat`."""
    config = config_properties()
    return closed({
        "scheme": TEXT,
        "steps": {"enum": [LEARNED, FIXED]},
        "n_calib": {"type": "integer", "minimum": 1},
        "train": {"type": "boolean"},
        "moves": {"enum": [ALIKE, BY_CHANNEL]},
        "layers": {"type": "array", "items": TEXT, "uniqueItems": True},
        **config,
        **{alias: config.get(option, TEXT) for alias, option in ALIASES.items()},
    })  # fmt: skip


def _system() -> Schema:
    """An element of `formats`."""
    name = {**TEXT, "examples": format_names()}
    pair = {"type": "array", "items": {"anyOf": [TEXT, {"type": "object"}]}, "minItems": 1}
    rounding: Schema = {"enum": [*ROUNDINGS]}
    known = {
        "format": name,
        **{part: {"anyOf": [name, pair]} for part in PARTS},
        "accumulate": {"anyOf": [MODE, {"type": "object"}]},
        "rounding": {"anyOf": [rounding, closed(dict.fromkeys(PARTS, rounding))]},
        "loss_scale": _of(LossScale),
    }
    whole, forward = closed(known, "format"), closed(known, "forward")
    return {"anyOf": [name, whole, forward]}
