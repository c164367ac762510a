"""`experiments.search`: formats for the layers of a network, as cheap as its results allow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError
from experiments.data import datasets
from experiments.measure import outputs, scoring
from experiments.zoo import model_files

from . import assignment, price, timing
from .assignment import Chosen
from .bound import columns
from .candidate import BASE, FLOAT32, Candidate, candidates
from .exploring import Explorer, Point, Tell
from .held_out import COLUMNS, choices, holds, on_test_data, surely_holds
from .network import Network

if TYPE_CHECKING:
    import pandas as pd

    from quantize import Plan, QConfig


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        config: the cheapest configuration that was found to keep the bound: a `quantize.QConfig`.
        point: the same as it was measured on calibration data.
        front: cost, metric, sqnr_db, the other figures that bounds are about, predicted_db, and
            `config` (TOML) of every assignment that no other beats in cost and SQNR, the cheapest
            first; beside each `greedy_cost` and `greedy_sqnr_db` of what greedy by sensitivity has
            for this cost; if asked for, `test_holds` (whether the bound holds on the test inputs),
            `test_surely_holds`, and the columns of `test`, with "test_" before them.
        uniforms: format, accumulate, cost, metric, sqnr_db and other figures of every candidate as
            the only one.
        layers: the layers and their formats: node, macs, format, accumulate, cost, noise.
        candidates: how many there were for every layer.
        evaluations: runs of the network with a layer, or layers, in formats on the calibration
            data; calibration itself runs it in float32.
        additivity: predicted SQNR less the measured one, in dB, of all that was measured: its mean
            and its largest magnitude.
        unit: of costs.
        test: figures on the data's test inputs, which the search has not seen, as the columns of
            results (`experiments.cheapest.held_out.COLUMNS`).
        holds: whether the bound holds there.
        surely_holds: whether it holds of the worse end of a 95 % interval, too.
    """

    config: QConfig
    point: Point
    front: pd.DataFrame
    uniforms: pd.DataFrame
    layers: pd.DataFrame
    candidates: int
    evaluations: int
    additivity: tuple[float, float]
    unit: str
    test: Mapping[str, Any]
    holds: bool
    surely_holds: bool


def search(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] = "mnist1k",
    bound: str = "drop<=0.5",
    cost: str = "bits",
    formats: Sequence[str] = ("int8", "int4", "float8_e4m3fn", "posit8_es1", "mxfp4_e2m1"),
    accumulators: Sequence[str] = (),
    *,
    n_calib: int = 64,
    n_eval: int | None = None,
    seed: int = 0,
    metric: str = "",
    output: str = "",
    picojoules: Mapping[str, float] | None = None,
    circuits: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    judge_front: bool = False,
    progress: Tell | None = None,
) -> Found:
    """The formats of a network's layers with the least cost whose results keep a bound.

    Every layer is measured alone in every candidate, on calibration data. The noise that layers add
    by themselves nearly adds up, so the cheapest assignment for a budget of noise is an integer
    program; budgets are tried until the cheapest assignment that keeps the bound, as measured, is
    found. Formats in one network alone and candidates for all layers are measured too.

    Args:
        model: a shipped name or the path of an ONNX file.
        data: a data set with calibration inputs, as specifications name it.
        bound: what must hold of the results on them (see `experiments.cheapest.bound.parse`).
        cost: "bits" that layers read; "gates", NAND2 equivalents of a multiply-accumulate by how
            many there are (`experiments.costs.circuits`); "energy", by `picojoules`; or "latency",
            microseconds on this machine (`experiments.cheapest.timing`), other ones every time.
        formats: for both factors of a layer: number formats, integers, block formats; "float32"
            allows leaving it. "posit8_es1 exact" has an accumulator of its own.
        accumulators: how sums of number formats are formed in the format, as
            `quantize.QConfig.accumulate` says; by default they are summed in float32.
        n_calib, seed: how many calibration inputs, and which.
        n_eval: how many test inputs, the first ones; by default all.
        metric, output: what judges which result, if not what fits the data.
        picojoules: as `energy` of specifications.
        circuits: a file of circuits beside those that ship, as `experiments.costs.netlists` writes.
        threads: of the networks; the result does not depend on it.
        judge_front: whether every point of the front is judged on the test inputs too.

    Raises:
        ConfigError: settings do not fit, or nothing keeps the bound; says what comes nearest.
        UnsupportedError: the solver is not installed.
        DtypelabError: the model or the data cannot be read.
    """
    from quantize.calibration.running import processors

    from .bound import parse
    from .judging import Judge

    bounds, wanted = parse(bound), candidates(formats, accumulators)
    charge = price.price_of(cost, picojoules, None if circuits is None else Path(circuits))
    if charge is not None:  # what has no price is said before anything is measured
        for c in wanted:
            charge(price.Layer("", 1, ((1, 1), (1, 1))), c, ())
    assignment.solver()
    path = model_files.model_file(os.fspath(model))
    examples = datasets.load(os.fspath(data)).for_model(path)
    if n_eval is not None and not 1 <= n_eval <= len(examples.x):
        raise ConfigError(
            f"n_eval is {n_eval}, but data set {examples.name!r} has {len(examples.x)} examples"
        )
    judged = outputs.chosen(path, examples, metric, output)
    scoring.find(judged.metric, examples.classes)
    network = Network.load(
        path, examples, judged.name, judged.metric, tuple(b.figure for b in bounds), n_calib, seed,
        threads or processors(),
    )  # fmt: skip
    network.check()
    charge = charge or timing.measured(network, wanted)
    s = Search(network, wanted, charge, progress or (lambda *_: None))
    s.explorer.within(bounds)
    s.explorer.fill_front()
    best = s.explorer.best(bounds)
    points = s.explorer.front()
    judged_too = [best.chosen, *(p.chosen for p in points if judge_front)]
    configs = {chosen: s.config(chosen) for chosen in judged_too}
    judge = Judge(
        path, examples, n_eval or len(examples.x), examples.calibration_sample(n_calib, seed),
        scoring.find(judged.metric, examples.classes), judged.name, network.threads,
        network.predicting([None] * len(network.layers)),
    )  # fmt: skip
    tests: dict[Chosen, Mapping[str, Any]] = {}
    for chosen, config in configs.items():
        s.tell("test data", len(tests), len(configs))
        run = network.predicting([s.plans[k] for k in chosen])
        tests[chosen] = on_test_data(config, judge, run)
    front = s.front()
    if judge_front:
        front["test_holds"] = [holds(bounds, tests[p.chosen]) for p in points]
        front["test_surely_holds"] = [surely_holds(bounds, tests[p.chosen]) for p in points]
        for name in COLUMNS:
            front[f"test_{name}"] = [tests[p.chosen][name] for p in points]
    test = tests[best.chosen]
    return Found(
        configs[best.chosen], best, front, s.uniforms(), s.table(best), len(wanted),
        s.evaluations, s.explorer.additivity(), price.UNITS[cost], test, holds(bounds, test),
        surely_holds(bounds, test),
    )  # fmt: skip


class Search:
    """The tables of a network's layers and candidates, and the assignments measured so far."""

    def __init__(
        self, network: Network, wanted: Sequence[Candidate], charge: price.Price, tell: Tell
    ):
        self.network, self.wanted, self.tell = network, wanted, tell
        self.nodes = [layer.node for layer in network.layers]
        self.plans = [self._plan(c) for c in wanted]
        measured = network.runs.noises(self.plans, tell)
        shape = (len(self.nodes), len(wanted))
        self.costs, self.noises = np.zeros(shape), np.full(shape, np.inf)
        self.evaluations = 0
        for k, (c, plan) in enumerate(zip(wanted, self.plans, strict=True)):
            for at, layer in enumerate(network.layers):
                in_format = plan is not None and layer.node in plan.formats
                factors = plan.formats[layer.node] if plan is not None and in_format else ()
                self.costs[at, k] = charge(layer, c, factors)
                self.evaluations += in_format
                if plan is None:
                    self.noises[at, k] = 0.0
                elif in_format and not math.isnan(measured[at, k]):
                    self.noises[at, k] = measured[at, k]
        for node, some in zip(self.nodes, np.isfinite(self.noises).any(axis=1), strict=True):
            if not some:
                raise ConfigError(
                    f"node {node} can be in none of the formats, or its results are NaN in all of "
                    "them: add float32 to the formats, which leaves it"
                )
        self.explorer = Explorer(self.costs, self.noises, self._figures, tell)

    def _plan(self, candidate: Candidate) -> Plan | None:
        """Of the network with every layer in a candidate; None: in float32."""
        import quantize

        if candidate.format == FLOAT32:
            return None
        self.tell("calibration", self.wanted.index(candidate), len(self.wanted))
        config = quantize.QConfig(**BASE, **candidate.fields)
        return quantize.calibrate(self.network.module, self.network.batches, config)

    def _figures(self, chosen: Chosen) -> Mapping[str, float]:
        """Those of an assignment, on the calibration data."""
        self.evaluations += 1
        return self.network.measured([self.plans[k] for k in chosen])

    def config(self, chosen: Chosen) -> QConfig:
        """The configuration of an assignment: the most frequent candidate's, and overrides."""
        import quantize

        counts = np.bincount([k for k in chosen if self.wanted[k].format != FLOAT32] or [0])
        usual = int(counts.argmax())
        if self.wanted[usual].format == FLOAT32:
            usual = next(k for k, c in enumerate(self.wanted) if c.format != FLOAT32)
        fields: dict[str, Any] = {**BASE, **self.wanted[usual].fields}
        plain = {"compute": "storage", "accumulate": "sequential"}
        overrides = {}
        for node, k in zip(self.nodes, chosen, strict=True):
            if k == usual:
                continue
            own = self.wanted[k].fields
            stored = not self.wanted[k].accumulate and "skip" not in own
            overrides[escape(node)] = own | (
                plain if self.wanted[usual].accumulate and stored else {}
            )
        return quantize.QConfig(**fields, overrides=overrides)

    def front(self) -> pd.DataFrame:
        """What `Found.front` holds."""
        import pandas as pd

        from quantize.config.file import write_toml

        rows = []
        for p in self.explorer.front():
            greedy = self.explorer.greedy_for(p)
            rows.append(
                {
                    "cost": p.cost,
                    **columns(p.figures),
                    "predicted_db": p.predicted_db,
                    "config": write_toml(choices(self.config(p.chosen))),
                    "greedy_cost": greedy.cost if greedy else math.nan,
                    "greedy_sqnr_db": greedy.figures["sqnr"] if greedy else math.nan,
                }
            )
        return pd.DataFrame(rows)

    def uniforms(self) -> pd.DataFrame:
        """What `Found.uniforms` holds."""
        import pandas as pd

        found = [(c, self.explorer.uniform(k)) for k, c in enumerate(self.wanted)]
        rows = [
            {"format": c.format, "accumulate": c.accumulate, "cost": p.cost} | columns(p.figures)
            for c, p in found
            if p is not None
        ]
        return pd.DataFrame(rows)

    def table(self, best: Point) -> pd.DataFrame:
        """What `Found.layers` holds."""
        import pandas as pd

        rows = [
            {
                "node": layer.node,
                "macs": layer.macs,
                "format": self.wanted[k].format,
                "accumulate": self.wanted[k].accumulate,
                "cost": self.costs[at, k],
                "noise": self.noises[at, k],
            }
            for at, (layer, k) in enumerate(zip(self.network.layers, best.chosen, strict=True))
        ]
        return pd.DataFrame(rows)
