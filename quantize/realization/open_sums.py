"""Sums of integers over an open number of positions, as decoders have them over their past:
programs take it for granted that there are no more than an int32 accumulator holds, and refuse
others when they are called."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.expr import Atom, Binding, Call, Var, tensor_type
from compiler.op.assume import ASSUME
from compiler.passes import rewrite

Bind = Callable[[Call, str], Var]


def bounded(bind: Bind, b: Binding, inner: int, data: Atom, most: int) -> Atom:
    """`data`, along whose axis `inner` the node `b` sums, known to have at most `most` elements
    there if their number is open."""
    terms = tensor_type(data).shape[inner]
    if isinstance(terms, int):
        return data
    node = f"node {b.origins[0]!r}" if b.origins else f"%{b.var.name}"
    return bind(rewrite.call(ASSUME.name, data, size=terms // (most + 1), equal=0, node=node),
                "bounded")  # fmt: skip
