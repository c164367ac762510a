"""Stochastic rounding: datatypes that round so, and the places in a program that they hash."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from compiler.tensor.custom_dtypes import LoweredDType
from compiler.tensor.expr import Expr
from compiler.types.dtypes import Array, DType, custom


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a program a rounding happens; stochastic rounding hashes it.

    Attributes:
        node: number of the binding (see `node_number`).
        index: flat position in the result that is rounded. An integer array; in a loop nest an
            int64 expression.
        step: how many roundings its operator did before, in the order of the operator's reference,
            for every element of the result; as `index`.
    """

    node: int
    index: Any
    step: Any


@runtime_checkable
class RandomDType(LoweredDType, Protocol):
    """A custom datatype that may round stochastically: `random` says whether it does.

    Then Add, Sub, Mul, Div, fma and conversions to it are given their place. Constants have none:
    they are rounded to the nearest value, as `encode` does.
    """

    @property
    def random(self) -> bool:
        """Whether results depend on the place."""
        ...

    def lower_at(self, node: Expr, target: str, place: Place) -> Expr:
        """`lower` at a place of expressions."""
        ...

    def apply_at(self, op: str, dtype: DType, place: Place, *args: Array) -> Array:
        """`apply` at a place of arrays."""
        ...

    def encode_at(self, values: Array, dtype: DType, place: Place) -> Array:
        """`encode` at a place of arrays."""
        ...


PLACED = ("Add", "Sub", "Mul", "Div", "fma")
"""The operations, besides conversions, that a `RandomDType` rounds stochastically."""


def random_dtype(dtype: DType) -> RandomDType | None:
    """The datatype of `dtype` if it rounds stochastically."""
    if not dtype.is_custom:
        return None
    kind = custom(dtype.name)
    return kind if isinstance(kind, RandomDType) and kind.random else None


def node_number(name: str) -> int:
    """Number of the binding whose variable is called `name`: a checksum of 32 bits."""
    return zlib.crc32(name.encode())
