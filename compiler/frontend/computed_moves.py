"""Expand, Tile, Pad, Split, ReverseSequence and Reshape whose sizes are symbolic, or found at run
time: along every axis, what lies at computed positions is taken."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest

from compiler.frontend.node import Node
from compiler.frontend.run_time import Integer, checked, found, integers, number, positions, spread
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, tensor_type
from compiler.symbolic import Dim, Index, dim, product
from compiler.types.dtypes import INT64


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
    if n.has(3) and n.constant(3) is None:
        half, on = len(pads) // 2, list(range(t.rank))
        sides = spread(n, 3, t.rank, (pads[:half], 0), (pads[half:], 0))
        pads = [p for side in sides for p in side]
    elif n.has(3):
        on = [n.front(int(a), t.rank) for a in n.known(3, "axes")]
    else:
        on = list(range(t.rank))
    if len(pads) != 2 * len(on):
        raise n.unsupported(f"{len(pads)} pads for {len(on)} axes")
    value = n.step("reshape", n.atom(2), newshape=()) if n.has(2) else scalar(0, t)
    for axis, before, after in zip(on, pads[: len(on)], pads[len(on) :], strict=True):
        if before == 0 and after == 0:
            continue
        x = bordered(n, x, axis, (before, after), mode, value)
    return x


def divided(n: Node, axis: int) -> list[Imported]:
    """The input cut into parts along an axis, which must be all of it."""
    whole, parts = number(n, n.type(0).shape[axis]), integers(n, 1)
    if len(parts) != len(n.outputs):
        raise n.unsupported(f"{len(n.outputs)} outputs for {len(parts)} parts")
    first, out = number(n, 0), []
    for k, part in enumerate(parts):
        size = part if isinstance(part, int | Index) else found(n, part)
        at = n.step("add", positions(n, size), first)
        make = partial(n.result, k) if n.wants(k) else n.step
        out.append(make("take", n.atom(0), at, axis=axis))
        first = n.step("add", first, number(n, part))
    checked(n, n.step("subtract", whole, first), 0, "remainder")
    return list(out)


def turned(n: Node, time: int) -> Imported:
    """The first elements of every sequence of a batch backward; axes 0 and 1 are `time` and the
    batch. The program checks the lengths."""
    t, lengths = n.type(0), n.atom(1)
    steps, batch = t.shape[time], t.shape[1 - time]
    if tensor_type(lengths).dtype != INT64:
        lengths = n.step("cast", lengths, dtype="int64")
    zero, whole = number(n, 0), number(n, steps)
    fits = n.step("logical_and", n.step("greater_equal", lengths, zero),
                  n.step("less_equal", lengths, whole))  # fmt: skip
    fitting = n.step("sum", n.step("cast", fits, dtype="int64"), axis=(0,), keepdims=False)
    checked(n, fitting, batch, "lengths_that_fit")
    at, which = (n.step("expand_dims", positions(n, d), axes=(k,))
                 for d, k in ((steps, 1 - time), (batch, time)))  # fmt: skip
    lengths = n.step("expand_dims", lengths, axes=(time,))
    back = n.step("subtract", n.step("subtract", lengths, number(n, 1)), at)
    source = n.step("where", n.step("less", at, lengths), back, at)
    if time == 0:
        flat = n.step("add", n.step("multiply", source, number(n, batch)), which)
    else:
        flat = n.step("add", n.step("multiply", which, whole), source)
    rows = n.step("reshape", n.atom(0), newshape=(-1, *t.shape[2:]))
    return n.call("take", rows, flat, axis=0)


def bordered(
    n: Node, x: Atom, axis: int, pads: tuple[Integer, Integer], mode: str, value: Atom
) -> Atom:
    """Borders before and after along one axis."""
    t = tensor_type(x)
    size = t.shape[axis]
    at = n.step("subtract", positions(n, _sum(n, size, *pads)), number(n, pads[0]))
    whole = number(n, size)
    moved = n.step("take", x, _inside(n, at, whole, mode), axis=axis)
    if mode != "constant":
        return moved
    there = n.step("greater_equal", at, number(n, 0))
    there = n.step("logical_and", there, n.step("less", at, whole))
    wide = tuple(-1 if k == axis else 1 for k in range(t.rank))
    return n.step("where", n.step("reshape", there, newshape=wide), moved, value)


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
    shape = tuple(
        size if isinstance(size, Index) or (isinstance(size, int) and size > 0) else found(n, count)
        for size, count in zip(each, sizes, strict=True)
    )
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
