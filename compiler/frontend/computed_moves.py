"""Expand, Tile, Pad and Reshape whose sizes are symbolic, or found at run time: along
every axis, what lies at computed positions is taken."""

from __future__ import annotations

from itertools import zip_longest

from compiler.frontend.node import Node
from compiler.frontend.run_time import Integer, found, integers, number, positions
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, tensor_type
from compiler.symbolic import Dim, Index, dim, product


def expanded(n: Node) -> Imported:
    """The input broadcast with a shape; a size that it has already must be the same, or 1."""
    backward: list[Dim] = []
    for old, new in zip_longest(reversed(n.type(0).shape), reversed(integers(n, 1)), fillvalue=1):
        if old == 1 and not isinstance(new, int | Index):
            backward.append(found(n, new))
        elif new == 1 or new == old:
            backward.append(old)
        else:
            own, wanted = number(n, old), number(n, new)
            one = n.step("equal", wanted, number(n, 1))
            backward.append(found(n, n.step("where", one, own, wanted), old))
    return n.call("broadcast_to", n.atom(0), shape=tuple(reversed(backward)))


def tiled(n: Node) -> Imported:
    """The input repeated along every axis."""
    x, shape, repeats = n.atom(0), n.type(0).shape, integers(n, 1)
    if len(repeats) != len(shape):
        raise n.unsupported(f"{len(repeats)} repeats for {n.type(0)}")
    for axis, (size, count) in enumerate(zip(shape, repeats, strict=True)):
        if count != 1:
            total = _product(n, size, count)
            at = n.step("mod", positions(n, total), number(n, size))
            x = n.step("take", x, at, axis=axis)
    return x


def _product(n: Node, size: Dim, count: Integer) -> Dim:
    if isinstance(count, int | Index):
        return dim(Index.of(size) * count)
    return found(n, n.step("multiply", number(n, size), number(n, count)))


def padded(n: Node, mode: str) -> Imported:
    """Borders of a constant, or of what is inside; negative ones cut."""
    t, x, pads = n.type(0), n.atom(0), integers(n, 1)
    on = [n.front(int(a), t.rank) for a in n.known(3, "axes")] if n.has(3) else list(range(t.rank))
    if len(pads) != 2 * len(on):
        raise n.unsupported(f"{len(pads)} pads for {len(on)} axes")
    value = n.step("reshape", n.atom(2), newshape=()) if n.has(2) else scalar(0, t)
    for axis, before, after in zip(on, pads[: len(on)], pads[len(on) :], strict=True):
        if before == 0 and after == 0:
            continue
        size = t.shape[axis]
        at = n.step("subtract", positions(n, _sum(n, size, before, after)), number(n, before))
        whole = number(n, size)
        moved = n.step("take", x, _inside(n, at, whole, mode), axis=axis)
        if mode == "constant":
            there = n.step("greater_equal", at, number(n, 0))
            there = n.step("logical_and", there, n.step("less", at, whole))
            wide = tuple(-1 if k == axis else 1 for k in range(t.rank))
            moved = n.step("where", n.step("reshape", there, newshape=wide), moved, value)
        x = moved
    return x


def _sum(n: Node, *parts: Integer) -> Dim:
    """A size; those that may be negative are left to the program to check."""
    if all(isinstance(p, int | Index) for p in parts):
        total = Index.of(0)
        for p in parts:
            assert isinstance(p, int | Index)
            total = total + p
        return dim(total)
    first, *rest = (number(n, p) for p in parts)
    for p in rest:
        first = n.step("add", first, p)
    return found(n, first)


def _inside(n: Node, at: Atom, size: Atom, mode: str) -> Atom:
    """The positions inside that positions anywhere stand for."""
    zero = number(n, 0)
    if mode == "wrap":
        return n.step("mod", at, size)
    if mode == "reflect":
        last = n.step("subtract", size, number(n, 1))
        period = n.step("maximum", n.step("add", last, last), number(n, 1))
        at = n.step("mod", at, period)
        return n.step("minimum", at, n.step("subtract", period, at))
    return n.step("minimum", n.step("maximum", at, zero), n.step("subtract", size, number(n, 1)))


def reshaped(n: Node) -> Imported:
    """The input with another shape: -1 is what remains, 0 (unless allowzero) the input's own. That
    the elements are as many is checked by the program."""
    x, t = n.atom(0), n.type(0)
    each = [_copied(n, k, size) for k, size in enumerate(integers(n, 1))]
    open_ones = [k for k, size in enumerate(each) if not isinstance(size, int | Index)]
    rest = product(size for size in each if isinstance(size, int | Index))
    if len(open_ones) == 1 and -1 not in each and isinstance(rest, int) and rest > 0:
        (k,) = open_ones  # all others are known: so is this one
        y = n.call("reshape", x, newshape=tuple(-1 if k == j else d for j, d in enumerate(each)))
        own = tensor_type(y).shape[k]
        found(n, _rest(n, number(n, each[k]), number(n, own)), own)
        return y
    one = number(n, 1)
    known, whole = one, number(n, dim(t.size))
    for size in each:
        known = n.step("multiply", known, _rest(n, number(n, size), one))
    remains = n.step("divide", whole, n.step("maximum", known, one))
    sizes = [_rest(n, number(n, size), remains) for size in each]
    total: Atom = one
    for count in sizes:
        total = n.step("multiply", total, count)
    found(n, total, dim(t.size))
    shape = tuple(found(n, count) for count in sizes)
    at = n.step("reshape", positions(n, dim(product(shape))), newshape=shape, allowzero=True)
    return n.call("take", n.step("reshape", x, newshape=(-1,)), at, axis=0)


def _copied(n: Node, k: int, size: Integer) -> Integer:
    """Size `k` of a new shape, in which 0 may stand for the input's own size."""
    old = n.type(0).shape
    if n.attr("allowzero", 0):
        return size
    if isinstance(size, int | Index):
        if size == 0 and k >= len(old):
            raise n.unsupported(f"a shape whose dimension {k} copies none")
        return old[k] if size == 0 else size
    own = number(n, old[k] if k < len(old) else 0)
    return n.step("where", n.step("equal", size, number(n, 0)), own, size)


def _rest(n: Node, size: Atom, remains: Atom) -> Atom:
    """`size`, or what remains where it is -1."""
    return n.step("where", n.step("equal", size, number(n, -1)), remains, size)
