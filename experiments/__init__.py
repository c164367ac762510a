"""Experiments: sweeps over models, number systems and targets, and what they record.

`sweep` runs a specification, `load_spec` only checks one; `read_results` reads a results file and
`results_table` lays one out for a terminal, `report` as an HTML page; `reproduce` runs a recorded
row again. `register_model`, `register_dataset` and `register_metric` make names that
specifications can use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler._lazy import lazy

if TYPE_CHECKING:
    from experiments.datasets import register_dataset as register_dataset
    from experiments.page.writing import report as report
    from experiments.reproduction import reproduce as reproduce
    from experiments.runner import sweep as sweep
    from experiments.scoring import register_metric as register_metric
    from experiments.spec import load_spec as load_spec
    from experiments.store import read_results as read_results
    from experiments.table import results_table as results_table
    from experiments.zoo import register_model as register_model

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "experiments.datasets": ["register_dataset"],
        "experiments.page.writing": ["report"],
        "experiments.reproduction": ["reproduce"],
        "experiments.runner": ["sweep"],
        "experiments.scoring": ["register_metric"],
        "experiments.spec": ["load_spec"],
        "experiments.store": ["read_results"],
        "experiments.table": ["results_table"],
        "experiments.zoo": ["register_model"],
    },
)
