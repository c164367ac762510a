"""A network, calibration data, and what a plan of it gives there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError
from experiments.data.datasets import Dataset
from experiments.feeds import Examples, Sample
from experiments.gaps.judged import of_scores
from experiments.measure import metrics, scoring, tokens
from experiments.measure.statistics import ratio_of_sums
from experiments.systems import pipeline
from experiments.zoo import model_batches, model_files
from quantize.search.energies import decibels, energies

from .bound import DROP, METRIC, SURE
from .pieces import Pieces, can_be_cut
from .price import Layer
from .whole import Whole

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize.plan.plan import Plan

Array = NDArray[Any]
KL = "kl_float32"
OF_SCORES = (KL, "top_token_agreement")
"""Metrics of tokens that need no right ones."""


@dataclass(frozen=True)
class Network:
    """A float32 network with one result, and inputs to judge its plans by: there are no labels for
    them, so the answers of float32 are the right ones.

    Attributes:
        module: prepared; plans are of this one.
        batches: calibration inputs by name.
        first: the first of them alone (or as many as the model fixes), by name.
        metric: name of the metric whose loss is `drop`.
        classes: texts of the classes, of a network that reads text.
        figures: the figures that bounds are about.
    """

    module: IRModule
    batches: Sequence[Mapping[str, Array]]
    first: Mapping[str, Array]
    metric: str
    classes: tuple[str, ...]
    figures: tuple[str, ...]
    threads: int
    rows: bool = True
    """Whether it takes any number of inputs, and its result has a row for each."""

    @classmethod
    def load(
        cls,
        path: Path,
        data: Dataset,
        output: str,
        metric: str,
        figures: tuple[str, ...],
        n_calib: int,
        seed: int,
        threads: int,
    ) -> Network:
        """The model at `path`, with `n_calib` calibration inputs of some data (see
        `Dataset.for_model`).

        Raises:
            ConfigError: there are not so many, or a figure does not fit the metric.
            DtypelabError: the model cannot be imported.
        """
        from compiler.transform.choose_outputs import choose_outputs
        from compiler.transform.preparation import prepare
        from experiments.feeds import sample_of

        held = data.calibration_sample(n_calib, seed)
        sample = sample_of(data.x)
        fixed = model_batches.fixed_batch(path, sample)
        module = model_batches.load_for_batch(path, sample, "N" if fixed is None else fixed)
        module = prepare(choose_outputs(module, [output] if output else []))
        names = [p.name for p in module.main.params]
        batches, (first, *_) = (
            [_by_name(b, names) for b in pipeline.batches_of(some, fixed)]
            for some in (held, held[: fixed or 1])
        )
        rows = _has_rows(path, sample, output)
        return cls(module, batches, first, metric, data.classes, figures, threads, rows)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """What is computed on factors that may be in formats, in program order."""
        import quantize
        from compiler.ir.expr import Call, tensor_type
        from quantize.plan.call_facts import operands

        from .candidate import BASE

        any_format = quantize.QConfig(**BASE, weight_dtype="int8", activation_dtype="int8")
        nodes = quantize.annotate(self.module, any_format).nodes
        found = []
        for b in self.module.main.bindings:
            node = nodes.get(b.var.name)
            if node is None or node.decision != "format" or not isinstance(b.value, Call):
                continue
            factors = operands(b.value)
            if len(factors) == 2:
                sizes = [
                    tuple(n if isinstance(n, int) else 1 for n in tensor_type(a).shape)
                    for a in factors
                ]
                found.append(Layer(b.var.name, node.macs, (sizes[0], sizes[1])))
        if not found:
            left = "; ".join(
                f"{name}: {n.reason}" for name, n in nodes.items() if n.reason and n.macs
            )
            raise ConfigError(
                "the network has no convolution, dense layer or matrix product"
                f"{' that may be in a format: ' if left else ''}{left}"
            )
        return tuple(found)

    @cached_property
    def runs(self) -> Pieces | Whole:
        """What computes results for the calibration data: in pieces, if all that is read across
        their ends are tensors of sizes that follow from those of inputs."""
        nodes = [layer.node for layer in self.layers]
        kind = Pieces if can_be_cut(self.module, nodes) else Whole
        return kind(self.module, nodes, self.batches, self.threads)

    def check(self) -> None:
        """Whether the figures fit the network's results.

        Raises:
            DtypelabError: one does not; says why.
        """
        self._figures(self.runs.reference)

    def measured(self, plans: Sequence[Plan | None]) -> dict[str, float]:
        """The figures with each layer as a plan says (None: in float32) on the calibration data,
        and always `metric` and `sqnr`; of SQNR and divergence, where bounds are about them, also
        what they are surely, which is what bounds are held to (`experiments.cheapest.bound.SURE`).
        """
        return self._figures(self.runs.results(plans))

    def predicting(self, plans: Sequence[Plan | None]) -> Callable[[Examples], Array] | None:
        """Inputs [n, ...] -> results [n, ...] with each layer as a plan says, by the pieces that
        there are already; None if it has none, or its results no row for every input."""
        runs, names = self.runs, [p.name for p in self.module.main.params]
        if not self.rows or not isinstance(runs, Pieces):
            return None

        def results(x: Examples) -> Array:
            batches = (_by_name(b, names) for b in pipeline.batches_of(x))
            return np.concatenate(runs.results(plans, batches))

        return results

    def _figures(self, results: Sequence[Array]) -> dict[str, float]:
        found, wanted = (
            np.concatenate([np.atleast_1d(a) for a in r]) for r in (results, self.runs.reference)
        )
        figures = {METRIC: self._merit(found, wanted), "sqnr": metrics.sqnr_db(found, wanted)}
        for name in self.figures:
            if name != "sqnr":
                figures[name] = self._figure(name, found, wanted)
            sure = self._surely(name, found, wanted)
            if not math.isnan(sure):
                figures[name + SURE] = sure
        return figures

    def _merit(self, found: Array, wanted: Array) -> float:
        """The metric beside float32's answers; NaN of one that needs the right tokens."""
        metric = scoring.find(self.metric, self.classes)
        if metric.of_tokens is not None and metric.name not in OF_SCORES:
            return math.nan
        return self._of_metric(self.metric, found, wanted)

    def _surely(self, name: str, found: Array, wanted: Array) -> float:
        """The worse end of a figure's 95 % interval, inputs being drawn; NaN where none is made."""
        if name == "kl":
            sums = _divergences(found, wanted)
            return ratio_of_sums(sums.kl, sums.tokens)[2]
        if name != "sqnr":
            return math.nan
        signal, noise = np.transpose([energies(a, b) for a, b in zip(found, wanted, strict=True)])
        return decibels(1.0, ratio_of_sums(noise, signal)[2])

    def _figure(self, name: str, found: Array, wanted: Array) -> float:
        if name == "kl":
            sums = _divergences(found, wanted)
            return ratio_of_sums(sums.kl, sums.tokens)[0]
        if name == "agreement":
            metric = scoring.find(self.metric, self.classes)
            answers = [metric.answers(a) for a in (found, wanted)] if metric.answers else [None]
            if any(a is None for a in answers):
                raise ConfigError(
                    f"agreement is of answers, and {self.metric} judges none: bound sqnr or drop"
                )
            return float(np.mean(answers[0] == answers[1]))
        if name == DROP:
            lost = self._of_metric(self.metric, wanted, wanted) - self._of_metric(
                self.metric, found, wanted
            )
            sign = 1.0 if scoring.find(self.metric, self.classes).higher_is_better else -1.0
            return sign * lost * (100.0 if scoring.is_share(self.metric) else 1.0)
        return self._of_metric(name, found, wanted)

    def _of_metric(self, name: str, found: Array, wanted: Array) -> float:
        metric = scoring.find(name, self.classes)
        if metric.of_tokens is None:
            return metric(found, wanted)
        if name not in OF_SCORES:
            raise ConfigError(
                f"{name} needs the right tokens, which calibration inputs lack: bound kl instead"
            )
        rows = metric.of_tokens(tokens.token_sums(found, wanted))[0]
        return float(metric.value(rows.mean(axis=0)))


def _has_rows(path: Path, sample: tuple[int, ...] | Sample, output: str) -> bool:
    """Whether a model takes any number of inputs, and an output has a row for each."""
    axes, names = model_batches.result_axes(path, sample), model_files.output_names(path)
    return bool(axes) and axes[names.index(output) if output else 0] == 0


def _by_name(batch: Any, names: Sequence[str]) -> dict[str, Array]:
    return dict(batch) if isinstance(batch, Mapping) else {names[0]: batch}


def _divergences(found: Array, wanted: Array) -> tokens.TokenSums:
    """Of results from float32's.

    Raises:
        ConfigError: they are no scores.
    """
    sums = of_scores(found, wanted)
    if sums is None:
        what = "shares, which a softmax gave" if wanted.ndim in (2, 3) else "something else"
        raise ConfigError(
            "kl is of scores [n, classes] or [n, tokens, vocabulary], and the results, of shape "
            f"{list(wanted.shape)}, are {what}: bound agreement or sqnr"
        )
    return sums
