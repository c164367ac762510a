"""The server of a device: connections, of which each must prove to know the token first.

It runs code for those who hold the token, as the user that it runs as: that is its purpose. It does
nothing for anybody else but to draw a nonce. What travels is signed, not encrypted.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from compiler.errors import ConfigError

from .child import Gone
from .machine import Machine
from .protocol import Channel, Limits, ProtocolError
from .session import Session, Turn, failure
from .streams import Closed, Late, Stream
from .tokens import ask

CONNECTIONS, CLIENTS = 32, 8
"""Connections at once, and how many of them may be clients' that have proved to know the token."""
REFUSAL_S, PAUSE_S, ENDING_S = 1.0, 0.05, 5.0
"""Seconds to say why a connection is closed; before something is tried again; until connections are
given up when the server ends."""


@dataclass(frozen=True)
class Rules:
    """What a server lets its clients do.

    Attributes:
        memory: bytes that a client's programs may take, beyond what their process needs itself.
        idle_s: seconds that a client may be silent.
        transfer_s: seconds that one message may take to arrive.
        target: what the device is, as `this_machine` was given it.
    """

    memory: int = 4 << 30
    idle_s: float = 3600.0
    transfer_s: float = 60.0
    target: str = "llvm"


@dataclass
class Server:
    """Listens, and serves each connection on a thread of its own; programs run one at a time.

    Attributes:
        listening: the socket, bound.
        token: what clients must know.
        machine: what this device is.
        rules: see `Rules`.
        log: is told who comes and goes.
    """

    listening: socket.socket
    token: str
    machine: Machine
    rules: Rules = field(default_factory=Rules)
    log: Callable[[str], None] = lambda text: None
    _turn: Turn = field(init=False)
    _open: set[Stream] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __post_init__(self) -> None:
        self._turn = Turn(self.machine.wait_s)
        self._connections = threading.BoundedSemaphore(CONNECTIONS)
        self._clients = threading.BoundedSemaphore(CLIENTS)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self.listening.getsockname()[:2]
        return host, port

    def serve(self) -> None:
        """Serve until the listening socket is closed."""
        while True:
            try:
                end, who = self.listening.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(PAUSE_S)  # the client has gone again, or there are no descriptors now
                continue
            name = f"{who[0]}:{who[1]}"
            if not self._connections.acquire(blocking=False):
                self.log(f"{name}: {CONNECTIONS} connections are open, this one is closed")
                end.close()
                continue
            with contextlib.suppress(OSError):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            threading.Thread(target=self._connection, args=(end, name), daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end what runs."""
        self._closed = True
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        with self._guard:
            for stream in self._open:
                stream.shut()
        until = time.monotonic() + ENDING_S
        while self._open and time.monotonic() < until:
            time.sleep(PAUSE_S)

    def _connection(self, end: socket.socket, name: str) -> None:
        stream = Stream.of_socket(end)
        channel = Channel(stream, b"server", b"client")
        try:
            with self._guard:
                self._open.add(stream)
            if self._closed:
                return
            ask(channel, self.token)
            if not self._clients.acquire(blocking=False):
                raise ProtocolError(f"{CLIENTS} clients are connected already")
            try:
                self.log(f"{name}: connected")
                with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
                    serve_client(channel, Path(folder), self.machine, self._turn, self.rules)
            finally:
                self._clients.release()
        except (Closed, Gone):
            self.log(f"{name}: gone")
        except Late:
            self.log(f"{name}: closed, it was silent or slow for too long")
        except ProtocolError as error:
            self.log(f"{name}: closed, {error}")
            with contextlib.suppress(Closed, Late):
                channel.send(failure(str(error)), REFUSAL_S)
                stream.drain(time.monotonic() + REFUSAL_S)
        except Exception as error:  # of this connection alone: the others go on
            self.log(f"{name}: internal error, {type(error).__name__}: {error}")
        finally:
            with self._guard:
                self._open.discard(stream)
                channel.close()
            self._connections.release()


def serve_client(
    channel: Channel, folder: Path, machine: Machine, turn: Turn, rules: Rules
) -> None:
    """Serve one client that is known to be allowed to; raises as `Session.serve`."""
    session = Session(channel, folder, machine, turn, rules.memory, rules.target)
    limits = Limits(payload=machine.largest, begin_s=rules.idle_s, transfer_s=rules.transfer_s)
    session.serve(limits)


def serve_standard_streams(machine: Machine, rules: Rules) -> None:
    """Serve who has started this process, over its standard input and output.

    Raises:
        ProtocolError: what arrives is no message.
    """
    stream = Stream.of_descriptors(sys.stdin.fileno(), sys.stdout.fileno())
    channel = Channel(stream, b"server", b"client")
    turn = Turn(machine.wait_s)
    with (
        contextlib.suppress(Closed, Gone, Late),
        tempfile.TemporaryDirectory(prefix="dtypelab-") as folder,
    ):
        serve_client(channel, Path(folder), machine, turn, rules)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        ConfigError: that is not possible.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        end = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host} is no address of this machine: {_reason(error)}") from None
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end.bind(address)
        end.listen(CONNECTIONS)
    except OSError as error:
        end.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {_reason(error)}") from None
    return end


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", "") or error)
