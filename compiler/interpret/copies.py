"""Asynchronous copies, interpreted: what is stored appears as late as it may, when its thread
waits for it.

Between the copy and the wait it could come at any time, so nobody may touch the element.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compiler.errors import LoweringError
from compiler.tensor.expr import Buffer

Element = tuple[Buffer, tuple[int, ...], int]
"""A buffer, where an element is in it, and its number there."""


@dataclass
class Copies:
    """Those that one thread has begun and not waited for.

    Attributes:
        arriving: the elements that any thread of the block waits for.
        begun: since the last commit.
        groups: those before, the oldest first.
    """

    arriving: set[tuple[Buffer, int]]
    begun: list[tuple[Element, Any]] = field(default_factory=list)
    groups: list[list[tuple[Element, Any]]] = field(default_factory=list)

    def begin(self, where: Element, value: Any) -> None:
        """Copy a value to an element."""
        self.begun.append((where, value))
        self.arriving.add((where[0], where[2]))

    def commit(self) -> None:
        """What was begun is a group."""
        self.groups.append(self.begun)
        self.begun = []

    def wait(self, left: int) -> list[tuple[Element, Any]]:
        """What has arrived when all groups but the newest `left` have."""
        done = max(0, len(self.groups) - left)
        found = [x for group in self.groups[:done] for x in group]
        del self.groups[:done]
        self.arriving -= {(b, position) for (b, _, position), _ in found}
        return found

    def end(self) -> None:
        """The thread has ended.

        Raises:
            LoweringError: it has not waited for all of them.
        """
        left = [x for group in (*self.groups, self.begun) for x in group]
        if left:
            raise LoweringError(f"a thread ends before its copies to {left[0][0][0].name} arrive")
