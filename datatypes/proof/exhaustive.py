"""All 2**(2 * nbits) pairs of operands, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from compiler.types.dtypes import Array
from datatypes.formats import Format
from datatypes.proof import integers, peers
from datatypes.proof.report import EXAMPLES, Row, compared
from datatypes.proof.subject import BLOCK, Subject

_FIRST_OPERANDS = 64
"""Of which a task takes all pairs: some tenths of a second."""


def all_pairs(subject: Subject, op: str, advance: Callable[[int], None]) -> list[Row]:
    """Every pair of codes of a 16-bit format: compiled code against the judge in integers, and the
    judge against a peer if there is one.

    `advance` is told numbers of pairs as they are done.
    """
    fmt, other = subject.fmt, peers.find(subject.fmt, op)
    every = np.arange(BLOCK).astype(fmt.storage)
    judge, name = integers.kernel(fmt, op), f"{op} of all pairs"

    def task(start: int) -> list[Row]:
        trial, second = _Tally(name, "integers", fmt, subject.target), None
        if other is not None:
            second = _Tally(f"{op}, all pairs: integers", other.name, fmt, "")
        for first in range(start, min(start + _FIRST_OPERANDS, BLOCK)):
            a = np.full(BLOCK, first, fmt.storage)
            want = judge(a, every)
            trial.add(a, every, subject.apply(op, a, every), want)
            if second is not None and other is not None:
                second.add(a, every, want, other.apply(a, every))
            advance(BLOCK)
        return [tally.row for tally in (trial, second) if tally is not None]

    subject.apply(op, every, every)  # compiled before threads ask for it
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(task, range(0, BLOCK, _FIRST_OPERANDS)))
    return [_merged(rows) for rows in zip(*results, strict=True)]


class _Tally:
    """A row that grows."""

    def __init__(self, name: str, against: str, fmt: Format, target: str):
        self.row = Row(name, 0, against, target)
        self.fmt = fmt

    def add(self, a: Array, b: Array, got: Array, want: Array) -> None:
        old = self.row
        if np.array_equal(got, want):
            self.row = replace(old, cases=old.cases + a.size)
            return
        operands = [(self.fmt, a), (self.fmt, b)]
        new = compared(old.name, operands, self.fmt, got, want, old.against, old.target)
        self.row = _merged([old, new])


def _merged(rows: tuple[Row, ...] | list[Row]) -> Row:
    """One row of several of the same property."""
    examples = tuple(example for row in rows for example in row.examples)[:EXAMPLES]
    cases, wrong = sum(row.cases for row in rows), sum(row.wrong for row in rows)
    return replace(rows[0], cases=cases, wrong=wrong, examples=examples)
