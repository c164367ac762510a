"""Sizes and positions that are symbolic, or that the program finds while it runs.

Known numbers are `int`, dimensions and what is computed from them `Index`, and what the program
computes is an atom, a scalar of int64.
"""

from __future__ import annotations

import numpy as np

from compiler.dtypes import INT64
from compiler.frontend.node import Node
from compiler.frontend.values import Symbolic
from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.op.opdef import get_op
from compiler.symbolic import Dim, Index
from compiler.symbolic import Var as Dimension

Integer = Dim | Atom


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
    flat = n.step("reshape", v, newshape=(-1,))
    (count,) = tensor_type(flat).static_shape
    return [n.step("take", flat, number(n, k), axis=0) for k in range(count)]


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
        size = Dimension(n.graph.intermediate("size"))
        n.graph.counts[size] = count
    definition, vector = get_op("match_shape"), n.step("reshape", count, newshape=(1,))
    call = Call(definition, (vector,), definition.make_attrs(shape=(size,)))
    n.graph.bind(call, n.graph.intermediate("matched"), n.origin)
    return size


def found_sizes(n: Node, i: int) -> tuple[Dim, ...]:
    """The elements of input `i` as dimensions."""
    each = integers(n, i)
    return tuple(x if isinstance(x, int | Index) else found(n, x) for x in each)


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
