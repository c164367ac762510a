"""Loops over blocks and threads, interpreted one iteration after another.

The threads of a block are coroutines that run up to the next barrier in turn. What they share may
not depend on who comes first: an element that one iteration stores and another reads or stores,
with no barrier between them, is an error, as it is between blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from compiler.errors import LoweringError
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer
from compiler.tensor.lanes import points
from compiler.tensor.stmt import Barrier, For, family

SEVERAL = -1
"""Stands for more than one iteration."""


@dataclass
class Sharing:
    """Which iteration of a nest read and stored which elements since they last waited for each
    other. `current`: the iteration that runs."""

    what: str
    scopes: tuple[str, ...]
    current: int = 0
    stored: dict[tuple[Buffer, int], int] = field(default_factory=dict)
    read: dict[tuple[Buffer, int], int] = field(default_factory=dict)

    def load(self, b: Buffer, position: int) -> None:
        """The current iteration reads an element.

        Raises:
            LoweringError: another one has stored it.
        """
        if b.scope in self.scopes:
            key, me = (b, position), self.current
            if self.stored.get(key, me) != me:
                raise LoweringError(f"one {self.what} reads what another stores of {b.name}")
            self.read[key] = me if self.read.get(key, me) == me else SEVERAL

    def store(self, b: Buffer, position: int) -> None:
        """The current iteration stores an element.

        Raises:
            LoweringError: another one has read or stored it.
        """
        if b.scope in self.scopes:
            key, me = (b, position), self.current
            if self.stored.get(key, me) != me or self.read.get(key, me) != me:
                raise LoweringError(f"two {self.what}s meet in an element of {b.name}")
            self.stored[key] = me

    def forget(self) -> None:
        """All iterations have waited for each other."""
        self.stored.clear()
        self.read.clear()


def nest_of(loop: For) -> tuple[list[For], list[int] | None]:
    """The loops of one family that are directly inside each other, from `loop` on, and their
    extents if these are constants."""
    chain = [loop]
    while len(body := chain[-1].body) == 1 and isinstance(inner := body[0], For):
        if family(inner) != family(loop):
            break
        chain.append(inner)
    sizes = [f.extent.constant() for f in chain]
    known = [n for n in sizes if n is not None]
    return chain, known if len(known) == len(chain) else None


def iterations(loop: For, env: dict[Var, int]) -> tuple[list[For], list[dict[Var, int]]]:
    """The nest that begins with `loop`, and the values of its variables in each iteration."""
    chain, known = nest_of(loop)
    sizes = [int(Index.of(f.extent).value(env)) for f in chain] if known is None else known
    each = [dict(zip((f.var for f in chain), x, strict=True)) for x in points(sizes)]
    return chain, each


def in_turn(
    threads: list[Iterator[Barrier]], resume: Callable[[int], None], sharing: Sharing
) -> None:
    """Run coroutines, each up to its next barrier, until all have ended. `resume` is called with
    the number of one before it goes on.

    Raises:
        LoweringError: some wait at a barrier that others do not come to.
    """
    ended = object()
    while True:
        reached = []
        for k, thread in enumerate(threads):
            resume(k)
            sharing.current = k
            reached.append(next(thread, ended))
        if all(x is ended for x in reached):
            return
        if any(x is not reached[0] for x in reached):
            raise LoweringError("some threads wait at a barrier that others do not come to")
        sharing.forget()
