"""Our own layout of a diagram, in layers from top to bottom, as SVG.

The steps are those of K. Sugiyama, S. Tagawa and M. Toda (Methods for Visual Understanding of
Hierarchical System Structures, 1981): layers by the longest path, edges over several layers led
through bends, layers ordered by the mean place of what they are connected with.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compiler._html import escaped
from compiler.picture.boxes import Box, Diagram

_CHARACTER, _LINE, _MARGIN = 6.6, 14.0, 8.0
_ACROSS, _DOWN, _BEND = 18.0, 34.0, 14.0
_SWEEPS = 8


@dataclass(eq=False)
class _Place:
    """A box, or a bend of an edge, while it is placed. `x` is of its middle, `y` of its top."""

    box: Box | None
    layer: int
    width: float = _BEND
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    above: list[_Place] = field(default_factory=list)
    below: list[_Place] = field(default_factory=list)


def layered_svg(shown: Diagram, colours: Mapping[str, str]) -> str:
    """The diagram as SVG text. `colours`: kind of box -> fill."""
    places = [_Place(b, 0, _width(b), _height(b)) for b in shown.boxes]
    _assign_layers(places, shown.edges)
    routes = [_route(places[a], places[b]) for a, b in shown.edges]
    layers: list[list[_Place]] = [[] for _ in range(1 + max((p.layer for p in places), default=0))]
    for p in [*places, *(bend for r in routes for bend in r[1:-1])]:
        layers[p.layer].append(p)
    _order(layers)
    _place(layers)
    return _text(places, routes, colours)


def _width(box: Box) -> float:
    return 2 * _MARGIN + _CHARACTER * max(map(len, (box.title, *box.lines)))


def _height(box: Box) -> float:
    return _MARGIN + _LINE * (1 + len(box.lines))


def _assign_layers(places: Sequence[_Place], edges: Sequence[tuple[int, int]]) -> None:
    """The longest path from above; inputs go right above what reads them."""
    readers: dict[int, list[int]] = {}
    for a, b in sorted(edges, key=lambda e: e[1]):
        places[b].layer = max(places[b].layer, places[a].layer + 1)
        readers.setdefault(a, []).append(b)
    for k, p in enumerate(places):
        if p.box is not None and p.box.kind == "input" and k in readers:
            p.layer = min(places[b].layer for b in readers[k]) - 1


def _route(a: _Place, b: _Place) -> list[_Place]:
    """From `a` to `b`, with a bend in every layer between them."""
    bends = [_Place(None, k) for k in range(a.layer + 1, b.layer)]
    route = [a, *bends, b]
    for upper, lower in itertools.pairwise(route):
        upper.below.append(lower)
        lower.above.append(upper)
    return route


def _order(layers: Sequence[list[_Place]]) -> None:
    """Each layer by the mean place of its neighbours, downward and upward in turn."""
    rank: dict[_Place, float] = {p: k for layer in layers for k, p in enumerate(layer)}

    def key(p: _Place, near: Sequence[_Place]) -> float:
        return sum(rank[q] for q in near) / len(near) if near else rank[p]

    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            keys = {p: key(p, p.above if down else p.below) for p in layer}
            layer.sort(key=keys.__getitem__)
            rank.update((p, float(k)) for k, p in enumerate(layer))


def _place(layers: Sequence[Sequence[_Place]]) -> None:
    """Coordinates: under the middle of what is above (and above what is below), not overlapping."""
    y = _MARGIN
    for layer in layers:
        high = max((p.height for p in layer), default=0)
        for p in layer:
            p.y = y
            p.height = p.height if p.box else high  # edges pass boxes straight down
        y += high + _DOWN
        _spread(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            near = [p.above if down else p.below for p in layer]
            wanted = [
                sum(q.x for q in n) / len(n) if n else p.x for p, n in zip(layer, near, strict=True)
            ]
            _spread(layer, wanted)
    left = min((p.x - p.width / 2 for layer in layers for p in layer), default=0)
    for layer in layers:
        for p in layer:
            p.x += _MARGIN - left


def _spread(layer: Sequence[_Place], wanted: Sequence[float]) -> None:
    """Places as near to the wanted ones as keeps the order and the distances: the mean of pushing
    to the right and pushing to the left."""
    right, left = list(wanted), list(wanted)
    for k in range(1, len(layer)):
        right[k] = max(right[k], right[k - 1] + _distance(layer[k - 1], layer[k]))
    for k in range(len(layer) - 1, 0, -1):
        left[k - 1] = min(left[k - 1], left[k] - _distance(layer[k - 1], layer[k]))
    for p, a, b in zip(layer, right, left, strict=True):
        p.x = (a + b) / 2


def _distance(a: _Place, b: _Place) -> float:
    return (a.width + b.width) / 2 + _ACROSS


# ---- text ----------------------------------------------------------------------------------------
def _text(
    places: Sequence[_Place], routes: Sequence[Sequence[_Place]], colours: Mapping[str, str]
) -> str:
    points = [*places, *(p for r in routes for p in r)]
    wide = max((p.x + p.width / 2 for p in points), default=0) + _MARGIN
    high = max((p.y + p.height for p in points), default=0) + _MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="monospace" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#678"/></marker></defs>',
        f'<rect width="{wide:.0f}" height="{high:.0f}" fill="white"/>',
    ]
    out += [_curve(r) for r in routes]
    for p in places:
        out += _drawn(p, colours)
    return "\n".join([*out, "</svg>", ""])


def _curve(route: Sequence[_Place]) -> str:
    start = route[0]
    x, y = start.x, start.y + start.height
    path = f"M{x:.1f} {y:.1f}"
    for p in route[1:]:
        middle = (y + p.y) / 2
        path += f"C{x:.1f} {middle:.1f} {p.x:.1f} {middle:.1f} {p.x:.1f} {p.y:.1f}"
        x, y = p.x, p.y
        if p.box is None:
            y += p.height
            path += f"V{y:.1f}"
    return f'<path d="{path}" fill="none" stroke="#678" marker-end="url(#tip)"/>'


def _drawn(p: _Place, colours: Mapping[str, str]) -> list[str]:
    assert p.box is not None
    left = p.x - p.width / 2
    out = [
        f'<rect x="{left:.1f}" y="{p.y:.1f}" width="{p.width:.1f}" height="{p.height:.1f}" rx="4" '
        f'fill="{colours[p.box.kind]}" stroke="#456"/>'
    ]
    for k, line in enumerate((p.box.title, *p.box.lines)):
        weight = ' font-weight="bold"' if k == 0 else ""
        at = f'x="{left + _MARGIN:.1f}" y="{p.y + _LINE * (k + 1):.1f}"'
        out.append(f"<text {at}{weight}>{escaped(line)}</text>")
    return out
