"""Whether a description keeps its promises: asked once, when a format is defined."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

from compiler.errors import DtypelabError
from datatypes.formats.description import Format
from datatypes.formats.fixed import FixedCode
from datatypes.formats.logarithmic import LogarithmCode
from datatypes.formats.minifloat import FloatCode
from datatypes.formats.posit import PositCode
from datatypes.formats.rules import SORTED_BITS
from datatypes.formats.takum import TakumCode
from datatypes.formats.value import Number, Power, Special, as_float

_FAMILIES = (FixedCode, FloatCode, LogarithmCode, PositCode, TakumCode)
"""Decoders that are proven elsewhere: of these a sample is enough."""

BOUNDARY_BITS = 52
"""Bits that a float64 rounded to odd decides about: those of the values' boundaries must fit."""


def check_values(fmt: Format) -> None:
    """Check that the values have the order, the signs and the precision that the rules say.

    All codes; of the families' own decoders and more than 8 bits the ends, powers of two and a
    sample.

    Raises:
        DtypelabError: they have not; names the codes.
    """
    where = f"format {fmt.name!r}"
    if fmt.negation != "none":
        _check_order(fmt, where)
        _check_signs(fmt, where)
    for order in _orders(fmt):
        _check_precision(fmt, where, order)


def _check_order(fmt: Format, where: str) -> None:
    if fmt.decode_exact(0) != 0:
        raise DtypelabError(f'{where}: code 0 must mean 0; if it does not, say negation="none"')
    for order in _orders(fmt):
        if not 0 <= order < fmt.highest:
            continue
        low, high = fmt.decode_exact(order), fmt.decode_exact(order + 1)
        if isinstance(low, Special) or isinstance(high, Special):
            raise DtypelabError(f"{where}: code {order + 1:#x} is no number, but lies among them")
        if not low < high:
            same = "both mean" if low == high else "do not increase:"
            raise DtypelabError(
                f"{where}: codes {order:#x} and {order + 1:#x} {same} {as_float(low):.17g}, "
                f'{as_float(high):.17g}; declare negation="none" if codes are in no order'
            )
        vanishes = order == 0 and fmt.underflow == "zero"
        between = fmt.ties == "encoding" and (order > 0 or vanishes)
        if between and not low < fmt.boundary(order) < high:
            raise DtypelabError(
                f"{where}: the code between {order:#x} and {order + 1:#x} that is one bit longer "
                'does not lie between them; say ties="value"'
            )
    if _enumerated(fmt):
        for code in range(fmt.highest + 1, fmt.sign_bit):
            if not isinstance(fmt.decode_exact(code), Special):
                raise DtypelabError(
                    f"{where}: code {code:#x} is a number above {fmt.highest + 1:#x}, which is not"
                )


def _check_signs(fmt: Format, where: str) -> None:
    for order in _orders(fmt):
        if not 1 <= order <= fmt.highest:
            continue
        code = fmt.code(-order)
        if fmt.decode_exact(code) != _negated(fmt.point(order)):
            raise DtypelabError(
                f"{where}: code {code:#x} is not the negative of {order:#x}; "
                'declare negation="none"'
            )
    left = fmt.decode_exact(fmt.sign_bit)
    if isinstance(left, Special):
        return
    if fmt.negation == "sign" and left == 0 and fmt.signed_zero:
        return
    if fmt.negation == "complement" and left < _negated(fmt.point(fmt.highest)):
        return
    raise DtypelabError(
        f"{where}: code {fmt.sign_bit:#x} means {as_float(left):.17g} a second time; "
        'declare signed_zero=True if it is -0, or negation="none"'
    )


def _check_precision(fmt: Format, where: str, order: int) -> None:
    value = fmt.point(order)
    if isinstance(value, Power):
        return
    boundary = fmt.boundary(order)
    assert isinstance(boundary, Fraction)
    if Fraction(float(value)) != value or _bits(boundary) > BOUNDARY_BITS:
        longest = max(
            range(order, min(order + 1, fmt.highest) + 1), key=lambda k: _bits(fmt.value(k))
        )
        exact = fmt.value(longest)
        means = str(exact) if len(str(exact)) < 40 else f"{float(exact)!r}"
        raise DtypelabError(
            f"{where}: code {fmt.code(longest):#x} means {means}, of more bits than float64 can "
            "prove results with; round the values to 50 significant bits"
        )


def _bits(value: Fraction) -> int:
    """Significant bits of a dyadic number; of any other, more than there are."""
    if value.denominator & (value.denominator - 1):
        return 10**6
    numerator = abs(value.numerator)
    return (numerator // (numerator & -numerator)).bit_length() if numerator else 0


def _negated(value: Number) -> Number:
    return -value


def _enumerated(fmt: Format) -> bool:
    return fmt.nbits <= 8 or (fmt.nbits <= SORTED_BITS and not isinstance(fmt.decoder, _FAMILIES))


def _orders(fmt: Format) -> Iterator[int]:
    """Every order, or some of them."""
    if _enumerated(fmt):
        yield from range(fmt.lowest, fmt.highest + 1)
        return
    chosen = {fmt.lowest, fmt.highest, fmt.highest - 1, -1, 0, 1}
    chosen |= {(1 << bit) + step for bit in range(fmt.nbits - 1) for step in (-1, 0, 1)}
    sample = random.Random(0)
    chosen |= {sample.randint(fmt.lowest, fmt.highest) for _ in range(2000)}
    yield from sorted(order for order in chosen if fmt.lowest <= order <= fmt.highest)
