"""What is known at the place that code is being written for."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.symbolic import Var
from compiler.target.emit import Emitter, Val
from compiler.tensor.expr import Buffer

Registers = dict[tuple[Buffer, int, tuple[int, ...]], Val]
Cursors = dict[Buffer, tuple[Val, dict[Var, int]]]


@dataclass
class Scope:
    """State that addresses, accesses, expressions and statements share.

    Attributes:
        e: what writes the text.
        env: loop variables and dimensions: an int where it is known, else a value.
        lanes: the vector loops around, and their extents.
        regs: what register buffers hold: (buffer, offset, lane pattern) -> value.
        memo: values that need not be computed again here.
        cursor: buffer -> its pointer, and by how many elements that moves with which variable.
        ahead: name of such a pointer -> elements by which it is ahead of that (negative: behind).
    """

    e: Emitter = field(default_factory=Emitter)
    env: dict[Var, int | Val] = field(default_factory=dict)
    lanes: list[tuple[Var, int]] = field(default_factory=list)
    regs: Registers = field(default_factory=dict)
    memo: dict[object, Val] = field(default_factory=dict)
    cursor: Cursors = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Number of lanes here."""
        n = 1
        for _, k in self.lanes:
            n *= k
        return n
