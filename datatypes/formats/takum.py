"""Linear takums: `takum<N>`, 2 <= N <= 32.

Source: L. Hunhold, "Beating Posits at Their Own Game: Takum Arithmetic" (2024) and "Design and
Implementation of a Takum Arithmetic Hardware Codec in VHDL" (2024), which defines the linear
variant meant here: the significand is 1 + fraction, as in floats and posits, not a logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from datatypes.formats.description import Format
from datatypes.formats.value import Special, Value

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TakumCode:
    """The takum encoding: sign, direction, 3-bit regime, characteristic, mantissa."""

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code. Widths below 12 read as if zeros followed."""
        if bits == 0:
            return Fraction(0)
        if bits == 1 << (nbits - 1):
            return Special.NAN
        negative = bits >> (nbits - 1)
        if negative:
            bits = -bits & ((1 << nbits) - 1)
        if nbits < 12:
            bits, nbits = bits << (12 - nbits), 12
        direction = bits >> (nbits - 2) & 1
        regime = bits >> (nbits - 5) & 7
        length = regime if direction else 7 - regime  # of the characteristic
        rest = nbits - 5
        mantissa_bits = rest - length
        stored = (bits & ((1 << rest) - 1)) >> mantissa_bits
        characteristic = stored + ((1 << length) - 1 if direction else 1 - (2 << length))
        significand = (1 << mantissa_bits) + (bits & ((1 << mantissa_bits) - 1))
        value = significand * Fraction(2) ** (characteristic - mantissa_bits)
        return -value if negative else value

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 values of the codes `bits` (any integer dtype); NaR gives NaN."""
        code = bits.astype(np.int64)
        negative = code >= fmt.sign_bit
        missing = max(12 - fmt.nbits, 0)
        magnitude = np.where(negative, -code & fmt.mask, code) << missing
        rest = fmt.nbits + missing - 5
        direction = magnitude >> (rest + 3) & 1
        regime = magnitude >> rest & 7
        length = np.where(direction == 1, regime, 7 - regime)
        mantissa_bits = rest - length
        stored = (magnitude & ((1 << rest) - 1)) >> mantissa_bits
        start = np.where(direction == 1, (np.int64(1) << length) - 1, 1 - (np.int64(2) << length))
        one = np.int64(1) << mantissa_bits
        significand = one | (magnitude & (one - 1))
        value: Array = np.ldexp(significand.astype(np.float64), stored + start - mantissa_bits)
        value = np.where(negative, -value, value)
        return np.where(code == 0, 0.0, np.where(code == fmt.sign_bit, np.nan, value))


def takum(nbits: int) -> Format:
    """The `nbits`-bit linear takum; NaN and infinities become NaR, finite values saturate."""
    return Format(
        name=f"takum{nbits}",
        nbits=nbits,
        decoder=TakumCode(),
        nan_code=1 << (nbits - 1),
        negation="complement",
        ties="encoding",
        overflow="saturate",
        infinity="nan",
        underflow="minpos",
        source="Hunhold 2024, linear takum",
    )
