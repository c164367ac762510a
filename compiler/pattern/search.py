"""How patterns are looked for: what they may ask about a function, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from compiler.ir.expr import Atom, Binding, Constant, Function, Var, uses


class Scope(Protocol):
    """What a pattern may ask about the function around it."""

    def producer(self, a: Atom) -> Binding | None:
        """The binding that defines `a`; None: a parameter, a captured variable or a constant."""

    def use_count(self, v: Var) -> int:
        """How often `v` is read, by bindings and as a result."""


class FunctionScope:
    """The scope of a function that does not change."""

    def __init__(self, f: Function):
        self._producers = {b.var: b for b in f.bindings}
        self._counts = {v: len(readers) for v, readers in uses(f).items()}

    def producer(self, a: Atom) -> Binding | None:
        """See Scope."""
        return self._producers.get(a) if isinstance(a, Var) else None

    def use_count(self, v: Var) -> int:
        """See Scope."""
        return self._counts.get(v, 0)


@dataclass(frozen=True)
class Mismatch:
    """Why a pattern does not fit: `at` is where, `reason` says what is there instead.

    `depth`: how many nodes of the pattern did fit before.
    """

    at: Atom
    reason: str
    depth: int = 0

    def __str__(self) -> str:
        return f"{shown(self.at)} {self.reason}"


@dataclass(frozen=True)
class Found:
    """Where a pattern fits: the atom of every name, and the bindings it went through (each once,
    the root first)."""

    values: Mapping[str, Atom] = field(default_factory=dict)
    bindings: tuple[Binding, ...] = ()

    def __getitem__(self, name: str) -> Atom:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def var(self, name: str) -> Var:
        """The variable of that name.

        Raises:
            TypeError: it is a constant.
        """
        a = self.values[name]
        if not isinstance(a, Var):
            raise TypeError(f"{name} is a constant: let the pattern say what it must be")
        return a

    def constant(self, name: str) -> Constant:
        """The constant of that name.

        Raises:
            TypeError: it is a variable.
        """
        a = self.values[name]
        if not isinstance(a, Constant):
            raise TypeError(f"{name} is no constant: let the pattern say so")
        return a

    def called(self, name: str) -> Binding:
        """The binding of the operator of that name."""
        return next(b for b in self.bindings if b.var is self.values[name])

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of all bindings, in program order as far as the pattern tells."""
        return tuple(dict.fromkeys(o for b in reversed(self.bindings) for o in b.origins))

    def named(self, name: str, a: Atom) -> Found | Mismatch:
        """With a name for `a`; one name cannot be two atoms."""
        known = self.values.get(name, a)
        if known is not a and not _equal(known, a):
            return self.mismatch(a, f"is not {shown(known)}, which {name!r} was before")
        return Found({**self.values, name: a}, self.bindings) if name else self

    def through(self, b: Binding) -> Found:
        """With one more binding."""
        return self if b in self.bindings else Found(self.values, (*self.bindings, b))

    def mismatch(self, at: Atom, reason: str) -> Mismatch:
        """A mismatch after what has been found."""
        return Mismatch(at, reason, len(self.bindings))


class Matchable(Protocol):
    """A pattern."""

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        """`found`, with what this pattern finds at `a`."""


def match(pattern: Matchable, at: Atom, scope: Scope | Function) -> Found | Mismatch:
    """Whether `pattern` fits at `at`: where it is, or why not."""
    if isinstance(scope, Function):
        scope = FunctionScope(scope)
    return pattern.find(at, scope, Found())


def find_all(pattern: Matchable, f: Function) -> Iterator[tuple[Binding, Found | Mismatch]]:
    """What `match` says of every binding of `f`."""
    scope = FunctionScope(f)
    for b in f.bindings:
        yield b, match(pattern, b.var, scope)


def deepest(mismatches: Sequence[Mismatch]) -> Mismatch:
    """The one that tells most: the pattern had fitted furthest."""
    return max(mismatches, key=lambda m: m.depth)


def shown(a: Atom) -> str:
    """`%x`, or the type of a constant."""
    return repr(a) if isinstance(a, Var) else f"a constant {a.type}"


def _equal(a: Atom, b: Atom) -> bool:
    return (
        isinstance(a, Constant)
        and isinstance(b, Constant)
        and a.type == b.type
        and a.data.tobytes() == b.data.tobytes()
    )
