"""Whether a file is framed as a protobuf of a model is, found without reading all of it.

Encoding: https://protobuf.dev/programming-guides/encoding. A message is a row of fields: a tag
(number * 8 + wire type), then a number, 4 or 8 bytes, or a length and so many bytes.
"""

from __future__ import annotations

from typing import BinaryIO

from compiler.files.varint import varint

LARGEST = 2**31 - 1
"""Bytes of the largest message that protobuf reads."""

_NUMBER, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_GRAPH = 7 * 8 + _BYTES  # the tag of ModelProto.graph
_MOST = 5000  # fields that are looked at: a graph may have many nodes, and reading them is not slow
_SHORT = 64 << 20  # files of fewer bytes are read at once


def is_framed(file: BinaryIO, size: int) -> bool:
    """Whether the first fields of a file of `size` bytes, and of its graph, lie in each other as
    they say; whether they are those of a model is not looked at."""
    return size <= _SHORT or (size <= LARGEST and _walk(file, 0, size, inside=True))


def _walk(file: BinaryIO, start: int, end: int, inside: bool = False) -> bool:
    for _ in range(_MOST):
        if start >= end:
            return start == end
        file.seek(start)
        head = file.read(min(20, end - start))
        tag, used = varint(head, 0)
        kind = tag & 7
        if tag >> 3 == 0 or kind not in (_NUMBER, _EIGHT, _BYTES, _FOUR):
            return False
        value, after = varint(head, used) if kind in (_NUMBER, _BYTES) else (0, used)
        if used < 0 or after < 0:
            return False
        length = {_NUMBER: 0, _EIGHT: 8, _FOUR: 4, _BYTES: value}[kind]
        start += after + length
        if inside and tag == _GRAPH and start <= end and not _walk(file, start - length, start):
            return False
    return start <= end
