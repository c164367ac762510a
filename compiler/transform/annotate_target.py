"""AnnotateTarget: operators that an engine can compute become composites, which are marked as its.

A composite is a call of a function with the attribute `composite`, written where it is called; its
name is `ENGINE.PATTERN`. Engines are asked in the order in which they are named, each for its
patterns in the order of its table, and each pattern for every value, the last one first. What a
composite has is in no other: the first pattern wins where several fit. `explain` says of every
pattern why it does not apply, and which it gave way to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.ir.expr import (
    Binding,
    Call,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    atom_type,
    operands,
    uses,
)
from compiler.ir.outside import ENGINE
from compiler.ir.regions import COMPOSITE
from compiler.op.assume import ASSUME
from compiler.op.opdef import OpDef
from compiler.op.sizes import MATCH_SHAPE
from compiler.passes.live import live
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.nested import through_nested
from compiler.pattern.rules import Refusal
from compiler.pattern.search import Found, FunctionScope, Mismatch, match
from compiler.pattern.tables import CompositePattern, pattern_table
from compiler.transform.instantiate import brings_sizes
from compiler.transform.outline import outlined
from compiler.types.tensor_types import TensorType, TupleType


@dataclass(frozen=True)
class Overlap(Refusal):
    """A pattern that fits, and gave way to a composite of the pattern `taken`, which was asked
    first."""

    taken: str


class AnnotateTarget(FunctionPass):
    """Makes composites of what engines can compute.

    Args:
        engines: names of engines that have a table of patterns, the most wanted first; none:
            nothing becomes a composite.

    Raises:
        ConfigError: there is no such engine.
    """

    name = "AnnotateTarget"
    required = ("InferType",)

    def __init__(self, engines: Sequence[str] | str = ()):
        named = (engines,) if isinstance(engines, str) else tuple(engines)
        self.tables = {e: pattern_table(e) for e in named}

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with its composites; functions that are regions already stay."""
        return f if ENGINE in f.attrs else _Annotator(f, self.tables, None).run()

    def explain(self, mod: IRModule) -> list[Refusal]:
        """The reason for every value and pattern that does not apply to it."""
        refusals: list[Refusal] = []
        for f in mod.functions.values():
            if isinstance(f, Function) and ENGINE not in f.attrs:
                through_nested(f, lambda g: _Annotator(g, self.tables, refusals).run())
        return refusals

    def overlaps(self, mod: IRModule) -> list[Overlap]:
        """Where several patterns fit, and which of them was taken: that of the engine that is named
        first, of one engine the first of its table."""
        return [r for r in self.explain(mod) if isinstance(r, Overlap)]


class _Annotator:
    def __init__(
        self,
        f: Function,
        tables: Mapping[str, Sequence[CompositePattern]],
        refusals: list[Refusal] | None,
    ):
        self.f, self.tables, self.refusals = live(f), tables, refusals
        self.scope = FunctionScope(self.f)
        self.readers = uses(self.f)
        self.place = {b.var: k for k, b in enumerate(self.f.bindings)}
        self.claimed: dict[Var, str] = {}
        self.made: dict[Var, Binding] = {}

    def run(self) -> Function:
        for engine, table in self.tables.items():
            for p in table:
                for b in reversed(self.f.bindings):
                    name = f"{engine}.{p.name}"
                    reason = self.claim(name, p, b)
                    if isinstance(reason, str):
                        reason = Refusal(name, b.var.name, reason)
                    if reason is not None and self.refusals is not None:
                        self.refusals.append(reason)
        if not self.made:
            return self.f
        kept = (b for b in self.f.bindings if b.var in self.made or b.var not in self.claimed)
        return self.f.with_body([self.made.get(b.var, b) for b in kept], self.f.results)

    def claim(self, name: str, p: CompositePattern, b: Binding) -> Refusal | str | None:
        """Make a composite that ends at `b`; or the reason why not."""
        found = match(p.pattern, b.var, self.scope)
        if isinstance(found, Mismatch):
            return str(found)
        members = sorted(found.bindings, key=lambda m: self.place[m.var])
        if not members or members[-1] is not b:
            return f"{b.var!r} is no operator of the pattern"
        if reason := self.unfit(members, b) or unknown_numbers(p, members) or p.check(found):
            return reason
        f, args = outlined(members, (b.var,), {COMPOSITE: name})
        if brings_sizes(f):
            return f"{b.var!r} has sizes that its operands do not tell"
        for m in members:
            if m.var in self.claimed:
                taken = self.claimed[m.var]
                said = f"{m.var!r} is in a composite {taken}, which was asked first"
                return Overlap(name, b.var.name, said, taken)
        origins = tuple(dict.fromkeys(o for m in members for o in m.origins))
        self.made[b.var] = Binding(b.var, Call(f, args), origins)
        self.claimed.update((m.var, name) for m in members)
        return None

    def unfit(self, members: Sequence[Binding], last: Binding) -> str | None:
        """Why these cannot be one function of tensors whose result is the last of them."""
        for m in members:
            v = m.value
            if not isinstance(v, Tuple | TupleGetItem) and not _pure(m):
                return f"{m.var!r} does more than compute a value"
            readers = self.readers.get(m.var, ())
            if m is not last and any(r is None or r not in members for r in readers):
                return f"{m.var!r} is read by others, too"
            if m is last and isinstance(atom_type(m.var), TupleType):
                if any(r is None or not isinstance(r.value, TupleGetItem) for r in readers):
                    return f"{m.var!r} is a tuple that is read as a whole"
            elif m is last and not isinstance(atom_type(m.var), TensorType):
                return f"{m.var!r} is no tensor"
        inside = {m.var for m in members}
        for m in members:
            for a in operands(m.value):
                if a not in inside and not isinstance(atom_type(a), TensorType):
                    return f"{a!r} is no tensor"
        return None


def _pure(m: Binding) -> bool:
    op = m.value.op if isinstance(m.value, Call) else None
    return isinstance(op, OpDef) and not (
        op.effect or op.callee or op is MATCH_SHAPE or op is ASSUME
    )


def unknown_numbers(p: CompositePattern, members: Sequence[Binding]) -> str | None:
    """Which value is of a custom datatype, if the engine knows none."""
    for m in () if p.custom else members:
        for a in (*operands(m.value), m.var):
            t = a.type
            for x in t.fields if isinstance(t, TupleType) else (t,):
                if isinstance(x, TensorType) and x.dtype.is_custom:
                    name = repr(a) if isinstance(a, Var) else "a constant"
                    return f"{name} is of {x.dtype}, which the engine does not know"
    return None


def unfit_composite(p: CompositePattern, f: Function) -> str | None:
    """Why a composite is none of a pattern, whatever was done to it since it was made."""
    found = found_in(p, f)
    if isinstance(found, Mismatch):
        return str(found)
    return unknown_numbers(p, f.bindings) or p.check(found)


def found_in(p: CompositePattern, f: Function) -> Found | Mismatch:
    """Where the pattern of a composite fits in the function that was made of it: what its names
    stand for there. An engine that compiles a composite asks it for operands and attributes."""
    return match(p.pattern, f.results[0], f)
