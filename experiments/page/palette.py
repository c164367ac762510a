"""What a number system looks like: a colour and a mark, the same in every chart of a page.

Up to eight number systems differ in colour and in mark; more of them have marks of their own as
long as there are any, and then the pairs differ, up to `MOST` of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: On light paper: contrast at least 3 to it (WCAG 1.4.11), and to every viewer, also one without
#: red, green or blue cones (matrices of Machado, Oliveira and Fernandes, IEEE TVCG 15, 2009), at
#: least 25 apart in CIELAB. Found by search; so are those on dark paper.
LIGHT = (
    *("#002ea2", "#d17400", "#a20000", "#748b5d"),
    *("#b974b9", "#008bff", "#5d2e5d", "#5d0017"),
)
DARK = (
    *("#0074e8", "#a27446", "#d1468b", "#8ba200"),
    *("#ff8be8", "#00ffd1", "#b9ff8b", "#ffe846"),
)

#: Outlines around (0, 0), about 9 wide.
FORMS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",  # circle
    "M-4 -4h8v8h-8z",  # square
    "M0 -5.6l5.6 5.6l-5.6 5.6l-5.6 -5.6z",  # diamond
    "M0 -5.2l5.2 9h-10.4z",  # triangle
    "M0 5.2l5.2 -9h-10.4z",  # triangle, upside down
    "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",  # plus
    "M-5.2 0l9 -5.2v10.4z",  # triangle to the left
    "M0 -6l1.6 4.2h4.4l-3.4 2.8l1.2 4.4l-3.8 -2.6l-3.8 2.6l1.2 -4.4l-3.4 -2.8h4.4z",  # star
    "M5.2 0l-9 -5.2v10.4z",  # triangle to the right
    "M-5.4 -2.6h10.8v5.2h-10.8z",  # bar
)
FILLS = ("full", "hollow", "half")
MARKS = len(FORMS) * len(FILLS)
COLOURS = len(LIGHT)
MOST = COLOURS * MARKS
"""How many number systems look different."""

#: Both counts are even: after this many, colours are one further or pairs would come again.
_CYCLE = 120


@dataclass(frozen=True)
class Look:
    """Indices: of a colour in `LIGHT` and `DARK`, of an outline in `FORMS`, of `FILLS`."""

    colour: int
    form: int
    fill: int

    @property
    def mark(self) -> int:
        """Which mark it is, colour apart."""
        return self.fill * len(FORMS) + self.form

    @property
    def classes(self) -> str:
        """The classes of a mark that looks so: see style.css."""
        return f"c{self.colour} {FILLS[self.fill]}"


def look(k: int) -> Look:
    """How the k-th number system of a page looks."""
    mark = k % MARKS
    return Look((k + k // _CYCLE) % COLOURS, mark % len(FORMS), mark // len(FORMS))


def looks(systems: Iterable[str]) -> dict[str, Look]:
    """How each number system looks; they are numbered as they first come."""
    return {system: look(k) for k, system in enumerate(dict.fromkeys(systems))}


def style() -> str:
    """The colours as rules of CSS."""
    lines = [
        f".c{k} {{ --own: light-dark({light}, {dark}); }}"
        for k, (light, dark) in enumerate(zip(LIGHT, DARK, strict=True))
    ]
    return "\n".join(lines)
