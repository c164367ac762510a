"""The rules of a format by name, and which of them go together."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

from compiler.errors import DtypelabError

if TYPE_CHECKING:
    from datatypes.formats.description import Format

Negation = Literal["complement", "sign", "none"]
Rounding = Literal["nearest", "nearest_away", "zero", "up", "down", "stochastic"]
Ties = Literal["value", "encoding"]
Overflow = Literal["saturate", "inf", "nan"]
Underflow = Literal["minpos", "zero"]

SORTED_BITS = 16
"""Widest format whose codes may follow no order, or that may round stochastically."""

RANDOM_BITS = 24
"""A stochastic rounding takes so many random bits: a number p of the way from one value to the
next, counted away from zero, goes there with probability p, cut to this many bits."""

_RULES = {
    "negation": Negation,
    "rounding": Rounding,
    "ties": Ties,
    "overflow": Overflow,
    "infinity": Overflow,
    "underflow": Underflow,
}
_FLOAT64_SAFE = Fraction(2) ** 1000


def check_rules(fmt: Format) -> None:
    """Raise a DtypelabError if the rules of a format are unknown or contradict one another."""
    where = f"format {fmt.name!r}"
    if not 2 <= fmt.nbits <= 32:
        raise DtypelabError(f"{where}: nbits is {fmt.nbits}, must be 2 to 32")
    if not 0 <= fmt.nan_code <= fmt.mask:
        raise DtypelabError(f"{where}: nan_code {fmt.nan_code} exceeds its width")
    for field, rules in _RULES.items():
        if getattr(fmt, field) not in get_args(rules):
            raise DtypelabError(
                f"{where}: {field} is {getattr(fmt, field)!r}, "
                f"choose one of {', '.join(get_args(rules))}"
            )
    sorts = fmt.negation == "none" or fmt.rounding == "stochastic"
    if sorts and fmt.nbits > SORTED_BITS:
        feature = "stochastic rounding" if fmt.negation != "none" else "a list of values"
        raise DtypelabError(f"{where}: {feature} takes at most {SORTED_BITS} bits")
    if "inf" in (fmt.overflow, fmt.infinity) and not fmt.has_inf:
        raise DtypelabError(f"{where} has no infinity; choose saturate or nan")
    if fmt.logarithmic and (fmt.rounding, fmt.ties, fmt.overflow) != (
        "nearest", "encoding", "saturate",
    ):  # fmt: skip
        raise DtypelabError(f"{where}: powers of two round to the nearest exponent, and saturate")
    if fmt.maxpos > _FLOAT64_SAFE or 0 < fmt.minpos < 1 / _FLOAT64_SAFE:
        raise DtypelabError(
            f"{where} reaches beyond 2**-1000 .. 2**1000; choose fewer bits or a smaller exponent"
        )
