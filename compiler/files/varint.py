"""Numbers of as many bytes as they need, seven bits in each, the low ones first: protocol buffers'
varints, WebAssembly's LEB128."""

from __future__ import annotations

_MOST = 10
"""Bytes of a number of 64 bits."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it: -1 where there is none."""
    value = 0
    for k, byte in enumerate(data[at : at + _MOST] if at >= 0 else b""):
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value, at + k + 1
    return value, -1
