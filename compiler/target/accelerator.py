"""Designs of an accelerator as data: a core that multiplies blocks of matrices, in the manner of
VTA (Moreau et al., A Hardware-Software Blueprint for Flexible Deep Learning Specialization, 2018,
arXiv 1807.04188).

Three units work beside each other on buffers on the chip: one loads data and weights from memory,
one computes (vectors by blocks of weights into accumulators, and what is done with these), one
stores results. Each does its instructions in order; tokens between them say what is ready.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from compiler.errors import UnsupportedError, unknown
from compiler.types.dtypes import format_dtype

KIND = "accel"
"""The first word of the texts of such targets."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
_MOST = 1 << 30


@dataclass(frozen=True)
class Design:
    """The parameters of one accelerator, written `accel -block=16 -input=32K -bandwidth=8`, say;
    what is not named is as below.

    Each cycle multiplies one vector of `block` numbers by a block of `block` x `block` weights.

    Attributes:
        block: numbers of a vector: channels of data, rows and columns of a block of weights.
        input: bytes of the buffer of data.
        weight: bytes of the buffer of weights.
        acc: bytes of the buffer of accumulators; the buffer of results has room for as many
            numbers.
        bandwidth: bytes a cycle from and to memory, which loads and stores share.
        latency: cycles from the last byte of a transfer's time on the bus to its end.
        fill: cycles that an instruction of the computing unit takes besides its steps.
        format: what data and weights are: int8 (bytes, signed or not), or a registered format of
            up to 8 bits.
        weight_bits: bits of a weight in memory and buffer; fewer than 8 for int8 only.
        accumulator: what sums are held in: for int8 `int32`, or `int<N>_wrap` and
            `int<N>_saturate` (see `compiler.op.accumulator_width`); for formats `float32`, or
            `exact`.
    """

    block: int = 16
    input: int = 32 << 10
    weight: int = 256 << 10
    acc: int = 128 << 10
    bandwidth: int = 16
    latency: int = 32
    fill: int = 8
    format: str = "int8"
    weight_bits: int = 8
    accumulator: str = "int32"

    def __post_init__(self) -> None:
        for name, least, most in (
            ("block", 1, 256), ("input", 1, _MOST), ("weight", 1, _MOST), ("acc", 1, _MOST),
            ("bandwidth", 1, 1 << 16), ("latency", 0, 1 << 20), ("fill", 0, 1 << 20),
            ("weight_bits", 1, 8),
        ):  # fmt: skip
            value = getattr(self, name)
            if not least <= value <= most:
                raise UnsupportedError(
                    f"target {self}: {name} must be from {least} to {most}, not {value}"
                )
        if self.integer and not self.accumulator_bits:
            raise UnsupportedError(
                f"target {self}: an int8 core has accumulator int32, int<N>_wrap or "
                f"int<N>_saturate (N from 8 to 32), not {self.accumulator!r}"
            )
        if not self.integer and self.accumulator not in FLOATING:
            raise UnsupportedError(
                f"target {self}: a core of {self.format} has accumulator "
                f"{' or '.join(FLOATING)}, not {self.accumulator!r}"
            )
        if not self.integer and self.weight_bits != 8:
            raise UnsupportedError(f"target {self}: weight_bits is for int8 cores")
        for name, held, one in (
            ("input", self.input, self.input_bytes), ("weight", self.weight, self.weight_bytes),
            ("acc", self.acc, 3 * self.acc_bytes),
        ):  # fmt: skip
            if held < one:
                what = "a vector and its two parameters" if name == "acc" else "one tile"
                raise UnsupportedError(
                    f"target {self}: the {name} buffer of {held} bytes cannot hold {what} of "
                    f"blocks of {self.block}, which needs {one} bytes: give it "
                    f"-{name}={one} or more"
                )

    @staticmethod
    def parse(text: str) -> Design:
        """The design that a target's text describes.

        Raises:
            UnsupportedError: an unknown option, a bad value, or a buffer without room for one tile.
        DtypelabError: there is no such format.
        """
        words = text.split()
        types = {f.name: f.type for f in fields(Design)}
        given: dict[str, Any] = {}
        for word in words[1:]:
            name, equals, value = word.lstrip("-").partition("=")
            if name not in types or not word.startswith("-"):
                raise UnsupportedError(f"target {text!r}: {unknown('option', name, types)}")
            if not equals or not value:
                raise UnsupportedError(f"target {text!r}: -{name} has no value: write -{name}=...")
            given[name] = value if types[name] == "str" else _number(text, name, value)
        if given.get("format", "int8") != "int8":
            given.setdefault("accumulator", "exact")
        return Design(**given)

    @property
    def integer(self) -> bool:
        """Whether it computes on integers."""
        return self.format == "int8"

    @property
    def accumulator_bits(self) -> int:
        """Bits of an accumulator; 0: there is none of that name."""
        if not self.integer:
            return FLOATING.get(self.accumulator, 0)
        if self.accumulator == "int32":
            return 32
        found = re.fullmatch(r"int([1-9]\d?)_(wrap|saturate)", self.accumulator)
        return int(found[1]) if found and 8 <= int(found[1]) <= 32 else 0

    @property
    def saturates(self) -> bool:
        """Whether accumulators stop at the ends of their range, else they wrap."""
        return self.accumulator.endswith("_saturate")

    @property
    def adds_tensors(self) -> bool:
        """Whether it adds two tensors of data: of formats where accumulators do not round."""
        return self.integer or self.accumulator == "exact"

    @property
    def data_bits(self) -> int:
        """Bits of a number of data, and of a result."""
        return 8 if self.integer else format_dtype(self.format).bits

    @property
    def input_bytes(self) -> int:
        """Bytes of a vector of data, and of results."""
        return -(-self.block * self.data_bits // 8)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a block of weights."""
        bits = self.weight_bits if self.integer else self.data_bits
        return -(-self.block * self.block * bits // 8)

    @property
    def acc_bytes(self) -> int:
        """Bytes of a vector of accumulators."""
        return -(-self.block * self.accumulator_bits // 8)

    @property
    def inputs(self) -> int:
        """Vectors that the buffer of data holds."""
        return self.input // self.input_bytes

    @property
    def weights(self) -> int:
        """Blocks that the buffer of weights holds."""
        return self.weight // self.weight_bytes

    @property
    def accs(self) -> int:
        """Vectors that the buffer of accumulators holds, and the buffer of results."""
        return self.acc // self.acc_bytes

    @property
    def peak(self) -> int:
        """Multiplications a cycle."""
        return self.block * self.block

    def __str__(self) -> str:
        """The shortest text that `parse` reads it from."""
        plain = {f.name: f.default for f in fields(self)}
        if self.format != "int8":
            plain["accumulator"] = "exact"
        words = [
            f"-{name}={_written(getattr(self, name))}"
            for name, default in plain.items()
            if getattr(self, name) != default
        ]
        return " ".join([KIND, *words])


FLOATING = {"float32": 32, "exact": 64}
"""Accumulators of cores of number formats, and their bits: `exact` sums have the 53 bits of a
float64, and formats whose sums may need more are refused."""


def _number(text: str, name: str, value: str) -> int:
    found = re.fullmatch(r"(\d{1,12})([KM]?)", value)
    if found is None:
        raise UnsupportedError(
            f"target {text!r}: -{name} takes a whole number, such as 16 or 32K, not {value!r}"
        )
    return int(found[1]) * _UNITS[found[2]]


def _written(value: int | str) -> str:
    if isinstance(value, str):
        return value
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if value and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)
