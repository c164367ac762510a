"""What an operator's definition says of its derivative: a rule, or why there is none.

A rule gets a `Step`, a call that is differentiated, and gives for each operand the gradient that it
gets, as graph expressions: by the chain rule, the cotangent of the result times the derivative
(reverse mode; Griewank and Walther, Evaluating Derivatives, 2008). It is written with the existing
operators, whose order of operations is its meaning in every format. What is written where, is said
in `compiler/op/gradients`, a file a family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from compiler.errors import UnsupportedError
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType

Value = Any
"""An expression of a graph, variable or constant: `compiler.ir` is above operators."""
Parts = Sequence[Value | None]
"""A gradient for each operand; None: it gets none."""


class Step(Protocol):
    """A call that is differentiated."""

    @property
    def attrs(self) -> Any:
        """Its attributes."""
        ...

    @property
    def args(self) -> Sequence[Value]:
        """Its operands."""
        ...

    @property
    def result(self) -> Value:
        """What it gives."""
        ...

    @property
    def cotangents(self) -> Sequence[Value | None]:
        """What flows back into its result, of the result's type; of a tuple one for each field,
        None where nothing does."""
        ...

    @property
    def wants(self) -> Sequence[bool]:
        """Which operands' gradients are asked for; others may be left out."""
        ...

    @property
    def cotangent(self) -> Value:
        """What flows back into a result that is one tensor."""
        ...

    @property
    def dtype(self) -> DType:
        """The dtype of the cotangent, in which numbers are."""
        ...

    def type(self, x: Value) -> TensorType:
        """The type of a tensor."""
        ...

    def call(self, op: str, *args: Value, **attrs: Any) -> Value:
        """The operator called `op` on expressions."""
        ...

    def number(self, value: float) -> Value:
        """A scalar of the cotangent's dtype, the nearest to `value`."""
        ...

    def full(self, value: float, shape: Sequence[Any]) -> Value:
        """A tensor of the cotangent's dtype that holds one number, nearest to `value`."""
        ...

    def numbers(self, values: Array) -> Value:
        """A constant of the cotangent's dtype, each element the nearest to one of `values`."""
        ...

    def integers(self, value: Any) -> Value:
        """An int64 constant."""
        ...

    def count(self, x: Value, axes: Sequence[int]) -> Value:
        """How many elements `x` has along `axes` together: a scalar of the cotangent's dtype."""
        ...

    def refuse(self, why: str) -> UnsupportedError:
        """The error that says why this call has no gradient, for the rule to raise."""
        ...


Gradient = Callable[[Step], Parts]


def flat(s: Step) -> Parts:
    """Of an operator whose result is constant wherever it is continuous (floor, sign, comparisons),
    or made of sizes alone: nothing flows back."""
    return [None] * len(s.args)


INTEGERS = "it computes with integers"
ON_GRID = "it rounds to a grid, which is constant between jumps"
LOWERED = "it stands for others only when a program is compiled: take the gradient before"
