"""Outputs judged a batch at a time: what is kept of them does not grow with their size.

Scores of a language model, [n, tokens, vocabulary], may take more memory than the machine has. What
is kept is a few numbers of every input, and the divergence of every token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InputError
from experiments.data.datasets import Dataset
from experiments.measure import metrics, scoring, tokens
from experiments.measure.noise_sums import NoiseSums
from experiments.measure.scoring import Metric
from experiments.measure.statistics import standard_error
from experiments.measure.tokens import TokenSums
from experiments.results.schema import Value
from experiments.spec.cells import Cell
from experiments.user_code import activity

from .accuracy_columns import Accuracy, merit_columns, no_noise, with_metric

Array = NDArray[Any]

#: Bytes of float32's outputs that are kept for the cells to come; more are computed once a cell.
KEPT_BYTES = 2**28


@dataclass(frozen=True)
class Judged:
    """The columns of a row, and the sums of its sequences, where it was judged by tokens."""

    accuracy: Accuracy
    sums: TokenSums | None = None


def in_batches(cell: Cell, data: Dataset) -> bool:
    """Whether the cell's metric takes outputs a batch at a time; one that cannot be found says so
    when it is asked for."""
    try:
        return scoring.find(cell.metric, data.classes).in_batches
    except Exception:  # a user's file may raise anything
        return False


@dataclass
class _Found:
    """What is kept of the batches so far."""

    noise: NoiseSums = field(default_factory=NoiseSums)
    not_finite: int = 0
    not_finite_fp32: int = 0
    before: list[scoring.Float64] = field(default_factory=list)
    after: list[scoring.Float64] = field(default_factory=list)
    sums: list[TokenSums] = field(default_factory=list)


def judged(
    cell: Cell, data: Dataset, pairs: Iterable[tuple[int, Array, Array]], count: int
) -> Judged:
    """What there is to say of outputs, beside those of float32.

    Args:
        pairs: the first input of a batch, and its outputs [b, ...] in the cell's number system and
            in float32; together `count` inputs, each once, in order. Every pair is asked for, also
            where the metric fails at the first.

    Raises:
        DtypelabError: the outputs cannot be compared with float32's.
    """
    found = _Found()
    problem: Exception | None = None
    metric: Metric | None = None
    for start, outputs, reference in pairs:
        with activity.at("comparing outputs", users=False):
            if outputs.shape != reference.shape:
                raise InputError(
                    f"cannot compare arrays of shapes {outputs.shape} and {reference.shape}"
                )
            found.noise.add(outputs, reference)
            found.not_finite += metrics.not_finite(outputs)
            found.not_finite_fp32 += metrics.not_finite(reference)
            try:
                metric = metric or scoring.find(cell.metric, data.classes)
                if problem is None:
                    _add(found, metric, data, start, outputs, reference)
            except MemoryError:
                raise
            except Exception as error:  # a user's metric may raise anything
                problem = error
    columns: dict[str, Value] = {
        "outputs_not_finite": found.not_finite,
        "sqnr_db": found.noise.sqnr_db,
        "cosine": found.noise.cosine,
    }
    notes = []
    if math.isnan(found.noise.sqnr_db):
        notes = [no_noise(found.not_finite, found.not_finite_fp32, count)]
    sums = TokenSums.joined(found.sums) if found.sums and problem is None else None

    def merit(metric: Metric) -> Accuracy:
        if problem is not None:
            raise problem
        before, after = np.concatenate(found.before), np.concatenate(found.after)
        lost = found.not_finite, found.not_finite_fp32
        columns, more = merit_columns(metric, before, after, data.labelled, lost)
        return Accuracy(columns | (token_columns(sums) if sums is not None else {}), more)

    return Judged(with_metric(cell, data, columns, notes, merit), sums)


def _add(
    found: _Found, metric: Metric, data: Dataset, start: int, outputs: Array, reference: Array
) -> None:
    """Take in what the metric makes of a batch."""
    stop = start + len(outputs)
    if metric.of_tokens is not None:
        labels = data.y[start:stop] if data.labelled else None
        sums = tokens.token_sums(outputs, reference, labels, tokens.mask_of(data.x[start:stop]))
        after, before = metric.of_tokens(sums)
        found.sums.append(sums)
    else:
        labels = data.y[start:stop] if data.labelled else reference
        after, before = (metric.statistics(a, labels) for a in (outputs, reference))
    found.after.append(after)
    found.before.append(before)


def token_columns(sums: TokenSums) -> dict[str, Value]:
    """The columns that are about tokens."""

    def mean(values: scoring.Float64) -> tuple[float, float]:
        table = np.stack([values, sums.tokens], axis=1)
        return float(tokens.per_token(table.mean(axis=0))), standard_error(tokens.per_token, table)

    kl, kl_se = mean(sums.kl)
    return {
        "tokens": int(sums.tokens.sum()),
        "kl_float32": kl,
        "kl_float32_se": kl_se,
        "kl_float32_p99": tokens.percentile99(sums.kl_of_tokens),
        "top_token_agreement": mean(sums.agreed)[0],
    }


def batches(count: int, per: int) -> Iterator[tuple[int, int]]:
    """First input, and the one after the last, of consecutive batches of `count` inputs."""
    for start in range(0, count, per):
        yield start, min(start + per, count)


@dataclass
class References:
    """Float32's outputs by batch: kept for later cells while they are few bytes."""

    parts: dict[int, Array] = field(default_factory=dict)
    bytes: int = 0

    def keep(self, start: int, outputs: Array) -> None:
        """Keep the outputs of a batch, if there is room."""
        if start not in self.parts and self.bytes + outputs.nbytes <= KEPT_BYTES:
            self.parts[start] = outputs
            self.bytes += outputs.nbytes
