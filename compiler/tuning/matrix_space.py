"""How the products of matrices of a stage may be walked: all choices that there are."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product

from compiler.scheduling.matrix_choice import MatrixChoice

AHEAD = (None, 0, 2048, 8192, 32768, 131072)
"""Bytes by which weights are fetched ahead; None: as the rules do."""
RULE, *OTHERS = (MatrixChoice(*c) for c in product((None, False, True), AHEAD))


@dataclass(frozen=True)
class MatrixSpace:
    """The choices for one stage, few enough to list."""

    def sample(self, rng: random.Random) -> MatrixChoice:
        """Something else than the rules."""
        return rng.choice(OTHERS)

    def mutate(self, c: MatrixChoice, rng: random.Random) -> MatrixChoice:
        """A choice that differs in one decision."""
        return rng.choice([x for x in (RULE, *OTHERS) if differences(c, x) == 1])

    def cross(self, a: MatrixChoice, b: MatrixChoice, rng: random.Random) -> MatrixChoice:
        """The order of the one, and what the other fetches ahead."""
        first, second = rng.sample((a, b), 2)
        return replace(first, ahead=second.ahead)

    def neighbours(self) -> list[MatrixChoice]:
        """Those that differ from the rules in one decision."""
        return [c for c in OTHERS if differences(c, RULE) == 1]


def differences(a: MatrixChoice, b: MatrixChoice) -> int:
    """How many decisions differ."""
    return (a.columns_first != b.columns_first) + (a.ahead != b.ahead)


__all__ = ["OTHERS", "MatrixSpace"]
