"""What accuracy costs, as one SVG picture without script: for notebooks and papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler._html import escaped
from compiler.errors import ConfigError, unknown
from experiments.row_names import Merit, merits, system_names

if TYPE_CHECKING:
    import pandas as pd

#: What a picture may have across -> its name, and whether less of it is better.
COSTS = {
    "latency_ms_median": ("latency, ms", True),
    "size_bytes": ("parameters, bytes", True),
    "activation_bytes": ("activations, bytes", True),
    "traffic_bytes": ("moved, bytes", True),
    "macs": ("multiply-accumulates", True),
    "bit_operations": ("bit operations", True),
    "energy_uj": ("energy, µJ", True),
    "energy_memory_uj": ("energy of memory, µJ", True),
    "speedup_vs_fp32": ("speed-up over float32", False),
}
WIDTH, HEIGHT, COLUMNS = 330, 230, 3
LEFT, RIGHT, TOP, BOTTOM = 44, 320, 34, 196
LONGEST = 24
"""Characters of a name beside a mark."""


@dataclass(frozen=True)
class _Point:
    """A cell: cost and figure, both also with signs turned so that more is better, and on how many
    inputs it was judged."""

    name: str
    dtype: str
    cost: float
    figure: float
    worth: float
    saving: float
    inputs: int = 0


def pareto_svg(rows: pd.DataFrame, cost: str | None = None) -> str:
    """One panel a network: its figure of merit over a cost, the cells that no other beats joined.

    Args:
        rows: of a results file.
        cost: a column of `COSTS`; by default latency where it was measured, else bytes.

    Raises:
        ConfigError: another column.
    """
    measured = rows["latency_ms_median"].notna().any()
    cost = cost or ("latency_ms_median" if measured else "size_bytes")
    if cost not in COSTS:
        raise ConfigError(unknown("cost", cost, COSTS))
    models = list(dict.fromkeys(rows["model"]))
    down = -(-len(models) // COLUMNS)
    width, height = WIDTH * min(len(models), COLUMNS), HEIGHT * down
    known = merits(rows)
    named = rows.assign(system=system_names(rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" style="max-width:100%" font-family="sans-serif" font-size="10" '
        'fill="currentColor">'
    ]
    for k, model in enumerate(models):
        cells = named[named["model"] == model]
        merit = known[cells["metric_name"].iloc[0]]
        x, y = k % COLUMNS * WIDTH, k // COLUMNS * HEIGHT
        inner = _panel(str(model), _points(cells, cost, merit), merit, cost)
        parts.append(f'<g transform="translate({x} {y})">{inner}</g>')
    return "".join([*parts, "</svg>"])


def _points(cells: pd.DataFrame, cost: str, merit: Merit) -> list[_Point]:
    scale, sign = (100 if merit.share else 1), (1 if merit.higher_is_better else -1)
    saving = -1 if COSTS[cost][1] else 1
    return [
        _Point(r["system"], r["dtype"], r[cost], scale * r["metric"], sign * r["metric"],
               saving * r[cost], r["n_eval"])
        for r in cells.to_dict("records")
        if math.isfinite(r[cost]) and math.isfinite(r["metric"]) and r[cost] > 0
    ]  # fmt: skip


def front(points: Sequence[_Point]) -> list[_Point]:
    """Those that no other point equals on one side and beats on the other, by cost.

    Points judged by fewer inputs than others, and so by others, are not compared.
    """
    most = max(p.inputs for p in points)
    points = [p for p in points if p.inputs == most]
    best = [
        p
        for p in points
        if not any(
            o.worth >= p.worth
            and o.saving >= p.saving
            and (o.worth, o.saving) != (p.worth, p.saving)
            for o in points
        )
    ]
    return sorted(best, key=lambda p: p.cost)


def _panel(model: str, points: Sequence[_Point], merit: Merit, cost: str) -> str:
    title = _text(4, 12, model, 'font-weight="bold" font-size="12"')
    if not points:
        return title + _text(4, 40, "no cell has both figures")
    logs = [math.log10(p.cost) for p in points]
    # What is ruined would leave no room for the rest: it stands at the edge.
    ordered = sorted(points, key=lambda p: -p.worth)
    kept = [p.figure for p in ordered[: max(2, -(-3 * len(points) // 4))]]
    xs, ys = _ends(logs), _ends(kept)
    places = {
        p.name: (_place(math.log10(p.cost), xs, LEFT, RIGHT), _place(p.figure, ys, BOTTOM, TOP + 6))
        for p in points
    }
    unit = ", %" if merit.share else ""
    up, across = ("↑" if merit.higher_is_better else "↓"), ("←" if COSTS[cost][1] else "→")
    parts = [title, _text(4, 26, f"{merit.label}{unit} {up} better", 'opacity="0.7"')]
    for t in _ticks(*ys):
        y = _place(t, ys, BOTTOM, TOP + 6)
        parts += [_rule(LEFT, y, RIGHT, y), _text(LEFT - 4, y + 3, f"{t:g}", 'text-anchor="end"')]
    for t in _log_ticks(*xs):
        x = _place(math.log10(t), xs, LEFT, RIGHT)
        parts += [_rule(x, TOP, x, BOTTOM + 4), _text(x, BOTTOM + 16, f"{t:g}", _MIDDLE)]
    name = f"{across} better · {COSTS[cost][0]}"
    parts.append(_text(RIGHT, BOTTOM + 30, name, 'text-anchor="end" opacity="0.7"'))
    best = front(points)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (places[p.name] for p in best))
    parts.append(
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-dasharray="4 3" '
        'opacity="0.6"/>'
    )
    parts += [_mark(p, *places[p.name]) for p in points]
    # The two ends of the front are far enough apart to be named.
    for p, anchor in zip((best[0], best[-1]), ("start", "end"), strict=True):
        x, y = places[p.name]
        name = p.name if len(p.name) <= LONGEST else f"{p.name[: LONGEST - 1]}…"
        parts.append(_text(x, y - 8, name, f'text-anchor="{anchor}"'))
        if len(best) == 1:
            break
    return "".join(parts)


_MIDDLE = 'text-anchor="middle"'


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad


def _place(value: float, ends: tuple[float, float], start: float, stop: float) -> float:
    share = (value - ends[0]) / (ends[1] - ends[0])
    return start + min(max(share, 0.0), 1.0) * (stop - start)


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= raw)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """At most seven round numbers between two powers of ten, the exponents of which are given."""
    steps = (1,) if high - low > 2 else (1, 2, 5)
    exponents = range(math.floor(low), math.ceil(high) + 1)
    found = [k * 10.0**e for e in exponents for k in steps if low <= math.log10(k) + e <= high]
    return found[:: -(-len(found) // 7) or 1]


def _mark(p: _Point, x: float, y: float) -> str:
    """Float32 a circle, integers a square, formats a diamond; its name and figures on hover."""
    tip = escaped(f"{p.name}: {p.figure:.4g} at {p.cost:.4g}")
    if p.dtype == "float32":
        form = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#2c6fbb">'
    elif p.dtype.startswith("int"):
        form = f'<path d="M{x - 4:.1f} {y - 4:.1f}h8v8h-8z" fill="#c0392b">'
    else:
        form = f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z" fill="#2e9c6e">'
    return f"{form}<title>{tip}</title></{form[1:].split()[0]}>"


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" opacity="0.15"/>'


def _text(x: float, y: float, content: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escaped(content)}</text>'
