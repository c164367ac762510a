"""MergeCompilerRegions: composites of one engine that feed each other become one region.

Composites get the attribute `region`, a number. Two regions of an engine, one of which reads what
the other gives, are merged unless a value lies between them that is computed elsewhere: then each
would wait for the other. No two that are left could be merged (which ones became one depends on
the order, where merging some keeps others apart: regions are merged in program order).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compiler.ir.expr import Binding, Call, Function, IRModule, TupleGetItem, Var
from compiler.ir.regions import REGION, composite_of, engine_of
from compiler.ir.regions import regions as found_regions
from compiler.passes.manager import ModulePass, PassContext
from compiler.passes.nested import through_nested
from compiler.transform.outline import dependencies


class MergeCompilerRegions(ModulePass):
    """Numbers the regions of composites that an engine computes together."""

    name = "MergeCompilerRegions"
    required = ("InferType",)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module whose composites have numbers of regions, counted from 0, or on from those
        that there are already."""
        there = [r.name.removeprefix(f"{r.engine}_") for r in found_regions(mod)]
        count = max((int(n) + 1 for n in there if n.isdecimal()), default=0)

        def numbered(f: Function) -> Function:
            nonlocal count
            regions = merged(f)
            number = {k: n for n, group in enumerate(regions, count) for k in group}
            count += len(regions)
            if not number:
                return f
            bindings = [_numbered(b, number.get(k)) for k, b in enumerate(f.bindings)]
            return f.with_body(bindings, f.results)

        return mod.with_functions(
            {
                name: through_nested(f, numbered)
                for name, f in mod.functions.items()
                if isinstance(f, Function) and not engine_of(f)
            }
        )


def _numbered(b: Binding, number: int | None) -> Binding:
    f = composite_of(b.value)
    if f is None or number is None:
        return b
    assert isinstance(b.value, Call)
    op = replace(f, attrs={**f.attrs, REGION: number})
    return replace(b, value=replace(b.value, op=op))


def owners(f: Function) -> dict[int, int]:
    """Position of every composite, and of what takes a field of one's tuple, -> of the
    composite."""
    place = {b.var: k for k, b in enumerate(f.bindings)}
    out: dict[int, int] = {}
    for k, b in enumerate(f.bindings):
        if composite_of(b.value) is not None:
            out[k] = k
        elif isinstance(b.value, TupleGetItem) and isinstance(b.value.value, Var):
            at = place.get(b.value.value)
            if at is not None and composite_of(f.bindings[at].value) is not None:
                out[k] = at
    return out


def merged(f: Function) -> list[list[int]]:
    """Positions of the bindings of each region of `f`, in program order."""
    groups = _Groups(f)
    again = True
    while again:
        again = False
        for a in groups.with_engine():
            again |= groups.absorb(a)
    return [sorted(groups.members[a]) for a in groups.with_engine()]


class _Groups:
    """The graph of a function whose nodes are bindings, or those of a region.

    What can be reached from a group is a set of bits, one for each binding.
    """

    def __init__(self, f: Function):
        own = owners(f)
        count = len(f.bindings)
        of = [own.get(k, k) for k in range(count)]
        self.engines = {k: engine_of(composite_of(f.bindings[k].value)) for k in own.values()}
        self.members: dict[int, set[int]] = {}
        for k, a in enumerate(of):
            self.members.setdefault(a, set()).add(k)
        self.after: dict[int, set[int]] = {a: set() for a in self.members}
        self.before: dict[int, set[int]] = {a: set() for a in self.members}
        for k, needed in enumerate(dependencies(f)):
            for j in needed:
                if of[j] != of[k]:
                    self.after[of[j]].add(of[k])
                    self.before[of[k]].add(of[j])
        self.mask = {a: 1 << a for a in self.members}
        self.below = dict.fromkeys(self.members, 0)  # what can be reached
        self.above = dict.fromkeys(self.members, 0)
        for a in sorted(self.members, reverse=True):
            for b in self.after[a]:
                self.below[a] |= self.below[b] | self.mask[b]
        for a in sorted(self.members):
            for b in self.before[a]:
                self.above[a] |= self.above[b] | self.mask[b]
        self.name = {a: a for a in self.members}  # of a bit: the group that it is in

    def with_engine(self) -> list[int]:
        """The regions, in program order."""
        return sorted(a for a in self.members if self.engines.get(a))

    def absorb(self, a: int) -> bool:
        """Merge all into the region `a` that read it and can be; whether there were any."""
        found = False
        while a in self.members:
            b = next((b for b in sorted(self.after[a]) if self._can(a, b)), None)
            if b is None:
                break
            self._merge(a, b)
            found = True
        return found

    def _can(self, a: int, b: int) -> bool:
        """Whether nothing else lies between two regions of one engine."""
        if self.engines.get(b) != self.engines[a]:
            return False
        return not any(self.below[c] & self.mask[b] for c in self.after[a] - {b})

    def _merge(self, a: int, b: int) -> None:
        self.members[a] |= self.members.pop(b)
        for c in self.after.pop(b):
            self.before[c].discard(b)
            self.before[c].add(a)
            self.after[a].add(c)
        for c in self.before.pop(b):
            self.after[c].discard(b)
            if c != a:
                self.after[c].add(a)
                self.before[a].add(c)
        self.name.update(dict.fromkeys(_bits(self.mask[b]), a))
        mask = self.mask[a] | self.mask.pop(b)
        below = (self.below[a] | self.below.pop(b)) & ~mask
        above = (self.above[a] | self.above.pop(b)) & ~mask
        self.mask[a], self.below[a], self.above[a] = mask, below, above
        for c in {self.name[k] for k in _bits(above)}:
            self.below[c] |= below | mask
        for c in {self.name[k] for k in _bits(below)}:
            self.above[c] |= above | mask


def _bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
