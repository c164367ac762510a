"""Caches that grow where they are: values that are the front of memory with room for more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.errors import LoweringError
from compiler.ir.expr import Atom, Call, Function, Var, tensor_type
from compiler.lowering.legalize import ROOM, Legalized
from compiler.op.append import CACHES
from compiler.op.concatenate import copy_into
from compiler.op.opdef import OpDef
from compiler.symbolic import Dim, product
from compiler.tensor.builder import PrimBuilder

Shape = tuple[Dim, ...]


class Room:
    """The values of a function that are the front of a cache, and the shapes of their memory."""

    def __init__(self, f: Function):
        named = {name: (axis, capacity) for name, axis, capacity in f.attrs.get(CACHES, ())}
        self.shapes: dict[Var, Shape] = {
            p: _with(tensor_type(p).shape, *named[p.name]) for p in f.params if p.name in named
        }

    @property
    def dims(self) -> list[Dim]:
        """The dimensions of all of this memory."""
        return [d for shape in self.shapes.values() for d in shape]

    def given(self, f: Function, args: Sequence[Atom]) -> Function:
        """A primitive function that is told which of its parameters are fronts of caches."""
        found = tuple((k, self.shapes[a]) for k, a in enumerate(args) if a in self.shapes)
        return replace(f, attrs={**f.attrs, ROOM: found}) if found else f

    def views(self, var: Var, source: Atom) -> None:
        """Let `var` be the memory of `source` under its own shape.

        Raises:
            LoweringError: that is no front of a tensor any more.
        """
        if source not in self.shapes:
            return
        old, held, new = tensor_type(source).shape, self.shapes[source], tensor_type(var).shape
        axis = next(k for k, (a, b) in enumerate(zip(old, held, strict=True)) if a != b)
        behind = product(old[axis + 1 :])
        for k, size in enumerate(new):
            if size == old[axis] and product(new[k + 1 :]) == behind:
                self.shapes[var] = _with(new, k, held[axis])
                return
        raise LoweringError(
            f"%{var.name} joins the positions of a cache with another axis, so that the cache "
            "cannot grow where it is: build the model as it is"
        )

    def refuse(self, atoms: Sequence[Atom], who: str) -> None:
        """Raise LoweringError if one of `atoms`, which `who` takes as they are, is a front."""
        for a in atoms:
            if isinstance(a, Var) and a in self.shapes:
                raise LoweringError(
                    f"{who} takes %{a.name}, a cache with room for more, as a tensor without: "
                    "build the model as it is"
                )


def appended(f: Function) -> bool:
    """Whether a primitive function is nothing but an operator that appends."""
    if len(f.bindings) != 1 or not isinstance(call := f.bindings[0].value, Call):
        return False
    return isinstance(call.op, OpDef) and call.op.appends


def append_nest(f: Function, shape: Shape) -> Legalized:
    """The loop nest of such a function that writes its second operand behind the first, in memory
    of `shape`, which is its result; the first one tells how much there is."""
    call = f.bindings[0].value
    assert isinstance(call, Call)
    first, second = call.args
    before, more = tensor_type(first), tensor_type(second)
    axis = call.attrs.axis % before.rank
    b = PrimBuilder("append")
    b.input("before", before.shape, before.dtype)
    x = b.input("x", more.shape, more.dtype)
    out = b.buffer("out", shape, more.dtype)
    at = [before.shape[k] if k == axis else 0 for k in range(before.rank)]
    copy_into(b, out, x, at)
    return Legalized(b.finish([out], {"operators": {}}), (first, second))


def _with(shape: Shape, axis: int, size: Dim) -> Shape:
    return tuple(size if k == axis % len(shape) else d for k, d in enumerate(shape))
