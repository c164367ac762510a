"""Equalities of dimensions that are assumed: what follows from them is simplified with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, lcm

from compiler.symbolic.index import Atom, Index, IntLike, Var, without_shared
from compiler.symbolic.quasi import Quasi

Dim = int | Index
"""One dimension of a tensor type: a known size, or a symbolic one."""


def dim(x: IntLike) -> Dim:
    """`x` as an int where it is known, else as an Index."""
    if isinstance(x, Index):
        return x if x.terms else x.const
    return int(x)


def product(xs: Iterable[IntLike]) -> Dim:
    """Product of dimensions."""
    known, symbolic = 1, []
    for x in xs:
        if isinstance(x, Index):
            symbolic.append(x)
        else:
            known *= int(x)
    out: IntLike = known
    for i in symbolic:
        out = i * out
    return dim(out)


def ceil_div(a: IntLike, b: int) -> Dim:
    """Smallest integer >= a / b."""
    return dim((a + (b - 1)) // b)


_ROUNDS = 16
"""How often an expression is rewritten: enough for chains of facts, and it ends."""


@dataclass(frozen=True)
class Rule:
    """`times` x `atom` is `value`, which does not hold the atom itself."""

    atom: Atom
    times: int
    value: Index


class Facts:
    """Equalities that hold in a program. Each becomes a rule that rewrites one atom of it."""

    def __init__(self) -> None:
        self.rules: tuple[Rule, ...] = ()
        self._known: tuple[tuple[Rule, ...], dict[Index, Index]] = (), {}

    def simplified(self, x: IntLike) -> Dim:
        """`x` with all rules applied, inside its parts too."""
        if not self.rules or isinstance(x, int):
            return dim(x)
        if self._known[0] != self.rules:
            self._known = self.rules, {}
        known = self._known[1]
        if x not in known:
            out = x
            for _ in range(_ROUNDS):
                new = self._rewritten(out)
                if new == out:
                    break
                out = new
            known[x] = out
        return dim(known[x])

    def equal(self, a: IntLike, b: IntLike) -> bool:
        """Whether it follows that a = b."""
        return self.simplified(Index.of(a) - b) == 0

    def contradicted(self, a: IntLike, b: IntLike, least: int = 1) -> bool:
        """Whether a = b is impossible, where every dimension is at least `least`."""
        difference = Index.of(self.simplified(Index.of(a) - b))
        if not difference.terms:
            return difference.const != 0
        low, high = difference.range()
        if least >= 1 and ((low is not None and low > 0) or (high is not None and high < 0)):
            return True
        return bool(difference.const % gcd(*difference.terms.values()))

    def add(self, a: IntLike, b: IntLike) -> None:
        """Assume that a = b, which is neither known nor impossible."""
        difference = without_shared(Index.of(self.simplified(Index.of(a) - b)))[0]
        rule = _oriented(difference)
        if rule is not None:
            self.rules = (*self.rules, rule)

    def _rewritten(self, i: Index) -> Index:
        out = Index(const=i.const)
        for atom, c in i.terms.items():
            rule = next((r for r in self.rules if r.atom == atom and c % r.times == 0), None)
            if rule is not None:
                out = out + rule.value * (c // rule.times)
            elif isinstance(atom, Quasi):
                parts = Index.of(self.simplified(atom.a)), Index.of(self.simplified(atom.b))
                out = out + atom.of(*parts) * c
            else:
                out = out + Index({atom: c})
        return out


def _oriented(zero: Index) -> Rule | None:
    """`zero` = 0 as a rule for the atom that is best written by the others."""
    best: tuple[tuple[object, ...], Rule] | None = None
    for atom, c in zero.terms.items():
        rest = Index({a: k for a, k in zero.terms.items() if a != atom}, zero.const)
        if _holds(rest, atom):
            continue
        value = rest * (-1 if c > 0 else 1)
        # Rounded quotients before dimensions, which say more; names that we made up before others.
        named = isinstance(atom, Var) and not atom.name.lstrip("d").isdigit()
        rank = (abs(c) != 1, named, isinstance(atom, Var), -len(str(atom)), str(atom))
        if best is None or rank < best[0]:
            best = rank, Rule(atom, abs(c), value)
    return None if best is None else best[1]


def _holds(i: Index, atom: Atom) -> bool:
    """Whether `atom` is in the expression, or in a part of it."""
    for a in i.terms:
        if a == atom or (isinstance(a, Quasi) and (_holds(a.a, atom) or _holds(a.b, atom))):
            return True
    return False


def period(*sides: IntLike) -> int:
    """A number of which a size may be any multiple for all quotients in `sides` to be exact: the
    least common multiple of what is divided by."""

    def of(i: Index) -> int:
        out = 1
        for a in i.terms:
            if isinstance(a, Quasi):
                by = a.b.constant() if a.op in ("//", "%") else None
                out = lcm(out, of(a.a), of(a.b), by or 1)
        return out

    return lcm(*(of(Index.of(s)) for s in sides))
