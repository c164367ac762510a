"""Sites of stochastic roundings: how one call of an operator numbers them."""

from __future__ import annotations

import math

import numpy as np

from compiler.arithmetic.stochastic import Place
from compiler.errors import UnsupportedError
from compiler.types.dtypes import Array


class RoundingSites:
    """Numbers the stochastic roundings of one operator call in the order of its reference.

    `operator` is None for one whose loop nest numbers them alike; else it is named in the error
    that asking for a place raises.
    """

    def __init__(self, node: int, operator: str | None = None, step: int = 0):
        self.node, self.operator, self.step = node, operator, step

    def next(self, shape: tuple[int, ...], at: Array | None) -> Place:
        """Place of the next rounding, of a result of `shape`, whose flat positions are `at`.

        Raises:
            UnsupportedError: the operator does not number its roundings.
        """
        if self.operator is not None:
            raise UnsupportedError(not_numbered(self.operator))
        index = np.arange(math.prod(shape)).reshape(shape) if at is None else at
        self.step += 1
        return Place(self.node, index, self.step - 1)


def not_numbered(operator: str) -> str:
    """What to say of an operator in which stochastic rounding is not defined."""
    return (
        f"{operator} does not number its roundings, so that it cannot round stochastically; "
        "compute it in a format with another rounding"
    )
