"""How a product of matrices is walked, as plain data: what a log keeps and a tuner varies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from compiler.errors import ScheduleError
from compiler.scheduling.tile_config import FARTHEST

MATRICES = "matrices"
"""The field by which it is told from other choices in JSON."""


@dataclass(frozen=True)
class MatrixChoice:
    """The free parameters of a stage that instructions on matrices compute (see `matrix_tiles`).
    None of them changes a result; each that is None is as the rules decide.

    Attributes:
        columns_first: whether all rows walk a part of the weights before the next part.
        ahead: bytes by which weights that are known at build time are fetched ahead.
    """

    columns_first: bool | None = None
    ahead: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What was decided, for a log."""
        return {MATRICES: 1, **{k: v for k, v in asdict(self).items() if v is not None}}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> MatrixChoice:
        """The inverse of `to_json`.

        Raises:
            ScheduleError: a field is unknown, or of another kind than it must be.
        """
        given = {k: v for k, v in content.items() if k != MATRICES}
        for name, value in given.items():
            kind = type(value)  # bool is an int, too, but none for a distance
            if kind is not _KINDS.get(name) or not 0 <= value <= FARTHEST:
                raise ScheduleError(f"a product of matrices has no choice {name} like {value!r}")
        return MatrixChoice(**given)


_KINDS: dict[str, type] = {"columns_first": bool, "ahead": int}

__all__ = ["MATRICES", "MatrixChoice"]
