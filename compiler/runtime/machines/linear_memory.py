"""Where things are in the memory of a machine with 32-bit addresses that begins at 0: weights, the
arena, inputs and outputs behind what a module uses itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.standalone import ALIGN
from compiler.errors import OutOfMemoryError
from compiler.types.dtypes import Array

PAGE = 1 << 16
"""Bytes in which a WebAssembly memory grows."""


LIMIT = (1 << 32) - PAGE
"""Bytes that there are addresses for, with room for small tables."""


def no_memory(size: int) -> OutOfMemoryError:
    """What to say where there is no room for so many bytes."""
    return OutOfMemoryError(
        f"no memory for {size / 2**30:.3g} GiB in WebAssembly, which has 4 at most"
    )


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True)
class Call:
    """A call of `net_run`.

    Attributes:
        at: where `tables` are to be written.
        tables: of pointers to inputs and outputs, and of dimensions.
        inputs, outputs: where the arrays are.
        arguments: what the function is given.
        end: behind everything.
    """

    at: int
    tables: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: tuple[int, ...]
    end: int


class Layout:
    """The memory of an instance.

    Attributes:
        weights: where they are.
        floor: behind them.
    """

    def __init__(self, base: int, weights: int):
        self.weights = _up(base)
        self.floor = _up(self.weights + weights)

    def call(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> Call:
        """Where a call's arrays are, one behind the other; a little apart, so that none is where
        another one ends.

        Raises:
            OutOfMemoryError: there are no addresses for all that.
        """
        at, places = self.floor + _up(max(arena, 1)), []
        for a in (*inputs, *outputs):
            places.append(at)
            at += _up(a.nbytes + 1)
        if at > LIMIT:
            raise no_memory(at)
        pointers = struct.pack(f"<{len(places)}I", *places)
        pointers += bytes(-len(pointers) % 8)
        tables = pointers + struct.pack(f"<{len(dims)}q", *dims)
        count = len(inputs)
        arguments = (at, at + 4 * count, at + len(pointers), self.weights, self.floor)
        return Call(
            at, tables, tuple(places[:count]), tuple(places[count:]), arguments, at + len(tables)
        )
