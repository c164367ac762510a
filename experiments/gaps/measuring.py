"""`experiments.gap`: what each ingredient of bit-exact execution costs, beside simulation."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InputError
from experiments.data import datasets
from experiments.feeds import elements_of, sample_of
from experiments.measure import metrics, outputs, scoring, tokens
from experiments.running.accuracy_columns import paired_drop
from experiments.running.work import evaluation_batch
from experiments.systems import number_systems, pipeline, schemes
from experiments.zoo import model_files

from .chain import SIMULATION, WHOLE, State, chains

if TYPE_CHECKING:
    import pandas as pd

    from compiler.ir.expr import IRModule

Array = NDArray[Any]
COLUMNS = ("order", "step", "ingredient", "metric", "delta", "low", "high", "sqnr_db", "kl")
Tell = Callable[[str, int, int], None]


def gap(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] = "mnist1k",
    scheme: str | Mapping[str, Any] = "posit8_es1",
    *,
    n_eval: int = 200,
    n_calib: int = 32,
    seed: int = 0,
    metric: str = "",
    output: str = "",
    threads: int = 1,
    progress: Tell | None = None,
) -> pd.DataFrame:
    """Simulate a number system in float32 as is usual, execute it bit by bit, and exchange one
    ingredient after the other between the two.

    Of a number format the ingredients are those of `experiments.gaps.between`, in two orders, since
    what one of them costs depends on those that were exchanged before; of scaled formats with
    compute="native" where scales are applied, what holds sums, and rounded products; of int8 all of
    integer arithmetic at once.

    Args:
        model: a shipped name or the path of an ONNX file.
        data: a data set, as specifications name it.
        scheme: as in specifications: a name, or a mapping with `scheme` and its options.
        n_eval: how many inputs.
        n_calib, seed: of calibrated schemes.
        metric, output: what judges which result, if not what fits the data.
        threads: of the networks; results do not depend on it.

    Returns:
        A row a step of each order (the first is the simulation beside float32), and one of order
        "whole" from the simulation to the bit-exact network. `delta` is what the figure `metric`
        grows by in that step, from `low` to `high` with 95 %; `sqnr_db` and `kl` (nats an answer,
        of outputs taken for scores; NaN where there are none) are of the network then, beside
        float32.

    Raises:
        ConfigError: nothing lies between the two, or settings do not fit.
        DtypelabError: the model or the data cannot be read, or an operator is not defined.
    """
    import pandas as pd

    s = _Study(model, data, scheme, n_eval, n_calib, seed, metric, output, threads)
    orders = chains(s.scheme, s.plan)
    steps = [state for states in orders.values() for state in states]
    rows: list[dict[str, Any]] = []
    for order, states in orders.items():
        before = s.reference
        for step, state in enumerate(states):
            if progress is not None:
                progress(f"{order}: {state.ingredient}", len(rows), len(steps))
            after = s.results(state)
            rows.append(s.row(order, step, state.ingredient, before, after))
            before = after
    states = orders["forward"]
    whole = s.row("whole", len(states) - 1, WHOLE, s.results(states[0]), s.results(states[-1]))
    return pd.DataFrame([*rows, whole], columns=list(COLUMNS))


class _Study:
    """A network and data, and what the states of a chain give for them."""

    def __init__(
        self, model: Any, data: Any, scheme: Any, n_eval: int, n_calib: int, seed: int,
        metric: str, output: str, threads: int,
    ):  # fmt: skip
        from compiler.transform.preparation import prepare

        options = dict(scheme) if isinstance(scheme, Mapping) else {"scheme": scheme}
        self.scheme = schemes.parse(str(options.pop("scheme", "")), options)
        self.path = model_files.model_file(os.fspath(model))
        self.data = datasets.load(os.fspath(data)).for_model(self.path)
        if not 1 <= n_eval <= len(self.data.x):
            raise InputError(f"the data has {len(self.data.x)} inputs, but {n_eval} are wanted")
        judged = outputs.chosen(self.path, self.data, metric, output)
        self.output, self.metric = judged.name, scoring.find(judged.metric, self.data.classes)
        self.threads, self.x = threads, self.data.x[:n_eval]
        sample = sample_of(self.data.x)
        fixed = model_files.fixed_batch(self.path, sample)
        self.batch = evaluation_batch(fixed, n_eval, elements_of(self.x))
        self.sample = sample
        self.module = prepare(model_files.load_for_batch(self.path, sample, self.batch))
        self.plan = None
        if self.scheme.calibrated:
            import quantize

            config = number_systems.qconfig(dict(self.scheme.options))
            held = self.data.calibration_sample(n_calib, seed)
            open_module = model_files.load_for_batch(self.path, sample, fixed or "N")
            self.plan = quantize.calibrate(
                open_module, pipeline.batches_of(held, fixed), config, threads
            )
        self.known: dict[tuple[str, ...], Array] = {}
        self.reference = self._run(self.module)

    def results(self, state: State) -> Array:
        """What a state gives for the inputs, [n, ...]."""
        if state.key not in self.known:
            self.known[state.key] = self._run(state.make(self.module))
        return self.known[state.key]

    def _run(self, module: IRModule) -> Array:
        import compiler

        names = tuple(module.attrs.get("outputs", ()))
        axes = model_files.result_axes(self.path, self.sample)
        executable = compiler.build(module, threads=self.threads)
        return pipeline.Compiled(executable, self.batch, "", self.output, names, axes).predict(
            self.x
        )

    def row(
        self, order: str, step: int, ingredient: str, before: Array, after: Array
    ) -> dict[str, Any]:
        """A row of the table."""
        tables = [self._statistics(a) for a in (before, after)]
        figures = [float(self.metric.value(t.mean(axis=0))) for t in tables]
        delta, low, high = figures[1] - figures[0], math.nan, math.nan
        if math.isfinite(delta):
            drop = paired_drop(tables[0], tables[1], self.metric.value, labelled=True)
            low, high = -drop.high, -drop.low
        sqnr, kl = metrics.sqnr_db(after, self.reference), _divergence(after, self.reference)
        values = (order, step, ingredient, self.metric.name, delta, low, high, sqnr, kl)
        return dict(zip(COLUMNS, values, strict=True))

    def _statistics(self, found: Array) -> scoring.Float64:
        metric, n = self.metric, len(found)
        labels = self.data.y[:n] if self.data.labelled else None
        if metric.of_tokens is not None:
            return metric.of_tokens(tokens.token_sums(found, self.reference, labels))[0]
        if metric.beside_float32 or labels is None:
            labels = self.reference
        return metric.statistics(found, labels)


def _divergence(found: Array, reference: Array) -> float:
    """KL(float32 || network) of an answer, in nats, of scores [n, classes] or [n, tokens, classes];
    NaN of others."""
    if found.ndim == 2 and found.shape[1] > 1:
        found, reference = found[:, None], reference[:, None]
    if found.ndim != 3:
        return math.nan
    sums = tokens.token_sums(found, reference)
    return float(np.sum(sums.kl) / np.sum(sums.tokens))


__all__ = ["COLUMNS", "SIMULATION", "gap"]
