"""Limits of one import: a small file must not make a large program, nor take much memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from compiler.errors import ModelError, UnsupportedError
from compiler.types.dtypes import Array

MEMORY = 16 << 30
"""Bytes of a model's file and weights, unless from_onnx is told otherwise."""
STEPS = 40_000
"""Nodes and calls of one import, those of unrolled loops included."""
LOCAL_NODES = 100_000
"""Nodes of the model's local functions, written out."""


class Budget:
    """What one import may still take: bytes of weights and constants, and steps of its program."""

    def __init__(self, memory: int = MEMORY):
        self.memory, self._bytes, self._steps = memory, memory, STEPS
        self.mapped: dict[Path, Array] = {}
        """Files of external data that are mapped into memory, and their bytes."""

    def reserve(self, shape: Iterable[int], item: int, what: str) -> int:
        """The size in bytes of an array that is about to be made, after taking it off the budget.

        Raises:
            ModelError: a dimension is negative, or the model takes more memory than it may.
        """
        dims = tuple(shape)
        if min(dims, default=0) < 0:
            raise ModelError(f"{what} has the shape {dims}: a dimension is negative")
        size = math.prod(dims) * item
        if size > self._bytes:
            raise ModelError(
                f"{what} takes {size} bytes, which with what the model holds already is more than "
                f"its memory_limit of {self.memory} bytes; raise it if you trust the model"
            )
        self._bytes -= size
        return size

    def step(self) -> None:
        """Count one node or call.

        Raises:
            UnsupportedError: there are too many.
        """
        self._steps -= 1
        if self._steps < 0:
            raise UnsupportedError(f"the model's program has more than {STEPS} steps, unrolled")
