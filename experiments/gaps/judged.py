"""What is kept of a network's outputs beside float32's, and what two networks differ by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.datasets import Dataset
from experiments.feeds import Examples
from experiments.measure import metrics, tokens
from experiments.measure.scoring import Metric
from experiments.measure.statistics import PairedDifference, paired_drop, paired_figures

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Value = Callable[[Float64], Float64]

SHARES = 1e-3
"""How far sums of outputs may be from 1 if these are shares, which a softmax gave."""


@dataclass(frozen=True)
class Judged:
    """Numbers of every input, of whose means figures are made.

    Attributes:
        merit: of the metric, [n, k].
        noise: energies of float32's outputs and of what is wrong with these, [n, 2].
        kl: divergences from float32, and how many answers they are summed over, [n, 2]; None of
            outputs that are no scores.
        sqnr_db: of all outputs; NaN where some are not finite.
    """

    merit: Float64
    noise: Float64
    kl: Float64 | None
    sqnr_db: float

    @property
    def divergence(self) -> float:
        """KL(float32 || network) of an answer, in nats; NaN without scores."""
        return math.nan if self.kl is None else float(tokens.per_token(self.kl.mean(axis=0)))


def judged(metric: Metric, data: Dataset, x: Examples, found: Array, reference: Array) -> Judged:
    """What is kept of outputs [n, ...] for the first n inputs `x` of the data.

    Raises:
        DtypelabError: the metric does not take such outputs.
    """
    labels = data.y[: len(found)] if data.labelled else None
    sums = _divergences(metric, x, found, reference, labels)
    if metric.of_tokens is not None:
        by_tokens = sums or tokens.token_sums(found, reference, labels, tokens.mask_of(x))
        merit = metric.of_tokens(by_tokens)[0]
    else:
        wanted = reference if metric.beside_float32 or labels is None else labels
        merit = metric.statistics(found, wanted)
    exact, own = (a.astype(np.float64).reshape(len(a), -1) for a in (reference, found))
    # Scaled, so that squares are inside float64 whatever the values are.
    scale = float(np.abs(exact).max(initial=0.0)) or 1.0
    with np.errstate(all="ignore"):
        noise = np.stack([np.square(a / scale).sum(axis=1) for a in (exact, own - exact)], axis=1)
    kl = None if sums is None else np.stack([sums.kl, sums.tokens], axis=1)
    return Judged(merit, noise, kl, metrics.sqnr_db(found, reference))


def difference(before: Judged, after: Judged, metric: Metric) -> dict[str, float]:
    """What the figures of `after` are more than those of `before`, and ends of 95 % intervals,
    paired by input; NaN where a figure is not finite."""
    found = _change("", metric.value, before.merit, after.merit, _paired_drop)
    found |= _change("sqnr_", _decibels, before.noise, after.noise)
    if before.kl is None or after.kl is None:
        return found | dict.fromkeys(("kl_delta", "kl_low", "kl_high"), math.nan)
    return found | _change("kl_", tokens.per_token, before.kl, after.kl)


def _paired_drop(value: Value, before: Float64, after: Float64) -> PairedDifference:
    """Of shares by their own interval."""
    return paired_drop(before, after, value, labelled=True)


def _change(
    name: str,
    value: Value,
    before: Float64,
    after: Float64,
    compare: Callable[[Value, Float64, Float64], PairedDifference] = paired_figures,
) -> dict[str, float]:
    ends = [float(value(a.mean(axis=0))) for a in (before, after)]
    figures = (math.nan,) * 3
    if all(map(math.isfinite, ends)):
        with np.errstate(all="ignore"):
            drop = compare(value, before, after)
        figures = (ends[1] - ends[0], 0.0 - drop.high, 0.0 - drop.low)  # no -0
    return dict(zip((f"{name}delta", f"{name}low", f"{name}high"), figures, strict=True))


def _decibels(means: Float64) -> Float64:
    with np.errstate(all="ignore"):
        found: Float64 = 10.0 * np.log10(means[..., 0] / means[..., 1])
    return found


def _divergences(
    metric: Metric, x: Examples, found: Array, reference: Array, labels: Array | None
) -> tokens.TokenSums | None:
    if metric.of_tokens is not None:
        return tokens.token_sums(found, reference, labels, tokens.mask_of(x))
    return of_scores(found, reference)


def of_scores(found: Array, reference: Array) -> tokens.TokenSums | None:
    """Of scores [n, classes] or [n, tokens, classes]; None of others, and of shares, which formats
    round to 0 (there the divergence is infinite)."""
    if found.ndim == 2:
        found, reference = found[:, None], reference[:, None]
    if found.ndim != 3 or found.shape[2] < 2:
        return None
    sums = reference.sum(axis=-1)
    if (reference >= 0).all() and (np.abs(sums - 1) < SHARES).all():
        return None
    return tokens.token_sums(found, reference)
