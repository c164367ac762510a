"""What a server does for one client, whose programs lie in a folder that ends with the session."""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compiler.codegen.c import system_compiler
from compiler.errors import DtypelabError, LoweringError

from .child import Child, Ended
from .machine import Machine
from .protocol import Channel, Kind, Limits, Message, ProtocolError

ELF, RELOCATABLE, SHARED = b"\x7fELF", 1, 3
"""How files begin that a client may send, and what their `e_type` says that they are."""
PROGRAMS = 64
"""Programs of one session, at most."""
_NAME = re.compile(r"[0-9a-f]{64}")


class Busy(DtypelabError):
    """Other clients have been using the device all the time that this one has waited."""


@dataclass
class Turn:
    """Who may use the device now: one client at a time."""

    wait_s: float
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """While it is this client's turn.

        Raises:
            Busy: that did not come within `wait_s` seconds.
        """
        if not self._lock.acquire(timeout=self.wait_s):
            raise Busy(f"the device was busy for {self.wait_s:g} s with other clients' programs")
        try:
            yield
        finally:
            self._lock.release()


@dataclass
class Session:
    """One client that has proved to know the token.

    Attributes:
        channel: to the client.
        folder: of its own, which is removed by who made it.
        machine: what this device is.
        turn: shared by all sessions.
        memory: bytes that its programs may take.
        target: what the device is, as `this_machine` was given it.
    """

    channel: Channel
    folder: Path
    machine: Machine
    turn: Turn
    memory: int
    target: str = "llvm"
    _programs: dict[str, Path] = field(default_factory=dict)
    _child: Child | None = None

    def serve(self, limits: Limits) -> None:
        """Answer until the client closes the connection.

        Raises:
            ProtocolError: a message is wrong, after which nothing else can be understood.
            Gone, Closed, Late: the client went away, or was silent for too long.
        """
        try:
            while True:
                asked = self.channel.receive(limits)
                try:
                    said = self._answer(asked)
                except ProtocolError:
                    raise
                except DtypelabError as error:
                    said = failure(str(error))
                self.channel.send(said, limits.transfer_s)
        finally:
            self._stop()

    def _answer(self, asked: Message) -> Message:
        if asked.kind is Kind.STATUS:
            return Message(Kind.ANSWER, self.machine.header())
        if asked.kind is Kind.LOAD:
            return self._load(asked)
        if asked.kind not in (Kind.RUN, Kind.MEASURE):
            raise ProtocolError(f"a client does not say {asked.kind.name}")
        one = asked.kind is Kind.RUN
        for name in [asked.text("program")] if one else asked.texts("programs", PROGRAMS):
            if name not in self._programs:
                raise ProtocolError("the device has no such program")
        with self.turn.taken():
            return self._ask(asked)

    def _load(self, asked: Message) -> Message:
        name, content = asked.text("program"), asked.payload
        if not _NAME.fullmatch(name) or hashlib.sha256(content).hexdigest() != name:
            raise ProtocolError("a program must be named by its SHA-256")
        if len(self._programs) >= PROGRAMS and name not in self._programs:
            raise DtypelabError(f"a client may send {PROGRAMS} programs: connect again")
        path = self.folder / f"lib{name}.so"
        path.write_bytes(content if self.machine.runner else self._library(content))
        with self.turn.taken():
            try:
                said = self._ask(_load(name, path))
            except Ended:
                path.unlink()
                raise
        if said.kind is Kind.ANSWER:
            self._programs[name] = path
        return said

    def _library(self, content: bytes | bytearray) -> bytes:
        """What was sent as a shared library.

        Raises:
            DtypelabError: it is none, and no object file that one can be made of here.
        """
        form = int.from_bytes(content[16:18], "little") if content[:4] == ELF else 0
        if form == SHARED:
            return bytes(content)
        if form != RELOCATABLE:
            raise DtypelabError("what was sent is neither a shared library nor an object file")
        given, made = self.folder / "given.o", self.folder / "made.so"
        given.write_bytes(content)
        try:
            call = [*system_compiler.command(), "-shared", "-o", str(made), str(given), "-lm"]
            done = subprocess.run(
                call, capture_output=True, text=True, timeout=self.machine.limit_s, check=False
            )
            if done.returncode:
                first = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
                said = first.replace(f"{self.folder}/", "")
                raise DtypelabError(f"the device cannot link what was sent: {said[:1000]}")
            return made.read_bytes()
        except subprocess.TimeoutExpired:
            raise Ended(
                f"linking took more than {self.machine.limit_s:g} s and was stopped"
            ) from None
        except LoweringError:
            raise DtypelabError(
                "the device has no C compiler to link what was sent: link it first"
            ) from None
        finally:
            given.unlink(missing_ok=True)
            made.unlink(missing_ok=True)

    def _ask(self, asked: Message) -> Message:
        """What the client's process answers, which is started if there is none."""
        m, stream = self.machine, self.channel.stream
        child = self._child
        try:
            if child is None:
                child = self._child = Child(self.folder, self.memory, self.target)
                child.begin(stream)
                for name, path in self._programs.items():
                    said = child.ask(_load(name, path), m.limit_s, m.largest, stream)
                    if said.kind is Kind.ERROR:
                        raise Ended(f"a program does not load again: {said.text('error')}")
            return child.ask(asked, m.limit_s, m.largest, stream)
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()


def _load(name: str, path: Path) -> Message:
    return Message(Kind.LOAD, {"program": name, "path": str(path)})


def failure(text: str) -> Message:
    """The message that says what was wrong."""
    return Message(Kind.ERROR, {"error": " ".join(text.split())[:4000]})
