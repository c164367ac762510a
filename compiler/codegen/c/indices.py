"""Symbolic indices as C expressions of `int64_t`."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.symbolic import Atom, Index, Var

Scope = Mapping[Var, str]
"""What variables are called."""


def index_text(i: Index, scope: Scope) -> str:
    """The sum, without parentheses."""
    out = ""
    for atom, factor in i.terms.items():
        if isinstance(atom, Var) and scope[atom] == "0":
            continue
        text, size = _atom(atom, scope), abs(factor)
        text = text if size == 1 else f"{text} * {_number(size)}"
        out += f" {'-' if factor < 0 else '+'} {text}" if out else f"{'-' * (factor < 0)}{text}"
    if i.const and out:
        return f"{out} {'-' if i.const < 0 else '+'} {_number(abs(i.const))}"
    return out or _number(i.const)


def factor_text(i: Index, scope: Scope) -> str:
    """The same, in parentheses if need be."""
    text = index_text(i, scope)
    return text if text.isalnum() or text.isidentifier() else f"({text})"


def _number(n: int) -> str:
    return str(n) if abs(n) < 1 << 31 else f"INT64_C({n})"


def _atom(a: Atom, scope: Scope) -> str:
    if isinstance(a, Var):
        return scope[a]
    p, q = index_text(a.a, scope), index_text(a.b, scope)
    if a.op == "min":
        return f"least_i64({p}, {q})"
    left, right = factor_text(a.a, scope), factor_text(a.b, scope)
    if a.op == "*":
        return f"({left} * {right})"
    low = a.a.range()[0]
    if low is not None and low >= 0:  # C rounds toward zero
        return f"({left} {'/' if a.op == '//' else '%'} {right})"
    return f"{'floor_div' if a.op == '//' else 'floor_mod'}_i64({p}, {q})"
