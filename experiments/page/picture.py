"""What accuracy costs, as one SVG picture without script: for notebooks and papers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler._html import escaped
from compiler.errors import ConfigError, unknown
from experiments.results import pareto
from experiments.results.column_meanings import meaning
from experiments.results.row_names import Merit, merits, system_names

from .figures import digits, heading, unit_of
from .labels import SIZE, Box, Label, place, same_place, with_company
from .palette import FILLS, FORMS, LIGHT, Look, looks

if TYPE_CHECKING:
    import pandas as pd

_COSTS = (
    *("latency_ms_median", "size_bytes", "activation_bytes", "traffic_bytes", "macs"),
    *("bit_operations", "energy_uj", "energy_memory_uj", "speedup_vs_fp32"),
    *("mac_gates", "mac_area_um2", "accumulator_bits", "cycles"),
)
#: What a picture may have across -> its name, and whether less of it is better.
COSTS = {name: (heading(name), meaning(name).lower_is_better is True) for name in _COSTS}
WIDTH, HEIGHT, COLUMNS = 330, 230, 3
LEFT, RIGHT, TOP, BOTTOM = 44, 320, 34, 196
NAMED = 12
"""Marks of a panel that are named at most."""


@dataclass(frozen=True)
class _Point:
    """A cell: cost and figure, both also with signs turned so that more is better, and on how many
    inputs it was judged."""

    name: str
    look: Look
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
    drawn = panels(rows, cost)
    width = WIDTH * min(len(drawn), COLUMNS)
    parts = [_opening(width, HEIGHT * -(-len(drawn) // COLUMNS), f'width="{width}"')]
    for k, (model, inner) in enumerate(drawn.items()):
        x, y = k % COLUMNS * WIDTH, k // COLUMNS * HEIGHT
        title = _text(4, 12, model, 'font-weight="bold" font-size="12"')
        parts.append(f'<g transform="translate({x} {y})">{title}{inner}</g>')
    return "".join([*parts, "</svg>"])


def panel_svg(model: str, inner: str) -> str:
    """One panel of `panels` as a picture of its own."""
    name = escaped(f"What accuracy costs for {model}")
    # What stands above a panel's first line is the title, which a page has of its own.
    about = f'role="img" aria-label="{name}"'
    return f"{_opening(WIDTH, HEIGHT, about, 16)}{inner}</svg>"


def _opening(width: int, height: int, more: str, top: int = 0) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {width} {height - top}" {more} '
        'font-family="sans-serif" font-size="10" fill="currentColor">'
    )


def panels(rows: pd.DataFrame, cost: str | None = None) -> dict[str, str]:
    """Network -> the inside of its panel, `WIDTH` by `HEIGHT`; see `pareto_svg`.

    Raises:
        ConfigError: an unknown cost.
    """
    measured = rows["latency_ms_median"].notna().any()
    cost = cost or ("latency_ms_median" if measured else "size_bytes")
    if cost not in COSTS:
        raise ConfigError(unknown("cost", cost, COSTS))
    known = merits(rows)
    named = rows.assign(system=system_names(rows))
    look_of = looks(named["system"])
    found = {}
    for model in dict.fromkeys(rows["model"]):
        cells = named[named["model"] == model]
        merit = known[cells["metric_name"].iloc[0]]
        found[str(model)] = _panel(_points(cells, cost, merit, look_of), merit, cost)
    return found


def _points(cells: pd.DataFrame, cost: str, merit: Merit, look_of: dict[str, Look]) -> list[_Point]:
    scale, sign = (100 if merit.share else 1), (1 if merit.higher_is_better else -1)
    saving = -1 if COSTS[cost][1] else 1
    return [
        _Point(r["system"], look_of[r["system"]], r[cost], scale * r["metric"], sign * r["metric"],
               saving * r[cost], r["n_eval"] if math.isfinite(r["n_eval"]) else 0)
        for r in cells.to_dict("records")
        if math.isfinite(r[cost]) and math.isfinite(r["metric"]) and r[cost] > 0
    ]  # fmt: skip


def front(points: Sequence[_Point]) -> list[_Point]:
    """Those that no other point equals on one side and beats on the other, by cost.

    Points judged by fewer inputs than others, and so by others, are not compared.
    """
    most = max(p.inputs for p in points)
    points = [p for p in points if p.inputs == most]
    best = pareto.front((p.saving for p in points), (p.worth for p in points))
    return sorted((points[k] for k in best), key=lambda p: p.cost)


def _panel(points: Sequence[_Point], merit: Merit, cost: str) -> str:
    if not points:
        return _text(4, 40, "no cell has both figures")
    logs = [math.log10(p.cost) for p in points]
    # What is ruined would leave no room for the rest: it stands at the edge.
    ordered = sorted(points, key=lambda p: -p.worth)
    kept = [p.figure for p in ordered[: max(2, -(-3 * len(points) // 4))]]
    xs, ys = _ends(logs), _ends(kept)
    places = {
        p: (_place(math.log10(p.cost), xs, LEFT, RIGHT), _place(p.figure, ys, BOTTOM, TOP + 6))
        for p in points
    }
    share = ", %" if merit.share else ""
    up, across = ("↑" if merit.higher_is_better else "↓"), ("←" if COSTS[cost][1] else "→")
    parts = [_text(4, 26, f"{merit.label}{share} {up} better", 'opacity="0.7"')]
    for t in _ticks(*ys):
        y = _place(t, ys, BOTTOM, TOP + 6)
        parts += [_rule(LEFT, y, RIGHT, y), _text(LEFT - 4, y + 3, f"{t:g}", 'text-anchor="end"')]
    divisor, unit = unit_of(cost, max(p.cost for p in points))
    shift = math.log10(divisor)
    for t in _log_ticks(xs[0] - shift, xs[1] - shift):
        x = _place(math.log10(t) + shift, xs, LEFT, RIGHT)
        parts += [_rule(x, TOP, x, BOTTOM + 4), _text(x, BOTTOM + 16, f"{t:g}", _MIDDLE)]
    title = meaning(cost).title + (f", {unit}" if unit else "")
    name = f"{across} better · {title}"
    parts.append(_text(RIGHT, BOTTOM + 30, name, 'text-anchor="end" opacity="0.7"'))
    best = front(points)
    ends = [places[p] for p in best]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
    parts.append(
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-dasharray="4 3" '
        'opacity="0.6"/>'
    )
    parts += [_mark(p, *places[p]) for p in points]
    # The two ends of the front are farthest apart: they are named first.
    named: list[_Point] = []
    for p in (best[0], *best[:0:-1]):
        if len(named) < NAMED and not any(same_place(places[p], places[q]) for q in named):
            named.append(p)
    spots = [places[p] for p in points]
    labels = place(
        [(with_company(p.name, places[p], spots), *places[p]) for p in named],
        spots,
        [(*a, *b) for a, b in itertools.pairwise(ends)],
        Box(LEFT, TOP, RIGHT, BOTTOM),
    )
    parts += [_label(label) for label in labels if label is not None]
    return "".join(parts)


def _label(label: Label) -> str:
    name = _text(label.x, label.y, label.text, f'font-size="{SIZE:g}"')
    if label.leader is None:
        return name
    x1, y1, x2, y2 = label.leader
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-width="0.6" opacity="0.6"/>{name}'


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
    if high - low < 0.8:
        return [t for t in _ticks(10**low, 10**high) if t > 0]
    steps = (1,) if high - low > 2 else (1, 2, 5)
    exponents = range(math.floor(low), math.ceil(high) + 1)
    found = [k * 10.0**e for e in exponents for k in steps if low <= math.log10(k) + e <= high]
    return found[:: -(-len(found) // 7) or 1]


def _mark(p: _Point, x: float, y: float) -> str:
    """The mark of its number system; name and figures on hover."""
    tip = escaped(f"{p.name}: {p.figure:.4g} at {digits(p.cost)}")
    return f"{mark(p.look, f'translate({x:.1f} {y:.1f})')}<title>{tip}</title></path>"


def mark(own: Look, transform: str) -> str:
    """The path of a mark, not closed: colours of light paper, which a page's rules overrule."""
    colour = LIGHT[own.colour]
    inside = {"full": f'fill="{colour}"', "hollow": 'fill="none"',
              "half": f'fill="{colour}" fill-opacity="0.3"'}[FILLS[own.fill]]  # fmt: skip
    return (
        f'<path class="{own.classes}" transform="{transform}" d="{FORMS[own.form]}" {inside} '
        f'stroke="{colour}">'
    )


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" opacity="0.15"/>'


def _text(x: float, y: float, content: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escaped(content)}</text>'
