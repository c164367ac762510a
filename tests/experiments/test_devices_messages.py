"""Messages of devices that are none, at both ends: 10^4 of them, and nothing happens."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import TOKEN, Served, serving, works

from experiments.devices import child, tokens
from experiments.devices.client import Device, DeviceError
from experiments.devices.protocol import (
    DTYPES,
    HEAD,
    MAGIC,
    VERSION,
    Channel,
    Kind,
    Limits,
    Message,
    ProtocolError,
    with_arrays,
)
from experiments.devices.streams import Closed, Late, Stream

SHORT = Limits(payload=1 << 16, begin_s=0.05, transfer_s=0.05)


@contextlib.contextmanager
def pair(key: bytes = b"") -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and what writes to it."""
    ours, theirs = socket.socketpair()
    channel = Channel(Stream.of_socket(ours), b"server", b"client", key)
    try:
        yield channel, theirs
    finally:
        channel.close()
        theirs.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
FIELDS = ("program", "programs", "arrays", "how", "warmup", "runs", "nonce", "proof", "error")
HEADERS = st.dictionaries(st.sampled_from(FIELDS), JSON)


@given(
    st.binary(max_size=200) | st.binary(max_size=100).map(lambda b: MAGIC + bytes([VERSION]) + b)
)
def test_bytes_are_messages_or_are_not(raw: bytes) -> None:
    with pair() as (channel, end):
        end.sendall(raw)
        end.shutdown(socket.SHUT_WR)
        try:
            found = channel.receive(SHORT)
        except (ProtocolError, Closed):
            return
        assert raw.startswith(MAGIC)
        assert isinstance(found.header, dict)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(HEADERS, st.binary(max_size=64))
def test_headers_of_anything(header: dict[str, object], payload: bytes) -> None:
    """Whatever JSON says, fields are read or refused."""
    message = Message(Kind.RUN, json.loads(json.dumps(header)), payload)
    for read in (
        lambda: message.text("program"),
        lambda: message.texts("programs", 8),
        lambda: message.integer("runs", 1, 100),
        lambda: message.number("warmup", 0, 100),
        message.arrays,
    ):
        with contextlib.suppress(ProtocolError):
            read()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=4), st.integers(0)
        ),
        max_size=5,
    ),
    st.binary(max_size=32),
)
def test_arrays_come_as_they_went(kinds: list[tuple[str, list[int], int]], key: bytes) -> None:
    arrays = [
        np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
        for dtype, shape, seed in kinds
    ]
    with pair(key) as (channel, end):
        twin = Channel(Stream.of_socket(end.dup()), b"client", b"server", key)
        for _ in range(2):
            twin.send(with_arrays(Kind.RUN, arrays, program="x"), 5)
            found = channel.receive(Limits(begin_s=5))
            assert found.text("program") == "x"
            for got, want in zip(found.arrays(), arrays, strict=True):
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                assert got.tobytes() == want.tobytes()
        twin.close()


@pytest.mark.parametrize(
    ("arrays", "payload"),
    [
        ([["float32", [1 << 62, 4]]], b""),
        ([["float32", [0, 1 << 62, 1 << 62]]], b""),
        ([["float32", [-1]]], b""),
        ([["float32", [True]]], bytes(4)),
        ([["float32", [1.0]]], bytes(4)),
        ([["object", [1]]], bytes(8)),
        ([["V8", [1]]], bytes(8)),
        ([["float32", [2]]], bytes(4)),
        ([["float32", [1]]], bytes(8)),
        ([["float32", [1] * 33]], bytes(4)),
        ([["int8", []]] * 1025, bytes(1025)),
        ([[["float32"], [1]]], bytes(4)),
        ([["float32"]], b""),
        ("float32", b""),
        (None, b"1"),
    ],
)
def test_arrays_that_are_none(arrays: object, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        Message(Kind.RUN, {"arrays": arrays}, payload).arrays()


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 200_000,
        b'{"a":' * 40_000,
        b"{" + b"1" * 10_000 + b"}",
        b'{"a":NaN}',
        b"\xff",
        b"[]",
        b"1",
    ],
)
def test_headers_that_are_none(header: bytes) -> None:
    with pair() as (channel, end):
        head = HEAD.pack(MAGIC, VERSION, Kind.RUN, 0, len(header), 0)
        thread = threading.Thread(target=end.sendall, args=(head + header,))
        thread.start()
        with pytest.raises(ProtocolError, match="no JSON"):
            channel.receive(Limits(begin_s=5))
        thread.join()


def malformed(chance: random.Random, key: bytes, number: int) -> bytes:
    """A message with something wrong, signed where there is a key."""
    kind = chance.choice([Kind.STATUS, Kind.LOAD, Kind.RUN, Kind.MEASURE, Kind.PROOF, Kind.ANSWER])
    name = hashlib.sha256(b"x").hexdigest()
    names = [name, "../../etc/passwd", "", "é" * 64, 7, None, ["a"], name * 100]
    header: dict[str, object] = {
        "program": chance.choice(names),
        "programs": chance.choice([[name], [], [1], name, None, [name] * 100, {"a": 1}]),
        "arrays": chance.choice([[], [["float32", [3]]], [["float32", [1 << 60]]], 3, [[]], None]),
        "how": chance.choice(["speedup", "interleaved", "x", 1]),
        "warmup": chance.choice([0, -1, 1 << 70, 0.5, True]),
        "runs": chance.choice([1, 0, 10**9, "1"]),
        "precision": chance.choice([0.1, -1, "x", None]),
        "budget_s": chance.choice([0.1, 1e99, "x"]),
        "path": "/etc/passwd",
        "nonce": chance.choice(["00" * 32, "zz", "", 3]),
        "proof": chance.choice(["00" * 32, "é", "", 3]),
    }
    for field in chance.sample(sorted(header), chance.randrange(len(header))):
        del header[field]
    text = json.dumps(header).encode()
    if kind is Kind.STATUS:
        text = text[: chance.randrange(len(text))]
    payload = chance.randbytes(chance.choice([0, 0, 1, 12, 1000]))
    head = HEAD.pack(MAGIC, VERSION, kind, 0, len(text), len(payload))
    tag = b""
    if key:
        from experiments.devices.protocol import _tag

        tag = _tag(key, b"client", number, (head, text, payload))
    raw = bytearray(head + text + payload + tag)
    for _ in range(chance.choice([0, 0, 1, 3])):  # bits that are another's
        at = chance.randrange(len(raw))
        raw[at] ^= 1 << chance.randrange(8)
    for _ in range(chance.choice([0, 0, 0, 1])):
        at, size = chance.choice([(4, "B"), (5, "B"), (6, ">H"), (8, ">I"), (12, ">Q")])
        top = 1 << 8 * struct.calcsize(size)
        raw[at : at + struct.calcsize(size)] = struct.pack(size, chance.choice([0, 1, top - 1]))
    if chance.random() < 0.2:
        del raw[chance.randrange(len(raw)) :]
    return bytes(raw)


def storm(s: Served, count: int, seed: int) -> int:
    """How many of `count` malformed messages were answered by an error or the end of the
    connection, which all must be."""
    chance, refused = random.Random(seed), 0
    for _ in range(count):
        proved = chance.random() < 0.5
        if proved:
            channel = s.channel()
        else:
            channel = Channel(Stream.of_socket(s.socket()), b"client", b"server")
            channel.receive(tokens.FIRST)
        raw = malformed(chance, channel.key, channel._sent)
        if chance.random() < 0.1:
            raw = chance.randbytes(chance.randrange(1, 100))
        with contextlib.suppress(Closed):
            channel.stream.write(iter([memoryview(raw)]), time.monotonic() + 5)
        end = socket.socket(fileno=os.dup(channel.stream.writing))
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_WR)
        end.close()
        try:
            found = channel.receive(Limits(begin_s=20, transfer_s=20))
            refused += found.kind is Kind.ERROR
        except Closed:
            refused += 1
        channel.close()
    return refused


class _Counted(child.Child):
    """Processes that were started."""

    started = 0

    def __init__(self, *args: object) -> None:
        _Counted.started += 1
        super().__init__(*args)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_malformed_messages(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """None starts a process or ends the server; each is answered, and a client then works."""
    from experiments.devices import session

    monkeypatch.setattr(session, "Child", _Counted)
    _Counted.started = 0
    with serving() as s:
        begun, threads = time.monotonic(), threading.active_count()
        assert storm(s, count, count) == count
        assert _Counted.started == 0
        until = time.monotonic() + 20
        while threading.active_count() > threads and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= threads
        assert time.monotonic() - begun < 60 + count / 20
        if count > 100:
            device = s.device()
            assert works(device)
            device.close()
            assert _Counted.started == 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.sampled_from([0, 1, 2, 3]) | st.binary(max_size=60)
        | st.tuples(st.sampled_from(list(Kind)), HEADERS, st.binary(max_size=16)),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_malformed_answers(said: list[object]) -> None:
    """A client whose device says nonsense says that in a sentence."""
    gate = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with gate.accept()[0] as end:
            channel = Channel(Stream.of_socket(end.dup()), b"server", b"client")
            with contextlib.suppress(Closed, Late, ProtocolError):
                if said[0] != 0:
                    tokens.ask(channel, TOKEN)
                for word in said:
                    if isinstance(word, bytes):
                        channel.stream.write(iter([memoryview(word)]), time.monotonic() + 5)
                    elif isinstance(word, tuple):
                        header = json.loads(json.dumps(word[1]), parse_constant=str)
                        channel.send(Message(word[0], header, word[2]), 5)
            channel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(tokens.TOKEN, TOKEN)
        device = Device(f"127.0.0.1:{gate.getsockname()[1]}")
        with pytest.raises(DeviceError):
            _ = device.machine
        device.close()
    thread.join(10)
    assert not thread.is_alive()
    gate.close()
