"""What the steps from a simulation to bit-exact execution change, measured on data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from experiments.data.datasets import Dataset
from experiments.feeds import Examples, sample_of
from experiments.measure.scoring import Metric
from experiments.systems import number_systems, pipeline
from experiments.systems.schemes import Scheme
from experiments.zoo import model_batches

from .chain import SIMULATION, WHOLE, State, chains
from .judged import Judged, difference, judged

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize import Plan

Array = NDArray[Any]
LATER = ("sqnr_delta", "sqnr_low", "sqnr_high", "kl_delta", "kl_low", "kl_high")
"""Columns that the first tables did not have."""
COLUMNS = (
    *("order", "step", "ingredient", "metric", "delta", "low", "high", "sqnr_db", "kl"),
    *LATER,
)
Tell = Callable[[str, int, int], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A network and a scheme, and what judges them.

    Attributes:
        data: with a row for every example of the network.
        inputs: how many of these, the first ones.
        batch: inputs of a call.
        calibration: inputs that calibrated schemes see.
        plan: what they found there, if that is known.
        output: which one is judged; empty of a network that has one.
    """

    path: Path
    scheme: Scheme
    data: Dataset
    inputs: int
    batch: int
    calibration: Examples
    metric: Metric
    output: str = ""
    target: str = "llvm"
    threads: int = 1
    plan: Plan | None = None


def steps(subject: Subject, progress: Tell | None = None) -> list[Row]:
    """The rows of `experiments.gap`, by COLUMNS.

    Raises:
        NothingBetween: the scheme has no simulation beside its execution.
        DtypelabError: the model cannot be read, or an operator is not defined for the format.
    """
    from compiler.runtime.kernels import remembering

    with remembering():  # the networks are the same, but for one ingredient
        return _steps(_Networks(subject), progress)


def _steps(networks: _Networks, progress: Tell | None) -> list[Row]:
    subject, orders = networks.subject, networks.orders
    count = sum(map(len, orders.values()))
    rows: list[Row] = []
    for order, states in orders.items():
        before = networks.float32
        for step, state in enumerate(states):
            if progress is not None:
                progress(f"{order}: {state.ingredient}", len(rows), count)
            after = networks.judged(state)
            rows.append(_row(subject, order, step, state.ingredient, before, after))
            before = after
    first, *_, last = map(networks.judged, orders["forward"])
    return [*rows, _row(subject, "whole", len(orders["forward"]) - 1, WHOLE, first, last)]


def _row(
    subject: Subject, order: str, step: int, ingredient: str, before: Judged, after: Judged
) -> Row:
    found = {"order": order, "step": step, "ingredient": ingredient, "metric": subject.metric.name}
    found |= difference(before, after, subject.metric)
    found |= {"sqnr_db": after.sqnr_db, "kl": after.divergence}
    return {name: found[name] for name in COLUMNS}


class _Networks:
    """The states of a network's chains; each is computed once."""

    def __init__(self, subject: Subject):
        from compiler.transform.preparation import prepare

        self.subject, self.x = subject, subject.data.x[: subject.inputs]
        self.sample = sample_of(subject.data.x)
        load = model_batches.load_for_batch
        self.module = prepare(load(subject.path, self.sample, subject.batch))
        plan = subject.plan
        if subject.scheme.calibrated and plan is None:
            import quantize

            config = number_systems.qconfig(dict(subject.scheme.options))
            fixed = model_batches.fixed_batch(subject.path, self.sample)
            given = pipeline.batches_of(subject.calibration, fixed)
            opened = load(subject.path, self.sample, fixed or "N")
            plan = quantize.calibrate(opened, given, config, subject.threads)
        self.orders = chains(subject.scheme, plan)
        self.known: dict[tuple[str, ...], Judged] = {}
        self.reference = self._run(self.module)
        self.float32 = self._judge(self.reference)

    def judged(self, state: State) -> Judged:
        """What a state gives."""
        if state.key not in self.known:
            self.known[state.key] = self._judge(self._run(state.make(self.module)))
        return self.known[state.key]

    def _judge(self, found: Array) -> Judged:
        return judged(self.subject.metric, self.subject.data, self.x, found, self.reference)

    def _run(self, module: IRModule) -> Array:
        s = self.subject
        executable = pipeline.build(module, s.scheme, s.target, s.threads)
        names = tuple(module.attrs.get("outputs", ()))
        axes = model_batches.result_axes(s.path, self.sample)
        return pipeline.Compiled(executable, s.batch, "", s.output, names, axes).predict(self.x)


__all__ = ["COLUMNS", "SIMULATION", "Subject", "steps"]
