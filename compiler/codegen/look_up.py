"""Look-ups in small constant tables that fit into vector registers.

A table becomes one or two constant vectors, and a look-up one permutation of them, which reads the
lower bits of the positions only. Where no permutation fits, the elements are loaded one by one
(`compiler.codegen.scalars`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.codegen.emit import Emitter, Val, memory_type
from compiler.dtypes import Array
from compiler.tensor.expr import BinOp, Cast, Expr, IntImm
from compiler.tensor.stmt import Buffer


@dataclass(frozen=True)
class Permutation:
    """An instruction that picks `entries` elements of `t` by the lower bits of `lanes` positions.

    `vectors`: how many registers the table takes; with two, the positions come between them.
    """

    intrinsic: str
    feature: str
    t: str
    entries: int
    lanes: int
    vectors: int


PERMUTATIONS = (
    Permutation("llvm.x86.avx512.permvar.sf.512", "avx512f", "float", 16, 16, 1),
    Permutation("llvm.x86.avx512.vpermi2var.ps.512", "avx512f", "float", 32, 16, 2),
    Permutation("llvm.x86.avx512.permvar.df.512", "avx512f", "double", 8, 8, 1),
    Permutation("llvm.x86.avx512.vpermi2var.pd.512", "avx512f", "double", 16, 8, 2),
    Permutation("llvm.x86.avx512.permvar.hi.512", "avx512bw", "i16", 32, 16, 1),
    Permutation("llvm.x86.avx512.vpermi2var.hi.512", "avx512bw", "i16", 64, 16, 2),
    Permutation("llvm.x86.avx2.permps", "avx2", "float", 8, 8, 1),
)
"""In order of preference."""


def permutation(table: Buffer, lanes: int, enabled: frozenset[str]) -> Permutation | None:
    """The instruction for a table and a number of lanes, of those a target has."""
    if table.data is None:
        return None
    t = memory_type(table.dtype)
    fitting = (
        p
        for p in PERMUTATIONS
        if p.feature in enabled and (p.t, p.lanes) == (t, lanes) and table.data.size <= p.entries
    )
    return next(fitting, None)


def position(at: Expr, table: Buffer, p: Permutation) -> Expr:
    """The position, without a mask that the permutation applies anyway."""
    if isinstance(at, Cast) and at.value.dtype.is_integer and at.value.dtype.bits >= 32:
        at = at.value
    size = 0 if table.data is None else table.data.size
    match at:
        case BinOp(op="And", a=any_position, b=IntImm(value=mask)) if size == p.entries:
            return any_position if mask & (size - 1) == size - 1 else at
    return at


def look_up(e: Emitter, table: Buffer, at: Val, p: Permutation) -> Val:
    """The entries at the positions `at`, which lie within the table."""
    assert table.data is not None
    bits = 64 if p.t == "double" else 32
    if at.t != f"i{bits}":
        convert = "trunc" if int(at.t[1:]) > bits else "zext"
        at = e.op(f"{convert} {at} to <{at.n} x i{bits}>", f"i{bits}", at.n)
    if p.t == "i16":  # a position is two of its words, of which the upper one picks nothing of use
        words = e.op(f"bitcast {at} to <{2 * at.n} x i16>", "i16", 2 * at.n)
        found = _permute(e, table.data, words, p)
        pairs = e.op(f"bitcast {found} to {at.ty}", at.t, at.n)
        return e.op(f"trunc {pairs} to <{at.n} x i16>", "i16", at.n)
    return _permute(e, table.data, at, p)


def _permute(e: Emitter, data: Array, at: Val, p: Permutation) -> Val:
    entries = np.concatenate([data, np.zeros(p.entries - data.size, data.dtype)])
    tables = [_vector(e, part, p.t) for part in np.split(entries, p.vectors)]
    return e.call(p.intrinsic, p.t, at.n, [tables[0], at, *tables[1:]])


def _vector(e: Emitter, entries: Array, t: str) -> Val:
    """A constant vector."""
    items = ", ".join(str(e.const(float(x) if t != "i16" else int(x), t)) for x in entries)
    return Val(f"<{items}>", t, len(entries))


__all__ = ["Permutation", "look_up", "permutation", "position"]
