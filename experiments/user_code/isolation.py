"""Functions that run a user's code, in a process of their own: what ends it, ends in a sentence."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import compiler.errors
from compiler.errors import ConfigError, DtypelabError
from compiler.files.printable import printable_lines

from . import activity, adapters
from .activity import Step
from .keeper import Kept

T = TypeVar("T")

#: Seconds that code of a user may go without a sign of life (see `activity`): an endless loop. A
#: specification's `timeout_s` is another limit.
SILENCE_S = 1800.0
#: Bytes that a cell may print; what it prints beyond that is left out.
PRINTED = 20_000

Say = Callable[[str], None]

#: Folders of Python, of installed packages and of this program.
_NOT_THE_USERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(str(Path(__file__).parents[2] / name) for name in adapters.OURS),
    "<frozen",
)

#: Folders of the system's libraries, and of Python.
_SYSTEM = ("/lib", "/usr/lib", sys.base_prefix, sys.prefix, "/proc", "/memfd")

_MEANINGS = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGFPE": "arithmetic exception",
    "SIGILL": "illegal instruction",
    "SIGABRT": "aborted",
    "SIGKILL": "killed by the system, which was out of memory, or by somebody",
}


@dataclass
class Watched:
    """A process that runs a user's code, and what it is doing.

    Attributes:
        body: what it runs.
        memory: bytes that it may allocate; see `Kept`.
        silence_s: seconds that a step in code of the user may take without a sign of life.
        say: is given what it prints; None: it prints where this process does.
    """

    body: Callable[[Connection], None]
    memory: int | None
    silence_s: float
    say: Say | None
    kept: Kept = field(init=False)
    step: Step = field(default_factory=lambda: Step("starting", False))
    #: The last step in code of the user.
    users: str = ""
    silent_until: float = math.inf
    _room: int = PRINTED

    def __post_init__(self) -> None:
        self.kept = Kept(self.body, self.memory, apart=self.say is not None)

    @property
    def link(self) -> Connection:
        """What it says comes from here."""
        return self.kept.link

    def waitables(self) -> list[Any]:
        """What there is to read of it: its link, and what it prints."""
        return [self.link, *([self.kept.output] if self.kept.output >= 0 else [])]

    def note(self, step: Step) -> None:
        """It has said what it does."""
        self.step = step
        if step.users:
            self.users = step.text
        self.silent_until = time.monotonic() + self.silence_s if step.users else math.inf

    def listen(self) -> None:
        """Pass on what it printed, as far as there is room."""
        data = self.kept.printed()
        if not data or self.say is None:
            self.kept.mute()
            return
        if self._room > 0:
            text = data[: self._room].decode(errors="replace")
            self.say(printable_lines(text.expandtabs()))
            if len(data) > self._room:
                self.say("\n... (the rest of what this cell prints is left out)\n")
        self._room = max(0, self._room - len(data))

    def next_cell(self) -> None:
        """Another cell begins."""
        self._room, self.users = PRINTED, ""

    def silent(self) -> str:
        """What to say of it when it has been silent for too long."""
        return f"{self.step.text}: no sign of life for {self.silence_s:g} s"

    def ending(self) -> tuple[str, bool]:
        """Of a process that closed its link: how it ended, and whether it was its own doing."""
        while self.kept.output >= 0 and wait([self.kept.output], 0):
            self.listen()
        code, trace = self.kept.buried()
        where = f"{self.step.text}: " if self.step.users or not self.users else f"{self.users}: "
        if code is None:
            return f"{where}closed its connection with the sweep", True
        places = ", ".join(place for place in (_function_of(trace), _line_of(trace)) if place)
        inside = f", in {places}" if places else ""
        if code >= 0:
            return f"{where}ended the process with exit code {code}{inside}", True
        name = signal_name(-code)
        meaning = f"{_MEANINGS[name]} ({name})" if name in _MEANINGS else f"died of {name}"
        own = name not in ("SIGKILL", "SIGTERM", "SIGHUP")
        return f"{where}{meaning}{inside}", own


def signal_name(number: int) -> str:
    """What a signal is called; real-time signals have no names."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _function_of(trace: str) -> str:
    """The innermost C function of a library of the user in what `crash_frames` wrote."""
    for line in trace.splitlines():  # those of Python begin otherwise
        name, _, file = line.partition(" ")
        if file.startswith("/") and not file.startswith((*_NOT_THE_USERS, *_SYSTEM)):
            return f"C function {name} of {Path(file).name}"
    return ""


def _line_of(trace: str) -> str:
    """The innermost line of the user's Python in what `faulthandler` wrote: "FILE line 3"."""
    _, _, frames = trace.rpartition("Current thread")
    for line in frames.splitlines():
        file, _, rest = line.removeprefix('  File "').partition('", ')
        if rest and not file.startswith(_NOT_THE_USERS):
            return f"{Path(file).name} {rest.partition(' in ')[0]}"
    return ""


def echo(text: str) -> None:
    """What a user's code prints goes to stderr, as stdout belongs to results."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def call(
    function: Callable[[], T],
    *,
    silence_s: float = SILENCE_S,
    memory: int | None = None,
    say: Say | None = echo,
) -> T:
    """What `function` gives, in a process of its own. What it defines there is not known here.

    See `Watched` for the other arguments.

    Raises:
        DtypelabError: it raised one, in words; or its process ended, took too long, or what it
            gives cannot be sent.
    """
    watched = Watched(functools.partial(_body, function=function), memory, silence_s, say)
    try:
        while True:
            left = max(0.0, watched.silent_until - time.monotonic())
            ready = wait(watched.waitables(), None if left == math.inf else left)
            if watched.kept.output in ready:
                watched.listen()
            if watched.link not in ready:
                if watched.silent_until <= time.monotonic():
                    raise ConfigError(watched.silent())
                continue
            said = received(watched)
            if said is None:
                raise ConfigError(watched.ending()[0])
            if isinstance(said, Step):
                watched.note(said)
            elif isinstance(said, _Raised):
                raise said.error()
            else:
                value: T = said[0]
                return value
    finally:
        watched.kept.stop()


def received(watched: Watched) -> Any:
    """The next thing that it sends; None when it sends no more, or nonsense."""
    try:
        return watched.link.recv()
    except Exception:  # whatever unpickling says of bytes that are no message of ours
        return None


@dataclass(frozen=True)
class _Raised:
    """An exception, which itself may not travel."""

    kind: str
    text: str

    def error(self) -> DtypelabError:
        """The like of it."""
        kind = getattr(compiler.errors, self.kind, ConfigError)
        error: DtypelabError = kind(self.text)
        return error


def _body(link: Connection, function: Callable[[], object]) -> None:
    behave(link)
    own = os.getpid()
    try:
        found = function()
        leave_unless(own)
        link.send((found,))
    except DtypelabError as error:
        link.send(_Raised(type(error).__name__, activity.explained(error)))
    except BaseException as error:
        leave_unless(own)
        link.send(_Raised("ConfigError", activity.explained(error)))


def behave(link: Connection) -> None:
    """Begin in a process of its own: tell the other end of every step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = os.getpid()

    def tell(step: Step) -> None:
        leave_unless(own)
        with contextlib.suppress(OSError):
            link.send(step)

    activity.watched(tell)


def leave_unless(own: int) -> None:
    """End this process unless it is `own`: a copy that code of the user made by `os.fork`, and that
    came back out of that code, would go on as if it were the one."""
    if os.getpid() != own:
        os._exit(0)
