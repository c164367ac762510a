"""Sizes and positions that are symbolic, or that the program finds while it runs.

Known numbers are `int`, dimensions and what is computed from them `Index`, and what the program
computes is an atom, a scalar of int64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from compiler.frontend import elements
from compiler.frontend.node import Node
from compiler.frontend.values import Symbolic, atoms_in
from compiler.ir.expr import Atom, Call, Constant, Match, Var, tensor_type
from compiler.op.library import get_op
from compiler.symbolic import Dim, Index, Quasi
from compiler.symbolic import Var as Dimension
from compiler.types.dtypes import INT64
from compiler.types.tensor_types import TensorType

Integer = Dim | Atom

_MOST_ATOMS = 8
"""Dimensions in a size that stays an expression."""


def integers(n: Node, i: int) -> list[Integer]:
    """The elements of input `i`, a vector or a scalar of integers.

    Raises:
        UnsupportedError: not even their number is known.
    """
    v = n.value(i)
    if not isinstance(v, Var):
        return list(n.dims(i, ""))
    t = tensor_type(v)
    if t.rank > 1 or not all(isinstance(d, int) for d in t.shape):
        raise n.unsupported(f"an input {i} of type {t}; use shapes=...")
    if t.dtype != INT64:
        v = n.step("cast", v, dtype="int64")
    sources = [elements.element(n.graph, v, k) for k in range(math.prod(t.static_shape))]
    return [_taken(n, *x) if isinstance(x, tuple) else x for x in sources]


def whole_number(n: Node, i: int) -> Integer | None:
    """Input `i`, a float of one element, as the integer that it certainly is; or None."""
    x = elements.whole_number(n.graph, n.atom(i)) if n.type(i).size == 1 else None
    return _taken(n, *x) if isinstance(x, tuple) else x


def _taken(n: Node, v: Atom, k: int) -> Atom:
    """Element `k` of `v`, row-major."""
    flat = n.step("reshape", v, newshape=(-1,)) if tensor_type(v).rank != 1 else v
    return n.step("take", flat, number(n, k), axis=0)


def one_integer(n: Node, i: int) -> Atom:
    """Input `i`, of one integer, as a scalar of int64."""
    v = n.step("cast", n.atom(i), dtype="int64") if n.type(i).dtype != INT64 else n.atom(i)
    return n.step("reshape", v, newshape=()) if tensor_type(v).rank else v


def number(n: Node, x: Integer) -> Atom:
    """`x` as a scalar of int64."""
    if isinstance(x, int):
        return Constant.of(np.int64(x), INT64)
    if isinstance(x, Index):
        return n.graph.computed(Symbolic(np.array(x, object), INT64), n.graph.intermediate("size"))
    return x


def found(n: Node, count: Atom, expected: Dim | None = None) -> Dim:
    """The dimension of which the program finds the size `count`; or `expected`, which is checked
    then.

    Raises:
        UnsupportedError: they cannot be equal.
    """
    if isinstance(count, Constant):
        known = int(count.data)
        if isinstance(expected, int) and expected != known:
            raise n.unsupported(f"a size of {known} where {expected} is needed")
        if expected is None or isinstance(expected, int):
            return known
    size = expected
    if size is None:
        if (count, "is") in n.graph.matched:
            return n.graph.matched[count, "is"]
        size = n.graph.matched.get((count, "or 0"))
        if size is None:
            size = Dimension(n.graph.intermediate("size"))
            n.graph.counts[size] = count
        n.graph.matched[count, "is"] = size
    checked(n, count, size, "matched")
    return size


def found_or_0(n: Node, count: Atom) -> Dim:
    """The same, but 0 if the number is negative."""
    if (count, "is") in n.graph.matched:
        return n.graph.matched[count, "is"]
    size = found(n, n.step("maximum", count, number(n, 0)))
    if isinstance(size, Dimension):
        n.graph.matched[count, "or 0"] = size
    return size


def is_natural(x: Integer) -> bool:
    """Whether a symbolic number is certainly not negative, where sizes may be 0."""
    if isinstance(x, int):
        return x >= 0
    if not isinstance(x, Index):
        return False
    terms = x.terms.items()
    return x.const >= 0 and all(
        c > 0 and (not isinstance(a, Quasi) or (is_natural(a.a) and is_natural(a.b)))
        for a, c in terms
    )


def checked(n: Node, count: Atom, size: Dim, name: str, claim: str = "") -> None:
    """Have the program refuse a number that is not `size`, which is known from then on; errors say
    `name`, or `claim` alone."""
    definition, vector = get_op("match_shape"), n.step("reshape", count, newshape=(1,))
    call = Call(definition, (vector,), definition.make_attrs(shape=(size,), claim=claim))
    n.graph.bind(call, n.graph.intermediate(name), n.origin)


def narrowed(n: Node, x: Atom, sizes: Mapping[int, int]) -> Atom:
    """`x`, whose `sizes` (axis -> size) are known from now on. Those of axes that have been found
    at run time are checked by the program."""
    t = tensor_type(x)
    new = {
        k: size
        for k, size in sizes.items()
        if isinstance(d := t.shape[k], Index) and not n.graph.is_given(d)
    }
    if not new:
        return x
    shape = tuple(new.get(k, d) for k, d in enumerate(t.shape))
    return n.graph.bind(
        Match(x, TensorType(shape, t.dtype)), n.graph.intermediate("narrowed"), n.origin
    )


def renamed_sizes(n: Node, x: Atom) -> Atom:
    """`x`, in which sizes that are computed from many that have been found are dimensions of their
    own: what is computed from them must not grow without limit."""
    t = tensor_type(x)
    shape = list(t.shape)
    for k, d in enumerate(t.shape):
        if isinstance(d, Index) and atoms_in(d) > _MOST_ATOMS and not n.graph.is_given(d):
            if (d, "is") not in n.graph.matched:
                n.graph.matched[d, "is"] = Dimension(n.graph.intermediate("size"))
            shape[k] = n.graph.matched[d, "is"]
    if shape == list(t.shape):
        return x
    new = TensorType(tuple(shape), t.dtype)
    out = n.graph.bind(Match(x, new), n.graph.intermediate("matched"), n.origin)
    for k, d in enumerate(shape):
        if isinstance(d, Dimension) and d != t.shape[k]:
            n.graph.counts.setdefault(d, (out, k))
    return out


def found_sizes(n: Node, i: int) -> tuple[Dim, ...]:
    """The elements of input `i` as dimensions."""
    each = integers(n, i)
    return tuple(x if isinstance(x, int | Index) else found(n, x) for x in each)


def spread(
    n: Node, i: int, rank: int, *lists: tuple[Sequence[Integer], int]
) -> list[list[Integer]]:
    """Numbers of the axes that input `i` names, computed by the program, as numbers of every axis
    of a tensor of `rank`. `lists`: numbers and what those of other axes are."""
    axes = [number(n, a) for a in integers(n, i)]
    last, zero = number(n, rank), number(n, 0)
    axes = [n.step("where", n.step("less", a, zero), n.step("add", a, last), a) for a in axes]
    for a in axes:
        inside = n.step("logical_and", n.step("less", a, last), n.step("greater_equal", a, zero))
        name = f"{n.graph.printable(n.inputs[i])}_is_possible"
        checked(n, n.step("cast", inside, dtype="int64"), 1, name)
    out: list[list[Integer]] = []
    for numbers, other in lists:
        out.append([other] * rank)
        for a, x in zip(axes, numbers, strict=True):
            for k in range(rank):
                here = n.step("equal", a, number(n, k))
                out[-1][k] = n.step("where", here, number(n, x), number(n, out[-1][k]))
    return out


def positions(n: Node, size: Dim) -> Atom:
    """0, 1 ... size - 1."""
    if isinstance(size, int):
        n.reserve(size)
        return Constant.of(np.arange(size), INT64)
    return n.step("arange", size=size)


def steps(n: Node, span: Atom, step: Atom) -> Atom:
    """How many positive steps reach across a span: rounded up, and none if it is not positive."""
    up = n.step("add", span, n.step("subtract", step, number(n, 1)))
    return n.step("divide", n.step("maximum", up, number(n, 0)), step)
