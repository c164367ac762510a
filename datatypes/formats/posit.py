"""Posits: `posit<N>_es<E>`, 2 <= N <= 32.

Source: Standard for Posit Arithmetic (2022); `es` other than 2 as in Gustafson and Yonemoto,
"Beating Floating Point at its Own Game" (2017), which SoftPosit's posit8 (es=0) and posit16 (es=1)
follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from datatypes.formats.description import Format
from datatypes.formats.value import Special, Value

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PositCode:
    """The posit encoding with `es` exponent bits: sign, regime, exponent, fraction."""

    es: int

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code (Posit Standard 2022, section 3)."""
        if bits == 0:
            return Fraction(0)
        if bits == 1 << (nbits - 1):
            return Special.NAN
        negative = bits >> (nbits - 1)
        if negative:
            bits = -bits & ((1 << nbits) - 1)
        # The regime is the run of equal bits below the sign; the other bit ends it.
        width = nbits - 1
        leading = bits >> (width - 1)
        inverted = bits ^ ((1 << width) - 1) if leading else bits
        run = width - inverted.bit_length()
        regime = run - 1 if leading else -run
        left = max(width - run - 1, 0)
        tail = bits & ((1 << left) - 1)
        # Exponent bits that were cut off are zeros.
        fraction_bits = max(left - self.es, 0)
        exponent = tail >> fraction_bits << max(self.es - left, 0)
        significand = (1 << fraction_bits) + (tail & ((1 << fraction_bits) - 1))
        scale = (regime << self.es) + exponent - fraction_bits
        value = Fraction(significand << scale) if scale >= 0 else Fraction(significand, 1 << -scale)
        return -value if negative else value

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 values of the codes `bits` (any integer dtype); NaR gives NaN."""
        es, width = self.es, fmt.nbits - 1
        code = bits.astype(np.int64)
        negative = code >> width == 1
        magnitude = np.where(negative, -code & fmt.mask, code)
        leading = magnitude >> (width - 1) & 1
        inverted = np.where(leading == 1, magnitude ^ ((1 << width) - 1), magnitude)
        run = width - np.frexp(inverted.astype(np.float64))[1].astype(np.int64)
        regime = np.where(leading == 1, run - 1, -run)
        left = np.maximum(width - run - 1, 0)
        tail = magnitude & ((np.int64(1) << left) - 1)
        fraction_bits = np.maximum(left - es, 0)
        exponent = tail >> fraction_bits << np.maximum(es - left, 0)
        one = np.int64(1) << fraction_bits
        significand = one | (tail & (one - 1))
        scale = (regime << es) + exponent - fraction_bits
        value = np.ldexp(significand.astype(np.float64), np.where(magnitude == 0, 0, scale))
        value = np.where(negative, -value, value)
        return np.where(magnitude == 0, 0.0, np.where(code == fmt.sign_bit, np.nan, value))


def posit(nbits: int, es: int) -> Format:
    """The `nbits`-bit posit with `es` exponent bits; NaN and infinities become NaR.

    A nonzero value never rounds to zero, and a finite one never to NaR (Posit Standard 2022, 4.1).

    Raises:
        DtypelabError: there is no such format, or it is too wide or reaches too far for us.
    """
    # Here, as numbers of such formats would have too many bits to be looked at.
    if not 2 <= nbits <= 32:
        raise DtypelabError(f"format 'posit{nbits}_es{es}': nbits is {nbits}, must be 2 to 32")
    if es > 32 or nbits - 2 << es > 1000:
        raise DtypelabError(
            f"format 'posit{nbits}_es{es}' reaches beyond 2**-1000 .. 2**1000; choose fewer bits "
            "or a smaller exponent"
        )
    return Format(
        name=f"posit{nbits}_es{es}",
        nbits=nbits,
        decoder=PositCode(es),
        nan_code=1 << (nbits - 1),
        negation="complement",
        ties="encoding",
        overflow="saturate",
        infinity="nan",
        underflow="minpos",
        source="Standard for Posit Arithmetic (2022)",
    )
