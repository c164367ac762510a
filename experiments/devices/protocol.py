"""Messages between who measures and what is measured: length-checked, of plain data only.

A message is a head of 20 bytes (magic, version, kind, two zeros, lengths of header and payload), a
header (a JSON object), a payload (arrays one after the other, or a file), and, once both ends have
proved that they know the token, 32 bytes of HMAC-SHA256 over direction, number, head, header and
payload: nobody between the two can add, change, repeat or leave out a message. Nothing that
arrives is unpickled or evaluated. Lengths are checked before anything is read, and memory is taken
as bytes arrive.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.errors import DtypelabError
from compiler.types.dtypes import Array

from .streams import Stream

MAGIC, VERSION = b"dtyl", 1
HEAD = struct.Struct(">4sBBHIQ")
TAG = 32
"""Bytes of a message's HMAC."""
HEADER = 1 << 18
"""Bytes that a header may have."""
ARRAYS, RANK, LARGEST = 1024, 32, 1 << 48
"""Arrays of a message, dimensions of one, and product of those that are not 0, at most."""
DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64"}
)


class Kind(enum.IntEnum):
    """What a message is. The server says HELLO and WELCOME, ANSWER and ERROR; the client the
    others. `experiments/README.md` says what each holds."""

    HELLO = 1
    PROOF = 2
    WELCOME = 3
    STATUS = 4
    LOAD = 5
    RUN = 6
    MEASURE = 7
    ANSWER = 16
    ERROR = 17


class ProtocolError(DtypelabError):
    """A message is not as the protocol says."""


@dataclass(frozen=True)
class Limits:
    """Bytes of a header and of a payload; seconds until a message begins, and until it is over."""

    header: int = HEADER
    payload: int = 1 << 30
    begin_s: float = 600.0
    transfer_s: float = 60.0


@dataclass(frozen=True)
class Message:
    """One message."""

    kind: Kind
    header: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes | bytearray = b""

    def text(self, name: str, most: int = 4096) -> str:
        """A field of the header: a string of so many characters.

        Raises:
            ProtocolError: there is none such (so all of these).
        """
        value = self.header.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise ProtocolError(f"{name} of a message must be a text of at most {most} characters")
        return value

    def integer(self, name: str, least: int, most: int) -> int:
        """An integer between two."""
        value = self.header.get(name)
        if type(value) is not int or not least <= value <= most:
            raise ProtocolError(f"{name} of a message must be an integer from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        """A number between two."""
        value: Any = self.header.get(name)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not least <= value <= most:
            raise ProtocolError(f"{name} of a message must be a number from {least:g} to {most:g}")
        return float(value)

    def texts(self, name: str, most: int) -> list[str]:
        """A list of at least one string and at most so many."""
        value = self.header.get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise ProtocolError(f"{name} of a message must be a list of 1 to {most} texts")
        if not all(isinstance(t, str) for t in value):
            raise ProtocolError(f"{name} of a message must be a list of texts")
        return value

    def arrays(self) -> list[Array]:
        """The arrays that the payload is, as the header's `arrays` says: pairs of dtype and
        shape."""
        listed, out, at = self.header.get("arrays"), list[Array](), 0
        if not isinstance(listed, list) or len(listed) > ARRAYS:
            raise ProtocolError(f"arrays of a message must be a list of at most {ARRAYS}")
        for entry in listed:
            dtype, shape = _array(entry)
            count = math.prod(shape)
            size = count * dtype.itemsize
            if size > len(self.payload) - at or math.prod(filter(None, shape)) > LARGEST:
                raise ProtocolError("the arrays of a message are larger than its payload")
            raw = np.frombuffer(self.payload, dtype, count, at) if count else np.empty(0, dtype)
            out.append(raw.reshape(shape).copy())
            at += size
        if at != len(self.payload):
            raise ProtocolError(f"the payload of a message has {len(self.payload) - at} more bytes")
        return out


def _array(entry: object) -> tuple[np.dtype[Any], list[int]]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ProtocolError("an array of a message must be a dtype and a shape")
    name, shape = entry
    if not isinstance(name, str) or name not in DTYPES:
        raise ProtocolError("an array of a message has an unknown dtype")
    if not isinstance(shape, list) or len(shape) > RANK:
        raise ProtocolError(f"a shape in a message must be a list of at most {RANK} sizes")
    if not all(type(d) is int and d >= 0 for d in shape):
        raise ProtocolError("the sizes of an array in a message must be natural numbers")
    return np.dtype(name), shape


def with_arrays(kind: Kind, arrays: Sequence[Array], **header: object) -> Message:
    """A message of arrays.

    Raises:
        ProtocolError: one has a dtype that messages do not know.
    """
    for a in arrays:
        if a.dtype.name not in DTYPES:
            raise ProtocolError(f"arrays of {a.dtype} cannot be sent to a device")
    listed = [[a.dtype.name, list(a.shape)] for a in arrays]
    return Message(kind, {**header, "arrays": listed}, b"".join(a.tobytes() for a in arrays))


@dataclass
class Channel:
    """A stream of messages; `key`: what both ends have agreed on, after which messages are signed.

    Attributes:
        stream: what they go over.
        own, other: names of the directions.
    """

    stream: Stream
    own: bytes
    other: bytes
    key: bytes = b""
    _sent: int = 0
    _received: int = 0

    def send(self, message: Message, transfer_s: float) -> None:
        """Send a message.

        Raises:
            Closed, Late: see `Stream`.
        """
        header = json.dumps(message.header, separators=(",", ":"), allow_nan=False).encode()
        head = HEAD.pack(MAGIC, VERSION, message.kind, 0, len(header), len(message.payload))
        parts = [head, header, message.payload]
        if self.key:
            parts.append(_tag(self.key, self.own, self._sent, parts))
            self._sent += 1
        self.stream.write((memoryview(p) for p in parts), time.monotonic() + transfer_s)

    def receive(self, limits: Limits) -> Message:
        """The next message.

        Raises:
            ProtocolError: it is none, too long, or not signed with the key.
            Closed, Late: see `Stream`.
        """
        begun = self.stream.read(1, time.monotonic() + limits.begin_s)
        until = time.monotonic() + limits.transfer_s
        if begun != MAGIC[:1]:
            raise ProtocolError("what arrived is no message of dtypelab")
        head = bytes(begun + self.stream.read(HEAD.size - 1, until))
        magic, version, kind, zero, header_size, size = HEAD.unpack(head)
        if magic != MAGIC:
            raise ProtocolError("what arrived is no message of dtypelab")
        if version != VERSION:
            raise ProtocolError(
                f"a message is of version {version}, not {VERSION}: update dtypelab"
            )
        if zero or kind not in Kind.__members__.values():
            raise ProtocolError("a message is of an unknown kind")
        if header_size > limits.header:
            raise ProtocolError(f"the header of a message is longer than {limits.header} bytes")
        if size > limits.payload:
            raise ProtocolError(f"a message is longer than {limits.payload} bytes")
        header = self.stream.read(header_size, until)
        payload = self.stream.read(size, until)
        if self.key:
            tag = self.stream.read(TAG, until)
            want = _tag(self.key, self.other, self._received, (head, header, payload))
            if not hmac.compare_digest(bytes(tag), want):
                raise ProtocolError("a message is not signed with the token")
            self._received += 1
        return Message(Kind(kind), _object(bytes(header)), payload)

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()


def _tag(key: bytes, direction: bytes, number: int, parts: Sequence[bytes | bytearray]) -> bytes:
    made = hmac.new(key, direction + struct.pack(">Q", number), hashlib.sha256)
    for part in parts:
        made.update(part)
    return made.digest()


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):  # bytes that are no UTF-8 are a ValueError, too
        raise ProtocolError("the header of a message is no JSON") from None
    if not isinstance(found, dict):
        raise ProtocolError("the header of a message is no JSON object")
    return found


def _no_constant(name: str) -> Iterator[object]:
    raise ValueError(name)
