"""What may be chosen about the schedule of a loop nest, as plain data: what a log keeps and a tuner
varies. Nothing of it changes a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from compiler.errors import ScheduleError
from compiler.scheduling.matrix_choice import MATRICES, MatrixChoice
from compiler.scheduling.tile_config import TileChoice

SKETCH = "sketch"
"""The field by which a sketch is told from a tile in JSON."""


@dataclass(frozen=True)
class Sketch:
    """Decisions about a stage whose elements are computed one by one, or about the whole loop nest.
    Each stands for what the rules do where it has its default.

    Attributes:
        fused: of a stage: how many of its innermost loops become one, first.
        tiles: (loop, iterations), of a stage: these loops are cut into tiles, which are walked
            inside all others, in this order. Loops are counted from the outermost, 0.
        order: of a stage: its loops, or those over tiles, from the outermost to the innermost.
        lanes: (loop, iterations), of a stage: these are the lanes of vectors, inside all others;
            of two, the latter are neighbours.
        unrolled: of a stage: how many of the tiles, from the last, are written out.
        apart: stages that stay stages of their own, although the rules would compute them where
            they are read.
        inlined: the other way round.
        rows: bytes that a tile of rows may take, where several stages over the same rows go by
            tiles of them; 0: they do not, which is also so where nothing is chosen for the nest.
        tasks: how many tasks threads should at least have to share; 1: one thread runs all.
    """

    fused: int = 0
    tiles: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()
    lanes: tuple[tuple[int, int], ...] = ()
    unrolled: int = 0
    apart: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()
    rows: int = 0
    tasks: int = 0

    @property
    def taken(self) -> dict[str, Any]:
        """The decisions that are not the default."""
        every = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v for k, v in every.items() if v != _DEFAULTS[k]}

    def to_json(self) -> dict[str, Any]:
        """The decisions that were taken, for a log."""
        return {SKETCH: 1, **{k: _plain(v) for k, v in self.taken.items()}}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Sketch:
        """The inverse of `to_json`.

        Raises:
            ScheduleError: a field is unknown, or of another kind than it must be.
        """
        given = {k: _frozen(v) for k, v in content.items() if k != SKETCH}
        for name, value in given.items():
            if name not in _DEFAULTS or not _alike(value, _KINDS[name]):
                raise ScheduleError(f"a sketch has no field {name} like {value!r}")
        return Sketch(**given)


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Sketch)}
_KINDS: dict[str, Any] = {
    "fused": int,
    "tiles": ((int, int),),
    "order": (int,),
    "lanes": ((int, int),),
    "unrolled": int,
    "apart": (str,),
    "inlined": (str,),
    "rows": int,
    "tasks": int,
}
"""Name of a field -> a type, a tuple of one for lists, a longer one for lists of that length.
Numbers are not negative."""
OF_A_STAGE = frozenset({"fused", "tiles", "order", "lanes", "unrolled"})
"""The fields of a sketch that are about a stage; the others are about the whole loop nest."""


def _plain(v: Any) -> Any:
    return [_plain(x) for x in v] if isinstance(v, tuple) else v


def _frozen(v: Any) -> Any:
    return tuple(_frozen(x) for x in v) if isinstance(v, (list, tuple)) else v


def _alike(v: Any, kind: Any) -> bool:
    if not isinstance(kind, tuple):
        return type(v) is kind and (kind is not int or v >= 0)
    if not isinstance(v, tuple) or (len(kind) > 1 and len(v) != len(kind)):
        return False
    kinds = kind if len(kind) > 1 else kind * len(v)
    return all(_alike(x, k) for x, k in zip(v, kinds, strict=True))


Decision = TileChoice | MatrixChoice | Sketch
"""What is chosen for a stage, by what it is computed: a register tile, instructions on matrices, or
loops over its elements."""
Choice = Mapping[str, Decision]
"""Stage -> what is chosen for it; "": for the whole loop nest. {}: what the rules do."""


def decision_from_json(content: Any) -> Decision:
    """The inverse of `to_json` of any of them.

    Raises:
        ScheduleError: it is none.
    """
    if isinstance(content, Mapping) and SKETCH in content:
        return Sketch.from_json(content)
    if isinstance(content, Mapping) and MATRICES in content:
        return MatrixChoice.from_json(content)
    return TileChoice.from_json(content)


__all__ = ["OF_A_STAGE", "Choice", "Decision", "Sketch", "decision_from_json"]
