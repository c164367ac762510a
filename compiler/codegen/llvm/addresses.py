"""Where loads and stores go: symbolic indices become pointers, constant offsets, lane patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compiler.codegen.llvm.scope import Scope
from compiler.errors import LoweringError
from compiler.symbolic import Atom, Index, Quasi, Var
from compiler.target.emit import LLVM_BYTES, Val, memory_type
from compiler.tensor.expr import Buffer
from compiler.tensor.lanes import lane_offsets, points

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
        """A long sum as an index."""
        if i not in self._known:
            e = self.scope.e
            lines, e.lines = e.lines, self.prologue
            acc, t = e.const(0, e.index), e.index
            for a, c in i.terms.items():
                x = self.scope.env[a] if isinstance(a, Var) else None
                assert isinstance(x, Val)
                acc = e.bin("add nsw", acc, x if c == 1 else e.bin("mul nsw", x, e.const(c, t)))
            self._known[i] = e.op(f'call {t} asm "", "=r,0"({acc})', t)
            e.lines = lines
        return self._known[i]


Split = tuple[Index, tuple[int, ...], list[tuple[Quasi, int]]]


class Address(NamedTuple):
    """Where an access goes. Contiguity is in `offsets` (elements, per lane, relative to `const`);
    `pointer` None: a register buffer; `scattered`: lanes whose distances are only known at run
    time; `block`: the pointer is a multiple of so many elements, the buffer's last extent (0: it
    may not be)."""

    pointer: Val | None
    const: int
    offsets: tuple[int, ...]
    scattered: tuple[tuple[Val, int], ...] = ()
    block: int = 0


class Addresses:
    """Positions in buffers, as addresses where code is being written.

    `sums`: what computes long sums of dimensions once in a function, if anything does.
    """

    def __init__(self, scope: Scope, sums: SizeSums | None = None):
        self.scope, self.e, self.sums = scope, scope.e, sums
        self._flats: dict[int, tuple[Index, tuple[Index, ...]]] = {}
        self._splits: dict[tuple[Index, tuple[tuple[Var, int], ...]], Split] = {}

    def flat_of(self, b: Buffer, idx: tuple[Index, ...]) -> Index:
        """Row-major position, remembered per index tuple."""
        hit = self._flats.get(id(idx))
        if hit is None:  # keep idx alive so that its id stays unique
            hit = self._flats[id(idx)] = (b.flat(idx), idx)
        return hit[0]

    def known(self, i: Index) -> int | None:
        """The value of `i` if it is a constant here."""
        total = i.const
        for a, c in i.terms.items():
            x = self.scope.env.get(a) if isinstance(a, Var) else self._known_atom(a)
            if not isinstance(x, int):
                break
            total += c * x
        else:
            return total
        lo, hi = i.range()
        return lo if lo is not None and lo == hi else None

    def _known_atom(self, a: Quasi) -> int | None:
        if all(isinstance(self.scope.env.get(v), int) for v in a.leaves()):
            return int(a.eval(self.scope.env))
        return None

    def runtime(self, i: Index) -> Val:
        """Emit an index expression."""
        sizes = Index() if self.sums is None else self.sums.part_of(i)
        if self.sums is None or not sizes.terms:
            return self._runtime(i)
        total, rest = self.sums.value(sizes), i - sizes
        return total if rest == 0 else self.e.bin("add nsw", total, self._runtime(rest))

    def _runtime(self, i: Index) -> Val:
        e = self.e
        constant = self.known(i)
        if constant is not None:
            return e.const(constant, e.index)
        key = (
            "rt",
            i,
            tuple(self.scope.env[v] for v in sorted(i.vars(), key=lambda v: (v.name, id(v)))),
        )
        if key in self.scope.memo:
            return self.scope.memo[key]
        acc = e.const(i.const, e.index)
        for a, c in i.terms.items():
            x = self._atom(a)
            if c != 1:
                x = e.bin("mul nsw", x, e.const(c, e.index))
            acc = x if acc.name == "0" else e.bin("add nsw", acc, x)
        self.scope.memo[key] = acc
        return acc

    def _atom(self, a: Atom) -> Val:
        e = self.e
        if isinstance(a, Var):
            x = self.scope.env[a]
            return e.const(x, e.index) if isinstance(x, int) else x
        p, q = self.runtime(a.a), self.runtime(a.b)
        if a.op == "min":
            return e.call(f"llvm.smin.{e.index}", e.index, 1, [p, q])
        if a.op == "*":
            return e.bin("mul nsw", p, q)
        low = a.a.range()[0]
        if low is not None and low >= 0:
            return e.bin({"//": "udiv", "%": "urem"}[a.op], p, q)
        return self._floor_divide(a.op, p, q)

    def _floor_divide(self, op: str, p: Val, q: Val) -> Val:
        """Division of a possibly negative number, rounding down; the divisor is positive."""
        e = self.e
        r = e.bin("srem", p, q)
        negative = e.op(f"icmp slt {r}, 0", "i1")
        if op == "%":
            return e.op(f"select {negative}, {e.bin('add', r, q)}, {r}", e.index)
        one = e.op(f"zext {negative} to {e.index}", e.index)
        return e.bin("sub", e.bin("sdiv", p, q), one)

    def address(self, b: Buffer, flat: Index) -> Address:
        """Where the access at row-major position `flat` goes, for the current lanes."""
        at = [v for v, _ in self.scope.lanes]
        extents = tuple(n for _, n in self.scope.lanes)
        base, offs, odd = self._split(flat)
        if odd:  # a // or % of a lane variable: look at every lane
            bound = {v: x for v, x in self.scope.env.items() if isinstance(x, int)}
            per_lane = []
            for o, x in zip(offs, points(extents), strict=True):
                m = {**bound, **dict(zip(at, x, strict=True))}
                extra = Index(const=o)
                for a, c in odd:
                    extra = extra + a.replaced(m) * c
                per_lane.append(extra)
            steps = [p - per_lane[0] for p in per_lane]
            if any(s.terms for s in steps):
                if b.scope == "register":
                    raise LoweringError(f"register buffer {b.name} indexed by a run-time value")
                return Address(
                    None, 0, (), tuple(self._scalar_address(b, base + p) for p in per_lane)
                )
            base, offs = base + per_lane[0], tuple(s.const for s in steps)
        if b.scope == "register":
            position = self.known(base)
            if position is None:
                raise LoweringError(f"register buffer {b.name} indexed by a run-time value {base}")
            return Address(None, position, offs)
        pointer, const = self._scalar_address(b, base)
        return Address(pointer, const, offs, (), _block(b, base) if odd else 0)

    def _split(self, flat: Index) -> Split:
        """`flat` as what all lanes share, the offsets of the lanes (the first is 0), and the atoms
        that mix lane variables with others; remembered."""
        key = (flat, tuple(self.scope.lanes))
        hit = self._splits.get(key)
        if hit is not None:
            return hit
        at = {v for v, _ in self.scope.lanes}
        rest: dict[Atom, int] = {}
        odd: list[tuple[Quasi, int]] = []
        for a, c in flat.terms.items():
            if isinstance(a, Var):
                if a not in at:
                    rest[a] = c
            elif a.leaves() & at:
                odd.append((a, c))
            else:
                rest[a] = c
        factors = tuple(flat.terms.get(v, 0) for v, _ in self.scope.lanes)
        offs = lane_offsets(tuple(n for _, n in self.scope.lanes), factors)
        out = self._splits[key] = (Index(rest, flat.const), offs, odd)
        return out

    def _scalar_address(self, b: Buffer, flat: Index) -> tuple[Val, int]:
        """(pointer, constant element offset) of a position without lane variables."""
        pointer, inc = self.scope.cursor[b]
        const, left = flat.const - self.scope.ahead.get(pointer.name, 0), dict[Atom, int]()
        for a, c in flat.terms.items():
            if isinstance(a, Var):
                x = self.scope.env[a]
                if isinstance(x, int):
                    const += c * x
                elif inc.get(a) != c:
                    left[a] = left.get(a, 0) + c - inc.get(a, 0)
            else:
                bound = {v: x for v in a.leaves() if isinstance(x := self.scope.env[v], int)}
                part = a.replaced(bound) * c
                const += part.const
                for inner, factor in part.terms.items():
                    left[inner] = left.get(inner, 0) + factor
        rest = Index(left)
        if rest.terms:
            key = (
                "at",
                pointer.name,
                rest,
                tuple(str(self.scope.env[v]) for v in sorted(rest.vars(), key=str)),
            )
            if key not in self.scope.memo:
                size = LLVM_BYTES[memory_type(b.dtype)]
                self.scope.memo[key] = self.e.at(pointer, self.runtime(rest * size))
            pointer = self.scope.memo[key]
        return pointer, const


def _block(b: Buffer, base: Index) -> int:
    """The buffer's last extent, if it is a power of two and everything that is not constant in
    `base` is a multiple of it; else 0."""
    n = b.shape[-1].constant() if b.shape else None
    if n is None or n & (n - 1) or not 4 <= n <= 64:
        return 0
    return n if (base - base.const).multiple_of(n) else 0
