"""What a machine runs: functions, compiled regions and constants."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.runtime.executable import GraphExecutable
from compiler.types.dtypes import Array
from compiler.vm.bytecode import VMFunction


@dataclass(frozen=True)
class Image:
    """All that a machine needs.

    Attributes:
        functions: the code; the first one is `main`.
        regions: compiled operators, by the numbers that instructions give them.
        constants: tensors that instructions load.
    """

    functions: tuple[VMFunction, ...]
    regions: tuple[GraphExecutable, ...]
    constants: tuple[Array, ...]
