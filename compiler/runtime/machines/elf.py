"""Linked programs, ELF files of 64 bits: what of them must be in memory, and where they begin."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from compiler.errors import MachineError

_HEAD = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD = 1


@dataclass(frozen=True)
class Linked:
    """A program at fixed addresses.

    Attributes:
        entry: where it begins.
        segments: address and content.
        end: behind them, and the memory behind a segment's content that must be zero.
    """

    entry: int
    segments: tuple[tuple[int, bytes], ...]
    end: int


def linked(content: bytes) -> Linked:
    """What an ELF file says (System V ABI, chapters 4 and 5).

    Raises:
        MachineError: it is no such file.
    """
    if len(content) < _HEAD.size or content[:6] != b"\x7fELF\2\1":
        raise MachineError("the linker wrote no ELF file of 64 bits")
    head = _HEAD.unpack_from(content)
    entry, at, size, count = head[4], head[5], head[9], head[10]
    segments, end = [], 0
    for k in range(count):
        kind, _, offset, address, _, held, whole, _ = _SEGMENT.unpack_from(content, at + size * k)
        if kind == _LOAD and whole:
            segments.append((address, content[offset : offset + held]))
            end = max(end, address + whole)
    return Linked(entry, tuple(segments), end)
