"""Pieces of modules, and the package that each is of: what the encoder learns to tell."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .corpus import Module
from .tokenizer import Tokenizer

PACKAGES = (
    "asyncio", "concurrent", "ctypes", "distutils", "email", "importlib",
    "json", "logging", "multiprocessing", "tkinter", "unittest", "xml",
)  # fmt: skip
#: Ids of a stretch; pieces are cut out of one, so that those of other parts share no text with it.
STRETCH = 256
#: Of 100 hashes of stretches, how many are judged by and calibrate; the rest trains.
HELD_OUT, CALIBRATION = 12, 5
SHORTEST, LONGEST = 16, 63

Int = NDArray[np.int64]


def stretches(modules: Iterable[Module], tokens: Tokenizer) -> dict[str, list[tuple[int, Int]]]:
    """(package, ids) of the stretches of every part, which follows from a stretch's hash."""
    parts: dict[str, list[tuple[int, Int]]] = {"train": [], "calibration": [], "held-out": []}
    for module in modules:
        package = module.path.split("/")[0]
        if package not in PACKAGES:
            continue
        ids = np.asarray(tokens.encode(module.text), np.int64)
        for start in range(0, len(ids) - SHORTEST, STRETCH):
            name = f"{module.path}:{start}".encode()
            place = int.from_bytes(hashlib.sha256(name).digest()[:8], "big") % 100
            part = "train" if place >= HELD_OUT + CALIBRATION else "held-out"
            part = "calibration" if HELD_OUT <= place < HELD_OUT + CALIBRATION else part
            parts[part].append((PACKAGES.index(package), ids[start : start + STRETCH]))
    return parts


def drawn(
    part: list[tuple[int, Int]], start: int, count: int, random: np.random.Generator
) -> tuple[Int, Int, Int]:
    """`count` pieces, packages equally likely: ids [n, 64] after the start id, filled up with 0;
    the mask [n, 64] of what is there; and the package [n] of each."""
    by_package: dict[int, list[Int]] = {}
    for package, ids in part:
        by_package.setdefault(package, []).append(ids)
    known = sorted(by_package)
    x, mask = (np.zeros((count, LONGEST + 1), np.int64) for _ in range(2))
    y = np.zeros(count, np.int64)
    for row in range(count):
        y[row] = known[int(random.integers(len(known)))]
        among = by_package[int(y[row])]
        ids = among[int(random.integers(len(among)))]
        length = min(len(ids), int(random.integers(SHORTEST, LONGEST + 1)))
        at = int(random.integers(len(ids) - length + 1))
        x[row, 0], x[row, 1 : length + 1] = start, ids[at : at + length]
        mask[row, : length + 1] = 1
    return x, mask, y
