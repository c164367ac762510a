"""What a fused function moves and keeps: the values that kernels read and write, and those that are
alive at once.

A kernel is a fused group, or an operator alone. It reads every value that it takes once and writes
its results once; values inside of it move nowhere. Rounding to blocks counts as a part of the
kernel that makes what is rounded, if nobody else reads that: machines round what they write. Views
and fields of tuples are the memory of what they are made of. What is computed from constants alone
(weights that are dequantized in front of a layer) is neither moved nor kept: its constants are, and
`compiler.transform.analysis` counts those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from compiler.ir.expr import (
    Atom,
    Call,
    Constant,
    Function,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    nested,
    operands,
    uses,
)
from compiler.op.opdef import Fusion, OpDef
from compiler.types.tensor_types import TensorType, TupleType, Type

Size = Callable[[Var, TensorType], int]
"""Bits of a tensor: the variable that holds it (or the tuple that it is a field of), its type."""


@dataclass(frozen=True, eq=False)
class _Item:
    """Memory of one tensor."""

    bits: int


Place = _Item | tuple["Place", ...]
"""The memory of a value; of a tuple, that of its fields; () of what is constant."""


@dataclass(frozen=True)
class Movement:
    """Bits that kernels read and write, constants apart, and the most that are alive at once."""

    moved: int
    alive: int


def movement(f: Function, size: Size) -> Movement:
    """What a fused function moves and keeps.

    Branches and bodies of loops count once, and a function of the module that is called as one
    kernel.
    """
    return _movement(f, size, {})


def _movement(f: Function, size: Size, outer: Mapping[Var, Place]) -> Movement:
    """The movement of `f`, which may read what is placed in `outer`."""
    places = {**outer, **{p: _new(p, atom_type(p), size) for p in f.params}}
    source = _sources(f)
    becomes = {v: k for k, v in source.items()}
    made: list[list[_Item]] = []
    inside: list[int] = []
    until: dict[_Item, int] = {}
    moved = 0
    for k, b in enumerate(f.bindings):
        read = list(dict.fromkeys(i for a in operands(b.value) for i in _items(_place(a, places))))
        until.update(dict.fromkeys(read, k))
        within = [_movement(g, size, places) for g in nested(b.value)]
        inside.append(max((m.alive for m in within), default=0))
        place = places[source[b.var]] if b.var in source else _seen_through(b.value, places)
        holder = becomes.get(b.var, b.var)
        places[b.var] = _new(holder, atom_type(holder), size) if place is None else place
        made.append(_items(places[b.var]) if place is None else [])
        moved += sum(m.moved for m in within) + _moved(b.value, read, made[-1])
    for r in f.results:
        until.update(dict.fromkeys(_items(_place(r, places)), len(f.bindings)))
    first = [i for p in f.params for i in _items(places[p])]
    return Movement(moved, _most_alive(first, made, inside, until))


def _sources(f: Function) -> dict[Var, Var]:
    """What is rounded where it is made -> the value that it is made of, which nobody else reads."""
    readers = uses(f)
    kernels = {b.var for b in f.bindings if isinstance(b.value, Call) and not _is_view(b.value)}
    found: dict[Var, Var] = {}
    for b in f.bindings:
        op = _only_operator(b.value)
        if op is not None and op.at_source and isinstance(b.value, Call):
            (x,) = b.value.args
            if isinstance(x, Var) and x in kernels and readers[x] == [b]:
                found[b.var] = x
    return found


def _new(holder: Var, t: Type, size: Size) -> Place:
    """Memory for a value."""
    if isinstance(t, TensorType):
        return _Item(size(holder, t))
    return tuple(_new(holder, x, size) for x in t.fields) if isinstance(t, TupleType) else ()


def _moved(value: Value, read: Sequence[_Item], made: Sequence[_Item]) -> int:
    """Bits that a binding moves, if it is a kernel."""
    if not isinstance(value, Call) or not made:
        return 0
    written = sum(i.bits for i in made)
    # What only moves elements reads no more than it writes: a part of what it is given.
    op = _only_operator(value)
    most = (
        written
        if op is not None and op.fusion is Fusion.INJECTIVE
        else max((i.bits for i in read), default=0)
    )
    return written + sum(min(i.bits, most) for i in read)


def _most_alive(
    first: Sequence[_Item],
    made: Sequence[Sequence[_Item]],
    inside: Sequence[int],
    until: Mapping[_Item, int],
) -> int:
    """The most bits alive at once.

    Args:
        first: memory of the parameters.
        made: memory that each binding takes anew.
        inside: the most that is alive in the functions in each binding, before its result is.
        until: memory -> the last binding that reads it.
    """
    alive = list(first)
    most = held = sum(i.bits for i in alive)
    for k, new in enumerate(made):
        most = max(most, held + max(sum(i.bits for i in new), inside[k]))
        alive = [i for i in (*alive, *new) if until.get(i, -1) > k]
        held = sum(i.bits for i in alive)
    return most


def _seen_through(value: Value, places: Mapping[Var, Place]) -> Place | None:
    """Where a value lies that is no memory of its own; None if it is."""
    if isinstance(value, Tuple):
        return tuple(_place(a, places) for a in value.fields)
    if isinstance(value, TupleGetItem):
        whole = _place(value.value, places)
        return whole[value.index] if isinstance(whole, tuple) and whole else ()
    if isinstance(value, Var | Constant | Match):
        return _place(value.value if isinstance(value, Match) else value, places)
    if isinstance(value, Call):
        if _is_view(value):
            return _place(value.args[0], places)
        if _is_constant(value, places):
            return ()
    return None


def _is_view(call: Call) -> bool:
    return isinstance(call.op, OpDef) and call.op.view


def _is_constant(call: Call, places: Mapping[Var, Place]) -> bool:
    """Whether a call computes from constants alone."""
    op = call.op
    if isinstance(op, OpDef):
        if op.callee or op.effect:
            return False
        read: list[Atom] = list(call.args)
    elif isinstance(op, Function) and op.attrs.get("primitive"):
        own = {*op.params, *(b.var for b in op.bindings)}
        inside = (a for b in op.bindings for a in operands(b.value))
        read = [*call.args, *(a for a in inside if a not in own)]
    else:
        return False
    return bool(read) and all(isinstance(a, Constant) or not _items(places[a]) for a in read)


def _only_operator(value: Value) -> OpDef | None:
    """The operator that a kernel is, if it is one alone."""
    op = value.op if isinstance(value, Call) else None
    if isinstance(op, Function) and len(op.bindings) == 1:
        inside = op.bindings[0].value
        op = inside.op if isinstance(inside, Call) else None
    return op if isinstance(op, OpDef) else None


def _place(a: Atom, places: Mapping[Var, Place]) -> Place:
    return places.get(a, ()) if isinstance(a, Var) else ()


def _items(place: Place) -> list[_Item]:
    if isinstance(place, _Item):
        return [place]
    return [i for p in place for i in _items(p)]
