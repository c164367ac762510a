"""The columns of a row that say how good a network's outputs are: by its metric, and by how far
they are from float32's, which is recorded whatever becomes of the metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.datasets import Dataset
from experiments.measure import metric_choice, metrics, scoring
from experiments.measure.scoring import Metric
from experiments.measure.statistics import PairedDifference, paired_drop, standard_error
from experiments.results.schema import Value
from experiments.spec.cells import Cell
from experiments.user_code import activity

Array = NDArray[Any]

_UNKNOWN = PairedDifference(*[math.nan] * 5)


@dataclass(frozen=True)
class Accuracy:
    """Columns; what a reader must know of them; and why the metric has none, empty if it has."""

    columns: dict[str, Value]
    notes: list[str] = field(default_factory=list)
    problem: str = ""


def accuracy(cell: Cell, data: Dataset, outputs: Array, reference: Array) -> Accuracy:
    """What there is to say of outputs [n, ...], beside those of float32.

    A metric that fails, also a user's, leaves its columns empty; the others are as without it.

    Raises:
        DtypelabError: the outputs cannot be compared with float32's.
    """
    found: dict[str, Value] = {
        "outputs_not_finite": metrics.not_finite(outputs),
        "sqnr_db": metrics.sqnr_db(outputs, reference),
        "cosine": metrics.cosine(outputs, reference),
    }
    notes = [] if not math.isnan(_number(found["sqnr_db"])) else [_no_noise(outputs, reference)]
    notes += _unused(cell, data, outputs.shape)

    def judged(metric: Metric) -> Accuracy:
        labelled = data.labelled and not metric.beside_float32
        labels = data.y[: cell.settings.n_eval] if labelled else reference
        before, after = metric.statistics(reference, labels), metric.statistics(outputs, labels)
        agreement = None
        if metric.answers is not None:
            answers = [metric.answers(values) for values in (outputs, reference)]
            if answers[0] is not None and answers[1] is not None:
                agreement = float(np.mean(answers[0] == answers[1]))
        lost = metrics.not_finite(outputs), metrics.not_finite(reference)
        columns, more = merit_columns(metric, before, after, data.labelled, lost)
        return Accuracy(columns | {"top1_agreement": agreement}, more)

    return with_metric(cell, data, found, notes, judged)


def with_metric(
    cell: Cell,
    data: Dataset,
    found: dict[str, Value],
    notes: list[str],
    judged: Callable[[Metric], Accuracy],
) -> Accuracy:
    """The columns `found`, and those that the cell's metric gives, unless it fails."""
    name = cell.metric
    try:
        metric = scoring.find(name, data.classes)
        name = metric.name
        more = judged(metric)
    except MemoryError:  # no figure is worth what may come of it
        raise
    except Exception as error:  # a user's metric may raise anything
        said = activity.explained(error)
        found["metric_name"] = name
        named = said if activity.step_of(error) else f"metric {name!r}: {said}"
        return Accuracy(found, notes, named)
    return Accuracy(found | more.columns, notes + more.notes)


def _unused(cell: Cell, data: Dataset, shape: tuple[int, ...]) -> list[str]:
    """What a reader must know of labels that nobody looked at."""
    if not cell.metric == cell.default_metric == metric_choice.ANYWHERE:
        return []
    why = metric_choice.unused(metric_choice.Judged(cell.output or "output", shape), data)
    return [f"the labels y are not used, the metric is {cell.metric}: {why}"] if why else []


def merit_columns(
    metric: Metric,
    before: scoring.Float64,
    after: scoring.Float64,
    labels: bool,
    lost: tuple[int, int],
) -> tuple[dict[str, Value], list[str]]:
    """The metric's columns of statistics [n, k] of float32 and of another network, and why some are
    NaN.

    Args:
        labels: whether there are any; else float32's outputs stand in.
        lost: of how many inputs the outputs are not finite, of the network and of float32.
    """
    labelled = labels and not metric.beside_float32
    figure, figure_fp32 = (float(metric.value(s.mean(axis=0))) for s in (after, before))
    worse = 1.0 if metric.higher_is_better else -1.0
    drop, paired = worse * _less(figure_fp32, figure) + 0.0, _UNKNOWN  # no -0
    if math.isfinite(drop):
        paired = paired_drop(before, after, lambda means: worse * metric.value(means), labelled)
    without = "" if labelled or metric.beside_float32 else scoring.OF_FLOAT32
    columns: dict[str, Value] = {
        "metric_name": metric.name + without,
        "metric": figure,
        "metric_se": standard_error(metric.value, after),
        "metric_fp32": figure_fp32,
        "metric_drop": drop,
        "metric_drop_low": paired.low,
        "metric_drop_high": paired.high,
        "p_value": paired.p_value,
        "detectable_drop": paired.detectable,
    }
    named = (("metric", figure, after, lost[0]), ("metric_fp32", figure_fp32, before, lost[1]))
    return columns, [
        f"{name} is NaN: {_why(metric, statistics, bad)}"
        for name, value, statistics, bad in named
        if math.isnan(value)
    ]


def _less(a: float, b: float) -> float:
    """a - b; NaN beside what is infinite, as noise is of which there is none."""
    return a - b if math.isfinite(a) and math.isfinite(b) else math.nan


def _why(metric: Metric, statistics: scoring.Float64, bad: int) -> str:
    """Why a metric is NaN; `bad` inputs have outputs that are not finite."""
    n = len(statistics)
    if bad:
        return f"{bad} of {n} inputs have a NaN or an infinity in their outputs"
    if bad := int(np.isnan(statistics).any(axis=1).sum()):
        return f"{metric.name} has no value for {bad} of {n} inputs"
    return metric.undefined or f"{metric.name} gives none for these outputs and labels"


def _no_noise(outputs: Array, reference: Array) -> str:
    """Why outputs have no distance from float32's."""
    return no_noise(metrics.not_finite(outputs), metrics.not_finite(reference), len(outputs))


def no_noise(bad: int, bad_fp32: int, n: int) -> str:
    """Why outputs for n inputs have no distance from float32's."""
    whose, lost = ("float32's", bad_fp32) if bad_fp32 else ("its", bad)
    return (
        f"sqnr_db and cosine are NaN: {whose} outputs of {lost} of {n} inputs hold a NaN "
        "or an infinity"
    )


def _number(value: Value) -> float:
    return value if isinstance(value, float) else math.nan
