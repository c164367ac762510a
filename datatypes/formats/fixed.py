"""Fixed point: `fixed<N>_<F>`, a two's complement integer of N bits times 2**-F.

The Q format of digital signal processing (Q<N-F>.<F>), saturating, rounded to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from datatypes.formats.description import Format
from datatypes.formats.value import Value

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class FixedCode:
    """Two's complement integers in units of 2**-fraction."""

    fraction: int

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code."""
        signed = bits - (1 << nbits) if bits >> (nbits - 1) else bits
        return Fraction(signed, 1 << self.fraction)

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 values of the codes `bits` (any integer dtype)."""
        code = bits.astype(np.int64)
        signed = np.where(code >= fmt.sign_bit, code - fmt.mask - 1, code)
        return np.ldexp(signed.astype(np.float64), -self.fraction)


def fixed(nbits: int, fraction: int) -> Format:
    """Fixed point of `nbits` bits, `fraction` of them (0 to 64) after the binary point.

    Infinities saturate like any large value, and NaN becomes 0: there is no code for either.

    Raises:
        DtypelabError: `fraction` is not 0 to 64.
    """
    name = f"fixed{nbits}_{fraction}"
    if not 0 <= fraction <= 64:
        raise DtypelabError(f"format {name!r}: the fraction bits must be 0 to 64")
    return Format(
        name=name,
        nbits=nbits,
        decoder=FixedCode(fraction),
        nan_code=0,
        negation="complement",
        ties="value",
        overflow="saturate",
        infinity="saturate",
        underflow="zero",
        source="two's complement Q format",
    )
