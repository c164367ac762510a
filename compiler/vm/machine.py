"""Runs bytecode. Calls have a stack of their own, so that recursion may be deep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compiler.errors import InputError
from compiler.interpret.graph import MOST_FRAMES
from compiler.interpret.iterations import most_iterations
from compiler.symbolic import Var as Dim
from compiler.vm.image import Image
from compiler.vm.steps import Block, Code, Registers


class Machine:
    """Runs an image, in one thread."""

    def __init__(self, image: Image):
        self.code = Code(image)

    def run(self, args: Sequence[Any], dims: Mapping[Dim, int]) -> list[Any]:
        """What `main` returns for operands of its types, and the dimensions they show.

        Raises:
            InputError: sizes found at run time contradict each other, or a recursion is too deep.
        """
        self.code.most_turns = most_iterations()
        main, at = self.code.entries[0], 0
        blocks, r = main.ready(), [*args, *main.empty, dict(dims)]
        under_way: list[tuple[list[Block], Registers, int, int]] = []
        while True:
            steps, jump, call, results = blocks[at]
            for step in steps:
                step(r)
            if jump is not None:
                at = jump(r)
            elif call is not None:
                under_way.append((blocks, r, call.then, call.out))
                if len(under_way) >= MOST_FRAMES:
                    raise InputError(
                        f"more than {MOST_FRAMES} calls are under way: is there an end to it?"
                    )
                entry, r = call.enter(r)
                blocks, at = entry.blocks or entry.ready(), 0
            else:
                assert results is not None
                values = results(r)
                if not under_way:
                    return list(values)
                blocks, r, at, out = under_way.pop()
                r[out] = values[0] if len(values) == 1 else values
