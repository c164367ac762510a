"""Networks on inputs that their formats were not found with, beside float32, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError
from experiments.data.datasets import Dataset
from experiments.feeds import Examples, elements_of, sample_of
from experiments.gaps.judged import judged
from experiments.measure import metrics, scoring
from experiments.measure.noise_sums import NoiseSums
from experiments.measure.statistics import one_sided_loss, ratio_of_sums
from experiments.running.accuracy_columns import merit_columns
from experiments.running.batchwise import batches
from experiments.running.work import evaluation_batch
from experiments.systems import pipeline, schemes
from experiments.systems.schemes import Scheme
from experiments.zoo import model_batches
from quantize.search.energies import decibels, energies

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Predict = Callable[[Examples], Array]
"""Inputs [n, ...] -> results [n, ...]."""
_FLOAT32 = schemes.parse("float32")


@dataclass(frozen=True)
class Judge:
    """A model, its test inputs, and what judges its results.

    Attributes:
        data: with a row for every example of the model; the first `inputs` are looked at.
        calibration: inputs that plans are made with.
        output: which one is judged; empty of a network that has one.
        float32: the network, if it is there already.
    """

    path: Path
    data: Dataset
    inputs: int
    calibration: Examples
    metric: scoring.Metric
    output: str
    threads: int
    float32: Predict | None = None

    def columns(self, network: Predict) -> dict[str, Any]:
        """Of results: `experiments.cheapest.held_out.COLUMNS`.

        Raises:
            DtypelabError: the network cannot be judged.
        """
        noise, kept = NoiseSums(), _Kept()
        for at, (start, stop) in enumerate(self._parts):
            part, exact = self._part(start, stop), self._float32(at)
            own = network(part.x)
            if own.shape != exact.shape:
                raise UnsupportedError(
                    f"results of shape {list(own.shape)} cannot be judged beside float32's, "
                    f"{list(exact.shape)}: their sizes are the data's, which formats change"
                )
            noise.add(own, exact)
            kept.add(self.metric, part, own, exact)
        return kept.columns(self.metric, self.data.labelled) | {
            "sqnr_db": noise.sqnr_db,
            "n_eval": self.inputs,
        }

    def network(self, scheme: Scheme) -> Predict:
        """The network in a scheme, as cells of sweeps have it.

        Raises:
            DtypelabError: it is not defined there.
        """
        variant = pipeline.prepare(
            self.path,
            scheme,
            sample_shape=sample_of(self.data.x),
            calibration=self.calibration if scheme.calibrated else self.data.x[:0],
            target="llvm",
            threads=self.threads,
            output=self.output,
        )
        return variant.compile(self._per).predict

    @cached_property
    def _per(self) -> int:
        """Inputs of a call."""
        sample = sample_of(self.data.x)
        fixed, elements = model_batches.fixed_batch(self.path, sample), elements_of(self.data.x)
        if self.metric.in_batches:
            scores = model_batches.result_elements(self.path, sample, fixed or 1, self.output)
            elements = max(elements, scores)
        return evaluation_batch(fixed, self.inputs, elements)

    @cached_property
    def _parts(self) -> list[tuple[int, int]]:
        """First inputs, and those after the last, of what is judged at once."""
        return [*batches(self.inputs, self._per if self.metric.in_batches else self.inputs)]

    @cached_property
    def _float32(self) -> Callable[[int], Array]:
        """Float32's results for a part, by its number: all there are at once, or made when asked
        for, of which there may be more than memory holds."""
        network = self.float32 or self.network(_FLOAT32)

        def results(at: int) -> Array:
            return network(self._part(*self._parts[at]).x)

        if len(self._parts) > 1:
            return results
        only = results(0)
        return lambda _: only

    def _part(self, start: int, stop: int) -> Dataset:
        y = self.data.y[start:stop] if self.data.labelled else self.data.y
        return replace(self.data, x=self.data.x[start:stop], y=y)


@dataclass
class _Kept:
    """Numbers of every input so far, of which figures and their intervals are made."""

    after: list[Float64] = field(default_factory=list)
    before: list[Float64] = field(default_factory=list)
    noise: list[Float64] = field(default_factory=list)
    kl: list[Float64] = field(default_factory=list)
    same: list[NDArray[np.bool_]] = field(default_factory=list)
    lost: tuple[int, int] = (0, 0)

    def add(self, metric: scoring.Metric, part: Dataset, own: Array, exact: Array) -> None:
        """Take in results [n, ...] for all inputs of a part, and float32's."""
        found, reference = (judged(metric, part, part.x, a, exact) for a in (own, exact))
        self.after.append(found.merit)
        self.before.append(reference.merit)
        self.noise.append(np.array([energies(a, b) for a, b in zip(own, exact, strict=True)]))
        if found.kl is not None:
            self.kl.append(found.kl)
        answers = [metric.answers(a) for a in (own, exact)] if metric.answers else [None, None]
        if answers[0] is not None and answers[1] is not None:
            self.same.append(answers[0] == answers[1])
        lost = metrics.not_finite(own), metrics.not_finite(exact)
        self.lost = self.lost[0] + lost[0], self.lost[1] + lost[1]

    def columns(self, metric: scoring.Metric, labelled: bool) -> dict[str, Any]:
        """Figures, and the worse ends of their 95 % intervals."""
        before, after = np.concatenate(self.before), np.concatenate(self.after)
        signal, noise = np.concatenate(self.noise).T
        kl = kl_high = agreement = agreement_low = math.nan
        if self.kl:
            kl, _, kl_high = ratio_of_sums(*np.concatenate(self.kl).T)
        if self.same:
            same = np.concatenate(self.same)
            agreement, agreement_low = float(same.mean()), 1.0 - one_sided_loss(same).high
        return merit_columns(metric, before, after, labelled, self.lost)[0] | {
            "sqnr_db_low": decibels(1.0, ratio_of_sums(noise, signal)[2]),
            "kl_float32": kl,
            "kl_float32_high": kl_high,
            "top1_agreement": agreement,
            "top1_agreement_low": agreement_low,
        }
