"""The errors of all nodes as one SVG picture that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from compiler._html import escaped
from experiments.files import atomic_path

from .nodes import NodeError

ROW, TOP, WIDTH = 34, 64, 980
NAMES, BARS, BAR, SATURATED, CHART, CHART_WIDTH = 12, 300, 260, 610, 700, 260
"""Where columns start, and how wide bars and histograms are."""
MOST_DB = 60.0
"""Signal to noise ratio that a whole bar stands for; more is drawn as this."""
SO_FAR, OWN, FLOAT32, QUANTIZED = "#c0392b", "#2c6fbb", "#b9c2cc", "#2c6fbb"


def write_picture(errors: Sequence[NodeError], path: Path, title: str) -> None:
    """Write the picture: as SVG, or in a page if the path ends in .html.

    Raises:
        ConfigError: it cannot be written.
    """
    text = svg(errors, title)
    if path.suffix == ".html":
        text = f"<!doctype html>\n<meta charset=utf-8>\n<title>{escaped(title)}</title>\n{text}"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def svg(errors: Sequence[NodeError], title: str) -> str:
    """A row for every node: SQNR so far and of the node alone, what saturates, histograms."""
    height = TOP + ROW * len(errors) + 12
    parts = [
        *sheet(WIDTH, height),
        written(NAMES, 22, title, size=15, weight="bold"),
        written(NAMES, 46, "node", weight="bold"),
        written(BARS, 40, "SQNR so far, dB", SO_FAR, weight="bold"),
        written(BARS, 54, "of this node alone, dB", OWN, weight="bold"),
        written(SATURATED, 46, "saturated", weight="bold"),
        written(CHART, 46, "values: float32 (grey), quantized (line)", weight="bold"),
    ]
    for k, e in enumerate(errors):
        parts += _row(e, TOP + ROW * k)
    return "\n".join([*parts, "</svg>\n"])


def _row(e: NodeError, y: int) -> list[str]:
    origins = ", ".join(e.origins) or "nothing"
    tip = escaped(f"{e.value} from {origins}: {e.low:.4g} to {e.high:.4g}")
    saturated = "" if e.saturated is None else f"{100 * e.saturated:.3g} %"
    return [
        f"<g><title>{tip}</title>",
        written(NAMES, y + 13, shortened(e.value, 40)),
        written(NAMES, y + 27, e.operator, "#667788", size=11),
        *_bar(e.sqnr_db, y + 3, SO_FAR),
        *_bar(e.own_sqnr_db, y + 17, OWN),
        written(SATURATED, y + 20, saturated),
        *_histograms(e, y + 3, ROW - 8),
        "</g>",
    ]


def _bar(db: float, y: int, colour: str) -> list[str]:
    share = 0.0 if math.isnan(db) else min(max(db / MOST_DB, 0.0), 1.0)
    length = share * (BAR - 50)
    return [
        f'<rect x="{BARS}" y="{y}" width="{length:.1f}" height="10" fill="{colour}"/>',
        written(BARS + length + 4, y + 9, f"{db:.1f}", size=11),
    ]


def _histograms(e: NodeError, y: int, height: int) -> list[str]:
    # Roots, so that bins with few values can be seen beside those with many.
    most = math.sqrt(max(*e.float32, *e.quantized, 1))
    step = CHART_WIDTH / len(e.float32)
    tops = [height * (1 - math.sqrt(n) / most) for n in e.float32]
    bars = "".join(
        f"M{CHART + k * step:.1f} {y + height}V{y + top:.1f}h{step:.1f}V{y + height}Z"
        for k, top in enumerate(tops)
    )
    line = " ".join(
        f"{CHART + (k + 0.5) * step:.1f},{y + height * (1 - math.sqrt(n) / most):.1f}"
        for k, n in enumerate(e.quantized)
    )
    return [
        f'<path d="{bars}" fill="{FLOAT32}"/>',
        f'<polyline points="{line}" fill="none" stroke="{QUANTIZED}"/>',
    ]


def sheet(width: int, height: int) -> tuple[str, ...]:
    """The beginning of an SVG picture on white paper."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    )


def written(
    x: float, y: float, content: str, colour: str = "#223", size: int = 12, weight: str = "normal"
) -> str:
    """An SVG text."""
    style = f'fill="{colour}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y}" {style}>{escaped(content)}</text>'


def shortened(name: str, most: int) -> str:
    """A name with at most so many characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
