"""The text: modules of Python's standard library, split by module, as windows of ids.

A module's part follows from the hash of its path, so that a module never changes sides. What is
left out: tests, generated tables (encodings, topics of the help), packages that others wrote (pip),
and files that building the interpreter makes.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .tokenizer import Tokenizer

WINDOW = 256
LEFT_OUT = {
    *("test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data", "ensurepip"),
    *("lib2to3", "idlelib", "turtledemo", "__pycache__"),
}
#: Of 1000 hashes, how many are held out and how many calibrate; the rest trains.
HELD_OUT, CALIBRATION = 45, 15


@dataclass(frozen=True)
class Module:
    """A source file: path inside the library, bytes, and the part it is in."""

    path: str
    text: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.text).hexdigest()

    @cached_property
    def part(self) -> str:
        """`train`, `calibration` or `held-out`, by the hash of its path."""
        place = int.from_bytes(hashlib.sha256(self.path.encode()).digest()[:8], "big") % 1000
        if place < HELD_OUT:
            return "held-out"
        return "calibration" if place < HELD_OUT + CALIBRATION else "train"


def modules() -> Iterator[Module]:
    """The modules of this interpreter's standard library, by path."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        made = inside.name.startswith("_sysconfigdata") or inside.parts[0].startswith("config-")
        if not made and not LEFT_OUT & set(inside.parts):
            yield Module(inside.as_posix(), path.read_bytes())


def stream(part: list[Module], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Ids [n] of the modules one after the other, each after the start id."""
    start = [] if tokenizer.start is None else [tokenizer.start]
    ids = [one for module in part for one in [*start, *tokenizer.encode(module.text)]]
    return np.asarray(ids, np.int64)


def windows(ids: NDArray[np.int64], width: int = WINDOW) -> tuple[NDArray[np.int64], ...]:
    """Inputs and next ids, [n, width] each, without overlap; what fills no window is left."""
    count = (len(ids) - 1) // width
    x, y = ids[: count * width], ids[1 : count * width + 1]
    return x.reshape(count, width), y.reshape(count, width)


def spread(count: int, wanted: int) -> NDArray[np.int64]:
    """`wanted` of `count` rows, evenly."""
    return np.arange(wanted) * count // wanted
