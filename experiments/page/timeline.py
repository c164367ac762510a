"""What an accelerator does over time, as one SVG picture without script: its units, cycle by
cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler._html import escaped
from compiler.codegen.accel.instructions import ACC, GEMM, LOAD, STORE, UNITS, WEIGHT
from compiler.runtime.accel.layer import LayerReport
from compiler.target.accelerator import Design
from compiler.types.dtypes import Array

from .palette import LIGHT

WIDTH, LEFT, LANE, TOP = 1000, 64, 26, 56
"""Of the part that time runs along; of what is before it; height of a unit; what is above."""
KINDS = {
    "data": (0, LIGHT[5]), "weights": (0, LIGHT[0]), "parameters": (1, LIGHT[4]),
    "multiply": (1, LIGHT[2]), "results": (1, LIGHT[1]), "store": (2, LIGHT[3]),
}  # fmt: skip
"""What instructions do -> unit and colour."""
_NAMES = tuple(KINDS)


@dataclass(frozen=True)
class _Bar:
    kind: str
    begin: float
    end: float


def timeline_svg(design: Design, layers: Sequence[LayerReport]) -> str:
    """Layers one after the other along the axis of cycles, a lane a unit: what its instructions do
    has a colour, and where nothing is drawn it waits. Narrower than half a unit of the picture,
    bars of one kind are joined."""
    total = max(sum(r.report.cycles for r in layers), 1)
    scale = WIDTH / total
    parts, start, height = [], 0, TOP + 3 * LANE + 46
    for k, r in enumerate(layers):
        x = LEFT + start * scale
        if k:
            parts.append(_line(x, TOP - 4, x, TOP + 3 * LANE))
        if r.report.cycles * scale > 5 * len(r.name):
            parts.append(_text(x + 2, TOP - 8, r.name))
        parts += [_drawn(bar, x) for bar in _bars(r, scale)]
        start += r.report.cycles
    for u, name in enumerate(UNITS):
        parts.append(_text(4, TOP + LANE * u + 17, name))
    for cycles in _ticks(total):
        x = LEFT + cycles * scale
        parts.append(_line(x, TOP + 3 * LANE, x, TOP + 3 * LANE + 4))
        parts.append(_text(x, TOP + 3 * LANE + 16, f"{cycles:,}", "middle"))
    for k, (kind, (_, colour)) in enumerate(KINDS.items()):
        x, y = LEFT + 110 * k, height - 18
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, y + 9, kind))
    busy = sum(r.report.gemm for r in layers) / total
    title = f"{design}: {total:,} cycles, {100 * busy:.1f} % of them multiply"
    parts.append(_text(4, 16, title))
    width = LEFT + WIDTH + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="{escaped(title)}" font-family="sans-serif" font-size="11" '
        f'fill="black"><rect width="{width}" height="{height}" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _bars(r: LayerReport, scale: float) -> list[_Bar]:
    """The instructions of a layer, by kind and time, in units of the picture."""
    kinds = _kinds(r.stream)
    found: list[_Bar] = []
    for kind in KINDS:
        last: _Bar | None = None
        for begin, end in r.report.trace[kinds == _NAMES.index(kind), :2] * scale:
            if last is not None and begin - last.end < 0.5 and end - last.begin < 1.5:
                last = found[-1] = _Bar(kind, last.begin, max(end, last.end))
            else:
                last = _Bar(kind, begin, end)
                found.append(last)
    return found


def _kinds(stream: Array) -> Array:
    """The place in KINDS of each instruction."""
    opcode, buffer = stream[:, 0], stream[:, 2]
    loads = np.select([buffer == WEIGHT, buffer == ACC], [1, 2], 0)
    return np.select([opcode == LOAD, opcode == GEMM, opcode == STORE], [loads, 3, 5], 4)


def _drawn(bar: _Bar, x: float) -> str:
    unit, colour = KINDS[bar.kind]
    width = max(bar.end - bar.begin, 0.2)
    return (
        f'<rect x="{x + bar.begin:.2f}" y="{TOP + LANE * unit + 3}" width="{width:.2f}" '
        f'height="{LANE - 6}" fill="{colour}"/>'
    )


def _ticks(total: int) -> list[int]:
    """About eight round numbers up to `total`."""
    step = 1
    while total / step > 10:
        step *= 2 if str(step)[0] in "15" else 1
        if str(step)[0] == "2" and total / step > 10:
            step = step // 2 * 5
    return list(range(0, total + 1, step))


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.2f} {y1}L{x2:.2f} {y2}" stroke="#888" stroke-width="0.5"/>'


def _text(x: float, y: float, content: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escaped(content)}</text>'
