"""Gates of a multiply-accumulate by formula.

Source: M. Chen and others, "INT v.s. FP: A Comprehensive Study of Fine-Grained Low-bit Quantization
Formats" (arXiv 2510.25602, 2025), appendix C, table 6: dominant logic counts up to constant
factors, of an array of k multipliers whose products are aligned and added together. They compare
formats; they are no gates of a netlist.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from math import log2

from compiler.errors import UnsupportedError

LANES = 32
"""Multipliers that share one normalizer, as in the paper's figures for MX formats."""
SUM_BITS = 24
"""Most bits of the aligner."""

BUILTIN = {"float32": (8, 23), "float64": (11, 52)}
"""Bits of exponent and mantissa of the floats that no description is needed for."""


@dataclass(frozen=True)
class GateCount:
    """Cells of one lane by what they are for."""

    multiplier: float
    adder: float
    exponent_adder: float = 0.0
    exponent_subtractor: float = 0.0
    comparator: float = 0.0
    aligner: float = 0.0
    normalizer: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return float(sum(astuple(self)))


def integer(bits: int) -> GateCount:
    """A lane of integers of so many bits: x = 0 and y = bits - 1 in the paper's terms."""
    return GateCount(multiplier=bits**2, adder=2 * bits)


def floating(exponent: int, mantissa: int, lanes: int = LANES) -> GateCount:
    """A lane of floats with so many bits of exponent and mantissa."""
    aligned = min(2 ** (exponent + 1) + 2 * mantissa, SUM_BITS)
    return GateCount(
        multiplier=(mantissa + 1) ** 2,
        adder=aligned,
        exponent_adder=exponent,
        exponent_subtractor=exponent,
        comparator=exponent,
        aligner=aligned * log2(aligned),
        normalizer=aligned * log2(aligned) / lanes,
    )


def gates(name: str, lanes: int = LANES) -> GateCount:
    """A lane of a format or an integer dtype.

    Raises:
        DtypelabError: no format of this name, or one that the model says nothing of.
    """
    import datatypes
    from datatypes.formats.fixed import FixedCode
    from datatypes.formats.minifloat import FloatCode

    found = re.fullmatch(r"u?int([1-9]|[1-5][0-9]|6[0-4])", name)
    if found:
        return integer(int(found[1]))
    if name in BUILTIN:
        return floating(*BUILTIN[name], lanes)
    fmt = datatypes.get(name)
    code: object = fmt.decoder
    if fmt.tables:
        raise UnsupportedError(f"the gate model has arithmetic of numbers, and {name} has tables")
    if isinstance(code, FloatCode):
        return floating(code.exponent, code.mantissa, lanes)
    if isinstance(code, FixedCode):
        return integer(fmt.nbits)
    raise UnsupportedError(
        f"the gate model of arXiv 2510.25602 has integers and floats, and no {name}; "
        "`dtypelab dtype hardware` counts the gates of any format's circuits"
    )
