"""Dimensions of tensor types: integers where they are known, else symbolic."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.symbolic.index import Index, IntLike

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
