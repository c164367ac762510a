"""Decoded numbers as bundles of wires: sign, exponent, significand, and what is no number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from datatypes.hardware.netlist import Bits, Circuit


@dataclass(frozen=True)
class Number:
    """(-1)**sign * 2**exponent * significand, which is 1.xxx with its leading one on top.

    Attributes:
        nan: one bit; the others mean nothing if it is set.
        inf: one bit: infinite, of the sign given.
        zero: one bit; the exponent means nothing then.
        sign: one bit.
        exponent: in two's complement.
        significand: at least one bit; of zero, all are 0. The lowest may be sticky: set if
            anything below it was.
    """

    nan: Bits
    inf: Bits
    zero: Bits
    sign: Bits
    exponent: Bits
    significand: Bits

    @property
    def bits(self) -> tuple[Bits, ...]:
        """All wires, in the order of the port `parts`, the highest first."""
        return (self.nan, self.inf, self.zero, self.sign, self.exponent, self.significand)


@dataclass(frozen=True)
class Layout:
    """Widths of a decoded number's exponent and significand: the port `parts`."""

    exponent: int
    significand: int

    @property
    def width(self) -> int:
        """Of the port."""
        return 4 + self.exponent + self.significand

    @property
    def about(self) -> str:
        """The port in words."""
        return (
            f"parts = {{nan, inf, zero, sign, exponent[{self.exponent - 1}:0], "
            f"significand[{self.significand - 1}:0]}}:"
            "\n(-1)**sign * 2**exponent * significand / "
            f"2**{self.significand - 1}, exponent in two's complement"
        )

    def split(self, parts: Bits) -> Number:
        """The wires of a port `parts`."""
        s, e = self.significand, self.significand + self.exponent
        return Number(parts[e + 3], parts[e + 2], parts[e + 1], parts[e], parts[s:e], parts[:s])


def signed_width(*numbers: int) -> int:
    """Bits of the shortest two's complement that holds all the integers."""
    return max((~n if n < 0 else n).bit_length() for n in numbers) + 1


def registered(c: Circuit, values: Sequence[Number]) -> list[Number]:
    """Numbers one clock later."""
    flat = c.cut(*(bit for value in values for bit in value.bits))
    return [Number(*flat[6 * k : 6 * k + 6]) for k in range(len(values))]


def leading_zeros(c: Circuit, value: Bits) -> Bits:
    """How many zeros are above the highest one; of zero alone it means nothing."""
    size = 1 << (value.width - 1).bit_length()
    if size > value.width:
        value = c.joint(value, c.constant(-1, size - value.width))
    return _zeros(c, value)[0]


def _zeros(c: Circuit, value: Bits) -> tuple[Bits, Bits]:
    """(leading zeros, whether any bit is set) of a power of two of bits."""
    if value.width == 1:
        return c.constant(0, 1), value
    half = value.width // 2
    high, any_high = _zeros(c, value[half:])
    low, any_low = _zeros(c, value[:half])
    there = any_high | any_low
    if half == 1:
        return ~any_high, there
    return c.joint(~any_high, any_high.chosen(high, low)), there


def normalized(c: Circuit, value: Bits) -> tuple[Bits, Bits]:
    """The value shifted so that its highest one is on top, and by how many places."""
    if value.width == 1:
        return value, c.constant(0, 1)
    places = leading_zeros(c, value)
    return value.shifted_left(places), places


def leading(c: Circuit, total: Bits, kept: int) -> tuple[Bits, Bits]:
    """What a sum in two's complement is, from its leading one on.

    The steps of a logarithmic shifter halve, and what no later step brings among the upper bits
    goes into the sticky one at once: two multiplexers a bit, not one a bit and step. The sum is
    negated when it is short: below the bits that are kept, a carry comes from zeros alone.

    Args:
        c: the circuit that it is put in.
        total: the sum, at least 2 bits.
        kept: bits of the result, at least 3.

    Returns:
        (significand, the last bit of which is sticky; by how many places the leading one is below
        the highest bit but one, signed: -1 of the least number). Of zero, they mean nothing.
    """
    sign, value = total.top, total[: total.width - 1].raised(1)
    zeros, sticky = [], c.constant(0, 1)
    for step in (1 << k for k in reversed(range((total.width - 1).bit_length()))):
        zeros.append(~(value[value.width - step :] ^ sign.repeated(step)).any())
        stays, left = _upper(value, step + kept - 2)
        moves, less = _upper(value[: value.width - step], step + kept - 2)
        value = zeros[-1].chosen(moves, stays)
        sticky = sticky | zeros[-1].chosen(less, left)
    places = c.joint(c.constant(0, 1), *zeros)
    size = value ^ sign.repeated(value.width)
    size = size.zero_extended(kept) + (sign & ~sticky).zero_extended(kept)
    significand = c.joint(size.top | size[kept - 2], size[: kept - 2], sticky)
    return significand, places - size.top.zero_extended(places.width)


def _upper(value: Bits, width: int) -> tuple[Bits, Bits]:
    """The upper bits, with zeros below if there are less; whether any other one is set."""
    left = value.width - width
    if left <= 0:
        return value.raised(-left), value.circuit.constant(0, 1)
    return value[left:], value[:left].any()


def compressed(c: Circuit, significand: Bits, width: int) -> Bits:
    """The upper bits, the lowest of which is sticky for those left out; or zeros below."""
    left = significand.width - width
    if left <= 0:
        return significand.raised(-left)
    kept, rest = significand[left + 1 :], significand[: left + 1]
    return c.joint(kept, rest.any())


def summed(c: Circuit, values: Sequence[Bits]) -> Bits:
    """The sum of numbers of one width in two's complement, as a tree; it has room for all."""
    while len(values) > 1:
        width = values[0].width + 1
        wide = [value.sign_extended(width) for value in values]
        odd = wide[len(wide) - len(wide) % 2 :]
        values = [*(x + y for x, y in zip(wide[::2], wide[1::2], strict=False)), *odd]
    return values[0]


def multiplied(c: Circuit, x: Number, y: Number, normalize: bool = True) -> Number:
    """The exact product.

    Args:
        c: the circuit that it is put in.
        x: one factor.
        y: the other one.
        normalize: whether its leading one is to be on top; else the significand is 0x.xxx or
            1x.xxx, and the exponent is that of its second bit.
    """
    inf, zero = x.inf | y.inf, x.zero | y.zero
    nan = x.nan | y.nan | (inf & zero)
    width = max(x.exponent.width, y.exponent.width) + 1
    exponent = x.exponent.sign_extended(width) + y.exponent.sign_extended(width)
    product = (x.significand * y.significand).named("product")
    if normalize:
        carry = product.top
        wide = exponent.sign_extended(width + 1)
        exponent = wide + carry.zero_extended(width + 1)
        product = carry.chosen(product, product.shifted_left(c.constant(1, 1)))
    return Number(nan, inf, zero, x.sign ^ y.sign, exponent, product)


def added(c: Circuit, x: Number, y: Number, precision: int) -> Number:
    """The sum, good for one rounding to `precision` significant bits or fewer.

    The operand with the lower exponent is shifted right, with two more bits and a sticky one kept.
    That is enough: if it was shifted by two places or more, at most one leading bit cancels.
    An exact zero is +0 unless both operands are negative (IEEE 754-2019, 6.3).
    """
    size = max(x.significand.width, y.significand.width, precision)
    width = max(x.exponent.width, y.exponent.width) + 1
    ex, ey = (n.exponent.sign_extended(width) for n in (x, y))
    ex, ey = x.zero.chosen(ey, ex), y.zero.chosen(ex, ey)
    swap = ex.below_signed(ey).named("swap")
    sx, sy = (n.significand.raised(size - n.significand.width) for n in (x, y))
    large, small = swap.chosen(sy, sx), swap.chosen(sx, sy)
    top = swap.chosen(ey, ex)
    distance = (top - swap.chosen(ex, ey)).named("distance")
    most = size + 2
    places = c.constant(0, 1).zero_extended(most.bit_length())
    if distance.width > places.width:
        far = c.constant(most, distance.width).below(distance)
        places = far.chosen(c.constant(most, places.width), distance[: places.width])
    else:
        places = distance
    shifted = small.raised(most).shifted_right(places)
    minor = c.joint(c.constant(0, 1), shifted[size:], shifted[:size].any())
    major = c.joint(c.constant(0, 1), large, c.constant(0, 3))
    differ = x.sign ^ y.sign
    total = differ.chosen(major - minor, major + minor)
    # Of equal exponents the second significand may be the larger one.
    less = differ & total.top
    total = less.chosen(c.constant(0, total.width) - total, total).named("total")
    significand, zeros = normalized(c, total)
    wide = max(width + 1, zeros.width + 1)
    exponent = top.sign_extended(wide) + c.constant(1, wide) - zeros.zero_extended(wide)
    zero = ~total.any()
    sign = zero.chosen(x.sign & y.sign, swap.chosen(y.sign, x.sign) ^ less)
    inf = x.inf | y.inf
    nan = x.nan | y.nan | (x.inf & y.inf & differ)
    # An infinite operand's sign is that of the sum.
    sign = inf.chosen(x.inf.chosen(x.sign, y.sign), sign)
    return Number(nan, inf, zero, sign, exponent, significand)
