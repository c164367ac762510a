"""The server's side of the process that runs a client's code."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from compiler.errors import DtypelabError
from experiments.user_code.isolation import signal_name

from .protocol import Channel, Kind, Limits, Message, ProtocolError
from .streams import Closed, Late, Stream
from .tokens import TOKEN, TOKEN_FILE

START_S = 120.0
"""Seconds until the process has imported what it needs, on a slow device."""


class Ended(DtypelabError):
    """The process has died, or was stopped; says why."""


class Gone(Exception):
    """The client went away while it was waited for."""


class Child:
    """A process that runs what a client has sent, started in a folder; it may die at any time."""

    def __init__(self, folder: Path, memory: int, target: str) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        environment = {k: v for k, v in os.environ.items() if k not in (TOKEN, TOKEN_FILE)}
        environment |= {"PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([root, *([before] if before else [])])
        words = [str(theirs.fileno()), str(memory), str(os.getpid()), target]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "experiments.devices.runner", *words],
                cwd=folder, env=environment, pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._channel = Channel(Stream.of_socket(ours), b"server", b"runner")
        try:
            self._descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # an old system
            self._descriptor = -1

    def begin(self, client: Stream | None) -> None:
        """Wait until it has imported what it needs; raises as `ask`."""
        self.ask(Message(Kind.STATUS), START_S, 0, client)

    def ask(self, message: Message, limit_s: float, largest: int, client: Stream | None) -> Message:
        """What it answers within so many seconds; it is stopped otherwise, and when the `client`
        goes away.

        Raises:
            Ended: it died or took too long.
            Gone: the client went away.
        """
        until = time.monotonic() + limit_s
        limits = Limits(payload=largest, begin_s=limit_s, transfer_s=limit_s)
        try:
            self._channel.send(message, limit_s)
            if not self._channel.stream.wait(until, client, self._descriptor):
                self.stop()
                raise Gone
            answer = self._channel.receive(limits)
        except Late:
            self.stop()
            raise Ended(f"it took more than {limit_s:g} s and was stopped") from None
        except (Closed, ProtocolError):  # code that it ran may have written anything
            raise Ended(self._ending()) from None
        if answer.kind not in (Kind.ANSWER, Kind.ERROR):
            self.stop()
            raise Ended("it gave no answer and was stopped")
        return answer

    def stop(self) -> None:
        """End it and what it has started, if that is still in its session."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ending(self) -> str:
        """How it has ended; it is ended if it has not."""
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            code = None
        self.stop()
        if code is None:
            return "it wrote to what it answers by, and was stopped"
        how = f"died of {signal_name(-code)}" if code < 0 else f"ended with code {code}"
        return f"its process {how}"
