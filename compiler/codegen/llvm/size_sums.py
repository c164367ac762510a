"""Long sums of symbolic dimensions, as in the offsets of what joins many tensors of open sizes."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.llvm.scope import Scope
from compiler.symbolic import Atom, Index, Var
from compiler.target.emit import Val

MANY = 8
"""Dimensions in a sum beyond which it is computed once in a function."""


class SizeSums:
    """Sums of many of the dimensions `dims`, whose lines go to `prologue`, at the entry of the
    function.

    They go through empty inline asm. Without it LLVM would look at all of their terms again for
    every address that they are in: for ninety tensors that takes a minute.
    """

    def __init__(self, scope: Scope, dims: Sequence[Var], prologue: list[str]):
        self.scope, self.dims, self.prologue = scope, dims, prologue
        self._known: dict[Index, Val] = {}

    def part_of(self, i: Index) -> Index:
        """What of an index is a long sum of dimensions; 0 if it has none."""
        if len(i.terms) <= MANY:
            return Index()
        dims = set[Atom](v for v in self.dims if isinstance(self.scope.env.get(v), Val))
        sizes = Index({a: c for a, c in i.terms.items() if a in dims})
        return sizes if len(sizes.terms) > MANY else Index()

    def value(self, i: Index) -> Val:
        """A long sum as i64."""
        if i not in self._known:
            e = self.scope.e
            lines, e.lines = e.lines, self.prologue
            acc = e.const(0, "i64")
            for a, c in i.terms.items():
                x = self.scope.env[a] if isinstance(a, Var) else None
                assert isinstance(x, Val)
                acc = e.bin("add nsw", acc, x if c == 1 else e.bin("mul nsw", x, e.const(c, "i64")))
            self._known[i] = e.op(f'call i64 asm "", "=r,0"({acc})', "i64")
            e.lines = lines
        return self._known[i]
