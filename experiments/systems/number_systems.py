"""What number systems there are: the names and options that specifications give, checked.

`quantize` and `datatypes` are imported when used, so that `import experiments` stays quick.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import ConfigError, DtypelabError, unknown

from .schemes import Option

if TYPE_CHECKING:
    from quantize import QConfig

_FAR, _SHARE = -1e4, 1e-300
"""A mask below the one leaves the other, or less, of a softmax: see `masks`."""


def format_names() -> list[str]:
    """Names of the built-in formats."""
    import datatypes

    return [str(name) for name in datatypes.list_formats()]


def block_format_names() -> tuple[str, ...]:
    """Names of the block formats."""
    from quantize.formats.blocks import block_formats

    return block_formats()


def format_bits(name: str) -> int:
    """Width of a format, or of a registered datatype written `custom[NAME]BITS`; of a mixture, the
    largest.

    Raises:
        DtypelabError: there is none of this name.
    """
    import datatypes

    mixed = mixture(name)
    if mixed is not None:
        parts = (part if isinstance(part, str) else part[0] for part in mixed.values())
        return max(map(format_bits, parts))
    if name.startswith("custom["):
        from compiler.types.dtypes import DType

        return DType.parse(name).bits
    return int(datatypes.get(name).nbits)


def number_bits(name: str) -> int:
    """Width of the numbers that costs call `name`: integers of any width, floats, formats, or a
    block format, whose elements count without their scale.

    Raises:
        DtypelabError: there are none of this name.
    """
    found = re.fullmatch(r"(?:float(?=16|32|64)|u?int)([1-9]|[1-5][0-9]|6[0-4])", name)
    return int(found[1]) if found else format_bits(block_element(name) or name)


def block_element(name: str) -> str | None:
    """The format of a block format's elements; None if `name` is no block format."""
    from quantize.formats.blocks import block_format

    block = block_format(name)
    return None if block is None else block.element


def check_number(name: str) -> None:
    """Raise a ConfigError unless numbers of a network can be what is called `name`."""
    try:
        number_bits(name)
    except DtypelabError as error:
        names = ["float32", "int8", "uint8", "int32", *block_format_names(), *format_names()]
        raise ConfigError(unknown("dtype", name, names)) from error


def check_operand_format(name: str) -> None:
    """Raise a ConfigError unless scaled factors can be in what is called `name`."""
    from quantize.config.format_choices import INTEGER

    if name == "float32" or name in block_format_names() or INTEGER.fullmatch(name):
        return
    try:
        format_bits(name)
    except DtypelabError:
        names = ["float32", *block_format_names(), *format_names()]
        raise ConfigError(unknown("format", name, names)) from None


def mixture(dtype: str) -> dict[str, str | tuple[str, str]] | None:
    """Pattern of layer names -> format, or (format, accumulation), if `dtype` is written as an
    inline TOML table.

    Raises:
        ConfigError: it starts like one, but is none.
    """
    if not dtype.startswith("{"):
        return None
    try:
        table = tomllib.loads(f"mixture = {dtype}")["mixture"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f'formats by layer are written {{"conv*" = "posit8_es0", "*" = "bfloat16"}}: {error}'
        ) from None
    mixed = {k: tuple(map(accumulation, v)) if isinstance(v, list) else v for k, v in table.items()}
    names = [(v,) if isinstance(v, str) else v for v in mixed.values()]
    fits = (
        isinstance(n, tuple) and len(n) <= 2 and n and all(isinstance(x, str) for x in n)
        for n in names
    )
    if not names or not all(fits):
        raise ConfigError(
            f"{dtype}: every pattern of layer names needs the name of a format, or the list of a "
            "format and an accumulation"
        )
    return mixed


def masks(dtype: str) -> bool:
    """Whether what a mask takes far below the other scores has no share left in a softmax, in a
    format or each of a mixture. Posits and others without underflow keep a share; where the range
    is small, the mask is not far below, or NaN. False too of a registered datatype, of which that
    is not known.

    Raises:
        DtypelabError: there is no such format.
    """
    import datatypes

    mixed = mixture(dtype)
    named = (
        {dtype} if mixed is None else {v if isinstance(v, str) else v[0] for v in mixed.values()}
    )
    for name in named - {"float32"}:
        if name not in format_names():
            return False
        ends = np.asarray([np.finfo(np.float32).min, _SHARE])
        mask, share = np.asarray(datatypes.decode(name, datatypes.encode(name, ends)), np.float64)
        if not (mask < _FAR and share == 0):
            return False
    return True


def isa_of(target: str) -> str:
    """The instruction set that a target's kernels use, e.g. `avx512_vnni`."""
    import compiler

    return str(compiler.Target.parse(target).isa)


def check_lowering(name: str) -> None:
    """Raise a ConfigError unless `name` is a way to compute custom datatypes."""
    from compiler.lowering.choose import LOWERINGS

    if name not in LOWERINGS:
        raise ConfigError(unknown("datatype lowering", name, LOWERINGS))


def accumulated_kinds(mode: str) -> tuple[str, ...]:
    """The kinds of schemes whose sums can be formed this way.

    Raises:
        ConfigError: there is no such accumulation.
    """
    from compiler.op.accumulate import MODES, is_mode, unknown_mode
    from compiler.op.accumulator_width import width
    from quantize.config.checks import CERTIFIED

    if mode == "sequential":
        return ("int8", "scaled", "format")
    if mode in MODES:
        return ("scaled", "format")
    if mode == CERTIFIED:
        return ("int8", "format")
    if width(mode) is not None:
        return ("int8",)
    try:
        if is_mode(mode):
            return ("scaled", "format")
    except DtypelabError as error:
        raise ConfigError(str(error)) from None
    raise ConfigError(unknown_mode(mode))


def accumulation(given: Any) -> Any:
    """The canonical text of what describes an accumulator, as a table or as text; all else as it
    is.

    Raises:
        ConfigError: the description does not hold together.
    """
    from compiler.op.accumulator import accumulator, of_table

    try:
        if isinstance(given, Mapping) and "format" in given:
            return str(of_table(given))
        return str(accumulator(given) or given) if isinstance(given, str) else given
    except DtypelabError as error:
        raise ConfigError(str(error)) from None


def check_qconfig(options: Mapping[str, Option]) -> None:
    """Raise a ConfigError unless `options` make a `quantize.QConfig`."""
    qconfig(options)


def check_target(text: str) -> None:
    """Raise a DtypelabError unless `text` is a target that this machine can run."""
    isa_of(text)


def check_target_elsewhere(text: str) -> None:
    """Raise a DtypelabError unless `text` is a target, of whatever machine."""
    import compiler

    compiler.Target.anywhere(text)


def qconfig(options: Mapping[str, Any]) -> QConfig:
    """A `quantize.QConfig` with these fields.

    Raises:
        ConfigError: an unknown field or a value that does not fit.
    """
    import datatypes  # noqa: F401  (its formats may be named)
    import quantize

    return quantize.QConfig(**options)
