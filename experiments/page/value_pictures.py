"""Errors of layers and values of networks as pictures, for readers without script.

They are what values.js draws at first; it also draws other cells, single tensors, other formats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from compiler._html import escaped

from .figures import digits
from .palette import Look
from .tables import numbers

MOST_PANELS, MOST_FORMATS = 6, 5
RARE = 1e-4
"""Bins with fewer than this share of the values, at the ends, would only make a picture small."""
_WIDTH, _BASE, _HIGH, _LEFT, _RIGHT = 520, 196, 180, 34, 504

Histogram = Mapping[str, Any]


def layers(
    cells: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    looks: Mapping[str, Look],
    hint: str,
) -> str:
    """A figure of bars for each of the first cells with layers; `hint` if there are none.

    Args:
        cells, rows: as in `page_data`.
    """
    if not cells:
        return f'<p class="empty">{escaped(hint)}</p>'
    by_hash = {row["config_hash"]: row for row in rows}
    drawn = [
        (cell, by_hash[cell["config_hash"]]) for cell in cells if cell["config_hash"] in by_hash
    ]
    return "".join(
        figure(
            f"{row['model']}, {row['system']}", bars(cell["values"], looks[row["system"]].colour)
        )
        for cell, row in drawn[:MOST_PANELS]
    )


def figure(caption: str, picture: str) -> str:
    """A picture with its caption."""
    return f"<figure><figcaption>{escaped(caption)}</figcaption>{picture}</figure>"


def bars(values: Sequence[Mapping[str, Any]], colour: int) -> str:
    """The SQNR of every layer."""
    ratios = [numbers(v["sqnr_db"]) for v in values]
    most = max([1.0, *(r for r in ratios if r is not None and math.isfinite(r))])
    parts = []
    for k, (layer, ratio) in enumerate(zip(values, ratios, strict=True)):
        width = 1.0 if ratio is None else max(1.0, 270 * min(1.0, max(0.0, ratio) / most))
        name = layer["value"] if len(layer["value"]) <= 26 else f"{layer['value'][:25]}…"
        shown = "" if ratio is None else f"{digits(ratio)} dB"
        y = 20 * k
        parts.append(
            f'<text x="168" y="{y + 15}" text-anchor="end">{escaped(name)}</text>'
            f'<rect x="176" y="{y + 4}" width="{width:.1f}" height="13" class="bar c{colour}">'
            f"<title>{escaped(layer['value'])} ({escaped(layer['operator'])})</title>"
            f'</rect><text x="{182 + width:.1f}" y="{y + 15}">{shown}</text>'
        )
    return svg(_WIDTH, 20 * len(values) + 8, "SQNR of every layer", "".join(parts))


def ranges(
    found: Mapping[str, Sequence[Histogram]],
    profiles: Mapping[str, Mapping[str, Any]],
    colours: Mapping[str, int],
) -> str:
    """A figure a network: activations and weights by powers of two, and lines of formats.

    Args:
        found, profiles: as in `page_data`.
        colours: of formats.
    """
    if not found:
        return '<p class="empty">No network is at hand to take its values from.</p>'
    few = dict(itertools.islice(profiles.items(), MOST_FORMATS))
    return "".join(
        figure(model, histogram((all_[1], all_[0]), few, colours)) for model, all_ in found.items()
    )


def histogram(
    whole: Sequence[Histogram],
    profiles: Mapping[str, Mapping[str, Any]],
    colours: Mapping[str, int],
) -> str:
    """Shares of values at every power of two, and significant bits of formats there."""
    drawn = [_trimmed(h) for h in whole]
    first = min(start for start, _ in drawn) - 1
    last = max(start + len(shares) for start, shares in drawn) + 1
    most = max((share for _, shares in drawn for share in shares), default=0) or 1
    bits = max([8.0, *(b for p in profiles.values() for b in p["bits"])])

    def x(e: float) -> float:
        return round(_LEFT + (e - first) / (last - first) * (_RIGHT - _LEFT), 1)

    def y(share: float) -> float:
        return round(_BASE - share * _HIGH, 1)

    parts = []
    for kind, (start, shares) in zip(("first", "second"), drawn, strict=True):
        outline = "".join(
            f"L{x(start + k)} {y(s / most)}H{x(start + k + 1)}" for k, s in enumerate(shares)
        )
        parts.append(f'<path class="{kind}" d="M{x(start)} {_BASE}{outline}V{_BASE}z"/>')
    for b in range(0, int(bits) + 1, 4):
        parts.append(f'<text x="28" y="{y(b / bits) + 4}" text-anchor="end">{b}</text>')
    every = 8 if last - first > 40 else 4
    for e in range(-(-first // every) * every, last + 1, every):
        parts.append(
            f'<text x="{x(e)}" y="212" text-anchor="middle">2<tspan dy="-4">{e}</tspan></text>'
        )
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BASE}" y2="{_BASE}"/>')
    parts.append(f'<text x="{_RIGHT}" y="232" text-anchor="end">size of a value</text>')
    parts.append('<text x="4" y="8">significant bits</text>')
    for k, (name, p) in enumerate(profiles.items()):
        # Where a format ends inside the picture it has no precision at all.
        own = dict(enumerate(p["bits"], p["first"]))
        steps = "L".join(f"{x(e)} {y(own.get(e, 0) / bits)}H{x(e + 1)}" for e in range(first, last))
        parts.append(
            f'<path class="profile c{colours[name]} dash{k % 4}" d="M{steps}">'
            f"<title>{escaped(name)}</title></path>"
        )
    told = "Values, and the precision of " + (", ".join(profiles) or "no format")
    return svg(_WIDTH, 238, told, "".join(parts))


def _trimmed(h: Histogram) -> tuple[int, Sequence[float]]:
    """The exponent of the first bin that is not rare, and the shares from there to the last."""
    often = [k for k, share in enumerate(h["shares"]) if share >= RARE]
    if not often:
        return h["first"], h["shares"]
    return h["first"] + often[0], h["shares"][often[0] : often[-1] + 1]


def svg(width: int, height: int, about: str, inner: str) -> str:
    """A picture of such a size, in its own units; `about` is read out."""
    label = escaped(about)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{inner}</svg>'
