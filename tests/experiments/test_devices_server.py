"""The server of devices: who may use it, and what clients cannot do to it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import served
from served import (
    ONES,
    TOKEN,
    doubling,
    hostile,
    load,
    no_more_processes,
    processes,
    serving,
    works,
)

from compiler.errors import ConfigError
from experiments.devices import client, executable, server, tokens
from experiments.devices.client import Device, DeviceError
from experiments.devices.protocol import (
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


def test_nothing_runs_without_the_token(tmp_path: Path) -> None:
    """What a client with the token makes it do, it does not do for the others, who skip the proof,
    prove another token, or say what somebody else has said."""
    mark = tmp_path / "mark"
    evil = hostile("", f'fclose(fopen("{mark}", "w"));')
    with serving() as s:
        for talk in (_unproved, _wrong, _replayed):
            talk(s, evil)
            assert not mark.exists()
        assert not processes()
        device = s.device()
        device.run(evil, [ONES])
        assert mark.exists(), "this test could not fail"
        device.close()


def _unproved(s: served.Served, evil: bytes) -> None:
    channel = Channel(Stream.of_socket(s.socket()), b"client", b"server")
    channel.receive(tokens.FIRST)
    channel.send(load(evil), 5)
    said = channel.receive(Limits(begin_s=5))
    assert (said.kind, said.text("error")) == (Kind.ERROR, "a message is longer than 0 bytes")
    with pytest.raises(Closed):
        channel.receive(Limits(begin_s=5))
    channel.close()


def _wrong(s: served.Served, evil: bytes) -> None:
    channel = Channel(Stream.of_socket(s.socket()), b"client", b"server")
    with pytest.raises(ProtocolError, match="the token is wrong"):
        tokens.answer(channel, TOKEN + "r")
    with pytest.raises(Closed):
        _exchange(channel, load(evil))
    channel.close()


def _exchange(channel: Channel, message: Message) -> Message:
    channel.send(message, 5)
    return channel.receive(Limits(begin_s=5))


def _replayed(s: served.Served, evil: bytes) -> None:
    """The bytes of a session that was overheard, sent again."""
    overheard = bytearray()
    gate = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        with gate.accept()[0] as here, s.socket() as there:

            def back() -> None:
                with contextlib.suppress(OSError):
                    while part := there.recv(1 << 16):
                        here.sendall(part)

            threading.Thread(target=back, daemon=True).start()
            while part := here.recv(1 << 16):
                overheard.extend(part)
                there.sendall(part)

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    device = Device(f"127.0.0.1:{gate.getsockname()[1]}")
    assert device.machine.cores == 3
    device.close()
    thread.join(10)
    gate.close()
    with s.socket() as end:
        end.sendall(overheard)
        assert _to_the_end(end)[-20:].endswith(b'the token is wrong"}')


def _to_the_end(end: socket.socket) -> bytes:
    found = bytearray()
    while part := end.recv(1 << 16):
        found += part
    return bytes(found)


def test_what_is_changed_on_the_way_is_not_done() -> None:
    """A message of a client with the token whose bytes somebody in between has changed."""
    with serving() as s:
        channel = s.channel()
        ours, theirs = socket.socketpair()
        twin = Channel(Stream.of_socket(ours), b"client", b"server", channel.key)
        twin.send(Message(Kind.STATUS, {"x": 1}), 5)
        held = bytearray(theirs.recv(1 << 16))
        held[24] ^= 1
        os.write(channel.stream.writing, held)
        with pytest.raises(ProtocolError, match="signed"):  # the answer to that is not signed anew
            _said(channel.receive(Limits(begin_s=5)))
        channel.close()
        theirs.close()
        twin.close()


def _said(message: Message) -> None:
    if message.kind is Kind.ERROR:
        raise ProtocolError(message.text("error"))


def test_a_message_is_not_taken_twice() -> None:
    with serving() as s:
        channel = s.channel()
        channel.send(Message(Kind.STATUS), 5)
        assert channel.receive(Limits(begin_s=5)).kind is Kind.ANSWER
        channel._sent -= 1
        channel.send(Message(Kind.STATUS), 5)
        with pytest.raises(ProtocolError, match="signed"):
            _said(channel.receive(Limits(begin_s=5)))
        channel.close()


@pytest.mark.thorough
def test_oversize() -> None:
    with serving(largest=1 << 16) as s:
        device = s.device()
        exe = executable.build(doubling(), device)
        with pytest.raises(DeviceError, match="takes messages of 65536 bytes"):
            exe(np.ones(1 << 15, np.float32))
        device.close()
        channel = s.channel()
        channel.send(load(bytes(1 << 17)), 5)
        with pytest.raises(ProtocolError, match="longer than 65536 bytes"):
            _said(channel.receive(Limits(begin_s=5)))
        channel.close()


@pytest.mark.thorough
def test_memory_is_taken_as_bytes_arrive() -> None:
    """Announcing a gigabyte costs the server nothing."""
    with serving(largest=1 << 40) as s:
        channel = s.channel()
        before = _resident()
        os.write(channel.stream.writing, HEAD.pack(MAGIC, VERSION, Kind.LOAD, 0, 2, 1 << 40))
        os.write(channel.stream.writing, b"{}" + bytes(1 << 16))
        time.sleep(0.3)
        assert _resident() - before < 50 << 20
        channel.close()
        assert works(s.device())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.thorough
@pytest.mark.parametrize("proved", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_slow_clients(monkeypatch: pytest.MonkeyPatch, proved: bool) -> None:
    """A byte now and then keeps nobody in, and nobody else out."""
    slow = replace(tokens.FIRST, transfer_s=0.4)
    monkeypatch.setattr(tokens, "FIRST", slow)
    with serving(server.Rules(transfer_s=0.4)) as s:
        stream = s.channel().stream if proved else Stream.of_socket(s.socket())
        head = HEAD.pack(MAGIC, VERSION, Kind.STATUS, 0, 1000, 0)
        begun, rest = time.monotonic(), iter(head + bytes(1000))
        while time.monotonic() - begun < 20:
            try:
                os.write(stream.writing, bytes([next(rest)]))
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.05)
        assert time.monotonic() - begun < 10
        assert [x for x in s.said if "silent or slow" in x]
        assert works(s.device())
        stream.close()


@pytest.mark.thorough
def test_silent_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "FIRST", replace(tokens.FIRST, begin_s=0.3))
    with serving(server.Rules(idle_s=0.3)) as s:
        for end in (s.socket(), s.socket()):
            _to_the_end(end)
            end.close()
        channel = s.channel()
        with pytest.raises(Closed):
            channel.receive(Limits(begin_s=10))
        channel.close()
        device = s.device()
        assert works(device)
        time.sleep(0.6)
        assert works(device), "it connects again"
        device.close()


@pytest.mark.thorough
def test_clients_that_go_away_in_the_middle() -> None:
    with serving() as s:
        content = hostile("for (;;) ;")
        whole = load(content)
        for sent in (10, 100, len(content) // 2):
            channel = s.channel()
            ours, theirs = socket.socketpair()
            theirs.setblocking(True)
            twin = Channel(Stream.of_socket(ours), b"client", b"server", channel.key)
            thread = threading.Thread(target=twin.send, args=(whole, 20))
            thread.start()
            held = bytearray()
            while len(held) < sent:
                held += theirs.recv(1 << 16)
            theirs.setblocking(False)
            thread_ends = threading.Thread(target=_drain, args=(theirs, thread))
            thread_ends.start()
            thread_ends.join()
            view = memoryview(held)[:sent]
            while view:
                try:
                    view = view[os.write(channel.stream.writing, view) :]
                except BlockingIOError:
                    time.sleep(0.01)
            channel.close()
            twin.close()
            theirs.close()
        # And while its program runs, which then is stopped.
        channel = s.channel()
        channel.send(whole, 20)
        assert channel.receive(Limits(begin_s=60)).kind is Kind.ANSWER
        channel.send(with_arrays(Kind.RUN, [ONES], program=whole.header["program"]), 5)
        time.sleep(0.3)
        assert len(processes()) == 1
        channel.close()
        assert no_more_processes()
        assert works(s.device())


def _drain(end: socket.socket, thread: threading.Thread) -> None:
    while thread.is_alive():
        try:
            end.recv(1 << 20)
        except BlockingIOError:
            time.sleep(0.005)


@pytest.mark.thorough
def test_one_at_a_time() -> None:
    """The second waits for the first; who waits too long is told."""
    with serving(limit_s=30, wait_s=30) as s:
        first, second = s.device(), s.device()
        slow, quick = hostile("sleep(1);"), hostile("")
        first.run(quick, [ONES])
        second.run(quick, [ONES])
        first.run(slow, [ONES])
        thread = threading.Thread(target=first.run, args=(slow, [ONES]))
        begun = time.monotonic()
        thread.start()
        time.sleep(0.2)
        second.run(quick, [ONES])
        assert time.monotonic() - begun > 0.9
        thread.join()
        s.running._turn.wait_s = 0.1
        thread = threading.Thread(target=first.run, args=(slow, [ONES]))
        thread.start()
        time.sleep(0.3)
        with pytest.raises(DeviceError, match=r"busy for 0.1 s"):
            second.run(quick, [ONES])
        thread.join()
        first.close()
        second.close()


@pytest.mark.thorough
def test_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as s:
        channels = [s.channel() for _ in range(server.CLIENTS)]
        with pytest.raises(DeviceError, match="8 clients are connected already"):
            _ = s.device().machine
        for channel in channels:
            channel.close()
        until = time.monotonic() + 10
        while s.running._open and time.monotonic() < until:
            time.sleep(0.01)
        ends = [s.socket() for _ in range(server.CONNECTIONS + 5)]
        refused = sum(end.recv(1) == b"" for end in ends[server.CONNECTIONS :])
        assert refused == 5
        for end in ends:
            end.close()
        time.sleep(0.3)
        assert works(s.device())


@pytest.mark.thorough
def test_the_server_ends_and_begins_again() -> None:
    with serving() as s:
        device = s.device()
        assert works(device)
        _, port = s.running.address
    assert no_more_processes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(tokens.TOKEN, TOKEN)
        with pytest.raises(DeviceError, match="does not answer"):
            device.run(hostile(""), [ONES])
    listening = server.listen("127.0.0.1", port)
    listening.close()


def test_a_server_that_is_none() -> None:
    """What listens there is something else, or does not know the token."""
    for says in (b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"dtyl\1\1\0\0\0\0\0\2\0\0\0\0\0\0\0\0{}"):
        gate = socket.create_server(("127.0.0.1", 0))

        def serve(gate: socket.socket = gate, says: bytes = says) -> None:
            with gate.accept()[0] as end:
                end.sendall(says)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(tokens.TOKEN, TOKEN)
            with pytest.raises(DeviceError, match=r"does not answer as|refuses"):
                _ = Device(f"127.0.0.1:{gate.getsockname()[1]}").machine
        gate.close()


@pytest.mark.parametrize(
    "text", ["x", "a:", "a:0", "a:65536", ":7", "a b:7", "::1:7", "pipe:", "u@h:7", "pipe:'"]
)
def test_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        client.device(text)


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tokens.TOKEN, raising=False)
    monkeypatch.delenv(tokens.TOKEN_FILE, raising=False)
    assert tokens.token_given(None) == ""
    with pytest.raises(ConfigError, match="wants the token"):
        _ = Device("127.0.0.1:9").machine
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
        tokens.token_given(file)
    file.chmod(0o600)
    assert tokens.token_given(file) == "0123456789abcdef"
    for wrong in ("short", "0123456789 abcdef", "0123456789abcdeé"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="holds no token"):
            tokens.token_given(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.token_given(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"cannot be read|no file"):
        tokens.token_given(tmp_path)
    assert len({tokens.new_token() for _ in range(10)}) == 10


@pytest.mark.thorough
def test_over_a_pipe() -> None:
    """The same over standard input and output of a command."""
    words = f"{sys.executable} -m experiments.cli serve --stdio --limit 20"
    device = Device(f"pipe:{words}")
    exe = executable.build(doubling(), device)
    assert exe(ONES).tolist() == [2, 2, 2]
    with pytest.raises(DeviceError, match="died of SIGSEGV"):
        device.run(hostile("*(volatile int *)8 = 1;"), [ONES])
    assert works(device)
    device.close()
    for wrong in ("false", "no-such-command-anywhere", "echo nonsense"):
        with pytest.raises(DeviceError, match="device pipe:"):
            _ = Device(f"pipe:{wrong}").machine
    done = subprocess.run(
        words.split(), input=b"nonsense", capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == b"dtypelab: what arrived is no message of dtypelab\n"


def test_late_and_closed_are_told_apart() -> None:
    ours, theirs = socket.socketpair()
    stream = Stream.of_socket(ours)
    with pytest.raises(Late):
        stream.read(1, time.monotonic() + 0.05)
    theirs.close()
    with pytest.raises(Closed):
        stream.read(1, time.monotonic() + 5)
    stream.close()
