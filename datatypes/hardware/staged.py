"""Sums that a description forms in chunks, trees or aligned groups, or with a compensation
(`compiler.op.accumulator` says what these mean): one step of each as a circuit.

Whoever counts terms is outside: a chunk starts with acc = 0, and its sum goes to NAME_outer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from datatypes.hardware.accumulators import Staged
from datatypes.hardware.codecs import aligned_number, codec_of
from datatypes.hardware.datapaths import Datapath, Rounded
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import (
    Number,
    added,
    multiplied,
    normalized,
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
    if into.how.align_bits:
        factors = [path.aligned_factors(c, x, y) for x, y in pairs]
        products = [multiplied(c, *both, normalize=False) for both in factors]
    else:
        products = [path.product(c, x, y) for x, y in pairs]
    if into.how.products == "rounded":
        products = [_held(c, sums, p) for p in products]
    if sums.registers >= 1:
        products = registered(c, products)
    if into.how.align_bits:
        held = aligned_number(sums.codec, c, acc[: into.fmt.nbits])
        return sums.rounded(c, aligned(c, held, products, into.how.align_bits))
    held = sums.codec.decode(c, acc[: into.fmt.nbits])
    if into.how.compensated:
        lost = sums.codec.decode(c, acc[into.fmt.nbits :])
        return _compensated(c, sums, held, lost, products[0])
    if into.how.tree:
        products = [_tree(c, sums, products)]
    return _sum(c, sums, held, products[0])


def outer_step(name: str, into: Staged) -> Circuit:
    """NAME_outer (part, acc -> y): a chunk's sum is added to those before, rounded once."""
    inner, outer = codec_of(into.fmt), codec_of(into.outer or into.fmt)
    assert inner is not None
    assert outer is not None
    about = f"y = acc + part, a chunk's sum\npart: {into.about}\nacc is in {outer.fmt.name}"
    c = Circuit(f"{name}_outer", f"{name}: {about}")
    part, acc = c.input("part", into.bits), c.input("acc", outer.fmt.nbits)
    x = inner.decode(c, part[: into.fmt.nbits])
    c.output("y", _sum(c, Rounded(outer), outer.decode(c, acc), x))
    return c


def aligned(c: Circuit, acc: Number, products: Sequence[Number], kept: int) -> Number:
    """acc and products, shifted to the largest of their exponents, cut off and added exactly.

    Args:
        c: the circuit that it is put in.
        acc: what is held.
        products: with the upper two bits of their significands before the point; the exponent, that
            of the second one, is the sum of their factors'.
        kept: bits from the largest exponent on.
    """
    raised = replace(acc, significand=acc.significand.zero_extended(acc.significand.width + 1))
    every = [*products, raised]
    width = max(x.exponent.width for x in every)
    least = c.constant(-1 << (width - 1), width)
    exponents = [x.zero.chosen(least, x.exponent.sign_extended(width)) for x in every]
    largest = reduce(lambda x, y: x.below_signed(y).chosen(y, x), exponents).named("largest")
    placed = []
    for x, exponent in zip(every, exponents, strict=True):
        more = x.significand.width - 1 - kept  # bits below the last one that is kept
        bits = x.significand[more:] if more > 0 else x.significand.raised(-more)
        size = bits.shifted_right(largest - exponent).zero_extended(kept + 2)
        placed.append((size ^ x.sign.repeated(kept + 2)) + x.sign.zero_extended(kept + 2))
    total = summed(c, placed).named("total")
    sign = total.top
    size = (total ^ sign.repeated(total.width)) + sign.zero_extended(total.width)
    significand, zeros = normalized(c, size)
    wide = signed_width(-1 << width, (1 << width) + total.width)
    start = largest.sign_extended(wide) + c.constant(total.width - kept, wide)
    plus = reduce(lambda x, y: x | y, (x.inf & ~x.sign for x in every))
    minus = reduce(lambda x, y: x | y, (x.inf & x.sign for x in every))
    nan = reduce(lambda x, y: x | y, (x.nan for x in every)) | plus & minus
    inf = plus | minus
    exponent = start - zeros.zero_extended(wide)
    return Number(nan, inf, ~total.any(), inf.chosen(minus, sign), exponent, significand)


def _held(c: Circuit, sums: Rounded, x: Number) -> Number:
    """A number, rounded to the accumulator's format."""
    return sums.codec.decode(c, sums.rounded(c, x))


def _sum(c: Circuit, sums: Rounded, x: Number, y: Number) -> Bits:
    """The code of a sum, rounded once."""
    return sums.rounded(c, added(c, x, y, sums.codec.layout.significand))


def _tree(c: Circuit, sums: Rounded, terms: Sequence[Number]) -> Number:
    """What neighbours add up to, level by level; there are as many as a power of two."""
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=True)
        terms = [sums.codec.decode(c, _sum(c, sums, x, y)) for x, y in pairs]
    return terms[0]


def _compensated(c: Circuit, sums: Rounded, s: Number, lost: Number, x: Number) -> Bits:
    """{lost, sum} of Kahan's step: y = x + lost, t = s + y, lost = y - (t - s), s = t."""

    def step(x: Number, y: Number) -> tuple[Bits, Number]:
        code = _sum(c, sums, x, y)
        return code, sums.codec.decode(c, code)

    def minus(x: Number) -> Number:
        return replace(x, sign=~x.sign)

    _, y = step(x, lost)
    total, t = step(s, y)
    _, gained = step(t, minus(s))
    left, _ = step(y, minus(gained))
    return c.joint(left, total)
