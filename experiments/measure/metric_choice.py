"""Which metric judges a network where nobody names one, and whether one that is named can.

Asked before anything runs, of what is known then: the shape of the output that is judged, and the
labels of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError
from experiments.data.datasets import Dataset
from experiments.data.token_windows import IGNORED

from . import scoring

#: What needs no labels and fits every output of numbers.
ANYWHERE = "sqnr"
_LIKE_LABELS = ("rmse", "r2", "cosine")
_TEXTS = ("ctc_exact", "ctc_cer")


@dataclass(frozen=True)
class Judged:
    """The output that metrics look at: its name, and its dimensions, the inputs' first; None of
    one, or of all, that are not known before the run."""

    name: str
    dims: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.dims is None:
            return f"output {self.name!r}"
        sizes = ["n", *("?" if d is None else str(d) for d in self.dims[1:])][: len(self.dims)]
        return f"output {self.name!r} [{', '.join(sizes)}]"

    @property
    def elements(self) -> int | None:
        """Of one input, None where that is not known."""
        sizes = [-1 if d is None else d for d in (self.dims or (None,))[1:]]
        return None if not self.dims or -1 in sizes else math.prod(sizes)


def default(judged: Judged, data: Dataset) -> str:
    """The metric for a network with this output on this data: the one that the data set names;
    else what its labels are for: top1 of classes, ctc_exact of texts, perplexity of tokens, rmse of
    numbers; else (no labels, or labels for something else) the noise of the output beside
    float32's, `sqnr`."""
    if data.metric:
        return data.metric
    if not data.labelled:
        return ANYWHERE
    if _texts(data.y):
        return "ctc_exact" if not misfit("ctc_exact", judged, data) else ANYWHERE
    if not misfit("top1", judged, data) and _are_classes(judged, data.y):
        return "top1"
    if _are_tokens(judged, data.y) and not misfit("perplexity", judged, data):
        return "perplexity"
    known = judged.elements is not None and data.y.dtype.kind in "iuf"
    return "rmse" if known and not misfit("rmse", judged, data) else ANYWHERE


def unused(judged: Judged, data: Dataset) -> str:
    """Why the labels of a data set choose no metric for an output; empty if one is chosen, or there
    are no labels."""
    if not data.labelled or default(judged, data) != ANYWHERE or data.metric:
        return ""
    if _texts(data.y):
        return misfit("ctc_exact", judged, data)
    classes = misfit("top1", judged, data) or "the labels are no classes of the output"
    return f"{classes}; {misfit('rmse', judged, data) or 'they are no numbers like the output'}"


def check(name: str, judged: Judged, data: Dataset) -> None:
    """Raise a ConfigError unless there is a metric of this name for this output and these labels,
    as far as that is known before the run."""
    scoring.find(name)
    if why := misfit(name, judged, data):
        raise ConfigError(
            f'{why}; choose another metric: {", ".join(scoring.names())} ("{ANYWHERE}" fits every '
            "output and needs no labels)"
        )


def misfit(name: str, judged: Judged, data: Dataset) -> str:
    """Why a metric cannot judge this output by these labels; empty if it can, or may."""
    if name == "top1":
        return _not_classes(judged, data)
    if name in _TEXTS:
        return _not_texts(name, judged, data)
    if name in scoring.OF_TOKENS:
        return _not_tokens(name, judged, data)
    if name in _LIKE_LABELS and data.labelled and judged.elements is not None:
        count = data.y[:1].size
        if data.y.dtype.kind not in "iufb":
            return f"{name} needs labels that are numbers, the data set has {data.y.dtype}"
        if count != judged.elements:
            return (
                f"{name} needs labels like the outputs: {judged} has {judged.elements} numbers of "
                f"an input, the labels {count}"
            )
    return ""


def _not_classes(judged: Judged, data: Dataset) -> str:
    labels, dims = data.y, judged.dims
    if data.labelled and labels.ndim == 1 and labels.dtype.kind not in "iu":
        return f"top1 needs integer labels, the data set has {labels.dtype}"
    if dims is not None and (len(dims) < 2 or any(d not in (1, None) for d in dims[2:])):
        return f"top1 needs scores [n, classes], not {judged}"
    if data.labelled and labels.ndim > 1:
        classes = None if dims is None else dims[1]
        if any(d != 1 for d in labels.shape[2:]) or classes not in (None, labels.shape[1]):
            return f"top1 needs one label an input, or its scores: {labels.shape} is not {judged}"
    return ""


def _not_tokens(name: str, judged: Judged, data: Dataset) -> str:
    dims, labels = judged.dims, data.y
    if dims is not None and (len(dims) != 3 or dims[2] == 1):
        return f"{name} needs scores [n, tokens, vocabulary], not {judged}"
    length = None if dims is None else dims[1]
    if not data.labelled:
        if name != "perplexity":
            return ""
        return "perplexity needs labels y [n, tokens], the next token of every one, and has none"
    shape = f"{labels.dtype}{list(labels.shape)}"
    if labels.ndim != 2 or labels.dtype.kind not in "iu" or length not in (None, labels.shape[1]):
        return (
            f"{name} needs integer labels y [n, tokens], one for every row of {judged}, not {shape}"
        )
    return ""


def _not_texts(name: str, judged: Judged, data: Dataset) -> str:
    if not data.classes:
        return f"{name} needs the texts of the classes, and the data set has no `classes`"
    if judged.dims is not None and len(judged.dims) != 3:
        return f"{name} needs scores [n, steps, classes], not {judged}"
    classes = None if judged.dims is None else judged.dims[2]
    if classes is not None and classes > len(data.classes):
        return f"{name} needs a text for each class, not {len(data.classes)} for {judged}"
    labels = data.y
    if data.labelled and not (labels.ndim == 1 and _texts(labels)):
        shape = f"{labels.dtype}{list(labels.shape)}"
        if (
            labels.ndim != 3
            or labels.shape[2] > len(data.classes)
            or labels.dtype.kind not in "iuf"
        ):
            return f"{name} needs labels that are texts, or their scores, not {shape}"
    return ""


def _texts(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "OUT"


def _are_tokens(judged: Judged, labels: NDArray[Any]) -> bool:
    """Whether labels that may be tokens look as such: numbers of a vocabulary, or to be ignored."""
    if labels.ndim != 2 or labels.dtype.kind not in "iu" or judged.dims is None:
        return False
    counted = labels[labels != IGNORED]
    vocabulary = judged.dims[2] if len(judged.dims) == 3 else None
    if vocabulary is None or not counted.size:
        return False
    return bool(counted.min() >= 0 and counted.max() < vocabulary)


def _are_classes(judged: Judged, labels: NDArray[Any]) -> bool:
    """Whether labels that may be classes look as such: numbers of classes, or ones among zeros."""
    classes = None if judged.dims is None else judged.dims[1]
    if classes == 1:
        return False
    if labels.ndim == 1:
        return bool(labels.min() >= 0 and (classes is None or labels.max() < classes))
    ones = labels.reshape(len(labels), -1)
    return bool(np.isin(ones, (0, 1)).all() and (ones.sum(axis=1) == 1).all())
