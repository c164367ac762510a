"""Memory that an exported program takes, and whether that is there."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from compiler.errors import ConfigError, UnsupportedError
from compiler.exporting.interface import Interface
from compiler.files.varint import varint
from compiler.symbolic import Index

_SECTION = struct.Struct("<IIQQQQIIQQ")
_WRITABLE, _LOADED, _ZEROS = 1, 2, 8
_CODE, _DATA = 10, 11


@dataclass(frozen=True)
class Needs:
    """Bytes of memory that a program takes.

    Attributes:
        flash: code, constants and, on a microcontroller, start-up code.
        ram: the arena, inputs, outputs and, on a microcontroller, the stack; None: that depends on
            symbolic dimensions.
        code: whether code is in `flash`: how long C becomes depends on who compiles it.
    """

    flash: int
    ram: int | None
    code: bool = True

    @property
    def text(self) -> str:
        """Both in one line."""
        alone = "" if self.code else " for its weights alone"
        ram = "RAM as its sizes say" if self.ram is None else f"{self.ram:,} of RAM"
        return f"{self.flash:,} bytes of flash{alone} and {ram}"


def needs_elsewhere(i: Interface, content: bytes | None, weights: int) -> Needs:
    """What a program takes on a machine with a system, or on one that is not known.

    Args:
        content: of its object file; None: it is C.
        weights: bytes of constants in C, or in a file of their own.
    """
    stored, written = (0, 0) if content is None else object_bytes(content)
    moved = sum(
        (Index.of(o.type.size).constant() or 0) * o.type.dtype.storage.itemsize
        for o in (*i.inputs, *i.outputs)
    )
    apart = content is None or i.weights_bytes is not None
    ram = None if i.dims else (i.arena_bytes or 0) + moved + written
    return Needs(stored + (weights if apart else 0), ram, content is not None)


def object_bytes(content: bytes) -> tuple[int, int]:
    """Bytes of an object file that must be stored (code and what is given), and that must be in
    memory that can be written: ELF files of 64 bits (System V ABI, chapter 4), WebAssembly (whose
    memory holds constants, too); of other files all bytes are stored, as it cannot be more."""
    if content[:6] == b"\x7fELF\2\1":
        return _elf_bytes(content)
    if content[:4] == b"\0asm":
        return _wasm_bytes(content)
    return len(content), 0


def _elf_bytes(content: bytes) -> tuple[int, int]:
    (at,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    stored = written = 0
    for k in range(count):
        _, kind, flags, _, _, held, *_ = _SECTION.unpack_from(content, at + k * size)
        if flags & _LOADED:
            stored += held if kind != _ZEROS else 0
            written += held if flags & _WRITABLE else 0
    return stored, written


def _wasm_bytes(content: bytes) -> tuple[int, int]:
    at, code, data = 8, 0, 0
    while at < len(content):
        kind = content[at]
        size, at = varint(content, at + 1)
        code += size if kind == _CODE else 0
        data += size if kind == _DATA else 0
        at += size
    return code + data, data


def check_memory(n: Needs, flash: int | None, ram: int | None) -> None:
    """Refuse a program that does not fit into `flash` and `ram` bytes (None: any will do).

    Raises:
        ConfigError: it does not.
        UnsupportedError: how much RAM it takes is not known.
    """
    if ram is not None and n.ram is None:
        raise UnsupportedError(
            "how much RAM the program takes depends on the sizes of its inputs: give them all "
            "(--shape)"
        )
    alone = "" if n.code else " for its weights alone"
    lacking = [
        f"{need:,} bytes of {what} of {there:,}"
        for what, need, there in ((f"flash{alone}", n.flash, flash), ("RAM", n.ram or 0, ram))
        if there is not None and need > there
    ]
    if lacking:
        raise ConfigError(f"the program does not fit: it needs {' and '.join(lacking)}")
