"""A forked child that may do what it likes: nothing that it starts outlives it, or this process.

Between this process and the child stands a keeper, which runs no code but its own. Orphans among
the child's descendants become children of the keeper (Linux: PR_SET_CHILD_SUBREAPER), also those
that left its session; when the child ends, it ends them all. It does so too when this process asks
it, or dies.

The child is a fork, so it knows everything that was defined here; the pools of threads that our
compiled code, numpy and Python have start anew in forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from compiler.runtime import crash_frames

from . import temporary

Body = Callable[[Connection], None]

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # <sys/prctl.h>
#: Seconds that a keeper has to end all that its child started.
_PATIENCE_S = 5.0
#: What cells import: once here, instead of in every child.
_SHARED = (
    *(
        "onnx",
        "ml_dtypes",
        "compiler.frontend.graph_import",
        "compiler.build",
        "compiler.runtime.executable",
    ),
    *(
        "compiler.transform.portability",
        "compiler.transform.analysis",
        "compiler.transform.preparation",
    ),
    *(
        "datatypes.retype.change_dtype",
        "datatypes.c_libraries.library",
        "datatypes.builtin.softposit",
    ),
    *(
        "quantize.workflow",
        "quantize.realization.realize",
        "quantize.realization.simulate",
        "quantize.search.costs",
    ),
)
#: Bytes of output that are read at once.
_CHUNK = 1 << 16


class Kept:
    """A child that runs `body`, whose other end of a connection is `link`.

    `output` is a descriptor from which everything comes that the child and its descendants print.

    Args:
        body: what it runs; the child ends with it.
        memory: bytes that it may allocate (None: as much as this machine has left).
        apart: it does not share this process's input and outputs.
    """

    def __init__(self, body: Body, memory: int | None = None, *, apart: bool = True) -> None:
        for name in _SHARED:
            importlib.import_module(name)
        crash_frames.prepare()
        self.link, theirs = multiprocessing.Pipe()
        self.output, printed = os.pipe()
        self._status, status = os.pipe()
        self._trace = _unnamed_file()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # None, closed, or a notebook's or a user's own
                stream.flush()  # or the child would write it again
        self._folder, self._own_folder = temporary.folder()
        prctl = _prctl()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: see above
            self._pid = os.fork()
        if self._pid == 0:
            try:
                for descriptor in (self.link.fileno(), self.output, self._status):
                    os.close(descriptor)
                started = _Started(
                    body, theirs, printed, status, self._trace, memory, apart, self._folder
                )
                _keep(started, prctl, parent)
            finally:
                os._exit(1)
        theirs.close()  # the link ends when the child does
        os.close(printed)
        os.close(status)

    def printed(self) -> bytes:
        """Some of what it printed; to be called when `output` has something."""
        try:
            return os.read(self.output, _CHUNK) if self.output >= 0 else b""
        except OSError:
            return b""

    def mute(self) -> None:
        """Read no more of what it prints."""
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def ask_to_stop(self) -> None:
        """Begin to end it; `stop` waits for that."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def stop(self) -> None:
        """End it, and all that it started."""
        self.ask_to_stop()
        if self._pid and not self._wait(_PATIENCE_S):
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(self._pid, signal.SIGKILL)
            self._wait(_PATIENCE_S)
        self._pid = 0
        if self._folder is not None and self._own_folder:
            temporary.remove(self._folder)
        self.mute()
        self.link.close()
        for descriptor in (self._status, self._trace):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._status = self._trace = -1

    def buried(self) -> tuple[int | None, str]:
        """Stop it; its exit code, or minus the signal that ended it (None: it had not ended by
        itself), and the frames of C and of Python in which a signal struck, or that called C's
        `exit` (`crash_frames`, `faulthandler`)."""
        code = None
        if self._wait(2.0):  # keepers write it before they end
            with contextlib.suppress(ValueError):
                code = int(os.read(self._status, 16))
        trace = os.pread(self._trace, 1 << 16, 0).decode(errors="replace")
        self.stop()
        return code, trace

    def _wait(self, seconds: float) -> bool:
        """Whether the keeper ends within these seconds."""
        deadline = time.monotonic() + seconds
        while self._pid:
            try:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    self._pid = 0
            except ChildProcessError:  # somebody else waited for it
                self._pid = 0
            if self._pid:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.001)
        return True


@dataclass(frozen=True)
class _Started:
    """What a child is started with; the descriptors that it, or its keeper, writes to."""

    body: Body
    link: Connection
    printed: int
    status: int
    trace: int
    memory: int | None
    apart: bool
    folder: Path | None


def _keep(started: _Started, prctl: Callable[[int, int], None], parent: int) -> None:
    """The keeper: start the child, wait for it, end what it left, and say how it ended."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _give_up(started, parent))
    os.setsid()
    prctl(_SUBREAPER, 1)
    prctl(_DEATH_SIGNAL, signal.SIGTERM)
    keeper = os.getpid()
    if os.getppid() != parent:
        _give_up(started, parent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            prctl(_DEATH_SIGNAL, signal.SIGKILL)
            os.close(started.status)
            if os.getppid() == keeper:
                _run(started)
        finally:
            os._exit(1)
    started.link.close()
    os.close(started.printed)
    while True:
        ended, how = os.waitpid(-1, 0)
        if ended == child:
            break
    os.write(started.status, str(os.waitstatus_to_exitcode(how)).encode())
    _end_children()
    os._exit(0)


def _give_up(started: _Started, parent: int) -> None:
    """The keeper was asked to stop, or this process died."""
    _end_children()
    if started.folder is not None and os.getppid() != parent:
        temporary.remove(started.folder)
    os._exit(0)


def _run(started: _Started) -> None:
    """The child."""
    if started.apart:
        _redirect(started.printed)
    os.close(started.printed)
    if started.folder is not None:
        temporary.use(started.folder)
    faulthandler.enable(started.trace)
    crash_frames.write_frames(started.trace)
    # What this process's parent registered for its own end may wait for threads that are not here.
    crash_frames.leave_at_exit(started.trace)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(started.memory)
    started.body(started.link)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # code of the user may have put its own there
            stream.flush()
    os._exit(0)


def _redirect(printed: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, descriptor in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, descriptor)
    os.close(nothing)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(descriptor, mode, 1, "utf-8", "replace", closefd=False)
        for descriptor, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _limit_memory(memory: int | None) -> None:
    """Let allocations fail beyond what there is, rather than have the system end processes."""
    allowed = available_memory() if memory is None else memory
    if allowed is None or not hasattr(resource, "RLIMIT_DATA"):
        return
    limit = _allocated() + allowed
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def available_memory() -> int | None:
    """Bytes that this machine, or the container that this process is in, has left; None where the
    system does not tell."""
    found = [1024 * value for value in (_in_table("/proc/meminfo", "MemAvailable"),) if value]
    with contextlib.suppress(OSError, ValueError):
        most, used = (_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
        found.append(max(0, most - used))
    return min(found, default=None)


def _allocated() -> int:
    return 1024 * (_in_table("/proc/self/status", "VmData") or 0)


def _in_table(path: str, key: str) -> int | None:
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
    return None


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def children(parent: int) -> Iterator[int]:
    """The processes whose parent is `parent` (none where the system does not tell)."""
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return
    for number in numbers:
        try:
            with open(f"/proc/{number}/stat", "rb") as file:
                about = file.read()
        except OSError:  # it has ended
            continue
        # The name, in parentheses, may hold anything.
        if int(about.rpartition(b")")[2].split()[1]) == parent:
            yield number


def _end_children() -> None:
    """Of this process, and those that become its children by that."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for number in children(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trace")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _prctl() -> Callable[[int, int], None]:
    """Linux's `prctl`, or nothing elsewhere."""
    try:
        function = ctypes.CDLL(None).prctl
    except AttributeError:
        return lambda _option, _value: None
    function.argtypes, function.restype = [ctypes.c_int, *[ctypes.c_ulong] * 4], ctypes.c_int

    def call(option: int, value: int) -> None:
        function(option, value, 0, 0, 0)

    return call
