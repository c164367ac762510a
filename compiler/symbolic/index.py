"""The canonical form: `Index`, its atoms `Var` and `Quasi`, and what simplifies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, Union

from compiler.symbolic.quasi import Bounds, Quasi, sum_bounds

IntLike = Union["Index", int]


class Index:
    """A canonical integer expression. Immutable; equal expressions compare and hash equal."""

    __slots__ = ("_hash", "const", "terms")
    terms: dict[Atom, int]
    const: int

    def __init__(self, terms: Mapping[Atom, int] | None = None, const: int = 0):
        self.terms = {a: c for a, c in terms.items() if c} if terms else {}
        self.const = const
        self._hash: int | None = None

    @staticmethod
    def of(x: IntLike) -> Index:
        """`x` as an Index."""
        return x if isinstance(x, Index) else Index(const=int(x))

    # ---- arithmetic ------------------------------------------------------------------------------
    def __add__(self, other: IntLike) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        if not isinstance(other, Index):
            return NotImplemented
        terms = dict(self.terms)
        for a, c in other.terms.items():
            terms[a] = terms.get(a, 0) + c
        return Index(terms, self.const + other.const)

    def __mul__(self, other: IntLike) -> Index:
        if isinstance(other, int):
            return Index({a: c * other for a, c in self.terms.items()}, self.const * other)
        if not isinstance(other, Index):
            return NotImplemented
        k = other
        if not k.terms:
            return self * k.const
        if not self.terms:
            return k * self.const
        out = Index()
        for a, c in [*self.terms.items(), (None, self.const)]:
            for b, d in [*k.terms.items(), (None, k.const)]:
                if a is None or b is None:
                    atom = a if b is None else b
                    out = out + (Index({atom: c * d}) if atom is not None else c * d)
                elif c and d:
                    out = out + Index({_product(factors_of(a) + factors_of(b)): c * d})
        return out

    def __sub__(self, other: IntLike) -> Index:
        if not isinstance(other, (int, Index)):
            return NotImplemented
        return self + -other

    def __rsub__(self, other: int) -> Index:
        return Index.of(other) - self

    def __neg__(self) -> Index:
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def _by(self, k: int) -> tuple[Index, Index]:
        """Split into (part divisible by k, rest with 0 <= constant < k)."""
        whole = {a: c for a, c in self.terms.items() if c % k == 0}
        rest = {a: c for a, c in self.terms.items() if c % k}
        return Index(whole, self.const // k * k), Index(rest, self.const % k)

    def __floordiv__(self, divisor: IntLike) -> Index:
        k = Index.of(divisor)
        if k.terms:
            if self == k:
                return Index(const=1)
            return _divide_terms(self, k)
        n = k.const
        if n <= 0:
            raise ZeroDivisionError(f"{self} // {n}: the divisor must be positive")
        if n == 1:
            return self
        whole, rest = self._by(n)
        out = Index({a: c // n for a, c in whole.terms.items()}, whole.const // n)
        lo, hi = rest.range()
        if lo is not None and hi is not None and lo // n == hi // n:
            return out + lo // n
        if len(rest.terms) == 1 and rest.const == 0:
            ((atom, c),) = rest.terms.items()
            if c == 1 and isinstance(atom, Quasi) and atom.op == "min":
                return out + imin(atom.a // n, atom.b // n)
            if c == -1 and isinstance(atom, Quasi) and atom.op == "min":
                return out + imax(-atom.a // n, -atom.b // n)
        if len(rest.terms) == 1:
            ((atom, c),) = rest.terms.items()
            by = atom.b.constant() if isinstance(atom, Quasi) and atom.op == "//" else None
            if c == 1 and isinstance(atom, Quasi) and by:  # (a // by + const) // n
                return out + (atom.a + rest.const * by) // (by * n)
        return out + _quasi("//", rest, Index.of(n))

    def __mod__(self, divisor: IntLike) -> Index:
        k = Index.of(divisor)
        if k.terms:
            return self - (self // k) * k
        n = k.const
        if n <= 0:
            raise ZeroDivisionError(f"{self} % {n}: the divisor must be positive")
        _, rest = self._by(n)
        lo, hi = rest.range()
        if lo is not None and hi is not None and lo // n == hi // n:
            return rest - lo // n * n
        return _quasi("%", rest, Index.of(n))

    def joined(self) -> Index:
        """The same with x // n * n + x % n as x."""
        out, found = self, True
        while found:
            found = False
            for a, c in out.terms.items():
                if isinstance(a, Quasi) and a.op == "%" and not a.b.terms:
                    whole = Quasi("//", a.a, a.b)
                    if out.terms.get(whole) == c * a.b.const:
                        out = out - Index({a: c, whole: c * a.b.const}) + a.a * c
                        found = True
                        break
        return out

    def minimum(self, other: Index) -> Index:
        """The smaller of this and another."""
        difference = self - other
        lo, hi = difference.range()
        if not (hi is not None and hi <= 0) and not (lo is not None and lo >= 0):
            lo, hi = _symbolic_range(difference)
        if hi is not None and hi <= 0:
            return self
        if lo is not None and lo >= 0:
            return other
        return _quasi("min", self, other)

    # ---- questions -------------------------------------------------------------------------------
    def multiple_of(self, k: int) -> bool:
        """Whether this is provably divisible by k."""
        return self.const % k == 0 and all(
            c % k == 0
            or (
                isinstance(a, Quasi)
                and a.op in ("min", "%")
                and a.a.multiple_of(k)
                and a.b.multiple_of(k)
            )
            for a, c in self.terms.items()
        )

    def range(self) -> Bounds:
        """Inclusive bounds (None: unknown)."""
        return sum_bounds(self.const, ((a.bounds(), c) for a, c in self.terms.items()))

    def vars(self) -> set[Var]:
        """The variables in this expression."""
        out: set[Var] = set()
        for a in self.terms:
            out |= a.leaves()
        return out

    def constant(self) -> int | None:
        """The value if it has no variables, else None."""
        return None if self.terms else self.const

    def value(self, env: Mapping[Var, Any]) -> Any:
        """Evaluate with env: variable -> int (or an integer ndarray)."""
        return self.const + sum(c * a.eval(env) for a, c in self.terms.items())

    def subst(self, m: Mapping[Var, IntLike]) -> Index:
        """Replace variables, simplifying again."""
        if not any(v in m for v in self.vars()):
            return self
        out = Index(const=self.const)
        for a, c in self.terms.items():
            out = out + a.replaced(m) * c
        return out

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return not self.terms and self.const == other
        if not isinstance(other, Index):
            return NotImplemented
        return self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            single = len(self.terms) == 1 and self.const == 0 and 1 in self.terms.values()
            if not self.terms:
                self._hash = hash(self.const)
            elif single:
                self._hash = hash(next(iter(self.terms)))
            else:
                self._hash = hash((frozenset(self.terms.items()), self.const))
        return self._hash

    def __repr__(self) -> str:
        out = ""
        for a, c in self.terms.items():
            text = str(a)
            if c < 0 and isinstance(a, Quasi) and (larger := a.larger()):
                c, text = -c, larger
            sign = " - " if c < 0 else " + "
            body = text if abs(c) == 1 else f"{text}*{abs(c)}"
            out += (("-" if c < 0 else "") if not out else sign) + body
        if self.const or not out:
            c = self.const
            out += str(c) if not out else f" {'-' if c < 0 else '+'} {abs(c)}"
        return out


class Var(Index):
    """A variable. A loop variable has an extent (0 <= v < extent) and is equal only to itself; a
    named dimension (`extent` None) is a run-time parameter >= 1, equal to every dimension of that
    name."""

    __slots__ = ("extent", "name")

    def __init__(self, name: str, extent: IntLike | None = None):
        self.name = name
        self.extent = None if extent is None else Index.of(extent)
        self._hash = id(self) if extent is not None else hash(("dim", name))
        self.terms, self.const = {self: 1}, 0

    def bounds(self) -> Bounds:
        """Inclusive bounds of the variable."""
        if self.extent is None:
            return 1, None
        hi = self.extent.range()[1]
        return 0, None if hi is None else max(hi - 1, 0)

    def leaves(self) -> set[Var]:
        """Itself."""
        return {self}

    def replaced(self, m: Mapping[Var, IntLike]) -> Index:
        """What `m` maps the variable to, or itself."""
        return Index.of(m.get(self, self))

    def eval(self, env: Mapping[Var, Any]) -> Any:
        """The value `env` gives the variable."""
        return env[self]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Var):
            return self.extent is None and other.extent is None and self.name == other.name
        if isinstance(other, Index):
            return (
                other.const == 0
                and len(other.terms) == 1
                and next(iter(other.terms.items())) == (self, 1)
            )
        return False

    def __hash__(self) -> int:
        return self._hash or 0

    def __repr__(self) -> str:
        return self.name


Atom = Var | Quasi


def _quasi(op: str, a: Index, b: Index) -> Index:
    return Index({Quasi(op, a, b): 1})


def _divide_terms(a: Index, k: Index) -> Index:
    """a // k for a symbolic k >= 1, of which factors that all terms share are cancelled: it divides
    exactly where every term of `a` holds all of a single term `k`."""
    monomials = [*_monomials(a), *_monomials(k)]
    shared = shared_factors(monomials)
    by = gcd(*(c for _, c in monomials))
    if shared or by > 1:
        top, bottom = (_without(x, shared, by) for x in (a, k))
        return top // bottom
    return _quasi("//", a, k)


Monomial = tuple[Counter[Atom], int]
"""Factors that are no products themselves, and what they are times."""


def factors_of(atom: Atom) -> Counter[Atom]:
    """What a product consists of; of anything else, itself."""
    if not isinstance(atom, Quasi) or atom.op != "*":
        return Counter([atom])
    out: Counter[Atom] = Counter()
    for side in (atom.a, atom.b):
        ((part, _),) = side.terms.items()
        out += factors_of(part)
    return out


def _product(factors: Counter[Atom]) -> Atom:
    """The product of at least one factor; it does not depend on who multiplied what first."""
    out, *rest = sorted(factors.elements(), key=str)
    for atom in rest:
        out = Quasi("*", Index({out: 1}), Index({atom: 1}))
    return out


def _monomials(i: Index) -> list[Monomial]:
    """The terms of a sum that is not 0."""
    constant: list[Monomial] = [(Counter(), i.const)] if i.const else []
    return [*((factors_of(t), c) for t, c in i.terms.items()), *constant]


def shared_factors(monomials: Sequence[Monomial]) -> Counter[Atom]:
    """The factors that all of them have."""
    shared = monomials[0][0] if monomials else Counter[Atom]()
    for factors, _ in monomials[1:]:
        shared = shared & factors
    return shared


def _without(i: Index, factors: Counter[Atom], by: int) -> Index:
    """`i` divided exactly by factors that all its terms have, and by a number."""
    out = Index()
    for have, c in _monomials(i):
        part = Index(const=c // by)
        for atom in (have - factors).elements():
            part = part * Index({atom: 1})
        out = out + part
    return out


def without_shared(*sums: Index) -> tuple[Index, ...]:
    """Sums without the factors, and the number, that all their terms share."""
    monomials = [m for i in sums for m in _monomials(i)]
    if not monomials:
        return sums
    shared, by = shared_factors(monomials), gcd(*(c for _, c in monomials))
    return tuple(_without(i, shared, by) for i in sums)


def imin(a: IntLike, b: IntLike) -> Index:
    """The smaller of two symbolic integers."""
    return Index.of(a).minimum(Index.of(b))


def _symbolic_range(i: Index) -> Bounds:
    """Bounds that follow from extents which are symbolic themselves: a loop variable is at most its
    extent less one, and e // k * k is e - e % k; (None, None) where there are none."""
    if all(v.extent is not None and not v.extent.terms for v in i.vars()):
        return None, None
    low = _at_most(-i)
    return None if low is None else -low, _at_most(i)


def _at_most(i: Index) -> int | None:
    out = Index(const=i.const)
    for a, c in i.terms.items():
        if isinstance(a, Var) and a.extent is not None and a.extent.terms:
            out = out + (a.extent - 1) * c if c > 0 else out
        else:
            out = out + Index({a: c})
    return _with_remainders(out).range()[1]


def _with_remainders(i: Index) -> Index:
    """`i` with e // k * k in terms of e % k."""
    out = Index(const=i.const)
    for a, c in i.terms.items():
        by = a.b.constant() if isinstance(a, Quasi) and a.op == "//" else None
        k = gcd(c, by) if by else 1
        if isinstance(a, Quasi) and by and k > 1:
            part = a.a // (by // k)
            out = out + (part - part % k) * (c // k)
        else:
            out = out + Index({a: c})
    return out


def imax(a: IntLike, b: IntLike) -> Index:
    """The larger of two symbolic integers."""
    return -imin(-Index.of(a), -Index.of(b))
