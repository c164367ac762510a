"""Look-ups in constant tables by permutations of registers, for all lanes at once (AVX2, AVX-512).

A small table becomes one or two constant vectors, and a look-up one permutation of them, which
reads the lower bits of the positions only. A table of bytes is read from memory into four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from compiler.target.emit import LLVM_BYTES, Emitter, Val, memory_type
from compiler.tensor.expr import BinOp, Cast, Expr, Gather, IntImm
from compiler.types.dtypes import Array


@dataclass(frozen=True)
class Permutation:
    """An instruction that picks `entries` elements by the lower bits of as many positions.

    Attributes:
        intrinsic: its LLVM name; of those that take two, a table in two registers goes around the
            positions. One in more is looked up in parts.
        feature: of the targets that have it.
        element: what it moves, in LLVM's words.
        entries: elements of the table.
        lanes: positions.
        t: elements of the table as the program sees them: `element`, or float if those are words,
            of which each element has two that are alike.
    """

    intrinsic: str
    feature: str
    element: str
    entries: int
    lanes: int
    t: str


_X86 = "llvm.x86."
PERMUTATIONS = (
    Permutation(_X86 + "avx512.permvar.sf.512", "avx512f", "float", 16, 16, "float"),
    Permutation(_X86 + "avx512.vpermi2var.ps.512", "avx512f", "float", 32, 16, "float"),
    Permutation(_X86 + "avx512.permvar.df.512", "avx512f", "double", 8, 8, "double"),
    Permutation(_X86 + "avx512.vpermi2var.pd.512", "avx512f", "double", 16, 8, "double"),
    Permutation(_X86 + "avx512.vpermi2var.hi.512", "avx512bw", "i16", 64, 16, "float"),
    Permutation(_X86 + "avx512.vpermi2var.hi.512", "avx512bw", "i16", 128, 16, "float"),
    Permutation(_X86 + "avx512.vpermi2var.ps.512", "avx512f", "float", 64, 16, "float"),
    Permutation(_X86 + "avx512.vpermi2var.ps.512", "avx512f", "float", 128, 16, "float"),
    Permutation(_X86 + "avx2.permps", "avx2", "float", 8, 8, "float"),
    Permutation(_X86 + "avx2.permps", "avx2", "float", 16, 8, "float"),
)
"""In order of preference."""
_BYTES = "avx512vbmi"


def permutation(x: Gather, lanes: int, enabled: frozenset[str]) -> Permutation | None:
    """The instruction for a look-up in a number of lanes, of those a target has."""
    data = x.buffer.data
    if data is None:
        return None
    t = memory_type(x.buffer.dtype)
    for p in PERMUTATIONS:
        fits = (p.t, p.lanes) == (t, lanes) and data.size <= p.entries and p.feature in enabled
        if fits and (p.t == p.element or _by_words(x, data)):
            return p
    return None


def _by_words(x: Gather, data: Array) -> bool:
    """Whether both halves of all entries are alike, so that a permutation of words finds them for
    positions that are put into both halves."""
    return halves_are_alike(data.view(np.uint32)) and field(x) is not None


def halves_are_alike(words: Array) -> bool:
    """Whether the upper and the lower 16 bits of each of some 32 are the same."""
    return bool((words >> 16 == words & 0xFFFF).all())


@dataclass(frozen=True)
class Field:
    """A position that is bits of a number.

    Attributes:
        number, place: the integer, and where in it the bits start.
        floor: the byte that starts there counts as this one, if it is less.
    """

    number: Expr
    place: int
    floor: int = 0


def field(x: Gather) -> Field | None:
    """The field that a position is, of as many bits as the table has positions for and no more
    than 7; None if the position is something else."""
    size = 0 if x.buffer.data is None else x.buffer.data.size
    at = x.at.value if isinstance(x.at, Cast) else x.at
    if not isinstance(at, BinOp) or at.op != "And" or size not in (8, 16, 32, 64, 128):
        return None
    match at:
        case BinOp(a=BinOp(op="Shr", a=number, b=IntImm(value=place)), b=IntImm(value=n)):
            found, ends = Field(number, place), place + max(6, n.bit_length())
        case BinOp(
            a=BinOp(
                op="Max",
                a=BinOp(
                    op="And",
                    a=BinOp(op="Shr", a=number, b=IntImm(value=place)),
                    b=IntImm(value=255),
                ),
                b=IntImm(value=floor),
            ),
            b=IntImm(value=n),
        ) if 0 <= floor < 256:
            found, ends = Field(number, place, floor), place + 8
        case _:
            return None
    bits = found.number.dtype.bits if found.number.dtype.is_integer else 0
    return found if n == size - 1 and ends <= bits else None


def look_up(
    e: Emitter,
    x: Gather,
    p: Permutation,
    enabled: frozenset[str],
    evaluate: Callable[[Expr], Val],
) -> Val:
    """The entries of a table, on a target with the features `enabled`."""
    assert x.buffer.data is not None
    bits, found = 64 if p.t == "double" else 32, field(x)
    picked = _BYTES in enabled and bits * p.lanes == 512
    if found is not None and picked and found.number.dtype.bits == bits:
        at = _picked(e, evaluate(found.number), found)
    else:
        at = _sized(e, evaluate(_position(x, p)), bits)
        if p.t != p.element:  # the lower half into both
            at = e.bitcast(at, "i16", 2 * at.n)
            at = e.shuffle(at, at, [k & ~1 for k in range(at.n)])
    if p.t == p.element:
        return _permute(e, x.buffer.data, at, p)
    halves = x.buffer.data.view(np.uint16)[::2]
    return e.bitcast(_permute(e, halves, e.bitcast(at, "i16", 2 * p.lanes), p), p.t, p.lanes)


def _picked(e: Emitter, number: Val, at: Field) -> Val:
    """The bits of a field in every byte of the numbers, by an instruction that picks eight bits of
    64 for each. A permutation ignores those above a position."""
    size = LLVM_BYTES[number.t]
    picks = [k // size * size * 8 % 64 + at.place for k in range(size * number.n)]
    numbers = e.bitcast(number, "i8", len(picks))
    args = [e.vector(picks, "i8"), numbers]
    found = e.call(_X86 + "avx512.pmultishift.qb.512", "i8", len(picks), args)
    if at.floor:
        least = e.const(at.floor, "i8", len(picks))
        found = e.call(f"llvm.umax.v{len(picks)}i8", "i8", len(picks), [found, least])
    return e.bitcast(found, number.t, number.n)


def _position(x: Gather, p: Permutation) -> Expr:
    """The position, without a mask that the permutation applies anyway."""
    at = x.at
    if isinstance(at, Cast) and at.value.dtype.is_integer and at.value.dtype.bits >= 32:
        at = at.value
    size = 0 if x.buffer.data is None else x.buffer.data.size
    match at:
        case BinOp(op="And", a=any_position, b=IntImm(value=mask)) if size == p.entries:
            return any_position if mask & (size - 1) == size - 1 else at
    return at


def _sized(e: Emitter, at: Val, bits: int) -> Val:
    """Positions as integers of so many bits."""
    if at.t == f"i{bits}":
        return at
    convert = "trunc" if int(at.t[1:]) > bits else "zext"
    return e.op(f"{convert} {at} to <{at.n} x i{bits}>", f"i{bits}", at.n)


def looks_up_bytes(enabled: frozenset[str]) -> bool:
    """Whether a target with the features `enabled` has what `look_up_bytes` needs."""
    return _BYTES in enabled


def look_up_bytes(e: Emitter, table: Val, at: Val) -> Val:
    """The entries of a table of 256 bytes in memory, which four registers hold: two permutations
    (of AVX-512 VBMI) read the lower 7 bits of 64 positions, the sign chooses between them."""
    rows = [e.load(table, 64 * k, "i8", 64, 1) for k in range(4)]
    parts = []
    for first in range(0, at.n, 64):
        inside = range(first, min(first + 64, at.n))
        part = e.shuffle(at, at, [*inside, *[None] * (64 - len(inside))])
        low, high = (
            e.call(_X86 + "avx512.vpermi2var.qi.512", "i8", 64, [rows[k], part, rows[k + 1]])
            for k in (0, 2)
        )
        upper = e.op(f"icmp slt {part}, {e.const(0, 'i8', 64).name}", "i1", 64)
        found = e.op(f"select {upper}, {high}, {low}", "i8", 64)
        parts.append(found)
    out = parts[0]
    for part in parts[1:]:  # operands of a shuffle have as many lanes
        same = part if out.n == 64 else e.shuffle(part, part, [*range(64), *[None] * (out.n - 64)])
        out = e.shuffle(out, same, list(range(out.n + 64)))
    return out if out.n == at.n else e.shuffle(out, out, list(range(at.n)))


def _permute(e: Emitter, data: Array, at: Val, p: Permutation) -> Val:
    entries = np.resize(data, p.entries)  # repeated, whatever the bits above a position are
    parts = [_vector(e, part, p.element) for part in np.split(entries, p.entries // at.n)]
    several = 2 if "vpermi2var" in p.intrinsic else 1
    found = [
        e.call(p.intrinsic, p.element, at.n, [parts[k], at, *parts[k + 1 : k + several]])
        for k in range(0, len(parts), several)
    ]
    bit = several * at.n
    while len(found) > 1:  # the bits above those that a permutation reads
        there = e.bin("and", at, e.const(bit, at.t, at.n))
        low = e.op(f"icmp eq {there}, {e.const(0, at.t, at.n).name}", "i1", at.n)
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [e.op(f"select {low}, {a}, {b}", p.element, at.n) for a, b in pairs]
        bit *= 2
    return found[0]


def _vector(e: Emitter, entries: Array, t: str) -> Val:
    """A constant vector."""
    number = int if entries.dtype.kind in "iu" else float
    items = ", ".join(str(e.const(number(x), t)) for x in entries)
    return Val(f"<{items}>", t, len(entries))


__all__ = [
    "Permutation", "field", "halves_are_alike", "look_up", "look_up_bytes", "looks_up_bytes",
    "permutation",
]  # fmt: skip
