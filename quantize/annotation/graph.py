"""What quantization asks of a function: its calls, who makes and who reads a value."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Function,
    If,
    TupleGetItem,
    Var,
    nested,
    uses,
)
from compiler.types.dtypes import FLOAT32
from compiler.types.tensor_types import TensorType

INSIDE = "it is inside a branch, a loop or a function, where all stays float"


def is_float32(v: Var) -> bool:
    """Whether a value is a tensor of float32, or a tuple that begins with one."""
    t = v.type
    while t is not None and not isinstance(t, TensorType) and hasattr(t, "fields") and t.fields:
        t = t.fields[0]
    return isinstance(t, TensorType) and t.dtype == FLOAT32


class Graph:
    """A function with the questions that quantization asks of it."""

    def __init__(self, f: Function):
        self.f = f
        self.uses = uses(f)
        self.at = {b.var: b for b in f.bindings}
        self.named = {v.name: v for v in (*f.params, *self.at)}

    def calls(self) -> list[tuple[Binding, Call]]:
        """The operator calls with float32 results (a tuple counts by its first field)."""
        out = []
        for b in self.f.bindings:
            if isinstance(b.value, Call) and is_float32(b.var):
                out.append((b, b.value))
        return out

    def readers(self, v: Var) -> list[Binding | None]:
        """Bindings that read `v`, seen through tuple fields; None stands for a result."""
        out: list[Binding | None] = []
        for r in self.uses.get(v, []):
            if r is not None and isinstance(r.value, TupleGetItem):
                out += self.readers(r.var)
            else:
                out.append(r)
        return out

    def producer(self, a: Atom) -> Binding | None:
        """The call that computes `a`, seen through tuple fields; None if there is none."""
        b = self.at.get(a) if isinstance(a, Var) else None
        while b is not None and isinstance(b.value, TupleGetItem):
            b = self.at.get(b.value.value) if isinstance(b.value.value, Var) else None
        return b


def inner_calls(f: Function, path: str = "") -> dict[str, tuple[Binding, Call]]:
    """The operator calls with float32 results in the branches and loops of `f`, and in the
    functions that it makes: by the names of what they are in, then of the part, then their own."""
    out: dict[str, tuple[Binding, Call]] = {}
    for b in f.bindings:
        parts: Sequence[str] = ("then", "else") if isinstance(b.value, If) else ("body",)
        if isinstance(b.value, Cases):
            parts = [f"case{k}" for k in range(len(b.value.bodies))]
        for part, g in zip(parts, nested(b.value), strict=False):
            inside = f"{path}{b.var.name}.{part}."
            out |= {inside + c.var.name: (c, call) for c, call in Graph(g).calls()}
            out |= inner_calls(g, inside)
    return out
