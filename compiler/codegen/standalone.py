"""What a program that stands alone has besides kernels and steps: its constants, and one function
that whoever links it calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.types.dtypes import Array

ALIGN = 64
"""Bytes at whose multiples constants and the arena begin."""


def run_params(mapped: bool) -> str:
    """Parameters in C of the function that is called: tables of pointers to the inputs and outputs,
    the symbolic dimensions, the file of weights (if they are in one: `mapped`), memory for what is
    between."""
    weights = "const void *weights, " if mapped else ""
    return (
        "const void *const *inputs, void *const *outputs, const int64_t *dims, "
        f"{weights}void *arena"
    )


@dataclass(frozen=True)
class Standalone:
    """How a program is called from outside.

    Attributes:
        name: what its public symbols begin with: `NAME_run` (see `run_params`; it returns 0), and
            `NAME_description`, which returns `description`.
        symbol: the program's entry point (see `compiler.codegen.backend.Backend.entry`).
        constants: what the steps refer to by number.
        mapped: whether the constants are in a file of their own, at `offsets`, whose content the
            caller gives.
        description: one line of ASCII that says what it is.
        more: further functions in C, for backends that write it.
        passed: whether `NAME_run` has the argument `weights`, although it is not `mapped`, since
            what calls it passes one to every program.
    """

    name: str
    symbol: str
    constants: tuple[Array, ...]
    mapped: bool
    description: str
    more: str = ""
    passed: bool = False

    @property
    def offsets(self) -> list[int]:
        """Where each constant begins in a file of them, and how long that is."""
        out = [0]
        for a in self.constants:
            out.append(-(-(out[-1] + a.nbytes) // ALIGN) * ALIGN)
        return out


def weights_file(constants: Sequence[Array], offsets: Sequence[int]) -> bytes:
    """The constants in one piece."""
    out = np.zeros(offsets[-1], np.uint8)
    for a, at in zip(constants, offsets, strict=False):
        out[at : at + a.nbytes] = np.frombuffer(a.tobytes(), np.uint8)
    return out.tobytes()
