"""Bytes that arrive within a time, or not at all: sockets and pipes, read and written with
deadlines."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

PIECE = 1 << 18
"""Bytes that are read at once: memory is taken as they arrive, not as they are announced."""


class Closed(Exception):
    """The other end has closed the stream, or died."""


class Late(Exception):
    """The other end did not send, or take, what it had to within its time."""


@dataclass(eq=False)
class Stream:
    """Two file descriptors that do not block, one to read and one to write; they may be one.

    Raises `Closed` and `Late` in all that waits for the other end.
    """

    reading: int
    writing: int

    @classmethod
    def of_socket(cls, end: socket.socket) -> Stream:
        """That of a connected socket, which it takes over."""
        end.setblocking(False)
        descriptor = end.detach()
        return cls(descriptor, descriptor)

    @classmethod
    def of_descriptors(cls, reading: int, writing: int) -> Stream:
        """That of the ends of two pipes, which it takes over."""
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        return cls(reading, writing)

    def read(self, count: int, until: float) -> bytearray:
        """So many bytes, `until` a time of `time.monotonic`."""
        found = bytearray()
        while len(found) < count:
            found += self.piece(until, count - len(found))
            if len(found) < count and time.monotonic() > until:
                raise Late
        return found

    def piece(self, until: float, most: int = PIECE) -> bytes:
        """What there is, at least a byte."""
        while True:
            try:
                part = os.read(self.reading, min(PIECE, most))
            except BlockingIOError:
                self._wait(self.reading, select.POLLIN, until)
                continue
            except OSError as error:
                raise Closed from error
            if not part:
                raise Closed
            return part

    def write(self, parts: Iterator[memoryview], until: float) -> None:
        """All of the parts."""
        for part in parts:
            left = part
            while left:
                try:
                    left = left[os.write(self.writing, left[:PIECE]) :]
                except BlockingIOError:
                    self._wait(self.writing, select.POLLOUT, until)
                except OSError as error:
                    raise Closed from error
                if left and time.monotonic() > until:
                    raise Late

    def wait(self, until: float, other: Stream | None = None, process: int = -1) -> bool:
        """Wait until there is something to read; False: the `other` stream was closed before, but
        what it sends meanwhile stays unread.

        `process`: a descriptor of the process at the other end, which may have given its own to
        others: `Closed` if it ends.
        """
        poll = select.poll()
        poll.register(self.reading, select.POLLIN)
        if other is not None:
            poll.register(other.reading, select.POLLRDHUP)
        if process >= 0:
            poll.register(process, select.POLLIN)
        while True:
            ready = dict(poll.poll(_milliseconds(until)))
            if self.reading in ready:
                return True
            if process in ready:
                raise Closed
            if ready:
                return False
            if time.monotonic() >= until:
                raise Late

    def drain(self, until: float) -> None:
        """Say that nothing more comes over a socket, and let go by what still arrives until it is
        closed there: closing it before would take back what was said last."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.writing)) as end:
            end.shutdown(socket.SHUT_WR)
        while time.monotonic() < until:
            self.piece(until)

    def shut(self) -> None:
        """Let nothing more come or go over a socket, for whoever waits for it in another thread."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.reading)) as end:
            end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close both."""
        for descriptor in {self.reading, self.writing}:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _wait(self, descriptor: int, event: int, until: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(_milliseconds(until)) and time.monotonic() >= until:
            raise Late


def _milliseconds(until: float) -> int:
    """For `poll`, of what is left, an hour at most."""
    return max(0, min(3_600_000, int((until - time.monotonic()) * 1000) + 1))
