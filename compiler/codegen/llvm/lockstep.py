"""Straight code of several like statements, one after another, as code of several at once.

The operations of a long expression wait for each other, and processors look ahead over two or three
such expressions only; where several take turns, line by line, all of them are under way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

TOGETHER = 4
"""Statements that take turns: more need more registers than there are."""
LONG = 32
"""Lines of a statement from which on that pays: no shorter one was measured to gain."""
_NAME = re.compile(r"%[\w.]+")


def in_lockstep(lines: Sequence[str], ends: Sequence[int]) -> list[str]:
    """`lines`, statements of which the k-th ends before line `ends[k]`, in an order in which
    `TOGETHER` statements at a time take turns, no line before one whose value it uses; as they
    are, if the statements are short.

    Args:
        lines: LLVM text without labels and branches; every statement stores once, at its end, and
            none reads what another one stores.
        ends: ascending; the last is the number of lines.
    """
    if len(lines) < LONG * len(ends):
        return list(lines)
    parts = [list(lines[a:b]) for a, b in itertools.pairwise([0, *ends])]
    out: list[str] = []
    for k in range(0, len(parts), TOGETHER):
        out += _taking_turns(parts[k : k + TOGETHER])
    return out


def _taking_turns(parts: Sequence[list[str]]) -> list[str]:
    out: list[str] = []
    pending = {_defined(line) for part in parts for line in part}
    left = [list(reversed(part)) for part in parts]
    while any(left):
        for part in left:
            if part and not pending.intersection(_used(part[-1])):
                line = part.pop()
                pending.discard(_defined(line))
                out.append(line)
    return out


def _defined(line: str) -> str:
    name, found, _ = line.partition(" = ")
    return name.strip() if found else ""


def _used(line: str) -> list[str]:
    return _NAME.findall(line.partition(" = ")[2] or line)
