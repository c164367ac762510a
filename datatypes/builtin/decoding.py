"""float64 of storage integers, as expressions.

A table up to 16 bits; bit arithmetic for wider formats: the families' own rules (see
`datatypes.formats`), with the exponent of float64 written directly.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.tensor.expr import Expr, call, cast, const, let, maximum, select
from compiler.types.dtypes import FLOAT64, INT64, DType
from datatypes.builtin import softposit
from datatypes.builtin.common import look_up, values
from datatypes.formats import Format
from datatypes.formats.fixed import FixedCode
from datatypes.formats.minifloat import FloatCode
from datatypes.formats.posit import PositCode
from datatypes.formats.takum import TakumCode

TABLE_BITS = 16


def decode(fmt: Format, a: Expr) -> Expr | None:
    """float64 of a storage integer; None for a wide format of no family known here."""
    if fmt.nbits <= TABLE_BITS:
        return cast(look_up(values(fmt), a), FLOAT64)
    if fmt.name in softposit.PREFIXES:
        return softposit.to_float64(fmt, a)
    return by_family(fmt, a)


def has_family(fmt: Format) -> bool:
    """Whether `by_family` knows the format."""
    family: object = fmt.decoder
    if isinstance(family, FloatCode):
        return family.style == "ieee" and family.subnormals
    return isinstance(family, (FixedCode, PositCode, TakumCode))


def by_family(fmt: Format, a: Expr) -> Expr | None:
    """float64 of a storage integer of a wide format, in expressions alone."""
    family: object = fmt.decoder
    if isinstance(family, FixedCode):
        return _fixed(fmt, family, a)
    if isinstance(family, FloatCode) and has_family(fmt):
        return let(cast(a, INT64), lambda code: _float(fmt, family, code), "code")
    if isinstance(family, PositCode):
        return _signed(fmt, a, lambda magnitude: _posit(fmt, family, magnitude))
    if isinstance(family, TakumCode):
        return _signed(fmt, a, lambda magnitude: _takum(fmt, magnitude))
    return None


def _integer(value: int) -> Expr:
    return const(value, INT64)


def _fixed(fmt: Format, family: FixedCode, a: Expr) -> Expr:
    unused = 32 - fmt.nbits
    shifted = cast(a << unused if unused else a, DType("int", 32))
    return cast(shifted, FLOAT64) * 2.0 ** -(family.fraction + unused)


def _float(fmt: Format, f: FloatCode, code: Expr) -> Expr:
    """The magnitude put where float64 has exponent and fraction, times the ratio of the biases.

    That product is exact for subnormals too.
    """
    magnitude = code & (fmt.sign_bit - 1)
    infinity = ((1 << f.exponent) - 1) << f.mantissa
    placed = call("bits", magnitude << (52 - f.mantissa), dtype=FLOAT64)
    finite = placed * 2.0 ** (1023 - f.bias)
    special = select(magnitude.equal(infinity), const(float("inf"), FLOAT64), float("nan"))
    value = select(magnitude < infinity, finite, special)
    return select(code >= fmt.sign_bit, -1.0 * value, value)


def _signed(fmt: Format, a: Expr, positive: Callable[[Expr], Expr]) -> Expr:
    """A code in two's complement with NaR, by the value of its magnitude."""

    def value(code: Expr) -> Expr:
        negative = code >= fmt.sign_bit
        magnitude = select(negative, (1 << fmt.nbits) - code, code)
        finite = let(magnitude, positive, "magnitude")
        signed = select(negative, -1.0 * finite, finite)
        zero = select(code.equal(0), const(0.0, FLOAT64), signed)
        return select(code.equal(fmt.nan_code), const(float("nan"), FLOAT64), zero)

    return let(cast(a, INT64), value, "code")


def _power(exponent: Expr) -> Expr:
    """2**exponent, for -1022 <= exponent <= 1023."""
    return call("bits", (exponent + 1023) << 52, dtype=FLOAT64)


def _posit(fmt: Format, family: PositCode, magnitude: Expr) -> Expr:
    """`PositCode`, with the run of the regime found by the exponent of a float64."""
    es, width = family.es, fmt.nbits - 1
    ones = magnitude >= 1 << (width - 1)
    inverted = select(ones, ((1 << width) - 1) - magnitude, magnitude)
    # 1022 + the bit length of a positive integer; 0 for zero
    length = (call("bits", cast(inverted, FLOAT64), dtype=INT64) >> 52) - 1022

    def scaled(run: Expr) -> Expr:
        left = maximum((width - 1) - run, 0)
        tail = magnitude & ((_integer(1) << left) - 1)
        fraction_bits = maximum(left - es, 0)
        exponent = tail >> fraction_bits << maximum(es - left, 0)
        one = _integer(1) << fraction_bits
        significand = cast(one | (tail & (one - 1)), FLOAT64)
        regime = select(ones, run - 1, 0 - run)
        return significand * _power((regime << es) + exponent - fraction_bits)

    return let(width - maximum(length, 0), scaled, "run")


def _takum(fmt: Format, magnitude: Expr) -> Expr:
    """`TakumCode` for at least 12 bits: the fraction is put below float64's exponent."""
    rest = fmt.nbits - 5
    above = (magnitude >> (fmt.nbits - 2)).equal(1)
    regime = magnitude >> rest & 7

    def value(length: Expr) -> Expr:
        fraction_bits = rest - length
        stored = (magnitude & ((1 << rest) - 1)) >> fraction_bits
        start = select(above, (_integer(1) << length) - 1, 1 - (_integer(2) << length))
        fraction = magnitude & ((_integer(1) << fraction_bits) - 1)
        exponent = (stored + start + 1023) << 52
        return call("bits", exponent | fraction << (52 - fraction_bits), dtype=FLOAT64)

    return let(select(above, regime, 7 - regime), value, "length")
