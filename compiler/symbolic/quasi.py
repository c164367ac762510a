"""Operations of symbolic integers that did not simplify: atoms of the canonical form."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from compiler.symbolic.bounds import Bounds, operation_bounds

if TYPE_CHECKING:
    from compiler.symbolic.index import Index, IntLike, Var

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "*": operator.mul,
}


class Quasi:
    """A non-linear node, compared by value: op is one of `//`, `%`, `min`, `*`."""

    __slots__ = ("_hash", "_leaves", "a", "b", "op")

    def __init__(self, op: str, a: Index, b: Index):
        self.op, self.a, self.b = op, a, b
        self._leaves = a.vars() | b.vars()
        self._hash = hash((op, a, b))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Quasi):
            return NotImplemented
        return self.op == other.op and self.a == other.a and self.b == other.b

    def __hash__(self) -> int:
        return self._hash

    def leaves(self) -> set[Var]:
        """The variables below."""
        return self._leaves

    def bounds(self) -> Bounds:
        """Inclusive bounds of the node."""
        return operation_bounds(self.op, self.a.range(), self.b.range())

    def replaced(self, m: Mapping[Var, IntLike]) -> Index:
        """The node over substituted operands, simplified."""
        return self.of(self.a.subst(m), self.b.subst(m))

    def of(self, a: Index, b: Index) -> Index:
        """The node over other operands, simplified."""
        out: Index = a.minimum(b) if self.op == "min" else _OPERATORS[self.op](a, b)
        return out

    def eval(self, env: Mapping[Var, Any]) -> Any:
        """The node's value under `env`."""
        a, b = self.a.value(env), self.b.value(env)
        if self.op == "min":
            import numpy as np

            return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)
        return _OPERATORS[self.op](a, b)

    def larger(self) -> str:
        """-min(a, b) as a text: max(-a, -b) where that has no signs; else empty."""
        parts = [n for i in (self.a, self.b) for n in (*i.terms.values(), i.const)]
        return f"max({-self.a}, {-self.b})" if self.op == "min" and max(parts) <= 0 else ""

    def __repr__(self) -> str:
        if self.op == "min":
            return f"min({self.a}, {self.b})"
        left = f"({self.a})" if len(self.a.terms) > 1 or self.a.const else str(self.a)
        right = (
            f"({self.b})"
            if len(self.b.terms) > 1 or (self.b.terms and self.b.const)
            else str(self.b)
        )
        return f"({left} {self.op} {right})"
