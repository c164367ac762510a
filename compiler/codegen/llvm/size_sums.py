"""Long sums of symbolic dimensions, as in the offsets of what joins many tensors of open sizes."""

from __future__ import annotations

from compiler.codegen.llvm.addresses import Places
from compiler.symbolic import Atom, Index
from compiler.target.emit import Emitter, Val
from compiler.tensor.stmt import PrimFunc

MANY = 8
"""Dimensions in a sum beyond which it is computed once in a function."""


class SizeSums(Places):
    """Mixin of the lowering: sums of many dimensions, at the entry of the function.

    They go through empty inline asm. Without it LLVM would look at all of their terms again for
    every address that they are in: for ninety tensors that takes a minute.
    """

    e: Emitter
    func: PrimFunc
    stack: list[str]
    size_sums: dict[Index, Val]

    def runtime(self, i: Index) -> Val:
        """Emit an index expression as i64."""
        if len(i.terms) <= MANY:
            return super().runtime(i)
        dims = set[Atom](v for v in self.func.dims if isinstance(self.env.get(v), Val))
        sizes = Index({a: c for a, c in i.terms.items() if a in dims})
        if len(sizes.terms) <= MANY:
            return super().runtime(i)
        rest = i - sizes
        total = self._sum_of_sizes(sizes)
        return total if rest == 0 else self.e.bin("add nsw", total, super().runtime(rest))

    def _sum_of_sizes(self, i: Index) -> Val:
        if i not in self.size_sums:
            e = self.e
            lines, e.lines = e.lines, self.stack
            acc = e.const(0, "i64")
            for a, c in i.terms.items():
                x = self._atom(a)
                acc = e.bin("add nsw", acc, x if c == 1 else e.bin("mul nsw", x, e.const(c, "i64")))
            self.size_sums[i] = e.op(f'call i64 asm "", "=r,0"({acc})', "i64")
            e.lines = lines
        return self.size_sums[i]
