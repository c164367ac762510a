"""Graph normal form: which values stand inside the one that reads them when a program is printed.

Programs are in A-normal form, each value with a name. A function of the module that is marked
`form="graph"` prints the values called `y/0`, `y/1` ... as operands of `y`, and so do functions in
it; the parser names them so again, in the order in which they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.arithmetic.stochastic import random_dtype
from compiler.ir.effects import effectful
from compiler.ir.expr import Binding, Call, Function, Var, operands, uses
from compiler.op.opdef import OpDef
from compiler.types.tensor_types import TensorType

MARK = {"form": "graph"}
DEEPEST = 6
"""Calls that stand in each other."""


def marked(f: Function) -> bool:
    """Whether the function prints in graph normal form."""
    return MARK.items() <= f.attrs.items()


def nestable(f: Function) -> dict[Var, Binding]:
    """Operators' values that another operator alone reads, once. Values that are rounded
    stochastically keep their names: the rounding depends on them."""
    readers = uses(f)
    depth: dict[Var, int] = {}
    found: dict[Var, Binding] = {}
    for b in f.bindings:
        depth[b.var] = 1 + max((depth[a] for a in operands(b.value) if a in found), default=0)
        (reader, *more) = readers.get(b.var, [None])
        if more or reader is None or not _operator(b) or not _operator(reader):
            continue
        t = b.var.type
        if depth[b.var] < DEEPEST and isinstance(t, TensorType) and not random_dtype(t.dtype):
            found[b.var] = b
    return found


def _operator(b: Binding) -> bool:
    v = b.value
    return isinstance(v, Call) and isinstance(v.op, OpDef) and not v.op.callee and not effectful(v)


def inside(root: Binding, found: Mapping[Var, Binding]) -> list[Binding]:
    """The bindings of `found` that `root` reads, and these read, in the order in which nested text
    computes them: operands first, from left to right."""
    out: list[Binding] = []
    for a in operands(root.value):
        if isinstance(a, Var) and a in found:
            out += [*inside(found[a], found), found[a]]
    return out


def nested_name(root: str, k: int) -> str:
    """The name of the value number `k` inside of `root`."""
    return f"{root}/{k}"


def printed_inside(f: Function) -> dict[Var, Binding]:
    """The values that print inside the one that reads them, in a function that is marked or in one
    that is: they have the names, and stand in the places, that reading the text gives them."""
    found = nestable(f)
    out: dict[Var, Binding] = {}
    for k, b in enumerate(f.bindings):
        if b.var in found:
            continue
        within = inside(b, found)
        names = [nested_name(b.var.name, i) for i in range(len(within))]
        here = f.bindings[k - len(within) : k]
        if tuple(within) == here and [x.var.name for x in within] == names:
            out |= {x.var: x for x in within}
    return out
