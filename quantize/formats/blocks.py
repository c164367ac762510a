"""Block formats: a few consecutive elements share a scale that is itself in a format.

The formats called mx... are those of the OCP Microscaling Formats (MX) Specification 1.0 (2023);
nvfp4 is NVIDIA's, whose scales in float8_e4m3fn are relative to one of the whole tensor: by that,
the block of the largest magnitude of all gets the largest scale, 448. From there down to 2**-6
scales have 4 significant bits, below that fewer, and there is none below 2**-9, the least subnormal
of E4M3: blocks with a largest magnitude less than 1/229376 of the tensor's take that one, and their
elements fill a part of E2M1's range, down to all zeros. (A scale of zero, to which E4M3 would round
the smallest, could not be divided by.) nvint4 has integers in place of E2M1's numbers
(arXiv:2510.25602).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from compiler.errors import ConfigError, DtypelabError
from compiler.op.accumulate import names_sums
from compiler.op.qnn.formats import POWERS
from compiler.types.block_names import note_blocks
from compiler.types.dtypes import DType
from quantize.formats.element import INTEGERS, Element, element, unsigned_bits

FLOAT = "float32"
"""What is no format: the elements of an operand that stays as it is, or scales that are not
rounded."""


@dataclass(frozen=True)
class BlockFormat:
    """A format of blocks.

    Attributes:
        name: an identifier; empty for the numbers of a format with a scale for every few of them.
        element: name of the elements' format.
        scale: name of the scales' format. float8_e8m0fnu: scales are powers of two, found as the
            MX specification says. Others: the largest magnitude comes to lie on the largest
            element, and a float32 scale of the whole tensor puts the block's scales in range;
            float32 needs none.
            Elements of a tapered format (posits) are scaled to its precise numbers instead of its
            largest one (`Element.target`).
        block: elements that share a scale.
    """

    name: str
    element: str
    scale: str = "float8_e8m0fnu"
    block: int = 32

    def __post_init__(self) -> None:
        if self.name and not re.fullmatch(r"[a-z_][a-z0-9_]*", self.name):
            raise ConfigError(
                f"{self.name!r} cannot name a block format; use small letters, digits and _"
            )
        if not 1 <= self.block <= 1 << 20:
            raise ConfigError(f"{self.name}: a block has 1 to 2**20 elements, not {self.block!r}")

    @property
    def powers(self) -> bool:
        """Whether scales are powers of two by the rule of MX, without one of the whole tensor."""
        return self.scale != FLOAT and str(self.scale_element.dtype) == POWERS

    @property
    def has_unit(self) -> bool:
        """Whether scales are relative to one of the whole tensor: those of few bits are, as are
        those of all block formats with a name but powers of two."""
        if self.scale == FLOAT or self.powers:
            return False
        return bool(self.name) or self.scale_bits <= 8

    @property
    def elements(self) -> Element:
        """The elements' format."""
        return element(self.element)

    @property
    def scale_element(self) -> Element:
        """The scales' format, if it is not float32."""
        return element(self.scale)

    @property
    def scale_bits(self) -> int:
        """Bits of a scale."""
        return 32 if self.scale == FLOAT else self.scale_element.dtype.bits

    @property
    def bits(self) -> float:
        """Bits of an element with its share of the scale."""
        return self.elements.dtype.bits + self.scale_bits / self.block

    def unit(self, largest: float) -> float:
        """The scale of a whole tensor whose largest magnitude is given."""
        if not self.has_unit:
            return 1.0
        return largest / (self.elements.target * self.scale_element.high)


_formats = {
    f.name: f
    for f in (
        BlockFormat("mxfp8_e4m3", "float8_e4m3fn"),
        BlockFormat("mxfp8_e5m2", "float8_e5m2"),
        BlockFormat("mxfp6_e3m2", "float6_e3m2fn"),
        BlockFormat("mxfp6_e2m3", "float6_e2m3fn"),
        BlockFormat("mxfp4_e2m1", "float4_e2m1fn"),
        BlockFormat("mxint8", "fixed8_6"),
        BlockFormat("nvfp4", "float4_e2m1fn", "float8_e4m3fn", 16),
        BlockFormat("nvint4", "fixed4_0", "float8_e4m3fn", 16),
    )
}

_shipped = frozenset(_formats)


def define_block_format(
    name: str, element: str, scale: str = "float8_e8m0fnu", block: int = 32
) -> BlockFormat:
    """Make a block format of registered formats known under a name, for `QConfig`.

    Raises:
        ConfigError: no such formats, a bad block, or a name that another format has.
    """
    made = BlockFormat(name or "-", element, scale, block)
    if _is_number(name):
        raise ConfigError(f"numbers are called {name!r}, and a block is none; choose another name")
    if names_sums(name):
        raise ConfigError(f"{name!r} names a way to form sums; choose another name")
    parts = [made.elements, *([] if made.scale == FLOAT else [made.scale_element])]
    for part in parts:
        if part.high <= 0:
            raise ConfigError(f"{name}: {part.dtype} cannot be scaled")
    if _formats.get(name, made) != made:
        raise ConfigError(f"a block format called {name!r} exists; choose another name")
    _formats[name] = made
    note_blocks(name)
    return made


def _is_number(name: str) -> bool:
    """Whether integers, floats or numbers of a format are called so."""
    try:
        DType.parse(name)
    except DtypelabError:
        return INTEGERS.fullmatch(name) is not None or unsigned_bits(name) > 0
    return True


def block_format(name: str) -> BlockFormat | None:
    """The block format called `name`; None if there is none."""
    return _formats.get(name)


def defined_block_format(name: str) -> BlockFormat | None:
    """The block format that this process defined under a name; None of those that ship."""
    return None if name in _shipped else _formats.get(name)


def block_formats() -> tuple[str, ...]:
    """Names of the block formats that are known."""
    return tuple(_formats)
