"""Sums that a description forms in chunks, trees or aligned groups, or with a compensation
(`compiler.op.accumulator` says what these mean): one step of each as a circuit.

Whoever counts terms is outside: a chunk starts with acc = 0, and its sum goes to NAME_outer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from datatypes.hardware.accumulators import Staged
from datatypes.hardware.codecs import aligned_number, codec_of
from datatypes.hardware.datapaths import Datapath, Rounded
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import (
    Number,
    added,
    leading,
    multiplied,
    registered,
    signed_width,
    summed,
)


def staged_mac(
    c: Circuit, path: Datapath, a: Bits, b: Bits, acc: Bits, into: Staged, sums: Rounded
) -> Bits:
    """acc after one step."""
    n = path.nbits
    pairs = [(a[k : k + n], b[k : k + n]) for k in range(0, n * into.terms, n)]
    products = [term(c, path, x, y, into, sums) for x, y in pairs]
    if sums.registers >= 1:
        products = registered(c, products)
    if into.how.align_bits:
        held = aligned_number(sums.codec, c, acc[: into.fmt.nbits])
        return sums.rounded(c, aligned(c, held, products, into.how.align_bits, sums.kept))
    held = sums.codec.decode(c, acc[: into.fmt.nbits])
    if into.how.compensated:
        lost = sums.codec.decode(c, acc[into.fmt.nbits :])
        return _compensated(c, sums, held, lost, products[0])
    if into.how.tree:
        products = [_tree(c, sums, products)]
    return sum_of(c, sums, held, products[0])


def term(c: Circuit, path: Datapath, a: Bits, b: Bits, into: Staged, sums: Rounded) -> Number:
    """One product, as a step adds it."""
    if into.how.align_bits:
        return multiplied(c, *path.aligned_factors(c, a, b), normalize=False)
    product = path.product(c, a, b)
    rounds = into.how.products == "rounded"
    return sums.codec.decode(c, sums.rounded(c, product)) if rounds else product


def outer_step(name: str, into: Staged) -> Circuit:
    """NAME_outer (part, acc -> y): a chunk's sum is added to those before, rounded once."""
    inner, outer = codec_of(into.fmt), codec_of(into.outer or into.fmt)
    assert inner is not None
    assert outer is not None
    about = f"y = acc + part, a chunk's sum\npart: {into.about}\nacc is in {outer.fmt.name}"
    c = Circuit(f"{name}_outer", f"{name}: {about}")
    part, acc = c.input("part", into.bits), c.input("acc", outer.fmt.nbits)
    x = inner.decode(c, part[: into.fmt.nbits])
    c.output("y", sum_of(c, Rounded(outer), outer.decode(c, acc), x))
    return c


def aligned(c: Circuit, acc: Number, products: Sequence[Number], kept: int, bits: int) -> Number:
    """acc and products, shifted to the largest of their exponents, cut off and added exactly.

    Args:
        c: the circuit that it is put in.
        acc: what is held.
        products: with the upper two bits of their significands before the point; the exponent, that
            of the second one, is the sum of their factors'.
        kept: bits from the largest exponent on.
        bits: of the sum, the last one sticky.
    """
    width = max(x.exponent.width for x in [*products, acc])
    every = [comparable(c, x, width) for x in [*products, raised(acc)]]
    largest = largest_of([x.exponent for x in every])
    flags = [c.joint(*column) for column in zip(*map(what_is_no_number, every), strict=True)]
    return group_sum(c, [placed(x, largest, kept) for x in every], flags, largest, kept, bits)


def raised(acc: Number) -> Number:
    """What is held, with the upper two bits of its significand before the point."""
    return replace(acc, significand=acc.significand.zero_extended(acc.significand.width + 1))


def comparable(c: Circuit, x: Number, width: int) -> Number:
    """A number whose exponent has so many bits, and is the least one of zero."""
    least = c.constant(-1 << (width - 1), width)
    return replace(x, exponent=x.zero.chosen(least, x.exponent.sign_extended(width)))


def largest_of(exponents: Sequence[Bits]) -> Bits:
    """The largest of signed numbers, as a tree."""
    while len(exponents) > 1:
        pairs = zip(exponents[::2], exponents[1::2], strict=False)
        odd = exponents[len(exponents) - len(exponents) % 2 :]
        exponents = [*(x.below_signed(y).chosen(y, x) for x, y in pairs), *odd]
    return exponents[0]


def placed(x: Number, largest: Bits, kept: int) -> Bits:
    """[kept + 2] a number in units of the last bit that is kept, in two's complement."""
    more = x.significand.width - 1 - kept  # bits below the last one that is kept
    bits = x.significand[more:] if more > 0 else x.significand.raised(-more)
    size = bits.shifted_right(largest - x.exponent).zero_extended(kept + 2)
    return (size ^ x.sign.repeated(kept + 2)) + x.sign.zero_extended(kept + 2)


def what_is_no_number(x: Number) -> tuple[Bits, Bits, Bits]:
    """(NaN, infinity, minus infinity), one bit each."""
    return x.nan, x.inf & ~x.sign, x.inf & x.sign


def group_sum(
    c: Circuit, terms: Sequence[Bits], flags: Sequence[Bits], largest: Bits, kept: int, bits: int
) -> Number:
    """The exact sum of numbers in place; of all of them, which are no numbers: [terms] each."""
    total = summed(c, terms).named("total")
    significand, below = leading(c, total, bits)
    width = largest.width
    wide = signed_width(-1 << width, (1 << width) + total.width)
    exponent = largest.sign_extended(wide) + c.constant(total.width - 1 - kept, wide)
    _, plus, minus = (flag.any() for flag in flags)
    nan, inf = flags[0].any() | plus & minus, plus | minus
    sign = inf.chosen(minus, total.top)
    return Number(nan, inf, ~total.any(), sign, exponent - below.sign_extended(wide), significand)


def sum_of(c: Circuit, sums: Rounded, x: Number, y: Number) -> Bits:
    """The code of a sum, rounded once."""
    return sums.rounded(c, added(c, x, y, sums.codec.layout.significand))


def _tree(c: Circuit, sums: Rounded, terms: Sequence[Number]) -> Number:
    """What neighbours add up to, level by level; there are as many as a power of two."""
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=True)
        terms = [sums.codec.decode(c, sum_of(c, sums, x, y)) for x, y in pairs]
    return terms[0]


def _compensated(c: Circuit, sums: Rounded, s: Number, lost: Number, x: Number) -> Bits:
    """{lost, sum} of Kahan's step: y = x + lost, t = s + y, lost = y - (t - s), s = t."""

    def step(x: Number, y: Number) -> tuple[Bits, Number]:
        code = sum_of(c, sums, x, y)
        return code, sums.codec.decode(c, code)

    def minus(x: Number) -> Number:
        return replace(x, sign=~x.sign)

    _, y = step(x, lost)
    total, t = step(s, y)
    _, gained = step(t, minus(s))
    left, _ = step(y, minus(gained))
    return c.joint(left, total)
