"""Names of marks in the charts of the report: where they stand."""

from __future__ import annotations

import html
import itertools
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.page import labels
from experiments.page.labels import LONGEST, Box, Label, place, shortened

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FRAME = Box(44, 14, 352, 212)

points = st.tuples(st.integers(50, 345), st.integers(20, 205))
texts = st.text(st.sampled_from("abcimW_[]=0123 漢"), min_size=1, max_size=LONGEST)


def inside(box: Box, x: float, y: float) -> bool:
    return box.left < x < box.right and box.top < y < box.bottom


def comes_inside(box: Box, segment: labels.Segment) -> bool:
    """Whether a segment comes inside, by walking along it."""
    x1, y1, x2, y2 = segment
    steps = 200
    return any(
        inside(box, x1 + (x2 - x1) * k / steps, y1 + (y2 - y1) * k / steps)
        for k in range(steps + 1)
    )


def check(
    found: list[Label | None], marks: list[labels.Point], lines: list[labels.Segment]
) -> None:
    """No name on a mark, a line or another name; no leader through a name; all in the frame."""
    placed = [label for label in found if label is not None]
    for label in placed:
        assert FRAME.holds(label.box)
        around = [Box(x - 5, y - 5, x + 5, y + 5) for x, y in marks]
        assert not any(label.box.overlaps(box) for box in around)
        assert not any(comes_inside(label.box, line) for line in lines)
        for other in placed:
            if other is not label:
                assert not label.box.overlaps(other.box)
                assert other.leader is None or not comes_inside(label.box, other.leader)


@given(st.lists(st.tuples(texts, points), max_size=14), st.lists(points, max_size=20))
def test_names_keep_off_marks_lines_and_each_other(
    named: list[tuple[str, labels.Point]], others: list[labels.Point]
) -> None:
    marks = [at for _, at in named] + others
    front = sorted(at for _, at in named)
    lines = [(*a, *b) for a, b in itertools.pairwise(front)]
    found = place([(text, *at) for text, at in named], marks, lines, FRAME)
    assert [label and label.text for label in found] == [
        label and text for label, (text, _) in zip(found, named, strict=True)
    ]
    check(found, marks, lines)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=8, unique=True))
def test_up_to_eight_short_names_all_find_a_place(at: list[tuple[int, int]]) -> None:
    marks: list[labels.Point] = [(90 + 44 * x, 50 + 32 * y) for x, y in at]
    found = place([(f"posit8_es{k}", *m) for k, m in enumerate(marks)], marks, [], FRAME)
    assert None not in found
    check(found, marks, [])


def test_a_name_among_others_is_led_to_its_mark() -> None:
    crowd: list[labels.Point] = [
        (200 + 9 * x, 110 + 9 * y) for x in (-2, -1, 1, 2) for y in (-1, 0, 1)
    ]
    (label,) = place([("int8_channel", 200, 110)], [(200, 110), *crowd], [], FRAME)
    assert label is not None
    assert label.leader is not None
    assert label.leader[2:] == (200, 110)
    x, y = label.leader[:2]
    assert label.box.left <= x <= label.box.right
    assert label.box.top <= y <= label.box.bottom


def test_a_name_says_how_many_others_are_at_its_place() -> None:
    spots: list[labels.Point] = [(100, 50), (101, 49), (100, 50), (100, 60)]
    assert labels.with_company("int8", (100, 50), spots) == "int8 +2"
    assert labels.with_company("int8", (100, 60), spots) == "int8"


def test_long_names_keep_both_ends() -> None:
    for name in ("a" * LONGEST, "int8_channel[weight_bits=4,weight_rounding=gptq] int16_wrap"):
        short = shortened(name)
        assert len(short) <= LONGEST
        assert (short == name) == (len(name) <= LONGEST)
        assert name.startswith(short.split("…")[0])
        assert name.endswith(short.split("…")[-1])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_places_them_the_same(tmp_path: Path) -> None:
    rng = random.Random(0)
    letters = "abcdefimWXY_[]=0189 …漢"

    def at() -> labels.Point:
        return rng.uniform(50, 345), rng.uniform(20, 205)

    cases: list[tuple[Any, Any, Any]] = []
    for _ in range(60):
        names = [
            "".join(rng.choices(letters, k=rng.randint(1, 50))) for _ in range(rng.randint(0, 12))
        ]
        named = [(shortened(name), *at()) for name in names]
        marks = [(x, y) for _, x, y in named] + [at() for _ in range(rng.randint(0, 25))]
        cases.append((named, marks, [(*at(), *at()) for _ in range(rng.randint(0, 6))]))
    script = (Path(labels.__file__).parent / "labels.js").read_text()
    frame = [FRAME.left, FRAME.top, FRAME.right, FRAME.bottom]
    page = tmp_path / "labels.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><pre id=out></pre><script>{script}\n"
        f"const cases = {json.dumps(cases)};"
        "const placed = cases.map(([names, marks, lines])"
        f" => placeLabels(names, marks, lines, {frame}));"
        "document.getElementById('out').textContent = JSON.stringify(placed);</script>"
    )
    assert CHROMIUM is not None
    done = subprocess.run(
        [*(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
         *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
         *("--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
         page.as_uri()],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    found = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr
    theirs = json.loads(html.unescape(found[1]))
    for (names, marks, lines), page_labels in zip(cases, theirs, strict=True):
        ours = place(names, marks, lines, FRAME)
        assert [label is None for label in ours] == [label is None for label in page_labels]
        for label, other in zip(ours, page_labels, strict=True):
            if label is None:
                continue
            assert label.text == other["text"]
            assert (label.x, label.y) == pytest.approx((other["x"], other["y"]))
            assert (label.leader is None) == (other["leader"] is None)
