"""Concatenations that cost nothing: what they join is computed where the result holds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.ir.expr import Binding, Call, Constant, Function, Tuple, TupleGetItem, Var
from compiler.op.facts import Moves
from compiler.op.opdef import OpDef
from compiler.symbolic import Index
from compiler.types.tensor_types import TensorType


@dataclass
class Concatenations:
    """Values that lie inside others: root -> (root of the other, bytes before it there)."""

    inside: dict[int, tuple[int, Index]] = field(default_factory=dict)

    @property
    def wholes(self) -> set[int]:
        """Values in which others lie."""
        return {whole for whole, _ in self.inside.values()}

    def add(self, whole: int, parts: Iterable[tuple[int, TensorType]]) -> None:
        """Let `parts` (roots and types) lie one after another in `whole`."""
        before = Index()
        for root, t in parts:
            self.inside[root] = whole, before
            before = before + Index.of(t.size) * t.dtype.nbytes

    def place(self, root: int) -> tuple[int, Index]:
        """The value that lies in no other and holds `root`, and the bytes before it there."""
        offset = Index()
        while root in self.inside:
            root, before = self.inside[root]
            offset = offset + before
        return root, offset


def concatenated(f: Function) -> tuple[Var, ...]:
    """The parameters that a primitive function concatenates, where it does nothing else, and they
    lie one after another in the result; else none."""
    if len(f.bindings) != 1 or not isinstance(call := f.bindings[0].value, Call):
        return ()
    parts = tuple(a for a in call.args if isinstance(a, Var))
    t = f.bindings[0].var.type
    if not isinstance(call.op, OpDef) or call.op.moves is not Moves.JOIN:
        return ()
    if len(set(parts)) != len(call.args) or not isinstance(t, TensorType):
        return ()
    before = t.shape[: call.attrs.axis % t.rank]
    return parts if all(n == 1 for n in before) else ()


def returned(results: Iterable[Var | Constant], bindings: Iterable[Binding]) -> set[Var]:
    """Variables whose memory is, or may be, that of a result: results, and what they view."""
    found = {r for r in results if isinstance(r, Var)}
    for b in reversed(tuple(bindings)):
        if b.var in found:
            v = b.value
            if isinstance(v, Tuple):
                found |= {a for a in v.fields if isinstance(a, Var)}
            elif isinstance(v, TupleGetItem):
                found |= {v.value} if isinstance(v.value, Var) else set()
            elif isinstance(v, Call) and not isinstance(v.op, Function):
                found |= {a for a in v.args if isinstance(a, Var)}
            elif isinstance(v, Var):
                found.add(v)
    return found
