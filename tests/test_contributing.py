"""The additions of CONTRIBUTING.md: each diff is applied to a copy of the packages, which then does
what its section promises (see `additions`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import documents
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("compiler", "quantize", "datatypes", "experiments", "tests")
FOLDERS = ("", "tests", *(f"tests/{room}" for room in ("op", "datatypes", "quantize")))


@dataclass(frozen=True)
class Size:
    """How much an addition is: new files, and lines that other files get."""

    files: int
    lines: int


SIZES = {
    "An operator": Size(1, 1),
    "A scalar function": Size(0, 4),
    "A number format": Size(0, 1),
    "A pass": Size(1, 2),
    "A target": Size(1, 1),
    "A backend": Size(2, 15),
}


def diffs() -> dict[str, str]:
    """Heading -> the diff below it."""
    found = documents.sections((ROOT / "CONTRIBUTING.md").read_text())
    return {s.heading: b.text for s in found for b in s.blocks if b.language == "diff"}


def size(diff: str) -> Size:
    """How much a diff adds."""
    parts = re.split(r"^diff --git .*$", diff, flags=re.MULTILINE)[1:]
    new = [p for p in parts if "--- /dev/null" in p]
    added = re.compile(r"^\+(?!\+\+ )", re.MULTILINE)
    return Size(len(new), sum(len(added.findall(p)) for p in parts if p not in new))


def copied(folder: Path) -> Path:
    """A copy of the packages and of their tests."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_addition_is_as_small_as_it_says() -> None:
    assert {heading: size(diff) for heading, diff in diffs().items()} == SIZES


@pytest.mark.thorough
@pytest.mark.parametrize("heading", SIZES)
def test_additions(heading: str, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    apply = ["git", "apply", "--whitespace=error-all", "-"]
    subprocess.run(apply, cwd=folder, input=diffs()[heading], text=True, check=True)
    paths = os.pathsep.join(str(folder / f) for f in FOLDERS)
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "tests/additions.py", heading.split()[-1]],
        cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert not list((ROOT / "compiler" / "op" / "nn").glob("conv1d*"))
