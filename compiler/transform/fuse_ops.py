"""FuseOps: groups operators that become one kernel.

An elementwise operator joins the group that produces one of its operands when nobody else reads
that operand and the shape stays the same. Every group becomes a call of a function marked
`primitive`; operators that only view memory under another shape stay calls of their own, and so do
calls of tensor programs and of registered functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
from compiler.ir.names import unique
from compiler.ir.types import TensorType
from compiler.op.opdef import Fusion, OpDef
from compiler.transform.passes import FunctionPass, PassContext, register_pass


@dataclass(eq=False)
class _Group:
    members: list[Binding] = field(default_factory=list)


@register_pass
class FuseOps(FunctionPass):
    """Groups bindings into primitive functions. `fuse_opt_level` 0: every operator alone."""

    name = "FuseOps"
    required = ("InferType",)

    def __init__(self, fuse_opt_level: int | None = None, max_depth: int = 32):
        self.fuse_opt_level, self.max_depth = fuse_opt_level, max_depth

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with its operators grouped."""
        level = ctx.opt_level if self.fuse_opt_level is None else self.fuse_opt_level
        return fuse_function(f, self.max_depth if level > 0 else 1)


def fuse_function(f: Function, max_depth: int) -> Function:
    """Group the operator calls of `f`, at most `max_depth` in a group."""
    readers = uses(f)
    group_of: dict[Var, _Group] = {}
    groups: list[_Group] = []
    for b in f.bindings:
        if not _groupable(b):
            continue
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
        group.members.append(b)
        group_of[b.var] = group
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
    return isinstance(op, OpDef) and not op.view and not op.callee


def _joins(
    b: Binding, a: Var, group: _Group, readers: list[Binding | None], max_depth: int
) -> bool:
    assert isinstance(b.value, Call)
    assert isinstance(b.value.op, OpDef)
    tail = group.members[-1]
    if b.value.op.fusion is not Fusion.ELEMENTWISE or tail.var is not a:
        return False
    if len(group.members) >= max_depth or any(r is not b for r in readers):
        return False
    head = tail.value
    assert isinstance(head, Call)
    assert isinstance(head.op, OpDef)
    if head.op.fusion not in (Fusion.ELEMENTWISE, Fusion.ANCHOR):
        return False
    out, before = atom_type(b.var), atom_type(a)
    return (
        isinstance(out, TensorType) and isinstance(before, TensorType) and out.shape == before.shape
    )


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
