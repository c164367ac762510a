"""Finding C (see `magic`) by the exponent of a number, in tables as small as can be.

Tables of up to 64 entries stay in registers where the target permutes those; others are read from
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.lowering.tables import table
from compiler.tensor.expr import Buffer, Expr, Gather, call, cast, let, maximum
from compiler.types.dtypes import INT64, DType
from datatypes.vector.carrier import SINGLE, Carrier
from datatypes.vector.magic import Magic, Scaled

Array = npt.NDArray[Any]
Numbers = dict[int, Magic | None]
"""C of every exponent that there may be; None: a number of that size is not sure."""

_UINT32 = DType.parse("uint32")
_SIZES = {32: (16, 32, 64), 64: (8, 16)}
"""Entries of tables that fit into vector registers."""
_WORDS = 64
"""Entries of a table that fits if their lower halves are enough."""
_GROUP = 2
"""log2 of how many binades share an entry, in tables by groups."""


@dataclass(frozen=True, eq=False)
class Binade:
    """C by the lower bits of the biased exponent of x * 2**lift.

    Attributes:
        entries: C.
        lift: log2 of what a product is multiplied by, so that products that are too large overflow.
        factors: by which the result is multiplied, if it has to be (`magic.Scaled`).
        floor: least biased exponent that is looked up, for all below it, too.
    """

    entries: Buffer
    lift: int = 0
    factors: Buffer | None = None
    floor: int = 0

    def rounded(self, x: Expr, at: Expr, c: Carrier) -> Expr:
        """(x + C) - C, given at = x * 2**lift."""
        if self.factors is None:
            return let(self.of(at, c), lambda big: (x + big) - big, "c")
        factor = Gather(self.factors, _place(at, self.factors, c))
        moved = let(self.of(at, c), lambda big: (x + big) - big, "c")
        return call("fma", moved, factor, c.number(-0.0))  # which a sum can be part of

    def of(self, x: Expr, c: Carrier) -> Expr:
        """C, given x * 2**lift."""
        return Gather(self.entries, _place(x, self.entries, c, self.floor))


@dataclass(frozen=True, eq=False)
class Group:
    """C as a multiple of the power of two below x, by groups of 2**_GROUP binades. It rounds
    nothing to zero.

    Attributes:
        entries: the multiples.
    """

    entries: Buffer
    lift: int = 0

    def rounded(self, x: Expr, at: Expr, c: Carrier) -> Expr:
        """(x + C) - C, given at = x. The product C is exact, so that fma changes nothing."""

        def nearest(power: Expr, factor: Expr) -> Expr:
            moved = call("fma", power, factor, x)
            return call("fma", c.number(-0.0) - power, factor, moved)

        power, factor = self._parts(at, c)
        return let(power, lambda p: let(factor, lambda f: nearest(p, f), "factor"), "power")

    def of(self, x: Expr, c: Carrier) -> Expr:
        """C."""
        power, factor = self._parts(x, c)
        return power * factor

    def _parts(self, x: Expr, c: Carrier) -> tuple[Expr, Expr]:
        # Groups start at multiples of their size: the bias is one less than such a one.
        bits = call("bits", x, dtype=_UINT32) + (1 << c.mantissa)
        at = (bits >> (c.mantissa + _GROUP)) & (_size(self.entries) - 1)
        power = c.value(c.bits(x) & (c.sign | c.exponents))
        return power, Gather(self.entries, cast(at, INT64))


Entries = Binade | Group


def _place(x: Expr, entries: Buffer, c: Carrier, floor: int = 0) -> Expr:
    """The lower bits of the exponent of x, or of `floor` if that is larger. Each look-up has its
    own mask, which goes where a permutation has it built in."""
    exponent = c.bits(x) >> c.mantissa
    if floor:
        exponent = maximum(exponent & (2 * c.bias + 1), floor)
    return cast(exponent & (_size(entries) - 1), INT64)


def _size(b: Buffer) -> int:
    assert b.data is not None
    return int(b.data.size)


def for_sums(name: str, magic: Numbers, c: Carrier) -> Entries:
    """The table for sums."""
    return _plain(name, magic, c) or _grouped(name, magic, c) or _whole(name, magic, c)


def for_products(name: str, magic: Numbers, c: Carrier) -> Entries:
    """The table for products."""
    found = _plain(name, magic, c) or _lifted(name, magic, c) or _grouped(name, magic, c)
    return found or _whole(name, magic, c)


def for_magnitudes(name: str, magic: Numbers, c: Carrier) -> Entries:
    """The table for products that are not negative: where `for_products` moves them into a small
    one, an entry for every exponent of float32 instead, since a position there needs no bounds."""
    found = for_products(name, magic, c)
    if c != SINGLE or not isinstance(found, Binade) or not found.lift:
        return found
    return Binade(_table(f"{name}_all", magic, c, 2 * c.bias + 2, found.lift), found.lift)


def scaled(name: str, magic: dict[int, Scaled | None], c: Carrier) -> Binade | None:
    """Small tables of C and of factors, if they tell all exponents apart."""
    size = next((n for n in (8, 16, 32) if len(magic) <= n), 0)
    if not size or c != SINGLE:
        return None
    numbers = {e: None if m is None else m.magic for e, m in magic.items()}
    factors = np.ones(size, np.float32)
    for e, m in magic.items():
        factors[(e + c.bias) % size] = 1 if m is None else float(m.factor)
    return Binade(_table(name, numbers, c, size), 0, table(f"{name}_factor", factors))


def _plain(name: str, magic: Numbers, c: Carrier) -> Binade | None:
    """A small table, if it tells all exponents apart."""
    size = next((n for n in _SIZES[c.dtype.bits] if len(magic) <= n), 0)
    return Binade(_table(name, magic, c, size)) if size else None


def _lifted(name: str, magic: Numbers, c: Carrier) -> Binade | None:
    """A small table, if too large products can be made to overflow, while too small ones, which all
    become minpos, find the C of zero, which rounds them to it."""
    size = _SIZES[c.dtype.bits][-1]
    top = max(e for e, m in magic.items() if m is not None)
    lift = c.bias - top  # 2**(top + 1) overflows; the exponent of infinity has the last entry
    zero = top + 2 - size  # has the entry that zero has
    found = {e: m for e, m in magic.items() if zero <= e <= top}
    if zero in found:
        least = found[zero]
        if least is None or (min(magic) < zero and least.unit < zero + 2):
            return None
    floor = zero + lift + c.bias if min(magic) < zero else 0
    return Binade(_table(name, found, c, size, lift), lift, floor=floor)


def _grouped(name: str, magic: Numbers, c: Carrier) -> Group | None:
    """A small table by groups of binades, if those of ordinary numbers are alike in it."""
    if c != SINGLE:
        return None
    groups: dict[int, set[int | None]] = {}
    for e, m in magic.items():
        even = m is not None and not m.odd and m.unit <= e
        groups.setdefault(e >> _GROUP, set()).add(m.unit - e if m is not None and even else None)
    alike = {g: next(iter(u)) for g, u in groups.items() if len(u) == 1}
    if alike.get(0) is None or alike.get(-1) is None:
        return None
    size = 32 if len(groups) <= 32 else _WORDS
    if len(groups) > size:
        return None
    factors = np.full(size, np.nan, np.float32)
    factors[0] = 1.0  # of zero, unless a group has the same entry
    for g in groups:
        unit = alike.get(g)
        ordinary = 1.5 * 2.0 ** (c.mantissa + unit) if unit is not None else np.nan
        factors[(g + ((c.bias + 1) >> _GROUP)) % size] = ordinary
    if np.isnan(factors[0]):
        return None
    return Group(table(f"{name}_c", _in_both_halves(factors) if size == _WORDS else factors))


def _whole(name: str, magic: Numbers, c: Carrier) -> Binade:
    """A table with an entry for every exponent of the carrier."""
    return Binade(_table(name, magic, c, 2 * c.bias + 2))


def _table(name: str, magic: Numbers, c: Carrier, size: int, lift: int = 0) -> Buffer:
    entries = np.full(size, -np.nan, c.dtype.storage)  # negative for `deferred.product`
    entries[0] = 0.0  # of zero, unless a number has the same entry
    for e, m in magic.items():
        entries[(e + lift + c.bias) % size] = -np.nan if m is None else m.number(c)
    words = size == _WORDS and c == SINGLE
    return table(f"{name}_c", _in_both_halves(entries) if words else entries)


def _in_both_halves(entries: Array) -> Array:
    """Numbers C with both halves of their bits alike, so that words can be looked up instead.

    C is a power of two times 1.5, and may be odd: its exponent is in the upper half, and what is in
    the middle of the mantissa does not matter for rounding. So the last place of the upper half is
    that of all, and the lower half a copy.
    """
    bits = entries.astype(np.float32).view(np.uint32)
    half = bits >> 16 | bits & 1
    return np.asarray(half << 16 | half).view(np.float32)
