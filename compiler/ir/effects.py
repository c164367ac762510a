"""Effects: what passes may not drop, merge, reorder or compute beforehand."""

from __future__ import annotations

from compiler.ir.expr import Call, Function, Value


def effectful(value: Value) -> bool:
    """Whether computing `value` does more than give a value."""
    if not isinstance(value, Call):
        return False
    if isinstance(value.op, Function):
        return any(effectful(b.value) for b in value.op.bindings)
    return value.op.effect
