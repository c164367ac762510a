"""Which number systems are worth their cost: a sweep, and a Pareto plot of it as an SVG file.

    python -m experiments.examples.pareto_sweep

Cost is what a multiplier would feel: multiplications times the widths of both factors. Worth is the
signal over the error, in dB. A system is on the front if none is both cheaper and better.
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

import experiments

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
}
WIDTH, HEIGHT, LEFT, TOP = 760, 440, 90, 36


def front(rows: pd.DataFrame, cost: str, worth: str) -> pd.DataFrame:
    """The rows that no other beats, cheapest first: a row that costs more is worth more."""
    ordered = rows.sort_values([cost, worth], ascending=[True, False])
    best_before = ordered[worth].astype(float).cummax().shift(fill_value=-math.inf)
    return ordered[ordered[worth] > best_before]


def svg(rows: pd.DataFrame, best: pd.DataFrame, cost: str, worth: str) -> str:
    """The rows as dots with their names, the front as stairs; cost on a logarithmic scale."""
    low, high = math.log(rows[cost].min() / 1.2), math.log(rows[cost].max() * 1.6)
    bottom, most = min(0.0, rows[worth].min()), 1.1 * rows[worth].max()

    def place(row: pd.Series) -> tuple[float, float]:
        right = (math.log(row[cost]) - low) / (high - low)
        up = (row[worth] - bottom) / (most - bottom)
        return LEFT + right * (WIDTH - LEFT), HEIGHT - TOP - up * (HEIGHT - 2 * TOP)

    corners = [place(row) for _, row in best.iterrows()]
    stairs = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}"
    stairs += "".join(f"H{x:.1f}V{y:.1f}" for x, y in corners[1:])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - TOP}H{WIDTH}" fill="none" stroke="#888"/>',
        f'<text x="6" y="18">{worth}</text>',
        f'<text x="6" y="{HEIGHT - 10}">{cost}</text>',
        f'<path d="{stairs}" fill="none" stroke="#2c6fbb" stroke-width="2"/>',
    ]
    for (x, _), (_, row) in zip(corners, best.iterrows(), strict=True):
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}">{row[cost] / 1e6:.1f} million</text>')
    for tick in range(0, int(most), 10):
        _, y = place(pd.Series({cost: 1.0, worth: tick}))
        parts.append(f'<text x="{LEFT - 24}" y="{y + 4:.1f}">{tick}</text>')
    for index, row in rows.iterrows():
        x, y = place(row)
        colour = "#2c6fbb" if index in best.index else "#999"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{row["scheme"]}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main(folder: Path) -> pd.DataFrame:
    """Write pareto.csv and pareto.svg into `folder`; print and return the front."""
    rows = experiments.sweep(STUDY, out=folder / "pareto.csv", resume=True)
    best = front(rows, "bit_operations", "sqnr_db")
    (folder / "pareto.svg").write_text(svg(rows, best, "bit_operations", "sqnr_db"))
    shown = best[["scheme", "bit_operations", "sqnr_db", "metric"]].round({"sqnr_db": 1})
    print(shown.to_string(index=False))
    return best


if __name__ == "__main__":
    main(Path())
