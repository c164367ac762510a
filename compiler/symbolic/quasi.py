"""Operations of symbolic integers that did not simplify: atoms of the canonical form; and
bounds of sums and operations from those of their operands."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.symbolic.index import Index, IntLike, Var

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "*": operator.mul,
}
Bounds = tuple[int | None, int | None]
"""The smallest and the largest value; None: unknown."""


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


def sum_bounds(const: int, terms: Iterable[tuple[Bounds, int]]) -> Bounds:
    """Bounds of `const` and terms, of which each is (bounds of a number, what it is times)."""
    lo: int | None = const
    hi: int | None = const
    for (low, high), c in terms:
        if c < 0:
            low, high = high, low
        lo = None if lo is None or low is None else lo + c * low
        hi = None if hi is None or high is None else hi + c * high
    return lo, hi


def operation_bounds(op: str, a: Bounds, b: Bounds) -> Bounds:
    """Bounds of `a op b`, where op is `//`, `%`, `min` or `*`."""
    (al, ah), (bl, bh) = a, b
    if op == "%" and bh is not None:
        return 0, bh - 1
    if op == "//" and bl is not None and bl > 0:
        if bh == bl:
            return None if al is None else al // bl, None if ah is None else ah // bl
        return 0 if al is not None and al >= 0 else None, ah
    if op == "min":
        lo = None if al is None or bl is None else min(al, bl)
        return lo, min((h for h in (ah, bh) if h is not None), default=None)
    if op == "*" and al is not None and bl is not None and al >= 0 and bl >= 0:
        return al * bl, None if ah is None or bh is None else ah * bh
    return None, None


def function_of(i: Index, variables: Sequence[Var]) -> Callable[..., int]:
    """What computes the value of `i` from those of its variables, in that order: for what is
    computed often, since it takes a tenth of the time of `Index.value`."""
    lines: list[str] = []
    names: dict[Any, str] = {v: f"v{k}" for k, v in enumerate(variables)}
    head = f"def value({', '.join(names.values())}):"

    def text(i: Index) -> str:
        return " + ".join([*(f"{c} * {atom(a)}" for a, c in i.terms.items()), str(i.const)])

    def atom(a: Var | Quasi) -> str:
        if a not in names:
            assert isinstance(a, Quasi)  # else a variable is missing
            p, q = text(a.a), text(a.b)
            names[a] = f"t{len(names)}"
            body = f"min({p}, {q})" if a.op == "min" else f"({p}) {a.op} ({q})"
            lines.append(f"    {names[a]} = {body}")
        return names[a]

    result = text(i)
    made: dict[str, Any] = {"__builtins__": {"min": min}}
    exec("\n".join([head, *lines, f"    return {result}"]), made)
    out: Callable[..., int] = made["value"]
    return out
