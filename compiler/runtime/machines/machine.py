"""What runs programs for another architecture: the protocol of all machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from compiler.runtime.machines.image import Image
from compiler.target.registry import Target
from compiler.types.dtypes import Array


class Loaded(Protocol):
    """A program on a machine, which keeps it until nobody holds this any more."""

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> int | None:
        """Call it: fill `outputs`. The arrays are contiguous, of the dtypes that the program's
        types are stored in.

        Args:
            dims: values of the program's symbolic dimensions.
            arena: bytes of intermediate memory that these need.

        Returns:
            How many instructions it took; None, if the machine does not count them.

        Raises:
            MachineError: the machine has stopped, or the program has failed on it.
            OutOfMemoryError: the machine has no room for that.
        """


class Machine(Protocol):
    """A way to run programs of some architectures here.

    Attributes:
        name: what targets call it (`-runner=`).
        emulated: whether its times say nothing of a real machine's. WebAssembly engines run code of
            their own for this processor: their times are what they are.
    """

    name: str
    emulated: bool

    def missing(self, target: Target) -> str:
        """What must be installed to run code for a target, in one sentence; empty: nothing."""

    def load(self, image: Image) -> Loaded:
        """Link a program and take it to the machine.

        Raises:
            LoweringError: it cannot be linked.
            MachineError: the machine does not start, or rejects it.
        """
