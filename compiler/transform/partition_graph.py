"""PartitionGraph: regions become functions of the module, marked with their engine, and calls.

What an engine computes is a function `ENGINE_0`, `ENGINE_1` ... (by the number of its region) with
the attribute `engine`, of what its composites read from elsewhere; constants are inside. It is a
function like any other for whoever evaluates the module, and `build` gives it to the engine.
Composites that no region has been found for are regions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.errors import VerifyError
from compiler.ir.expr import (
    Binding,
    Call,
    Function,
    GlobalVar,
    IRModule,
    TupleGetItem,
    Var,
    atom_type,
    names_in,
    uses,
)
from compiler.ir.outside import ENGINE
from compiler.ir.regions import COMPOSITE, REGION, composite_of, engine_of
from compiler.passes.live import live
from compiler.passes.manager import ModulePass, PassContext
from compiler.passes.nested import through_nested
from compiler.transform.instantiate import instantiated
from compiler.transform.merge_compiler_regions import owners
from compiler.transform.outline import dependencies, ordered, outlined
from compiler.types.names import unique
from compiler.types.tensor_types import TupleType


class PartitionGraph(ModulePass):
    """Makes functions of regions."""

    name = "PartitionGraph"
    required = ("InferType",)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module whose functions call their regions.

        Raises:
            VerifyError: composites of several engines are in one region, a region reads what only
                it makes possible, or a region's number is none.
        """
        made: dict[str, Function] = {}
        taken = set(mod.functions)
        new = {
            name: through_nested(f, lambda g: _Partition(g, made, taken).run())
            for name, f in mod.functions.items()
            if isinstance(f, Function) and not engine_of(f)
        }
        return mod.with_functions({**new, **made})


class _Partition:
    def __init__(self, f: Function, made: dict[str, Function], taken: set[str]):
        self.f, self.made, self.taken = live(f), made, taken
        self.readers = uses(self.f)

    def run(self) -> Function:
        f = self.f
        own = owners(f)
        if not own:
            return f
        names = names_in(f)
        numbered: dict[int, int] = {}
        group: list[int] = []
        for k in range(len(f.bindings)):
            g = k
            if k in own:
                g = own[k]
                region = composite_of(f.bindings[g].value)
                assert region is not None
                if REGION in region.attrs:
                    number = region.attrs[REGION]
                    if not isinstance(number, int) or number < 0:
                        raise VerifyError(
                            f"%{f.bindings[g].var.name}: {REGION} is a number of 0 or more, not "
                            f"{number!r}"
                        )
                    g = numbered.setdefault(number, g)
            group.append(g)
        members: dict[int, list[int]] = {}
        for k, g in enumerate(group):
            members.setdefault(g, []).append(k)
        place = {g: n for n, g in enumerate(members)}
        before: list[set[int]] = [set() for _ in members]
        for k, needed in enumerate(dependencies(f)):
            before[place[group[k]]] |= {place[group[j]] for j in needed if group[j] != group[k]}
        order = ordered(before)
        every = list(members)
        if isinstance(order, int):
            b = f.bindings[every[order]]
            raise VerifyError(
                f"the region of %{b.var.name} waits for what waits for it: number regions by "
                "MergeCompilerRegions"
            )
        bindings: list[Binding] = []
        for n in order:
            some = [f.bindings[k] for k in members[every[n]]]
            if composite_of(some[0].value) is None:
                bindings += some
            else:
                bindings += self.region(some, names)
        return live(f.with_body(bindings, f.results))

    def region(self, members: Sequence[Binding], names: set[str]) -> list[Binding]:
        """A call of a new function of these bindings, and what gives their values."""
        engines = {engine_of(c) for b in members if (c := composite_of(b.value)) is not None}
        if len(engines) > 1:
            both = " and ".join(sorted(engines))
            raise VerifyError(f"%{members[0].var.name} is in a region of {both}: number them apart")
        (engine,) = engines
        inside = {id(b) for b in members}
        results = [
            b.var
            for b in members
            if any(r is None or id(r) not in inside for r in self.readers.get(b.var, ()))
        ]
        f, args = outlined(members, results, {ENGINE: engine})
        f = f.with_body([_unnumbered(b) for b in f.bindings], f.results)
        first = next(c.attrs for b in members if (c := composite_of(b.value)) is not None)
        number = first.get(REGION, 0)
        while (name := f"{engine}_{number}") in self.taken:
            number += 1
        self.taken.add(name)
        self.made[name] = f
        call = Call(GlobalVar(name, f.type), args)
        origins = tuple(dict.fromkeys(o for b in members for o in b.origins))
        if len(results) == 1:
            return [Binding(results[0], call, origins)]
        whole = Var(unique(name, names), TupleType(tuple(map(atom_type, results))))
        fields = [
            Binding(v, TupleGetItem(whole, k), origins_of(members, v))
            for k, v in enumerate(results)
        ]
        return [Binding(whole, call, origins), *fields]


def origins_of(members: Sequence[Binding], v: Var) -> tuple[str, ...]:
    """Where the value of a variable comes from."""
    return next(b.origins for b in members if b.var is v)


def _unnumbered(b: Binding) -> Binding:
    """A composite without the number of its region."""
    f = composite_of(b.value)
    if f is None or REGION not in f.attrs:
        return b
    assert isinstance(b.value, Call)
    op = Function(f.params, f.bindings, f.results, {COMPOSITE: f.attrs[COMPOSITE]})
    return Binding(b.var, Call(op, b.value.args, b.value.attrs), b.origins)


def _none(_: Function) -> bool:
    return False


def without_composites(mod: IRModule, unless: Callable[[Function], bool] = _none) -> IRModule:
    """`mod` with the operators of composites that are in no region in their place, but for those
    whose function is to stay."""
    return mod.with_functions(
        {
            name: through_nested(f, lambda g: _opened(g, unless))
            for name, f in mod.functions.items()
            if isinstance(f, Function) and not engine_of(f)
        }
    )


def _opened(f: Function, unless: Callable[[Function], bool]) -> Function:
    if not any(composite_of(b.value) for b in f.bindings):
        return f
    names, bindings = names_in(f), []
    for b in f.bindings:
        inner = composite_of(b.value)
        if inner is None or unless(inner):
            bindings.append(b)
        else:
            assert isinstance(b.value, Call)
            bindings += instantiated(inner, b.value.args, b, names)
    return f.with_body(bindings, f.results)
