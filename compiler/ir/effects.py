"""Effects: what passes may not drop, merge, reorder or compute beforehand."""

from __future__ import annotations

from compiler.ir.expr import Call, Cases, Function, If, Loop, Value, nested
from compiler.op.opdef import OpDef


def effectful(value: Value) -> bool:
    """Whether computing `value` does more than give a value, or may: what a called function of the
    module or a closure does is not looked into."""
    if isinstance(value, If | Loop | Cases):
        return any(_inside(f) for f in nested(value))
    if not isinstance(value, Call):
        return False
    if isinstance(value.op, Function):
        return _inside(value.op)
    return value.op.effect if isinstance(value.op, OpDef) else True


def _inside(f: Function) -> bool:
    return any(effectful(b.value) for b in f.bindings)
