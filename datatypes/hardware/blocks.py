"""Dot products of blocks whose elements share a scale: a block at once, added to one sum.

Products of elements are added exactly, as integers. What they add up to is multiplied by both
scales, exactly too, and added to the accumulator: one rounding a block. (NVIDIA's scale of a whole
tensor is a factor of the finished sum, and no part of this.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
WIDEST_SUM = 256
"""Most bits of a block's sum of products, which is multiplied by scales, and added to a float."""


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


def block_circuits(of: Blocks, path: Datapath, into: InFormat) -> dict[str, Circuit]:
    """NAME_mac, and its parts: NAME_product, of which it has one an element, and NAME_total.

    Raises:
        UnsupportedError: the scales' format has no circuits, or sums of products are too wide.
    """
    n, one = of.element.nbits, path.exact(0)
    width = one.width + (of.length - 1).bit_length()
    if width > WIDEST_SUM:
        raise UnsupportedError(
            f"{of.name} has no hardware: sums of its products take {width} bits, because of the "
            f"range of {of.element.name}, and those of a block have at most {WIDEST_SUM}; the "
            "nearest are elements in a shorter float or posit"
        )
    scales, held = f"scales are in {of.scale.name}", f"acc is in {into.fmt.name}"
    codes = f"{of.length} codes of {of.element.name}, the first one lowest"

    c = Circuit(f"{of.name}_mac", f"{of.name}: y = acc + scale_a * scale_b * (a . b), rounded once")
    c.about += f"\na, b: {codes}; {scales}, {held}"
    a, b = (c.input(name, n * of.length) for name in ("a", "b"))
    pairs = [(a[k : k + n], b[k : k + n]) for k in range(0, n * of.length, n)]
    c.output("y", _total(c, of, into, one, [_product(c, path, x, y) for x, y in pairs]))

    p = Circuit(f"{of.name}_product", f"{of.name}: y = a * b, exactly\n{one.about}")
    p.output("y", _product(p, path, p.input("a", n), p.input("b", n)))

    t = Circuit(f"{of.name}_total", f"{of.name}: y = acc + scale_a * scale_b * (all products)")
    t.about += f"\nproducts: {of.length} of {of.name}_product, the first one lowest; "
    t.about += f"{scales}, {held}"
    every = t.input("products", one.bits * of.length)
    parts = [every[k : k + one.bits] for k in range(0, every.width, one.bits)]
    t.output("y", _total(t, of, into, one, parts))
    return {"product": p, "total": t, "mac": c}


def _product(c: Circuit, path: Datapath, a: Bits, b: Bits) -> Bits:
    """The exact product of two codes, as an accumulator that was 0 before."""
    one = path.exact(0)
    return path.mac_exact(c, a, b, c.constant(0, one.bits), one)


def _total(c: Circuit, of: Blocks, into: InFormat, one: Exact, products: Sequence[Bits]) -> Bits:
    """The accumulator with what products add up to, multiplied by the scales, rounded once."""
    codec = codec_of(into.fmt)
    assert codec is not None, into.fmt
    first, second = (_scale(c, c.input(f"scale_{name}", of.scale.nbits), of) for name in ("a", "b"))
    acc = codec.decode(c, c.input("acc", into.fmt.nbits))
    scaled = multiplied(c, _summed(c, one, products), multiplied(c, first, second))
    return Rounded(codec).rounded(c, added(c, scaled, acc, codec.layout.significand))


def _summed(c: Circuit, one: Exact, products: Sequence[Bits]) -> Number:
    """The exact sum of products."""
    total = summed(c, [p[: one.width] for p in products])
    # A product that is no number is 0 (NaN), 1 or -1 (infinities) below a bit that says so.
    nan, plus, minus = (
        reduce(lambda x, y: x | y, bits)
        for bits in (
            [p[one.width] & ~p[0] for p in products],
            [p[one.width] & p[0] & ~p[one.width - 1] for p in products],
            [p[one.width] & p[one.width - 1] for p in products],
        )
    )
    whole = c.joint(c.constant(0, 1), total)
    x = number_of(c, whole, Exact(one.unit, total.width), total.width)
    sign = (plus | minus).chosen(minus, x.sign)
    return replace(x, nan=nan | plus & minus, inf=plus | minus, sign=sign)


def _scale(c: Circuit, code: Bits, of: Blocks) -> Number:
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
