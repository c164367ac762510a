"""Operands of a few possible values, such as axes, that the program computes: the node is written
out for each of them, and the program chooses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial, wraps

import numpy as np

from compiler.errors import DtypelabError
from compiler.frontend.branches import one_of
from compiler.frontend.node import Converter, Node, Results
from compiler.frontend.run_time import checked, number
from compiler.frontend.values import Symbolic
from compiler.ir.expr import Atom, Constant, Function, Var, tensor_type
from compiler.types.dtypes import INT64, Array

Options = tuple[Atom, list[tuple[int, Array]]]
"""A scalar of int64 that tells the values apart, and the values with their numbers."""
MOST_CHOICES = 64
"""Ways in which one node is written out."""


def each_value(i: int, options: Callable[[Node], Options]) -> Callable[[Converter], Converter]:
    """Decorator: the converter needs to know input `i`; where the program computes it, the node is
    written out for all values with which it can be. The program refuses any other.

    `options`: see Options.
    """

    def decorated(f: Converter) -> Converter:
        @wraps(f)
        def run(n: Node) -> Results:
            if not n.has(i) or not n.is_computed(i) or n.constant(i) is not None:
                return f(n)
            t = n.type(i)
            if not isinstance(t.size, int):
                raise n.unsupported(f"an input {i} of type {t}; use shapes=...")
            which, values = options(n)
            if not 0 < len(values) <= MOST_CHOICES:
                return f(n)  # says that it must be known

            def written(value: Array) -> list[Atom]:
                case = n.with_input(i, Constant.of(value.reshape(t.static_shape), t.dtype))
                results = f(case)
                if isinstance(results, (Var, Constant, Symbolic)):
                    results = [results]
                return [case.output(v, j) for j, v in enumerate(results)]

            made: dict[int, Function] = {}
            refusals: list[DtypelabError] = []
            for k, value in values:
                try:
                    with n.graph.assuming.apart():
                        made[k] = n.graph.nested((), partial(written, value))
                except DtypelabError as e:  # not a value that it can have
                    refusals.append(e)
            if not made:
                raise refusals[0]
            _check(n, i, which, list(made))
            if len(made) == 1:
                return next(written(value) for k, value in values if k in made)
            return one_of(n, which, made)

        return run

    return decorated


def _check(n: Node, i: int, which: Atom, numbers: Sequence[int]) -> None:
    """Have the program refuse a number that is none of these."""
    same = n.step("equal", which, Constant.of(list(numbers), INT64))
    hits = n.step("sum", n.step("cast", same, dtype="int64"), axis=(0,), keepdims=False)
    checked(n, hits, 1, f"{n.graph.printable(n.inputs[i])}_is_possible")


def axes_of(rank: Callable[[Node], int], i: int = 1) -> Callable[[Node], Options]:
    """Options of input `i`, a vector or scalar of different axes of a tensor of `rank`, in any
    order; negative ones count from the end."""

    def options(n: Node) -> Options:
        axes, size = n.atom(i), rank(n)
        count = math.prod(n.type(i).static_shape)
        if tensor_type(axes).dtype != INT64:
            axes = n.step("cast", axes, dtype="int64")
        axes = n.step("reshape", axes, newshape=(-1,))
        # each axis is a bit; twice the same would be another one, which too few axes have
        bits = [1 << k for k in range(size)]
        table = Constant.of([0, *bits, *bits, 0], INT64)
        at = n.step("maximum", n.step("add", axes, number(n, size + 1)), number(n, 0))
        which = n.step("sum", n.step("take", table, at, axis=0), axis=(0,), keepdims=False)
        sets = itertools.combinations(range(size), count)
        return which, [(sum(1 << a for a in s), np.array(s, np.int64)) for s in sets]

    return options


def same_rank(n: Node) -> int:
    """The rank of input 0."""
    return n.type(0).rank


def rank_of_unsqueezed(n: Node) -> int:
    """The rank of input 0 with as many new axes as input 1 names."""
    return n.type(0).rank + math.prod(n.type(1).static_shape)


def flag(n: Node) -> Options:
    """Options of input 2, which is true or false."""
    which = n.step("cast", n.step("reshape", n.atom(2), newshape=()), dtype="int64")
    return which, [(k, np.array(bool(k))) for k in (0, 1)]
