"""Equations of einsum: the letters of its operands and of its result, and how long axes are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.op.common import require
from compiler.types.tensor_types import require_equal


def letters_of(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Index names of every operand and of the result; the axes of `...` are called 0, 1, ..."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    require(len(terms) == len(ranks), f"einsum: {text!r} is not for {len(ranks)} operands")
    extra = max(r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True))
    dots = [str(k) for k in range(max(extra, 0))]
    operands = []
    for t, r in zip(terms, ranks, strict=True):
        plain = t.replace("...", "")
        own = r - len(plain)
        require(
            (own == 0 or (own > 0 and "..." in t)) and all(c.isalpha() for c in plain),
            f"einsum: {t!r} does not describe an operand of rank {r}",
        )
        before, _, after = t.partition("...")
        operands.append([*before, *dots[len(dots) - own :], *after] if own else list(plain))
    if arrow:
        before, dotted, after = right.partition("...")
        result = [*before, *(dots if dotted else []), *after]
    else:
        letters = [c for t in operands for c in t if c.isalpha()]
        result = [*dots, *sorted(c for c in set(letters) if letters.count(c) == 1)]
    known = {c for t in operands for c in t}
    require(
        set(result) <= known and len(set(result)) == len(result),
        f"einsum: the result of {text!r} must name axes of the operands, each once",
    )
    return operands, result


def extents_of(
    operands: Sequence[Sequence[str]], shapes: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """How long the axis of each name is; those of `...` may be broadcast."""
    out: dict[str, Any] = {}
    for names, shape in zip(operands, shapes, strict=True):
        for c, n in zip(names, shape, strict=True):
            if out.setdefault(c, n) == 1 and c.isdigit():
                out[c] = n
            elif n != out[c] and not (n == 1 and c.isdigit()):
                require_equal([(out[c], n)], f"einsum: axis {c} has both {out[c]} and {n} elements")
    return out
