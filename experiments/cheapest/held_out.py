"""What configurations are worth on data that they were not found with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from experiments.feeds import Examples
from experiments.measure import scoring
from experiments.systems import schemes

from .bound import DROP, SURE, Bound

if TYPE_CHECKING:
    from quantize import QConfig

    from .judging import Judge

Array = NDArray[Any]
COLUMNS = (
    *("metric_name", "metric", "metric_se", "metric_fp32", "metric_drop", "metric_drop_low"),
    *("metric_drop_high", "sqnr_db", "sqnr_db_low", "kl_float32", "kl_float32_high"),
    *("top1_agreement", "top1_agreement_low", "n_eval"),
)
NAMED = {"sqnr": "sqnr_db", "kl": "kl_float32", "agreement": "top1_agreement", DROP: "metric_drop"}
"""Figures of bounds -> their columns, other figures being the metric."""
WORSE = {
    "sqnr": "sqnr_db_low",
    "kl": "kl_float32_high",
    "agreement": "top1_agreement_low",
    DROP: "metric_drop_high",
}
"""Figures of bounds -> columns with the worse ends of their 95 % intervals."""
NORMAL95 = 1.96
"""Standard errors on either side of a mean that make an interval of 95 %."""


def choices(config: QConfig) -> dict[str, Any]:
    """The fields of a configuration that are not as without one, as JSON-compatible data: what a
    file for `--config` or a scheme of a specification says."""
    given = config.to_dict()
    usual = type(config)().to_dict()
    return {f.name: given[f.name] for f in fields(config) if given[f.name] != usual[f.name]}


def scheme(config: QConfig) -> dict[str, Any]:
    """A scheme of a specification that is this configuration."""
    given = choices(config)
    return {"scheme": schemes.of_config(given), **given}


def on_test_data(
    config: QConfig, judge: Judge, network: Callable[[Examples], Array] | None = None
) -> dict[str, Any]:
    """Columns of results, as `COLUMNS` lists them, of the network in a configuration; of `network`,
    which is the same, if it is there already."""
    if network is None:
        options = scheme(config)
        network = judge.network(schemes.parse(options.pop("scheme"), options))
    row = judge.columns(network)
    return {name: row[name] for name in COLUMNS}


def figures_of(test: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    """Columns of results as figures with these names, and what they surely are; without the drop
    and the metric."""
    found: dict[str, float] = {}
    for name in names:
        if name in NAMED and name != DROP:
            found |= {name: float(test[NAMED[name]]), name + SURE: float(test[WORSE[name]])}
    return found


def holds(bounds: Sequence[Bound], test: Mapping[str, Any]) -> bool:
    """Whether bounds hold of columns of results."""
    return all(b.holds({b.figure: _scaled(b, test, NAMED.get(b.figure, "metric"))}) for b in bounds)


def surely_holds(bounds: Sequence[Bound], test: Mapping[str, Any]) -> bool:
    """Whether they hold of the worse ends of 95 % intervals, inputs being drawn: each by itself."""
    return all(b.holds({b.figure: _worse_end(b, test)}) for b in bounds)


def _worse_end(bound: Bound, test: Mapping[str, Any]) -> float:
    if bound.figure in WORSE:
        return _scaled(bound, test, WORSE[bound.figure])
    half = NORMAL95 * float(test["metric_se"])
    return float(test["metric"]) + (-half if bound.at_least else half)


def _scaled(bound: Bound, test: Mapping[str, Any], column: str) -> float:
    """A column's figure in the bound's unit."""
    points = bound.figure == DROP and scoring.is_share(test["metric_name"])
    return float(test[column]) * (100.0 if points else 1.0)
