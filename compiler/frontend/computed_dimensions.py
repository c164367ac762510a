"""Symbolic integers as values of the program, computed from the sizes of dimensions."""

from __future__ import annotations

from collections.abc import Callable

from compiler.frontend.values import Symbolic
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, Constant
from compiler.symbolic import Index, IntLike, Quasi
from compiler.symbolic import Var as Dimension
from compiler.types.dtypes import INT64


def computed_dimensions(v: Symbolic, emit: Emit, size_of: Callable[[Dimension], Atom]) -> Atom:
    """The value of `v`. `size_of` gives the size of a dimension as a vector of one int64."""

    def number(x: IntLike) -> Atom:
        if not isinstance(x, Index):
            return Constant.of([x], INT64)
        out: Atom | None = Constant.of([x.const], INT64) if x.const or not x.terms else None
        for a, c in x.terms.items():
            term = leaf(a)
            if c != 1:
                term = emit("multiply", term, Constant.of([c], INT64))
            out = term if out is None else emit("add", out, term)
        assert out is not None
        return out

    def leaf(a: Dimension | Quasi) -> Atom:
        if not isinstance(a, Quasi):
            return size_of(a)
        p, q = number(a.a), number(a.b)
        if a.op == "%":
            whole = emit("multiply", emit("divide", p, q), q)
            return emit("subtract", p, whole)
        return emit({"*": "multiply", "//": "divide", "min": "minimum"}[a.op], p, q)

    parts = [number(x) for x in v.data.reshape(-1)]
    out = parts[0] if len(parts) == 1 else emit("concatenate", *parts, axis=0)
    if v.data.ndim != 1:
        out = emit("reshape", out, newshape=v.data.shape)
    return out if v.dtype == INT64 else emit("cast", out, dtype=str(v.dtype))
