"""Rewriting by patterns: rules, what they refused and why, and passes made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Atom, Binding, Constant, Function, IRModule, Value, Var
from compiler.ir.inference import infer_value
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.nested import through_all
from compiler.passes.rewrite import Rewriter, union
from compiler.pattern.search import Found, Matchable, Mismatch, match

Rewrite = Callable[[Found, Rewriter], "Value | str"]
"""The value (or atom) that takes the place of what was found, after bindings that it emits; or a
sentence that says why not, in which case it has emitted nothing."""


@dataclass(frozen=True)
class Refusal:
    """Why a rule left a value as it is."""

    rule: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"%{self.value}: {self.rule} does not apply: {self.reason}"


@dataclass(frozen=True)
class Rule:
    """Where `pattern` fits, `rewrite` makes another value of the same type."""

    name: str
    pattern: Matchable
    rewrite: Rewrite


def rule(name: str, pattern: Matchable) -> Callable[[Rewrite], Rule]:
    """Decorator: a function `(found, rewriter) -> value or reason` as a rule for `pattern`."""
    return lambda rewrite: Rule(name, pattern, rewrite)


def apply_rules(
    f: Function, rules: Sequence[Rule], refusals: list[Refusal] | None = None
) -> Function:
    """`f` with every value, in program order, rewritten by the first rule that applies (the same
    object if none does).

    Args:
        f: typed.
        rules: in the order in which they are tried.
        refusals: gets the reason for every value and rule that do not fit.

    Raises:
        TypeInferenceError: a rule has given a value of another type.
    """
    r = Rewriter(f)
    for b in map(r.read, f.bindings):
        for one in rules:
            reason = _apply(one, r, b)
            if reason is None:
                break
            if refusals is not None:
                refusals.append(Refusal(one.name, b.var.name, reason))
        else:
            r.keep(b)
    return r.finish()


@dataclass(frozen=True)
class _At:
    """The scope of a rewriter that is about to keep a binding."""

    rewriter: Rewriter
    root: Binding

    def producer(self, a: Atom) -> Binding | None:
        return self.root if a is self.root.var else self.rewriter.producer(a)

    def use_count(self, v: Var) -> int:
        return self.rewriter.use_count(v)


def _apply(one: Rule, r: Rewriter, b: Binding) -> str | None:
    """Rewrite `b`; or the reason why not."""
    found = match(one.pattern, b.var, _At(r, b))
    if isinstance(found, Mismatch):
        return str(found)
    new = one.rewrite(found, r)
    if isinstance(new, str):
        return new
    t = infer_value(new)
    if t != b.var.type:
        raise TypeInferenceError(
            f"rule {one.name} gives %{b.var.name} type {t}, where it has {b.var.type}: correct it"
        )
    if isinstance(new, Var | Constant):
        done = r.alias(b, new) if isinstance(new, Var) else r.constant(b, new)
        return None if done else "the value is a result, and must keep a value of its own"
    r.emit(Binding(b.var, new, union(found.origins, b.origins)))
    return None


class Walk(Protocol):
    """Goes over a function, and notes why it leaves values as they are."""

    refusals: list[Refusal]

    def run(self) -> object:
        """Go."""


def refusals_of(mod: IRModule, walk: Callable[[Function], Walk]) -> list[Refusal]:
    """What the walks over all functions of a module, and those in them, note."""
    refusals: list[Refusal] = []

    def each(g: Function) -> Function:
        made = walk(g)
        made.run()
        refusals.extend(made.refusals)
        return g

    through_all(mod, each)
    return refusals


class RulePass(FunctionPass):
    """A pass that applies `rules`, and can tell why it left a value as it is."""

    required = ("InferType",)
    rules: Sequence[Rule] = ()

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """See apply_rules."""
        return apply_rules(f, self.rules)

    def explain(self, mod: IRModule) -> list[Refusal]:
        """The reason for every value that the rules leave as it is."""
        refusals: list[Refusal] = []
        through_all(mod, lambda g: apply_rules(g, self.rules, refusals))
        return refusals
