"""Devices as their clients see them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import shlex
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.errors import ConfigError, MachineError, UnsupportedError
from compiler.types.dtypes import Array

from .child import START_S
from .machine import Machine
from .protocol import Channel, Kind, Limits, Message, ProtocolError, with_arrays
from .session import PROGRAMS
from .streams import Closed, Late, Stream
from .tokens import TOKEN, TOKEN_FILE, answer, token_given

PIPE = "pipe:"
"""What the address of a device begins with that is a command, which answers on its standard
output."""
CONNECT_S, TRANSFER_S = 10.0, 120.0
LARGEST = 1 << 32
"""Bytes of an answer."""
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\s/@]+)):(?P<port>\d{1,5})")


class DeviceError(MachineError):
    """A device does not answer, or not as it should."""


def check_address(text: str) -> None:
    """Raise a ConfigError unless `text` is the address of a device."""
    _parts(text)


def _parts(text: str) -> tuple[str, int] | list[str]:
    """Host and port, or the words of a command."""
    if text.startswith(PIPE):
        try:
            words = shlex.split(text.removeprefix(PIPE))
        except ValueError:
            words = []
        if not words:
            raise ConfigError(f"device {text!r} names no command: give pipe:COMMAND")
        return words
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise ConfigError(f"{text!r} is no address of a device: give HOST:PORT or pipe:COMMAND")
    return found["six"] or found["host"], int(found["port"])


@dataclass
class Device:
    """A device, connected to when it is first needed, and again after it was lost.

    Attributes:
        address: HOST:PORT, or pipe:COMMAND.
        counted: instructions of the last run; None, if the device does not count them.
    """

    address: str
    counted: int | None = None
    _channel: Channel | None = None
    _machine: Machine | None = None
    _process: subprocess.Popen[bytes] | None = None
    _sent: set[str] = field(default_factory=set)
    _owner: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def machine(self) -> Machine:
        """What it says that it is.

        Raises:
            DeviceError: it does not answer.
        """
        with self._lock:
            if self._machine is None:
                self._connected()
            assert self._machine is not None, "connecting asks for it"
            return self._machine

    @property
    def known(self) -> Machine | None:
        """What it said that it is; None: it has not been reached."""
        return self._machine

    @property
    def emulator(self) -> str:
        """What emulates it; empty: its times are those of a machine."""
        return self.machine.runner if self.machine.emulated else ""

    def reach(self) -> None:
        """Connect to it, if it is not connected.

        Raises:
            DeviceError: it does not answer.
        """
        with self._lock:
            self._connected()

    def run(self, program: bytes, arrays: Sequence[Array]) -> list[Array]:
        """The outputs of a program (a shared library, or an object file) for its inputs.

        Raises:
            DeviceError: the device was lost, the program ended its process, or took too long.
        """
        name = self._name(program)
        said = self._asked([program], with_arrays(Kind.RUN, arrays, program=name))
        counted = said.header.get("instructions")
        self.counted = counted if type(counted) is int else None
        try:
            return said.arrays()
        except ProtocolError as error:
            raise self._lost(str(error)) from None

    def measure(
        self, programs: Sequence[bytes], arrays: Sequence[Array], **how: object
    ) -> Mapping[str, Any]:
        """What measuring programs on the same inputs gives, see `Runner`.

        Raises:
            DeviceError: as `run`.
            UnsupportedError: the device is emulated.
        """
        if emulator := self.emulator:
            raise UnsupportedError(
                f"device {self.address} is emulated by {emulator}, whose times say nothing of a "
                "real machine's: measure none there"
            )
        names = [self._name(p) for p in programs]
        return self._asked(
            programs, with_arrays(Kind.MEASURE, arrays, programs=names, **how)
        ).header

    def close(self) -> None:
        """Disconnect; it may be used again."""
        with self._lock:
            channel, process = self._channel, self._process
            self._channel, self._process, self._sent = None, None, set()
            if self._owner != os.getpid():  # those of the process that this one is a fork of
                return
            if channel is not None:
                channel.close()
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
                process.wait()

    def _name(self, program: bytes) -> str:
        return hashlib.sha256(program).hexdigest()

    def _asked(self, programs: Sequence[bytes], message: Message) -> Message:
        """The answer to a message about programs, which are sent first if they were not yet."""
        with self._lock:
            self._connected()
            if len(self._sent) + len(programs) > PROGRAMS:
                self.close()
                self._connected()
            for program in programs:
                name = self._name(program)
                if name not in self._sent:
                    self._exchange(Message(Kind.LOAD, {"program": name}, program))
                    self._sent.add(name)
            return self._exchange(message)

    def _exchange(self, message: Message) -> Message:
        """The answer to a message.

        Raises:
            DeviceError: there is none, or it says what was wrong.
        """
        channel, machine = self._channel, self._machine
        assert channel is not None, "it is connected"
        if machine and len(message.payload) > machine.largest:
            raise DeviceError(
                f"device {self.address} takes messages of {machine.largest} bytes, "
                f"not of {len(message.payload)}: see --largest of `dtypelab serve`"
            )
        # A message waits for its turn, a process to start and to load what it had, and its limit.
        within = 2 * machine.limit_s + machine.wait_s if machine else 0.0
        limits = Limits(
            payload=LARGEST, begin_s=within + START_S + CONNECT_S, transfer_s=TRANSFER_S
        )
        try:
            channel.send(message, TRANSFER_S)
        except Late:
            raise self._lost("takes nothing any more") from None
        except Closed:
            pass  # it may have said why
        try:
            said = channel.receive(limits)
        except Closed:
            raise self._lost("has closed the connection") from None
        except Late:
            raise self._lost("does not answer any more") from None
        except ProtocolError as error:
            raise self._lost(str(error)) from None
        if said.kind is Kind.ERROR:
            raise DeviceError(f"device {self.address}: {said.text('error')}")
        if said.kind is not Kind.ANSWER:
            raise self._lost("gives no answer")
        return said

    def _connected(self) -> None:
        """Connect, unless that is so.

        Raises:
            DeviceError: the device does not answer, or does not take the token.
        """
        if self._owner != os.getpid() or (self._channel and _ended(self._channel.stream)):
            self.close()
        if self._channel is not None:
            return
        self._owner = os.getpid()
        where = _parts(self.address)
        token = "" if isinstance(where, list) else token_given(None)
        if isinstance(where, tuple) and not token:
            raise ConfigError(
                f"device {self.address} wants the token of its server: give its file with "
                f"--token-file, or in {TOKEN_FILE}, or the token in {TOKEN}"
            )
        try:
            self._channel = Channel(self._opened(where), b"client", b"server")
            if token:
                answer(self._channel, token)
        except OSError as error:
            raise self._lost(f"does not answer: {error.strerror or error}") from None
        except (Closed, Late):
            raise self._lost("does not answer as a server of dtypelab does") from None
        except ProtocolError as error:
            raise self._lost(f"refuses: {error}") from None
        try:
            self._machine = Machine.of(self._exchange(Message(Kind.STATUS)))
        except ProtocolError as error:
            raise self._lost(str(error)) from None

    def _opened(self, where: tuple[str, int] | list[str]) -> Stream:
        if isinstance(where, tuple):
            end = socket.create_connection(where, CONNECT_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return Stream.of_socket(end)
        ours, theirs = socket.socketpair()
        hidden = {k: v for k, v in os.environ.items() if k not in (TOKEN, TOKEN_FILE)}
        with theirs:
            descriptor = theirs.fileno()
            try:
                self._process = subprocess.Popen(
                    where, stdin=descriptor, stdout=descriptor, env=hidden
                )
            except OSError:
                ours.close()
                raise
        return Stream.of_socket(ours)

    def _lost(self, why: str) -> DeviceError:
        self.close()
        return DeviceError(f"device {self.address} {why}")


def _ended(stream: Stream) -> bool:
    """Whether the other end is gone, or says something that nobody asked for."""
    poll = select.poll()
    poll.register(stream.reading, select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))


_devices: dict[str, Device] = {}


def device(address: str) -> Device:
    """The device of an address, one a process.

    Raises:
        ConfigError: it is no address.
    """
    check_address(address)
    return _devices.setdefault(address, Device(address))


def use_token_file(path: str | os.PathLike[str] | None) -> None:
    """Let this process, and those that it starts, have the token in a file.

    Raises:
        ConfigError: the file holds none.
    """
    if path is not None:
        token_given(path)
        os.environ[TOKEN_FILE] = os.path.abspath(path)
