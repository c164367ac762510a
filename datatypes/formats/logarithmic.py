"""Logarithmic numbers: `lns<N>_<F>`, a sign and the logarithm of the magnitude in fixed point.

Source: E. E. Swartzlander and A. G. Alexopoulos, "The Sign/Logarithm Number System" (1975). The
logarithm has F bits after the point and is biased, so that codes increase with the values, as in
floats; code 0 is zero, and the code of -0 is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from datatypes.formats.description import Format
from datatypes.formats.value import Power, Special, Value

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LogarithmCode:
    """A sign bit and the base-2 logarithm in units of 2**-fraction, biased by 2**(nbits - 2)."""

    nbits: int
    fraction: int

    @property
    def bias(self) -> int:
        """Magnitude code of 1."""
        return 1 << (self.nbits - 2)

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code: a power of two with an exact exponent."""
        magnitude = bits & ((1 << (nbits - 1)) - 1)
        negative = bits >> (nbits - 1) == 1
        if magnitude == 0:
            return Special.NAN if negative else Fraction(0)
        units = Fraction(magnitude, 1 << (nbits - self.nbits)) - self.bias
        exponent = units / (1 << self.fraction)
        if exponent.denominator != 1:
            return Power(negative, exponent)
        return (-1 if negative else 1) * Fraction(2) ** exponent.numerator

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 nearest to the values of the codes `bits` (any integer dtype)."""
        code = bits.astype(np.int64)
        magnitude = code & (fmt.sign_bit - 1)
        units = magnitude - self.bias
        steps = range(1 << self.fraction)
        powers = np.array([float(Power(False, Fraction(k, len(steps)))) for k in steps])
        value = np.ldexp(powers[units & (len(steps) - 1)], units >> self.fraction)
        value = np.where(code >= fmt.sign_bit, -value, value)
        return np.where(magnitude > 0, value, np.where(code == 0, 0.0, np.nan))


def lns(nbits: int, fraction: int) -> Format:
    """The logarithmic format of `nbits` bits (4 to 16), `fraction` of them after the point.

    Numbers round to the nearest logarithm. Products saturate; what is half a step or more below
    the least magnitude becomes zero.

    Raises:
        DtypelabError: the widths do not fit together.
    """
    name = f"lns{nbits}_{fraction}"
    if not 4 <= nbits <= 16 or not 0 <= fraction <= nbits - 3:
        raise DtypelabError(
            f"format {name!r} needs 4 to 16 bits, 0 to {nbits - 3} of them after the point"
        )
    return Format(
        name=name,
        nbits=nbits,
        decoder=LogarithmCode(nbits, fraction),
        nan_code=1 << (nbits - 1),
        negation="sign",
        ties="encoding",
        overflow="saturate",
        infinity="nan",
        underflow="zero",
        source="Swartzlander and Alexopoulos 1975",
    )
