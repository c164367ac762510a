"""Experiments: sweeps over models, number systems and targets, and what they record.

`sweep` runs a specification, `load_spec` only checks one; `read_results` reads a results file and
`results_table` lays one out for a terminal, `report` as an HTML page; `reproduce` runs a recorded
row again; `paired_differences` compares cells of language models, sequence by sequence, and
`generate` continues a prompt with one; `search` finds the cheapest formats for the layers of a
network, `gap` what bit-exact execution costs beside simulation, and `train` trains networks in the
formats of a specification. `register_model`, `register_dataset` and `register_metric` make names
that specifications can use; `token_windows` makes data of a long text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler._lazy import lazy

if TYPE_CHECKING:
    from experiments.cheapest.searching import search as search
    from experiments.data.datasets import register_dataset as register_dataset
    from experiments.data.token_windows import token_windows as token_windows
    from experiments.generation.generating import generate as generate
    from experiments.layers.paired import paired_differences as paired_differences
    from experiments.measure.scoring import register_metric as register_metric
    from experiments.page.notebook import read_results as read_results
    from experiments.page.writing import report as report
    from experiments.results.terminal import results_table as results_table
    from experiments.running.gap import gap as gap
    from experiments.running.reproduction import reproduce as reproduce
    from experiments.running.runner import sweep as sweep
    from experiments.spec.specification import load_spec as load_spec
    from experiments.training.training import train as train
    from experiments.zoo import register_model as register_model

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "experiments.cheapest.searching": ["search"],
        "experiments.data.datasets": ["register_dataset"],
        "experiments.data.token_windows": ["token_windows"],
        "experiments.running.gap": ["gap"],
        "experiments.generation.generating": ["generate"],
        "experiments.layers.paired": ["paired_differences"],
        "experiments.page.writing": ["report"],
        "experiments.running.reproduction": ["reproduce"],
        "experiments.running.runner": ["sweep"],
        "experiments.measure.scoring": ["register_metric"],
        "experiments.spec.specification": ["load_spec"],
        "experiments.page.notebook": ["read_results"],
        "experiments.training.training": ["train"],
        "experiments.results.terminal": ["results_table"],
        "experiments.zoo": ["register_model"],
    },
)
