"""Which number systems are worth their cost: a sweep, and a Pareto plot of it as an SVG file.

    python -m experiments.examples.pareto_sweep

Cost is what a multiplier would feel: multiplications times the widths of both factors. Worth is the
signal over the error, in dB. A system is on the front if none is both cheaper and better.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import experiments
from experiments.page.sheet import sheet
from experiments.results.pareto import front

STUDY = {
    "models": ["mnist_mlp"],
    "schemes": [
        *("int8_tensor", "int8_channel", "float8_e4m3fn", "posit8_es0"),
        *("posit12_es1", "posit16_es1", "bfloat16"),
        {"scheme": "int8_channel", "weight_bits": 4, "weight_rounding": "gptq"},
        {"scheme": "int8_channel", "activation_bits": 16},
    ],
    "n_eval": 200,
    "n_calib": 100,
    "latency": {"runs": 0},
    "metric": "sqnr",
}


def main(folder: Path) -> pd.DataFrame:
    """Write pareto.csv and pareto.svg into `folder`; print and return the front."""
    rows = experiments.sweep(STUDY, out=folder / "pareto.csv", resume=True)
    sheet(folder / "pareto.csv", folder / "pareto.svg", cost="bit_operations")
    best = rows.iloc[front(-rows["bit_operations"], rows["sqnr_db"])].sort_values("bit_operations")
    shown = best[["scheme", "bit_operations", "sqnr_db", "top1_agreement"]].round({"sqnr_db": 1})
    print(shown.to_string(index=False))
    return best


if __name__ == "__main__":
    main(Path())
