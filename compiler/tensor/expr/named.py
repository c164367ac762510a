"""Values that have a name (`Let`), or a place at which they are rounded (`At`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.tensor.expr.node import Expr
from compiler.types.dtypes import DType


@dataclass(frozen=True, eq=False, repr=False)
class At(Expr):
    """`value`, whose last operation rounds stochastically at a place
    (`compiler.arithmetic.stochastic.Place`): binding `node`, position `index`, step `step`. Around
    the value of a Store with an update, the place is that of the update."""

    value: Expr
    node: int
    index: Expr
    step: Expr

    @property
    def dtype(self) -> DType:
        """dtype of the value."""
        return self.value.dtype

    def children(self) -> tuple[Expr, ...]:
        """The value, the position and the step."""
        return (self.value, self.index, self.step)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """Another value at another place of the same binding."""
        value, index, step = children
        return At(value, self.node, index, step)

    def __repr__(self) -> str:
        return f"at({self.value!r}, {self.node}, {self.index!r}, {self.step!r})"


@dataclass(frozen=True, eq=False, repr=False)
class LetVar(Expr):
    """A name bound by `Let`."""

    name: str
    dtype: DType

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, repr=False)
class Let(Expr):
    """`body`, in which `var` stands for `value`, evaluated once (so that walks and text stay
    short)."""

    var: LetVar
    value: Expr
    body: Expr

    @property
    def dtype(self) -> DType:
        """dtype of the body."""
        return self.body.dtype

    def children(self) -> tuple[Expr, ...]:
        """The value and the body."""
        return (self.value, self.body)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same binding of another value in another body."""
        return Let(self.var, *children)

    def __repr__(self) -> str:
        return f"(let {self.var!r} = {self.value!r} in {self.body!r})"


def let(value: Expr, body: Callable[[Expr], Expr], name: str = "t") -> Expr:
    """`body(value)` with `value` evaluated once, however often the body uses it."""
    var = LetVar(name, value.dtype)
    return Let(var, value, body(var))
