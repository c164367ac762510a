"""Formats of up to 8 bits whose values follow no rule: codebooks, functions, tables of results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import numpy as np

from compiler.errors import UnsupportedError
from datatypes.arithmetic import oracle
from datatypes.formats import Format, Power, Special
from datatypes.formats.minifloat import least_normal
from datatypes.hardware import accumulators
from datatypes.hardware.accumulators import Exact
from datatypes.hardware.codecs import Codec
from datatypes.hardware.lookup import looked_up, pairs_looked_up
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Layout, Number, multiplied, signed_width

TABLE_BITS = 8
"""Widest format that has tables."""


class Tabulated:
    """The operations of a format from lists of its values and results."""

    def __init__(self, fmt: Format, registers: int = 0) -> None:
        if fmt.nbits > TABLE_BITS:
            raise UnsupportedError(
                f"{fmt.name} has no hardware: its family has no circuits of its own, and tables "
                f"are for at most {TABLE_BITS} bits; it has {fmt.nbits}"
            )
        self.fmt, self.registers = fmt, registers
        self.name, self.nbits = fmt.name, fmt.nbits
        self.values = [fmt.decode_exact(code) for code in range(fmt.mask + 1)]
        self.numbers = [v for v in self.values if isinstance(v, Fraction) and v]
        if any(isinstance(value, Power) for value in self.values):
            raise UnsupportedError(f"{fmt.name} has no hardware: its values are irrational")
        exponents = [exponent_of(v) for v in self.numbers]
        self.lowest, self.highest = min(exponents), max(exponents)
        bits = max(exponent_of(v) - accumulators.lowest_bit(v) for v in self.numbers)
        self.layout = Layout(signed_width(self.lowest - 1, self.highest), bits + 1)

    @property
    def parts(self) -> str:
        """What the port `parts` holds."""
        return self.layout.about

    def parts_width(self) -> int:
        """Of the port `parts`."""
        return self.layout.width

    def decode(self, c: Circuit, a: Bits, least: int | None = None) -> Bits:
        """The parts of a code, with an exponent of at least `least`."""
        parts = [self.parts_of(code, least) for code in range(self.fmt.mask + 1)]
        return looked_up(c, a, parts, self.layout.width)

    def parts_of(self, code: int, least: int | None = None) -> int:
        """The parts of one code, as an integer."""
        value = self.values[code]
        exponent, significand, negative, zero = 0, 0, False, value == 0
        if isinstance(value, Special):
            negative = value is Special.NEG_INF
        elif zero:
            negative = self.fmt.signed_zero and code == self.fmt.sign_bit
        elif isinstance(value, Fraction):
            exponent, negative = exponent_of(value), value < 0
            exponent = exponent if least is None else max(exponent, least)
            scale = Fraction(2) ** (self.layout.significand - 1 - exponent)
            significand = int(abs(value) * scale)
        nan = value is Special.NAN
        flags = nan << 3 | (isinstance(value, Special) and not nan) << 2 | zero << 1 | negative
        flags = flags << self.layout.exponent | exponent & (1 << self.layout.exponent) - 1
        return flags << self.layout.significand | significand

    def encode(self, c: Circuit, parts: Bits) -> Bits:
        """The code of parts that `decode` gave: that of equal parts, or what infinities become."""
        code = c.constant(self.fmt.nan_code, self.nbits)
        for number, value in enumerate(self.values):
            if value is Special.NAN:
                continue
            become = number
            if isinstance(value, Special):
                become = self.fmt.beyond(self.fmt.infinity, value is Special.NEG_INF)
            same = parts.equals(self.parts_of(number))
            code = same.chosen(c.constant(become, self.nbits), code)
        return code

    def add(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a sum."""
        return self.operation(c, "Add", a, b)

    def mul(self, c: Circuit, a: Bits, b: Bits) -> Bits:
        """The code of a product."""
        return self.operation(c, "Mul", a, b)

    def operation(self, c: Circuit, op: str, a: Bits, b: Bits) -> Bits:
        """The code of a result, out of the list of all pairs."""
        codes = np.arange(self.fmt.mask + 1)
        table = oracle.apply(self.fmt, op, codes[:, None], codes[None, :])
        if self.registers:
            a, b = c.cut(a, b)
        return pairs_looked_up(c, a, b, table.ravel(), self.nbits)

    def product(self, c: Circuit, a: Bits, b: Bits) -> Number:
        """The exact product of two codes, its leading one on top."""
        return multiplied(c, *self.factors(c, a, b))

    def factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The numbers of two codes."""
        x, y = self.split(c, a, b)
        return x, y

    def aligned_factors(self, c: Circuit, a: Bits, b: Bits) -> tuple[Number, Number]:
        """The same with the exponents that aligned sums take."""
        x, y = self.split(c, a, b, least=least_normal(self.fmt))
        return x, y

    def split(self, c: Circuit, *codes: Bits, least: int | None = None) -> list[Number]:
        """Numbers of codes, with exponents of at least `least`."""
        oracle.require_fused(self.fmt)
        return [self.layout.split(self.decode(c, code, least)) for code in codes]

    def exact(self, headroom: int) -> Exact:
        """The accumulator of exact sums."""
        oracle.require_fused(self.fmt)
        return accumulators.exact(self.fmt, headroom)

    def mac_exact(self, c: Circuit, a: Bits, b: Bits, acc: Bits, into: Exact) -> Bits:
        """acc + a * b in an exact accumulator."""
        x, y = self.split(c, a, b)
        product = multiplied(c, x, y, normalize=False)
        return accumulators.accumulated(c, acc, product, into, 2 * self.lowest)

    def round_exact(self, c: Circuit, acc: Bits, of: Exact) -> Bits:
        """The code of an exact accumulator: how many of the intervals' starts it has passed."""
        total, flag = acc[: of.width], acc[of.width]
        unit = Fraction(2) ** of.unit
        limits = [(first(start / unit, included), code) for start, included, code in self.starts()]
        code = self.stepped(c, total, limits)
        zero = ~total.any()
        code = zero.chosen(c.constant(self.fmt.zero(False), self.nbits), code)
        ends = [self.fmt.beyond(self.fmt.infinity, side) for side in (False, True)]
        infinite = total.top.chosen(*(c.constant(end, self.nbits) for end in reversed(ends)))
        special = zero.chosen(c.constant(self.fmt.nan_code, self.nbits), infinite)
        return flag.chosen(special, code)

    def from_format(self, c: Circuit, acc: Bits, codec: Codec) -> Bits:
        """The code of a number that is in another format, compared with it as an integer."""
        other = codec.fmt
        number = acc
        if other.negation == "sign":
            size = acc[: other.nbits - 1].zero_extended(other.nbits)
            number = acc.top.chosen(c.constant(0, other.nbits) - size, size)
        limits = [(order_of(other, s, i), code) for s, i, code in self.starts()]
        last = other.highest + (1 if other.has_inf else 0)
        code = self.stepped(c, number, [(at, code) for at, code in limits if at <= last])
        x = codec.decode(c, acc)
        zero = x.sign.chosen(
            c.constant(self.fmt.zero(True), self.nbits),
            c.constant(self.fmt.zero(False), self.nbits),
        )
        code = x.zero.chosen(zero, code)
        ends = [
            c.constant(self.fmt.beyond(self.fmt.infinity, s), self.nbits) for s in (True, False)
        ]
        code = x.inf.chosen(x.sign.chosen(*ends), code)
        return x.nan.chosen(c.constant(self.fmt.nan_code, self.nbits), code)

    def stepped(self, c: Circuit, total: Bits, limits: list[tuple[int, int]]) -> Bits:
        """The code of the last limit that a signed number has reached.

        Args:
            c: the circuit that it is put in.
            total: the number.
            limits: least number -> code, rising; every number has reached the first.
        """
        low, high = -(1 << (total.width - 1)), 1 << (total.width - 1)
        bits = [c.constant(limits[0][1] >> place & 1, 1) for place in range(self.nbits)]
        for (_, before), (limit, code) in pairwise(limits):
            if limit >= high:
                break
            reached = c.constant(1, 1)
            if limit > low:
                reached = ~total.below_signed(c.constant(limit, total.width))
            for place in range(self.nbits):
                if (before ^ code) >> place & 1:
                    bits[place] = bits[place] ^ reached
        return c.joint(*reversed(bits))

    def starts(self) -> Iterator[tuple[Fraction, bool, int]]:
        """(where numbers begin that round to a code or above, whether it does so itself, code)."""
        fmt = self.fmt
        saturates = fmt.overflow == "saturate"
        far = Fraction(2) ** 1100
        yield -far, True, fmt.beyond(fmt.overflow, True)
        for order in range(fmt.lowest + saturates, fmt.highest + 2 - saturates):
            start = fmt.start(order)
            if start is None:
                continue
            code = fmt.beyond(fmt.overflow, False) if order > fmt.highest else fmt.code(order)
            assert isinstance(start[0], Fraction)
            if order == 0 and fmt.has_zero and fmt.signed_zero:
                yield start[0], start[1], fmt.zero(True)
                yield Fraction(0), True, fmt.zero(False)
            else:
                yield start[0], start[1], code


def first(value: Fraction, included: bool) -> int:
    """The first integer from a number on, or above it."""
    return math.ceil(value) if included else math.floor(value) + 1


def exponent_of(value: Fraction) -> int:
    """floor(log2(|value|)) of a number that is not 0."""
    size = abs(value)
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if size >= Fraction(2) ** guess else guess - 1


def order_of(fmt: Format, value: Fraction, included: bool) -> int:
    """The order of a format's first value from a number on, or above it."""
    low, high = fmt.lowest - 1, fmt.highest + 1
    while high - low > 1:
        middle = (low + high) // 2
        at = fmt.value(middle)
        if at > value or (included and at == value):
            high = middle
        else:
            low = middle
    return high
