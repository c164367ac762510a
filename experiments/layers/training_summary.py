"""Runs of training that differ in their seeds alone, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.measure.statistics import student95

if TYPE_CHECKING:
    import pandas as pd

_ALIKE = (
    *("model", "dataset", "system", "loss_scaling", "optimizer", "schedule", "rate"),
    *("weight_decay", "clip_norm", "initial", "epochs", "batch", "n_train", "n_test"),
)
_REFERENCE = ("model", "dataset", "optimizer", "schedule", "rate", "epochs", "batch", "initial")


@dataclass(frozen=True)
class Summary:
    """What runs of several seeds come to.

    Attributes:
        model, system: what was trained in what; with the loss scale, where there is one.
        hashes: of the runs.
        mean: of the metric.
        lost: of what float32 has more than it, seed by seed; with the ends of its 95 % interval
            (Student's t). NaN where float32 was not trained alike, or for the interval with fewer
            than two seeds.
        skipped: the mean number of steps that changed nothing.
    """

    model: str
    system: str
    hashes: tuple[str, ...]
    mean: float
    lost: float
    low: float
    high: float
    skipped: float

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def summaries(rows: pd.DataFrame) -> list[Summary]:
    """One for each kind of run that came to an end, in the order of the rows."""
    ended = rows[rows["status"] == "ok"]
    found = []
    for _, part in ended.groupby([*_ALIKE], sort=False):
        first = part.iloc[0]
        plain = ended[(ended["system"] == "float32") & (ended["loss_scaling"] == "1")]
        for name in _REFERENCE:
            plain = plain[plain[name] == first[name]]
        both = part.merge(plain, on="seed", suffixes=("", "_float32"))
        lost = (both["metric_float32"] - both["metric"]).to_numpy(np.float64)
        low, high = _interval(lost)
        scaled = "" if first["loss_scaling"] == "1" else f", loss x {first['loss_scaling']}"
        found.append(
            Summary(
                str(first["model"]), f"{first['system']}{scaled}", tuple(part["config_hash"]),
                float(part["metric"].mean()), float(lost.mean()) if len(lost) else np.nan,
                low, high, float(part["skipped_steps"].mean()),
            )
        )  # fmt: skip
    return found


def _interval(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    if len(values) < 2:
        return np.nan, np.nan
    half = student95(len(values) - 1) * float(values.std(ddof=1)) / len(values) ** 0.5
    return float(values.mean()) - half, float(values.mean()) + half
