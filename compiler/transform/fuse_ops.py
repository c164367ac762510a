"""FuseOps: groups operators that become one kernel.

An elementwise operator joins the group that produces one of its operands when nobody else reads
that operand and the shape stays the same. Where an operand has several readers, all that lies
between it and the one operator where they meet again joins (`x * sigmoid(x)`): TVM's rule of
immediate post-dominators. Every group becomes a call of a function marked `primitive`; operators
that only view memory under another shape stay calls of their own, and so do calls of tensor
programs and of registered functions.
"""

from __future__ import annotations

import heapq
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compiler.errors import ConfigError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    atom_type,
    operands,
    uses,
)
from compiler.op.opdef import Fusion, OpDef
from compiler.passes.manager import FunctionPass, PassContext
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType

MAX_DEPTH = 32
MOST_REPEATED = 16
"""Elementwise operations behind a result, in a group where values are read several times: a kernel
computes a value again for each of them."""


@dataclass(eq=False)
class _Group:
    """Members in order; `computed`: elementwise operations behind each value, those of operands
    again each time that it reads them."""

    members: list[Binding] = field(default_factory=list)
    computed: dict[Atom, int] = field(default_factory=dict)

    def add(self, b: Binding) -> None:
        """Let `b` join."""
        self.computed[b.var] = self._work(b, self.computed)
        self.members.append(b)

    def affords(self, more: Sequence[Binding]) -> bool:
        """Whether the last of `more`, in order, has not too many operations behind it: some, or no
        more than there are members."""
        computed, work = ChainMap({}, self.computed), 0
        for b in more:
            computed[b.var] = work = self._work(b, computed)
        return work <= max(MOST_REPEATED, len(self.members) + len(more))

    @staticmethod
    def _work(b: Binding, computed: Mapping[Atom, int]) -> int:
        if _fusion(b) is not Fusion.ELEMENTWISE:
            return 0  # it is stored: nobody computes it again
        return 1 + sum(computed.get(a, 0) for a in operands(b.value))


class FuseOps(FunctionPass):
    """Groups bindings into primitive functions.

    Args:
        fuse_opt_level: 0: every operator alone; by default the level of the PassContext.
        max_depth: operators that a group has at most.

    Both are options of PassContext as well ("FuseOps.max_depth").
    """

    name = "FuseOps"
    required = ("InferType",)
    options = ("fuse_opt_level", "max_depth")

    def __init__(self, fuse_opt_level: int | None = None, max_depth: int | None = None):
        self.fuse_opt_level, self.max_depth = fuse_opt_level, max_depth

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with its operators grouped.

        Raises:
            ConfigError: an option is no number, or a depth is below 1.
        """
        level, depth = self.fuse_opt_level, self.max_depth
        level = ctx.config.get("FuseOps.fuse_opt_level", ctx.opt_level) if level is None else level
        depth = ctx.config.get("FuseOps.max_depth", MAX_DEPTH) if depth is None else depth
        if not isinstance(level, int) or not isinstance(depth, int) or depth < 1:
            raise ConfigError(
                f"FuseOps takes a level and a depth of at least 1, not {level!r} and {depth!r}"
            )
        return fuse_function(f, depth if level > 0 else 1)


def fused(mod: IRModule) -> IRModule:
    """The module with its operators grouped as the current PassContext says: where it disables the
    pass, each is a kernel of its own."""
    fuse = FuseOps()
    enabled = PassContext.current().enables(fuse)
    return (fuse if enabled else FuseOps(fuse_opt_level=0))(mod)


def fuse_function(f: Function, max_depth: int) -> Function:
    """Group the operator calls of `f`, at most `max_depth` in a group."""
    readers = uses(f)
    place = {b.var: k for k, b in enumerate(f.bindings)}
    group_of: dict[Var, _Group] = {}
    groups: list[_Group] = []
    for b in f.bindings:
        if not _groupable(b):
            continue
        group = group_of.get(b.var)  # all up to where the readers of an operand meet has joined
        if group is None:
            group = next(
                (
                    group_of[a]
                    for a in operands(b.value)
                    if isinstance(a, Var)
                    and a in group_of
                    and _joins(b, a, group_of[a], readers[a], max_depth)
                ),
                None,
            )
            if group is None:
                group = _Group()
                groups.append(group)
            group.add(b)
            group_of[b.var] = group
        if group.members[-1] is b and len(readers.get(b.var, ())) > 1:
            between = _up_to_meeting(b, readers, place, max_depth - len(group.members))
            if not any(x.var in group_of for x in between) and group.affords(between):
                for x in between:
                    group.add(x)
                    group_of[x.var] = group
    last = {g.members[-1].var: g for g in groups}
    out: list[Binding] = []
    for b in f.bindings:
        if b.var in last:
            out.append(_as_primitive(last[b.var]))
        elif b.var not in group_of:
            out.append(b)
    return f.with_body(out, f.results)


def _groupable(b: Binding) -> bool:
    op = b.value.op if isinstance(b.value, Call) else None
    return isinstance(op, OpDef) and not op.view and not op.callee and not op.effect


def _fusion(b: Binding) -> Fusion:
    assert isinstance(b.value, Call)
    assert isinstance(b.value.op, OpDef)
    return b.value.op.fusion


def _tables_known(b: Binding) -> bool:
    """Whether no operand that is read whole might be computed in the same kernel."""
    assert isinstance(b.value, Call)
    assert isinstance(b.value.op, OpDef)
    return all(isinstance(b.value.args[k], Constant) for k in b.value.op.tables)


def _rounds(b: Binding) -> bool:
    assert isinstance(b.value, Call)
    assert isinstance(b.value.op, OpDef)
    return b.value.op.rounds


def _joins(
    b: Binding, a: Var, group: _Group, readers: Sequence[Binding | None], max_depth: int
) -> bool:
    tail = group.members[-1]
    if tail.var is not a or len(group.members) >= max_depth or any(r is not b for r in readers):
        return False
    fits = _fusion(tail) in (Fusion.ELEMENTWISE, Fusion.ANCHOR) and _follows(b, a)
    return fits and group.affords([b])


def _follows(b: Binding, a: Var) -> bool:
    """Whether `b` may be computed element by element along with its operand `a`."""
    out, before = atom_type(b.var), atom_type(a)
    return (
        _groupable(b)
        and _fusion(b) is Fusion.ELEMENTWISE
        and _tables_known(b)
        and not _rounds(b)
        and isinstance(out, TensorType)
        and isinstance(before, TensorType)
        and out.shape == before.shape
    )


def _up_to_meeting(
    first: Binding,
    readers: Mapping[Var, Sequence[Binding | None]],
    place: Mapping[Var, int],
    most: int,
) -> list[Binding]:
    """The elementwise bindings between `first` and the one where its readers meet, that one
    included; none if there is another way out, or they are more than `most`."""
    if _fusion(first) not in (Fusion.ELEMENTWISE, Fusion.ANCHOR):
        return []
    found: list[Binding] = []
    ahead: list[tuple[int, Binding]] = []
    seen: set[Var] = set()
    at = first
    while True:
        for r in readers.get(at.var, (None,)):
            if r is None:
                return []
            if r.var not in seen:
                seen.add(r.var)
                heapq.heappush(ahead, (place[r.var], r))
            if len(seen) > most:
                return []
        _, at = heapq.heappop(ahead)
        if not _follows(at, first.var):
            return []
        found.append(at)
        if not ahead:
            return found


def _as_primitive(g: _Group) -> Binding:
    inside = {b.var for b in g.members}
    params: dict[Var, Var] = {}
    bindings: list[Binding] = []
    names: set[str] = {b.var.name for b in g.members}
    for b in g.members:
        assert isinstance(b.value, Call)
        args: list[Atom] = []
        for a in b.value.args:
            if isinstance(a, Constant) or a in inside:
                args.append(a)
                continue
            if a not in params:
                params[a] = Var(unique(a.name, names), a.type)
            args.append(params[a])
        bindings.append(Binding(b.var, Call(b.value.op, tuple(args), b.value.attrs), b.origins))
    tail = g.members[-1]
    result = Var(tail.var.name, tail.var.type)
    inner = Function(tuple(params.values()), tuple(bindings), (tail.var,), {"primitive": True})
    origins = tuple(dict.fromkeys(o for b in g.members for o in b.origins))
    # The inner function keeps the member's variable; the call's result keeps its identity outside.
    renamed = _rename_result(inner, tail.var, result)
    return Binding(tail.var, Call(renamed, tuple(params), None), origins)


def _rename_result(f: Function, old: Var, new: Var) -> Function:
    bindings = [Binding(new if b.var is old else b.var, b.value, b.origins) for b in f.bindings]
    return f.with_body(bindings, [new if r is old else r for r in f.results])
