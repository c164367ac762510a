"""Binary floating point with a sign bit: IEEE 754, bfloat16, and the 4 to 8-bit formats of machine
learning, under the names that ml_dtypes uses.

Sources: IEEE 754-2019; OCP 8-bit Floating Point Specification (OFP8) 1.0 for e4m3fn and e5m2;
OCP Microscaling Formats (MX) 1.0 for the 4 and 6-bit formats; Noune et al., "8-bit Numerical
Formats for Deep Neural Networks" (2022) for fnuz.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from datatypes.formats.description import Format, Special, Value

Array = npt.NDArray[Any]

Style = Literal["ieee", "fn", "fnuz", "finite"]
"""Which codes are not numbers. ieee: the top exponent is infinity and NaNs. fn: only the code with
all bits set is NaN. fnuz: only the code of -0 is NaN. finite: none."""

_SOURCES: dict[Style, str] = {
    "ieee": "IEEE 754-2019",
    "fn": "OCP OFP8 1.0",
    "fnuz": "Noune et al. 2022",
    "finite": "OCP MX 1.0",
}


@dataclass(frozen=True)
class FloatCode:
    """Sign, `exponent` bits with a `bias`, `mantissa` bits; exponent 0 is zero and subnormals."""

    exponent: int
    mantissa: int
    bias: int
    style: Style

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code (IEEE 754-2019, section 3.4, and the style's exceptions)."""
        negative = bits >> (nbits - 1)
        top = (1 << self.exponent) - 1
        exponent = bits >> self.mantissa & top
        fraction = bits & ((1 << self.mantissa) - 1)
        if self.style == "ieee" and exponent == top:
            if fraction:
                return Special.NAN
            return Special.NEG_INF if negative else Special.INF
        if self.style == "fn" and (bits | 1 << (nbits - 1)) == (1 << nbits) - 1:
            return Special.NAN
        if self.style == "fnuz" and bits == 1 << (nbits - 1):
            return Special.NAN
        significand = fraction + (1 << self.mantissa if exponent else 0)
        value = significand * Fraction(2) ** (max(exponent, 1) - self.bias - self.mantissa)
        return -value if negative else value

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 values of the codes `bits` (any integer dtype)."""
        code = bits.astype(np.int64)
        top = (1 << self.exponent) - 1
        exponent = code >> self.mantissa & top
        fraction = code & ((1 << self.mantissa) - 1)
        significand = fraction + np.where(exponent > 0, 1 << self.mantissa, 0)
        value: Array = np.ldexp(
            significand.astype(np.float64), np.maximum(exponent, 1) - self.bias - self.mantissa
        )
        if self.style == "ieee":
            value = np.where(exponent == top, np.where(fraction == 0, np.inf, np.nan), value)
        value = np.where(code >= fmt.sign_bit, -value, value)
        if self.style == "fn":
            value = np.where((code | fmt.sign_bit) == fmt.mask, np.nan, value)
        if self.style == "fnuz":
            value = np.where(code == fmt.sign_bit, np.nan, value)
        return value


def minifloat(
    exponent: int,
    mantissa: int,
    style: Style = "ieee",
    *,
    bias: int | None = None,
    name: str | None = None,
) -> Format:
    """Floating point with `exponent` and `mantissa` bits; its width is 1 + exponent + mantissa.

    The bias is 2**(exponent-1) - 1 unless given. Conversions follow ml_dtypes: overflow gives
    infinity (ieee), NaN (fn, fnuz; OFP8 calls this the non-saturating mode) or maxpos (finite);
    NaN becomes -0 where there is no NaN.

    Raises:
        DtypelabError: fewer than 2 exponent bits or no mantissa bits.
    """
    nbits = 1 + exponent + mantissa
    label = name or f"float{nbits}_e{exponent}m{mantissa}"
    if exponent < 2 or mantissa < 1:
        raise DtypelabError(f"format {label!r} needs at least 2 exponent bits and 1 mantissa bit")
    default = (1 << (exponent - 1)) - 1
    quiet_nan = (((1 << exponent) - 1) << mantissa) | 1 << (mantissa - 1)
    nan_code = {
        "ieee": quiet_nan,
        "fn": (1 << (nbits - 1)) - 1,
        "fnuz": 1 << (nbits - 1),
        "finite": 1 << (nbits - 1),
    }[style]
    beyond: Literal["inf", "nan", "saturate"]
    beyond = "inf" if style == "ieee" else "saturate" if style == "finite" else "nan"
    return Format(
        name=label,
        nbits=nbits,
        decoder=FloatCode(exponent, mantissa, default if bias is None else bias, style),
        nan_code=nan_code,
        negation="sign",
        ties="value",
        overflow=beyond,
        infinity=beyond,
        underflow="zero",
        signed_zero=style != "fnuz",
        source=_SOURCES[style],
    )


NAMED: tuple[Format, ...] = (
    minifloat(8, 7, name="bfloat16"),
    minifloat(5, 10, name="float16"),
    minifloat(4, 3, "fn", name="float8_e4m3fn"),
    minifloat(5, 2, name="float8_e5m2"),
    minifloat(4, 3, name="float8_e4m3"),
    minifloat(3, 4, name="float8_e3m4"),
    minifloat(4, 3, "fnuz", bias=8, name="float8_e4m3fnuz"),
    minifloat(5, 2, "fnuz", bias=16, name="float8_e5m2fnuz"),
    minifloat(4, 3, "fnuz", bias=11, name="float8_e4m3b11fnuz"),
    minifloat(2, 3, "finite", name="float6_e2m3fn"),
    minifloat(3, 2, "finite", name="float6_e3m2fn"),
    minifloat(2, 1, "finite", name="float4_e2m1fn"),
)
"""The scalar formats of ml_dtypes (all but e8m0, which has neither sign nor zero), and float16."""
