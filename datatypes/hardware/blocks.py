"""Dot products of blocks whose elements share a scale: a block at once, added to one sum.

Products of elements are added exactly, as integers. What they add up to is multiplied by both
scales, exactly too, and added to the accumulator: one rounding a block. (NVIDIA's scale of a whole
tensor is a factor of the finished sum, and no part of this.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from compiler.errors import UnsupportedError
from datatypes.formats import Format
from datatypes.formats.minifloat import ScaleCode
from datatypes.hardware.accumulators import Exact, InFormat, number_of
from datatypes.hardware.codecs import codec_of
from datatypes.hardware.datapaths import Datapath, Rounded
from datatypes.hardware.netlist import Bits, Circuit
from datatypes.hardware.number import Number, added, multiplied, summed

LONGEST = 64
"""Most elements of a block."""


@dataclass(frozen=True)
class Blocks:
    """A block format, as circuits have it.

    Attributes:
        name: modules are called NAME_mac and so on.
        element: format of the elements.
        scale: format of the scales: float8_e8m0fnu (powers of two), a float, a posit or a takum.
        length: elements that share a scale.
    """

    name: str
    element: Format
    scale: Format
    length: int

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LONGEST:
            raise UnsupportedError(
                f"{self.name} has no hardware: its blocks have {self.length} elements, and "
                f"circuits at most {LONGEST}"
            )


def block_mac(of: Blocks, path: Datapath, into: InFormat) -> Circuit:
    """y = acc + scale_a * scale_b * (a . b), rounded once.

    Raises:
        UnsupportedError: the scales' format has no circuits.
    """
    codec = codec_of(into.fmt)
    assert codec is not None, into.fmt
    n, fmt = of.element.nbits, of.scale
    about = (
        f"{of.name}: y = acc + scale_a * scale_b * (a . b), rounded once\n"
        f"a, b: {of.length} codes of {of.element.name}, the first one lowest; scales are in "
        f"{fmt.name}, acc is in {into.fmt.name}"
    )
    c = Circuit(f"{of.name}_mac", about)
    a, b = (c.input(name, n * of.length) for name in ("a", "b"))
    first, second = (scale_of(c, c.input(f"scale_{p}", fmt.nbits), of) for p in ("a", "b"))
    acc = c.input("acc", into.fmt.nbits)
    codes = [(a[k : k + n], b[k : k + n]) for k in range(0, n * of.length, n)]
    scaled = multiplied(c, dot(c, path, codes), multiplied(c, first, second))
    sums = Rounded(codec)
    total = added(c, scaled, codec.decode(c, acc), codec.layout.significand)
    c.output("y", sums.rounded(c, total))
    return c


def dot(c: Circuit, path: Datapath, codes: Sequence[tuple[Bits, Bits]]) -> Number:
    """The exact sum of the products of pairs of codes."""
    one = path.exact(0)
    nothing = c.constant(0, one.width + 1)
    products = [path.mac_exact(c, a, b, nothing, one) for a, b in codes]
    total = summed(c, [p[: one.width] for p in products])
    # A product that is no number is 0 (NaN), 1 or -1 (infinities) below a bit that says so.
    flags = [p[one.width] for p in products]
    nan, plus, minus = (
        reduce(lambda x, y: x | y, bits)
        for bits in (
            [f & ~p[0] for f, p in zip(flags, products, strict=True)],
            [f & p[0] & ~p[one.width - 1] for f, p in zip(flags, products, strict=True)],
            [f & p[one.width - 1] for f, p in zip(flags, products, strict=True)],
        )
    )
    x = number_of(c, c.joint(c.constant(0, 1), total), Exact(one.unit, total.width), total.width)
    inf = plus | minus
    return Number(nan | plus & minus, inf, x.zero, inf.chosen(minus, x.sign), x.exponent,
                  x.significand)  # fmt: skip


def scale_of(c: Circuit, code: Bits, of: Blocks) -> Number:
    """The number that the code of a scale means."""
    kind: object = of.scale.decoder
    none = c.constant(0, 1)
    if isinstance(kind, ScaleCode):
        exponent = code.zero_extended(9) - c.constant(127, 9)
        return Number(code.all(), none, none, none, exponent, c.constant(1, 1))
    codec = None if of.scale.storage_only else codec_of(of.scale)
    if codec is None:
        raise UnsupportedError(
            f"{of.name} has no hardware, because {of.scale.name}, the format of its scales, has no "
            "circuits of its own; the nearest is float8_e8m0fnu, or a float"
        )
    return codec.decode(c, code)
