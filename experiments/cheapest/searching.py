"""`experiments.search`: formats for the layers of a network, as cheap as its results allow."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError
from experiments.data import datasets
from experiments.measure import outputs
from experiments.zoo import model_files
from quantize.search.energies import decibels

from . import assignment, price
from .assignment import Chosen
from .bound import Bound
from .candidate import BASE, FLOAT32, Candidate, candidates
from .held_out import choices, on_test_data
from .network import Network, of_candidates

if TYPE_CHECKING:
    import pandas as pd

    from quantize import Plan, QConfig

MOST_MEASURED = 50
"""Assignments that are measured at most, besides every layer alone in every candidate."""
FRONT = 24
"""Budgets of noise that the front is looked for at, the best candidates' to the worst's."""
BISECTIONS = 12
Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Point:
    """An assignment that was measured: the candidate of every layer, its cost, the noise that the
    layers add by themselves over the energy of the results, and its figures on calibration data."""

    chosen: Chosen
    cost: float
    noise: float
    figures: Mapping[str, float]

    @property
    def predicted_db(self) -> float:
        """The SQNR that it would have if errors of layers just added up."""
        return decibels(1.0, self.noise)


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        config: the cheapest configuration that was found to keep the bound: a `quantize.QConfig`.
        point: the same as it was measured on calibration data.
        front: cost, figures, predicted_db, and `config` (TOML) of every assignment that no other
            beats in cost and SQNR, the cheapest first.
        layers: the layers and their formats: node, macs, format, accumulate, cost, noise.
        evaluations: runs of the network on the calibration data.
        additivity: predicted SQNR less the measured one, in dB, of all that was measured: its mean
            and its largest magnitude.
        unit: of costs.
        test: figures on the data's test inputs, which the search has not seen, as the columns of
            results (`experiments.cheapest.held_out.COLUMNS`).
    """

    config: QConfig
    point: Point
    front: pd.DataFrame
    layers: pd.DataFrame
    evaluations: int
    additivity: tuple[float, float]
    unit: str
    test: Mapping[str, Any]


def search(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] = "mnist1k",
    bound: str = "drop<=0.5",
    cost: str = "bits",
    formats: Sequence[str] = ("int8", "int4", "float8_e4m3fn", "posit8_es1", "mxfp4_e2m1"),
    accumulators: Sequence[str] = (),
    *,
    n_calib: int = 64,
    seed: int = 0,
    metric: str = "",
    output: str = "",
    picojoules: Mapping[str, float] | None = None,
    threads: int | None = None,
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
            many there are (`experiments.costs.circuits`); or "energy", by `picojoules`.
        formats: for both factors of a layer: number formats, integers, block formats; "float32"
            allows leaving it.
        accumulators: how sums of number formats are formed in the format, as
            `quantize.QConfig.accumulate` says; by default they are summed in float32.
        n_calib, seed: how many calibration inputs, and which.
        metric, output: what judges which result, if not what fits the data.
        picojoules: as `energy` of specifications.
        threads: of the networks; the result does not depend on it.

    Raises:
        ConfigError: settings do not fit, or nothing keeps the bound; says what comes nearest.
        UnsupportedError: the solver is not installed.
        DtypelabError: the model or the data cannot be read.
    """
    from quantize.calibration.running import processors

    from .bound import parse

    bounds, wanted = parse(bound), candidates(formats, accumulators)
    charge = price.price_of(cost, picojoules)
    assignment.solver()
    path = model_files.model_file(os.fspath(model))
    examples = datasets.load(os.fspath(data)).for_model(path)
    judged = outputs.chosen(path, examples, metric, output)
    network = Network.load(
        path, examples, judged.name, judged.metric, tuple(b.figure for b in bounds), n_calib, seed,
        threads or processors(),
    )  # fmt: skip
    s = Search(network, wanted, charge, progress or (lambda *_: None))
    best = s.within(bounds)
    s.fill_front()
    config = s.config(best.chosen)
    told = on_test_data(
        config, os.fspath(model), os.fspath(data), n_calib, seed, metric, judged.name
    )
    unit, gaps = price.UNITS[cost], s.additivity()
    return Found(config, best, s.front(), s.table(best), s.evaluations, gaps, unit, told)


class Search:
    """The tables of a network's layers and candidates, and the assignments measured so far."""

    def __init__(
        self, network: Network, wanted: Sequence[Candidate], charge: price.Price, tell: Tell
    ):
        import quantize
        from quantize.search.sensitivity import sensitivities

        self.network, self.wanted, self.tell = network, wanted, tell
        self.nodes = [layer.node for layer in network.layers]
        shape = (len(self.nodes), len(wanted))
        self.costs, self.noises = np.zeros(shape), np.full(shape, np.inf)
        self.plans: list[Plan | None] = []
        self.evaluations = 0
        for k, c in enumerate(wanted):
            plan = None
            if c.format != FLOAT32:
                config = quantize.QConfig(**BASE, **c.fields)
                plan = quantize.calibrate(network.module, network.batches, config)
                tell(f"layers in {c}", k, len(wanted))
                alone = sensitivities(network.module, plan, network.batches, network.threads)
                noises = {s.node: s.noise for s in alone}
                self.evaluations += len(noises)
            for at, layer in enumerate(network.layers):
                in_format = plan is not None and layer.node in plan.formats
                factors = plan.formats[layer.node] if plan is not None and in_format else ()
                self.costs[at, k] = charge(layer, c, factors)
                if plan is None:
                    self.noises[at, k] = 0.0
                elif in_format and not math.isnan(noises[layer.node]):
                    self.noises[at, k] = noises[layer.node]
            self.plans.append(plan)
        tell("layers alone", len(wanted), len(wanted))
        self.points: dict[Chosen, Point] = {}

    def measure(self, chosen: Chosen) -> Point:
        """An assignment, measured unless it was before."""
        if chosen not in self.points:
            plan = of_candidates(self.plans, self.nodes, chosen)
            self.points[chosen] = Point(
                chosen,
                assignment.of(self.costs, chosen),
                assignment.of(self.noises, chosen),
                self.network.measured(plan),
            )
            self.evaluations += 1
            self.tell("assignments", len(self.points), MOST_MEASURED)
        return self.points[chosen]

    def within(self, bounds: Sequence[Bound]) -> Point:
        """The cheapest assignment found to keep the bounds: by bisection of the budget of noise, in
        decibels; what uniform formats measure counts too.

        Raises:
            ConfigError: none does.
        """
        for k in range(len(self.wanted)):
            if np.isfinite(self.noises[:, k]).all():
                self.measure((k,) * len(self.nodes))
        low, high = self._ends()
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            chosen = assignment.cheapest(self.costs, self.noises, 10 ** (-middle / 10))
            good = chosen is not None and self._good(self.measure(chosen), bounds)
            low, high = (low, middle) if good else (middle, high)
        best = tuple(int(k) for k in self.noises.argmin(axis=1))
        self.measure(best)
        good_ones = [p for p in self.points.values() if self._good(p, bounds)]
        if not good_ones:
            nearest = max(self.points.values(), key=lambda p: p.figures["sqnr"])
            figures = ", ".join(f"{k} {v:.4g}" for k, v in nearest.figures.items())
            raise ConfigError(
                f"nothing keeps {', '.join(map(str, bounds))}; the nearest that was measured has "
                f"{figures}: add a wider format, or float32, to the formats"
            )
        return min(good_ones, key=lambda p: (p.cost, -p.figures["sqnr"]))

    def fill_front(self) -> None:
        """Measure the cheapest assignments for budgets of noise from the least to the most."""
        low, high = self._ends()
        for db in np.linspace(low, high, FRONT):
            if len(self.points) >= MOST_MEASURED:
                return
            chosen = assignment.cheapest(self.costs, self.noises, 10 ** (-db / 10))
            if chosen is not None:
                self.measure(chosen)

    def _ends(self) -> tuple[float, float]:
        """The predicted SQNR of the worst and of the best assignment, in decibels, a little wider;
        with float32 among the candidates the best has 40 dB more than the others allow."""
        finite = np.where(np.isfinite(self.noises), self.noises, np.nan)
        worst = float(np.nansum(np.nanmax(finite, axis=1)))
        some = np.where(finite > 0, finite, np.nan)
        real = np.nanmin(some, axis=1)
        best = float(np.nansum(real))
        room = 40.0 if any(c.format == FLOAT32 for c in self.wanted) else 0.0
        return -10 * math.log10(worst) - 0.01, -10 * math.log10(best) + 0.01 + room

    def _good(self, p: Point, bounds: Sequence[Bound]) -> bool:
        return all(b.holds(p.figures) for b in bounds)

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
            overrides[node] = own | (plain if self.wanted[usual].accumulate and stored else {})
        return quantize.QConfig(**fields, overrides=overrides)

    def front(self) -> pd.DataFrame:
        """What `Found.front` holds."""
        import pandas as pd

        from quantize.config.file import write_toml

        rows = [
            {
                "cost": p.cost,
                **p.figures,
                "predicted_db": p.predicted_db,
                "config": write_toml(choices(self.config(p.chosen))),
            }
            for p in _undominated(list(self.points.values()))
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

    def additivity(self) -> tuple[float, float]:
        """What `Found.additivity` holds."""
        gaps = [p.predicted_db - p.figures["sqnr"] for p in self.points.values()]
        known = [g for g in gaps if math.isfinite(g)] or [0.0]
        return float(np.mean(known)), float(np.max(np.abs(known)))


def _undominated(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats, the cheapest first."""
    kept: list[Point] = []
    for p in sorted(points, key=lambda p: (p.cost, -p.figures["sqnr"])):
        if not kept or p.figures["sqnr"] > kept[-1].figures["sqnr"]:
            kept.append(p)
    return kept
