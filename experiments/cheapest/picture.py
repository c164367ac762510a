"""The formats along a network as one SVG picture that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compiler._html import escaped
from experiments.layers.node_picture import sheet, shortened, written
from experiments.page.palette import LIGHT
from quantize.search.energies import decibels

from .bound import told

if TYPE_CHECKING:
    from .searching import Found

ROW, TOP, WIDTH = 22, 74, 900
NAMES, FORMATS, BARS, BAR, NOISE = 12, 300, 480, 300, 800
"""Where columns start, and how long the longest bar is."""


def svg(found: Found, title: str) -> str:
    """A row for every layer: its name, its format, a bar as long as its share of the cost, and the
    SQNR of the network with this layer alone in its format."""
    rows = found.layers.to_dict("records")
    kinds = list(dict.fromkeys(_kind(r) for r in rows))
    height, most = TOP + ROW * len(rows) + 12, max(r["cost"] for r in rows) or 1.0
    figures = told(found.point.figures, found.test["metric_name"])
    parts = [
        *sheet(WIDTH, height),
        written(NAMES, 22, title, size=15, weight="bold"),
        written(NAMES, 42, f"cost {found.point.cost:.6g} {found.unit}; {figures}", "#667788"),
        written(NAMES, 64, "layer", weight="bold"),
        written(FORMATS, 64, "format", weight="bold"),
        written(BARS, 64, f"cost, {found.unit}", weight="bold"),
        written(NOISE, 64, "alone, dB", weight="bold"),
    ]
    for k, r in enumerate(rows):
        y, colour = TOP + ROW * k, LIGHT[kinds.index(_kind(r)) % len(LIGHT)]
        db = decibels(1.0, r["noise"])
        length = BAR * r["cost"] / most
        parts += [
            f"<g><title>{escaped(r['node'])}: {r['macs']} multiply-accumulates</title>",
            written(NAMES, y + 14, shortened(r["node"], 42)),
            written(FORMATS, y + 14, shortened(_kind(r), 24), colour, weight="bold"),
            f'<rect x="{BARS}" y="{y + 4}" width="{length:.1f}" height="12" fill="{colour}"/>',
            written(NOISE, y + 14, "exact" if math.isinf(db) else f"{db:.1f}"),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>\n"])


def _kind(row: Mapping[Any, Any]) -> str:
    return f"{row['format']} {row['accumulate']}".rstrip()
