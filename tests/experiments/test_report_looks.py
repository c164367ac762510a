"""Colours and marks of the report: no two number systems alike, and everybody can tell."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.page import palette
from experiments.page.palette import COLOURS, DARK, LIGHT, MARKS, MOST, looks

#: Linear RGB as seen without one kind of cones (Machado, Oliveira and Fernandes 2009, severity 1).
VISIONS = {
    "all": np.eye(3),
    "no red": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                          [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                         [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
PAPERS = {"light": (LIGHT, "#ffffff"), "dark": (DARK, "#1c2024")}


def linear(colour: str) -> np.ndarray:
    """sRGB as hexadecimal digits -> linear RGB."""
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Linear RGB -> CIELAB under D65."""
    x, y, z = (XYZ @ np.clip(rgb, 0, 1)) / [0.9505, 1, 1.089]
    f = [math.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("paper", PAPERS)
def test_everybody_can_tell_colours_apart(paper: str, vision: str) -> None:
    seen = [lab(VISIONS[vision] @ linear(colour)) for colour in PAPERS[paper][0]]
    assert len(seen) == COLOURS
    least = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
    assert least > 25


@pytest.mark.parametrize("paper", PAPERS)
def test_colours_stand_out_from_the_paper(paper: str) -> None:
    colours, ground = PAPERS[paper]
    style = (Path(palette.__file__).parent / "style.css").read_text()
    assert re.search(rf"--card: light-dark\([^)]*{ground}", style), "the ground it is judged on"
    for colour in colours:
        own, under = (float(XYZ[1] @ linear(c)) + 0.05 for c in (colour, ground))
        assert max(own, under) / min(own, under) >= 3, colour


names = st.lists(st.text(min_size=1, max_size=8), max_size=MOST, unique=True)


@given(names)
def test_no_two_number_systems_look_alike(systems: list[str]) -> None:
    found = looks([*systems, *systems])
    assert list(found) == systems, "the same wherever it comes again"
    seen = [(look.colour, look.mark) for look in found.values()]
    assert len(set(seen)) == len(seen)
    for a, b in itertools.pairwise(seen):
        assert a[0] != b[0], "neighbours differ in both"
        assert a[1] != b[1], "neighbours differ in both"


def test_up_to_eight_differ_in_colour_and_mark_and_all_of_them_somehow() -> None:
    found = list(looks(map(str, range(MOST))).values())
    assert len({look.colour for look in found[:COLOURS]}) == COLOURS
    assert len({look.mark for look in found[:MARKS]}) == MARKS
    assert len({(look.colour, look.mark) for look in found}) == MOST


def test_int8_by_tensor_and_by_channel_differ() -> None:
    found = looks(["float32", "int8_tensor", "int8_channel"])
    a, b = found["int8_tensor"], found["int8_channel"]
    assert a.colour != b.colour
    assert a.mark != b.mark
