"""Binary floating point with a sign bit: IEEE 754, bfloat16, and the 4 to 8-bit formats of machine
learning, under the names that ml_dtypes uses.

Sources: IEEE 754-2019; OCP 8-bit Floating Point Specification (OFP8) 1.0 for e4m3fn and e5m2;
OCP Microscaling Formats (MX) 1.0 for the 4 and 6-bit formats and e8m0; Noune et al., "8-bit
Numerical Formats for Deep Neural Networks" (2022) for fnuz; IEEE P3109 interim report (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from datatypes.formats.description import Format
from datatypes.formats.rules import Overflow, Rounding
from datatypes.formats.value import Special, Value

Array = npt.NDArray[Any]

Style = Literal["ieee", "nan", "fn", "fnuz", "p3109", "finite"]
"""Which codes are not numbers. ieee: the top exponent is infinity and NaNs. nan: all of it is NaN.
fn: only the code with all bits set is NaN. fnuz: only the code of -0 is NaN. p3109: also, the
largest codes are infinite. finite: none."""

_SOURCES: dict[Style, str] = {
    "ieee": "IEEE 754-2019",
    "nan": "OCP OFP8 1.0",
    "fn": "OCP OFP8 1.0",
    "fnuz": "Noune et al. 2022",
    "p3109": "IEEE P3109 interim report 2024",
    "finite": "OCP MX 1.0",
}


@dataclass(frozen=True)
class FloatCode:
    """Sign, `exponent` bits with a `bias`, `mantissa` bits.

    Exponent 0 is zero and `subnormals`; without these, the next lower binade but for its first
    value, which is zero.
    """

    exponent: int
    mantissa: int
    bias: int
    style: Style
    subnormals: bool = True

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code (IEEE 754-2019, section 3.4, and the style's exceptions)."""
        negative = bits >> (nbits - 1)
        top = (1 << self.exponent) - 1
        exponent = bits >> self.mantissa & top
        fraction = bits & ((1 << self.mantissa) - 1)
        if self.style in ("ieee", "nan") and exponent == top:
            if fraction or self.style == "nan":
                return Special.NAN
            return Special.NEG_INF if negative else Special.INF
        if self.style == "fn" and (bits | 1 << (nbits - 1)) == (1 << nbits) - 1:
            return Special.NAN
        if self.style in ("fnuz", "p3109") and bits == 1 << (nbits - 1):
            return Special.NAN
        if self.style == "p3109" and (bits | 1 << (nbits - 1)) == (1 << nbits) - 1:
            return Special.NEG_INF if negative else Special.INF
        if exponent == fraction == 0:
            return Fraction(0)
        hidden = exponent > 0 or not self.subnormals
        significand = fraction + (1 << self.mantissa if hidden else 0)
        scale = exponent if hidden else 1
        value = significand * Fraction(2) ** (scale - self.bias - self.mantissa)
        return -value if negative else value

    def values(self, bits: Array, fmt: Format) -> Array:
        """float64 values of the codes `bits` (any integer dtype)."""
        code = bits.astype(np.int64)
        top = (1 << self.exponent) - 1
        exponent = code >> self.mantissa & top
        fraction = code & ((1 << self.mantissa) - 1)
        hidden = (exponent > 0) | (not self.subnormals)
        significand = fraction + np.where(hidden, 1 << self.mantissa, 0)
        scale = np.where(hidden, exponent, 1) - self.bias - self.mantissa
        value: Array = np.ldexp(significand.astype(np.float64), scale)
        value = np.where((exponent == 0) & (fraction == 0), 0.0, value)
        if self.style == "ieee":
            value = np.where(exponent == top, np.where(fraction == 0, np.inf, np.nan), value)
        if self.style == "nan":
            value = np.where(exponent == top, np.nan, value)
        if self.style == "p3109":
            value = np.where((code | fmt.sign_bit) == fmt.mask, np.inf, value)
        value = np.where(code >= fmt.sign_bit, -value, value)
        if self.style == "fn":
            value = np.where((code | fmt.sign_bit) == fmt.mask, np.nan, value)
        if self.style in ("fnuz", "p3109"):
            value = np.where(code == fmt.sign_bit, np.nan, value)
        return value


def least_normal(fmt: Format) -> int | None:
    """The exponent of a float's least normal number, which its subnormal numbers share; None of a
    format without such numbers."""
    code: object = fmt.decoder
    return 1 - code.bias if isinstance(code, FloatCode) and code.subnormals else None


def minifloat(
    exponent: int,
    mantissa: int,
    style: Style = "ieee",
    *,
    bias: int | None = None,
    subnormals: bool = True,
    saturate: bool = False,
    rounding: Rounding = "nearest",
    seed: int = 0,
    name: str | None = None,
) -> Format:
    """Floating point with `exponent` and `mantissa` bits; its width is 1 + exponent + mantissa.

    Conversions follow ml_dtypes: overflow gives infinity (ieee, p3109), NaN (nan, fn, fnuz; OFP8
    calls this the non-saturating mode) or maxpos (finite); NaN becomes -0 where there is no NaN.

    Args:
        exponent: 1 to 11 bits.
        mantissa: bits after the point; 0 makes all values powers of two.
        style: which codes are not numbers.
        bias: of the exponent; 2**(exponent-1) - 1 unless given.
        subnormals: whether exponent 0 is below the others without a hidden bit.
        saturate: values beyond the range, infinities too, become maxpos.
        rounding: see `Format`.
        seed: of stochastic rounding.
        name: unless `float<N>_e<E>m<M>`, which is that of IEEE's rules.

    Raises:
        DtypelabError: too few bits, or no mantissa bit to tell NaN from infinity.
    """
    if exponent > 11 or mantissa > 1000:  # numbers of such formats have too many bits to look at
        raise DtypelabError(
            f"format {name or f'float{1 + exponent + mantissa}_e{exponent}m{mantissa}'!r} reaches "
            "beyond 2**-1000 .. 2**1000; choose fewer bits or a smaller exponent"
            if exponent > 11
            else f"a float of {1 + exponent + mantissa} bits is too wide: it must be 2 to 32"
        )
    nbits = 1 + exponent + mantissa
    label = name or f"float{nbits}_e{exponent}m{mantissa}"
    if exponent < 1 or mantissa < (1 if style == "ieee" else 0):
        raise DtypelabError(
            f"format {label!r} needs at least 1 exponent bit, and 1 mantissa bit for IEEE's NaN"
        )
    if exponent == 1 and style == "ieee":
        raise DtypelabError(f"format {label!r} needs 2 exponent bits for IEEE's infinity")
    default = (1 << (exponent - 1)) - 1
    nan_code = {
        "ieee": (((1 << exponent) - 1) << mantissa) | 1 << max(mantissa - 1, 0),
        "nan": (((1 << exponent) - 1) << mantissa) | (1 << mantissa) >> 1,
        "fn": (1 << (nbits - 1)) - 1,
        "fnuz": 1 << (nbits - 1),
        "p3109": 1 << (nbits - 1),
        "finite": 1 << (nbits - 1),
    }[style]
    beyond: Overflow = "inf" if style in ("ieee", "p3109") else "nan"
    if saturate or style == "finite":
        beyond = "saturate"
    return Format(
        name=label,
        nbits=nbits,
        decoder=FloatCode(exponent, mantissa, default if bias is None else bias, style, subnormals),
        nan_code=nan_code,
        negation="sign",
        ties="value",
        overflow=beyond,
        infinity=beyond,
        underflow="zero",
        signed_zero=style not in ("fnuz", "p3109"),
        rounding=rounding,
        seed=seed,
        source=_SOURCES[style],
    )


@dataclass(frozen=True)
class ScaleCode:
    """e8m0: the exponent of a power of two, biased by 127; 255 is NaN. No sign and no zero."""

    def __call__(self, bits: int, nbits: int) -> Value:
        """Exact value of a code (OCP MX 1.0, section 5.4)."""
        return Special.NAN if bits == 255 else Fraction(2) ** (bits - 127)


SCALE = Format(
    name="float8_e8m0fnu",
    nbits=8,
    decoder=ScaleCode(),
    nan_code=255,
    negation="none",
    rounding="nearest_away",
    overflow="nan",
    infinity="nan",
    underflow="minpos",
    storage_only=True,
    source="OCP MX 1.0",
)
"""The shared scale of MX blocks. Zero and negative numbers become NaN, as in ml_dtypes."""


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
    SCALE,
    minifloat(4, 3, "fn", saturate=True, name="float8_e4m3fn_sat"),
    minifloat(5, 2, "nan", saturate=True, name="float8_e5m2_sat"),
)
"""The scalar formats of ml_dtypes, and float16; and those of OFP8 in its saturating mode: what lies
beyond the range, infinity included, becomes the largest value, and NaN stays NaN. Nothing becomes
one of the two codes that e5m2 has for infinities; read in this mode, they are NaN."""
