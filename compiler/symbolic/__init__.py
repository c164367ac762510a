"""Symbolic integers, kept in one canonical form: sum(coefficient * atom) + constant.

An atom is a variable (a loop variable, or a named dimension such as the batch size `n`), or a `//`,
`%`, `min` or `*` node that did not simplify. Because the form is canonical, "simplify" is not a
pass: every operator returns the simplified result. Both levels of the IR use it: for the dimensions
of tensor types, and for the indices and extents of loop nests.
"""

from compiler.symbolic.facts import Dim, Facts, ceil_div, dim, product
from compiler.symbolic.index import Atom, Index, IntLike, Var, imax, imin
from compiler.symbolic.quasi import Quasi

__all__ = [
    "Atom", "Dim", "Facts", "Index", "IntLike", "Quasi", "Var", "ceil_div", "dim", "imax", "imin",
    "product",
]  # fmt: skip
