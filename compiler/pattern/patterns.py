"""Patterns: what a value must look like, from the value back to its operands.

    conv = is_op("nn.conv2d", groups=1)(wildcard("x"), constant("w")).once()
    relu = is_op("nn.relu")(conv)

`match(relu, value, function)` finds atoms by these names, or says why there is no match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    operands,
)
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.pattern.search import Found, Mismatch, Scope, deepest
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType

Condition = Callable[[Found], str | None]
"""Says why what was found will not do; None: it will."""


@dataclass(frozen=True)
class Pattern:
    """What a value must look like. `a | b`: either."""

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        """`found`, with what this pattern finds at `a`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it finds")

    def __or__(self, other: Pattern) -> Pattern:
        return either(self, other)

    def once(self) -> Pattern:
        """Nobody but the pattern reads the value: it is read once, and is no result."""
        return _Checked(self, _used_once)

    def where(self, condition: Condition) -> Pattern:
        """`condition` of what has been found so far says no reason against it."""
        return _Checked(self, lambda found, _at, _scope: condition(found))

    def typed(self, dtype: DType | str | None = None, rank: int | None = None) -> Pattern:
        """The value is a tensor of that dtype and rank (None: of any)."""
        wanted = None if dtype is None else DType.parse(dtype)

        def check(_found: Found, a: Atom, _scope: Scope) -> str | None:
            t = a.type
            if not isinstance(t, TensorType):
                return f"has type {t}, and is no tensor"
            if wanted is not None and t.dtype != wanted:
                return f"is of {t.dtype}, not of {wanted}"
            return f"has rank {t.rank}, not {rank}" if rank not in (None, t.rank) else None

        return _Checked(self, check)


@dataclass(frozen=True)
class _Checked(Pattern):
    """`inner`, and then a check of (found, atom, scope)."""

    inner: Pattern
    check: Callable[[Found, Atom, Scope], str | None]

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        inside = self.inner.find(a, scope, found)
        if isinstance(inside, Mismatch):
            return inside
        reason = self.check(inside, a, scope)
        return inside if reason is None else inside.mismatch(a, reason)


def _used_once(_found: Found, a: Atom, scope: Scope) -> str | None:
    count = scope.use_count(a) if isinstance(a, Var) else 1
    return None if count == 1 else f"is read {count} times, not once"


# ---- leaves --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Wildcard(Pattern):
    name: str

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        return found.named(self.name, a)


@dataclass(frozen=True, eq=False)
class _Constant(Pattern):
    name: str
    value: Any

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        if not isinstance(a, Constant):
            return found.mismatch(a, "is no constant")
        if self.value is not None and not (a.data == np.asarray(self.value)).all():
            return found.mismatch(a, f"is not {self.value!r}")
        return found.named(self.name, a)


def wildcard(name: str = "") -> Pattern:
    """Any value."""
    return _Wildcard(name)


def constant(name: str = "", value: Any = None) -> Pattern:
    """A constant, all of whose elements equal `value`, if that is given."""
    return _Constant(name, value)


# ---- operators and tuples ------------------------------------------------------------------------
_MISSING = object()
"""The value of an attribute that an operator does not have."""


@dataclass(frozen=True, eq=False)
class OpPattern(Pattern):
    """A call of an operator (`op` says which in words, `fits` decides); call the pattern with
    patterns for its operands (none: any)."""

    op: str
    fits: Callable[[OpDef], bool]
    attrs: tuple[tuple[str, Any], ...]
    args: tuple[Pattern, ...] | None = None
    name: str = ""

    def __call__(self, *args: Pattern) -> OpPattern:
        """The same, with patterns for the operands."""
        return replace(self, args=args)

    def bind(self, name: str) -> OpPattern:
        """The same, with a name for the value of the call."""
        return replace(self, name=name)

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        """See Pattern."""
        b = _produced(a, scope, found, self.op)
        if isinstance(b, Mismatch):
            return b
        v = b.value
        if not isinstance(v, Call) or not isinstance(v.op, OpDef) or not self.fits(v.op):
            return found.mismatch(a, f"is {described(v)}, not {self.op}")
        for key, wanted in self.attrs:
            value = getattr(v.attrs, key, _MISSING)
            if value is not _MISSING and not (
                wanted(value) if callable(wanted) else value == wanted
            ):
                expected = "" if callable(wanted) else f", not {wanted!r}"
                return found.mismatch(a, f"has {key}={value!r}{expected}")
        if self.args is not None and len(self.args) != len(v.args):
            return found.mismatch(a, f"has {len(v.args)} operands, not {len(self.args)}")
        here = found.through(b).named(self.name, a)
        return here if isinstance(here, Mismatch) else _each(self.args or (), v.args, scope, here)


@dataclass(frozen=True)
class _Item(Pattern):
    """Field `index` of a tuple."""

    inner: Pattern
    index: int

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        b = _produced(a, scope, found, "a field of a tuple")
        if isinstance(b, Mismatch):
            return b
        v = b.value
        if not isinstance(v, TupleGetItem) or v.index != self.index:
            return found.mismatch(a, f"is {described(v)}, not field {self.index}")
        return self.inner.find(v.value, scope, found.through(b))


@dataclass(frozen=True)
class _TupleOf(Pattern):
    """A tuple of these fields."""

    fields: tuple[Pattern, ...]

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        b = _produced(a, scope, found, "a tuple")
        if isinstance(b, Mismatch):
            return b
        if not isinstance(b.value, Tuple) or len(b.value.fields) != len(self.fields):
            return found.mismatch(a, f"is {described(b.value)}, not {len(self.fields)} fields")
        return _each(self.fields, b.value.fields, scope, found.through(b))


def is_op(op: str | OpDef, **attrs: Any) -> OpPattern:
    """A call of the operator, which may be given by its name, with these attributes: values, or
    functions that tell whether a value will do.

    Raises:
        compiler.errors.DtypelabError: there is no such operator or attribute.
    """
    definition = get_op(op) if isinstance(op, str) else op
    for key in attrs:
        definition.check_attribute(key)
    return OpPattern(definition.name, lambda d: d is definition, tuple(attrs.items()))


def op_that(what: str, fits: Callable[[OpDef], bool], **attrs: Any) -> OpPattern:
    """A call of any operator of which a fact holds, with these attributes where it has them.

    Args:
        what: which operators these are, in words that follow "not": "a contraction".
        fits: the fact.
        attrs: as those of `is_op`.
    """
    return OpPattern(what, fits, tuple(attrs.items()))


def item(inner: Pattern, index: int) -> Pattern:
    """Field `index` of a tuple."""
    return _Item(inner, index)


def tuple_of(*fields: Pattern) -> Pattern:
    """A tuple of these fields."""
    return _TupleOf(fields)


def _produced(a: Atom, scope: Scope, found: Found, wanted: str) -> Binding | Mismatch:
    b = scope.producer(a)
    if b is not None:
        return b
    kind = "a constant" if isinstance(a, Constant) else "not computed here"
    return found.mismatch(a, f"is {kind}, not {wanted}")


def _each(patterns: tuple[Pattern, ...], atoms: tuple[Atom, ...], scope: Scope, found: Found
          ) -> Found | Mismatch:  # fmt: skip
    here: Found | Mismatch = found
    for p, a in zip(patterns, atoms, strict=False):
        if isinstance(here, Mismatch):
            return here
        here = p.find(a, scope, here)
    return here


def described(v: Value) -> str:
    """What computes a value, in a word."""
    if isinstance(v, Call) and isinstance(v.op, OpDef):
        return v.op.name
    return f"field {v.index}" if isinstance(v, TupleGetItem) else type(v).__name__.lower()


# ---- several ways --------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Either(Pattern):
    options: tuple[Pattern, ...]

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        failed = []
        for p in self.options:
            here = p.find(a, scope, found)
            if not isinstance(here, Mismatch):
                return here
            failed.append(here)
        best = deepest(failed)
        rest = dict.fromkeys(str(m) for m in failed if m is not best)
        alike = {str(best)}
        more = "".join(f"; or {text}" for text in rest if text not in alike)
        return Mismatch(best.at, best.reason + more, best.depth)


def either(*options: Pattern) -> Pattern:
    """The first of the patterns that fits."""
    return _Either(options)


def any_order(op: OpPattern, first: Pattern, second: Pattern) -> Pattern:
    """An operator of two operands, in either order."""
    return either(op(first, second), op(second, first))


@dataclass(frozen=True)
class _Dominates(Pattern):
    """See `dominates`."""

    parent: Pattern
    path: Pattern
    child: Pattern

    def find(self, a: Atom, scope: Scope, found: Found) -> Found | Mismatch:
        start = self.child.find(a, scope, found)
        if isinstance(start, Mismatch):
            return start
        at = next((b for b in start.bindings if b.var is a), None)
        if at is None:
            return start.mismatch(a, "is a leaf: nothing lies before it")
        reached: dict[Var, Found] = {}
        refused: list[Mismatch] = []
        reads: dict[Var, int] = {}
        ahead, seen, here = [at], {at.var}, start
        while ahead:  # back over the path, up to where the parent fits
            for x in operands(ahead.pop().value):
                if not isinstance(x, Var):
                    continue
                reads[x] = reads.get(x, 0) + 1
                if x in seen:
                    continue
                seen.add(x)
                there = self.parent.find(x, scope, here)
                if not isinstance(there, Mismatch):
                    reached[x] = there
                    continue
                between, made = self.path.find(x, scope, here), scope.producer(x)
                if isinstance(between, Mismatch) or made is None:
                    refused.append(there)  # a value from elsewhere
                    reads.pop(x)
                    continue
                here = here.through(made)
                ahead.append(made)
        if not reached:
            return deepest(refused) if refused else start.mismatch(a, "has no parent before it")
        if len(reached) > 1:
            names = " and ".join(map(repr, reached))
            return here.mismatch(a, f"has two parents before it: {names}")
        for x, count in reads.items():
            if scope.use_count(x) != count:
                return here.mismatch(x, "is read by others than what leads to the last value")
        (parent,) = reached.values()
        for b in parent.bindings:
            here = here.through(b)
        return Found({**parent.values, **here.values}, here.bindings)


def dominates(parent: Pattern, path: Pattern, child: Pattern) -> Pattern:
    """`child`, which can only be reached from `parent` through values that fit `path`, and whatever
    reads any of them leads to `child`. Values from elsewhere may be read on the way."""
    return _Dominates(parent, path, child)
