"""Places for the names of marks in a chart: off marks, off lines, off each other.

A name stands beside its mark where there is room, else farther away at the end of a thin line (a
leader), else nowhere: pointing at the mark still tells it. `labels.js` is this in the page's own
language, number for number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SIZE = 10.0
"""Of the letters, in the units of the chart."""
SAME = 2.5
"""Marks that are nearer than this hide each other."""
LONGEST = 30
"""Characters of a name at most."""
_AROUND, _ASIDE = 6.0, 2.0
"""Half the width of a mark with the room around it; the room on both sides of a name."""
_DISTANCES, _ANGLES = (14.0, 20.0, 30.0, 42.0, 58.0, 76.0), 12

Point = tuple[float, float]
Segment = tuple[float, float, float, float]
"""From (x1, y1) to (x2, y2)."""


@dataclass(frozen=True)
class Box:
    """A rectangle; `top` is less than `bottom`, as in SVG."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether they have an area in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        """Whether the other lies inside."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )

    def crossed(self, segment: Segment) -> bool:
        """Whether a segment comes inside (Liang and Barsky, ACM TOG 3, 1984)."""
        x1, y1, x2, y2 = segment
        first, last = 0.0, 1.0
        for step, low, high in (
            (x2 - x1, self.left - x1, self.right - x1),
            (y2 - y1, self.top - y1, self.bottom - y1),
        ):
            if step == 0:
                if low >= 0 or high <= 0:
                    return False
                continue
            a, b = sorted((low / step, high / step))
            first, last = max(first, a), min(last, b)
        return first < last


@dataclass(frozen=True)
class Label:
    """A name with its place: `x` is its left edge, `y` its baseline."""

    text: str
    x: float
    y: float
    box: Box
    leader: Segment | None


def text_width(text: str, size: float = SIZE) -> float:
    """About the width of a text without serifs, rather more than less."""
    return size * sum(map(_em, text))


def _em(c: str) -> float:
    if c >= "\u1100" or c in "mwMW@%…":
        return 1.0
    if c in "ijlrtf.,:;|!'()[]/ ":
        return 0.42
    return 0.72 if c < "a" and c != "_" else 0.64


def shortened(name: str) -> str:
    """A name of at most `LONGEST` characters: it is the two ends that tell names apart."""
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST // 2 - 3]}…{name[-(LONGEST - LONGEST // 2 + 2) :]}"


def same_place(a: Point, b: Point) -> bool:
    """Whether one of two marks hides the other."""
    return abs(a[0] - b[0]) < SAME and abs(a[1] - b[1]) < SAME


def with_company(name: str, at: Point, marks: Sequence[Point]) -> str:
    """A name as it is shown: shortened, and with how many more marks are at the same place."""
    more = sum(same_place(at, mark) for mark in marks) - 1
    return shortened(name) + (f" +{more}" if more else "")


def place(
    names: Sequence[tuple[str, float, float]],
    marks: Sequence[Point],
    lines: Sequence[Segment],
    frame: Box,
) -> list[Label | None]:
    """A place for each name (text, x, y), in their order; None where there is no room.

    Args:
        names: with the middles of their marks.
        marks: the middles of all marks.
        lines: what no name may lie on; leaders may cross them, and names.
        frame: where names may be.
    """
    taken = [_around(x, y) for x, y in marks]
    barred = list(lines)
    found: list[Label | None] = []
    for text, x, y in names:
        label = _first(text, x, y, taken, barred, frame)
        if label is not None:
            taken.append(label.box)
            barred += [label.leader] if label.leader else []
        found.append(label)
    return found


def _first(
    text: str, x: float, y: float, taken: list[Box], barred: list[Segment], frame: Box
) -> Label | None:
    """The nearest place that is free."""
    width, height = text_width(text), SIZE + 1
    for left, top, far in _candidates(x, y, width, height):
        box = Box(left - _ASIDE, top, left + width + _ASIDE, top + height)
        if not frame.holds(box) or any(box.overlaps(other) for other in taken):
            continue
        if any(box.crossed(line) for line in barred):
            continue
        leader = _leader(x, y, box) if far else None
        if leader and _blocked(leader, x, y, taken):
            continue
        return Label(text, left, top + SIZE - 1, box, leader)
    return None


def _candidates(x: float, y: float, width: float, height: float) -> list[tuple[float, float, bool]]:
    """Left, top and whether it is far: beside the mark, above and below it, then around it."""
    near, middle = _AROUND + _ASIDE, y - height / 2
    beside = [
        (x + near, middle), (x - near - width, middle),
        (x + 3, y - near - height), (x + 3, y + near),
        (x - 3 - width, y - near - height), (x - 3 - width, y + near),
        (x - width / 2, y - near - height), (x - width / 2, y + near),
    ]  # fmt: skip
    places = [(left, top, False) for left, top in beside]
    for distance in _DISTANCES:
        for k in range(_ANGLES):
            across, down = _DIRECTIONS[k]
            top = y + down * distance - height * (1 - down) / 2
            # Names are wide: what is beside ends there; else also from there, or up to there.
            for share in ((1 - across) / 2, 0.0, 1.0):
                places.append((x + across * distance - width * share, top, True))
    return places


#: Of the twelve hours, rounded: other languages compute sines otherwise.
_DIRECTIONS = [
    (round(math.cos(math.pi * k / 6), 3), round(math.sin(math.pi * k / 6), 3))
    for k in range(_ANGLES)
]


def _around(x: float, y: float) -> Box:
    return Box(x - _AROUND, y - _AROUND, x + _AROUND, y + _AROUND)


def _leader(x: float, y: float, box: Box) -> Segment:
    """From the nearest point of the box to the mark."""
    nearest = (min(max(x, box.left), box.right), min(max(y, box.top), box.bottom))
    return (*nearest, x, y)


def _blocked(leader: Segment, x: float, y: float, taken: list[Box]) -> bool:
    """Whether it crosses a name or a mark other than those that hold its own end."""
    return any(
        box.crossed(leader)
        for box in taken
        if not (box.left <= x <= box.right and box.top <= y <= box.bottom)
    )
