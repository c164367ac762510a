"""The process that runs the code of one client: `python -m experiments.devices.runner`.

It speaks the protocol over one socket with the server that has started it, which stops it when it
takes too long. Its memory, its files and its core dumps are limited before it loads anything, it
has neither the token nor the sockets of the server, and it ends with the server. It is no sandbox:
what it loads runs as the user that the server runs as.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compiler.boundary.inputs import bind_inputs
from compiler.errors import DtypelabError
from compiler.runtime.elsewhere import ElsewhereExecutable
from compiler.runtime.executable import GraphExecutable
from compiler.runtime.machines.image import Image
from compiler.runtime.machines.registry import machine_of
from compiler.saved.libraries import described, load_library
from compiler.target.registry import Target
from compiler.tuning.measure import in_turns, quiet
from compiler.types.dtypes import Array
from experiments.measure.latency import measure_interleaved
from experiments.measure.speedup import Protocol, measure_speedup

from .protocol import Channel, Kind, Limits, Message, ProtocolError, with_arrays
from .streams import Closed, Stream

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
PATIENCE_S = 1e9
"""Of what comes from the server."""
FILES = 1 << 26
"""Bytes that a file may have that loaded code writes."""
PROGRAMS = 8
"""Programs that are measured in turns, at most."""
CALLS = 1_000_000
"""Calls of a measurement, at most."""


class Runner:
    """Programs by their names, and what is asked of them."""

    def __init__(self, target: Target) -> None:
        self._target, self._programs = target, dict[str, GraphExecutable]()

    def answer(self, asked: Message) -> Message:
        """What a request gives.

        Raises:
            DtypelabError: the request is wrong, or the program does not take it.
        """
        return _ANSWERS[asked.kind](self, asked)

    def _ready(self, _: Message) -> Message:
        return Message(Kind.ANSWER)

    def _load(self, asked: Message) -> Message:
        path = Path(asked.text("path"))
        loaded = elsewhere(path, self._target) if self._target.elsewhere else load_library(path)
        self._programs[asked.text("program")] = loaded
        return Message(Kind.ANSWER)

    def _run(self, asked: Message) -> Message:
        exe = self._program(asked.text("program"))
        arrays, dims = bind_inputs(list(exe.inputs.items()), asked.arrays(), {})
        start = time.perf_counter_ns()
        outs = exe.run(arrays, dims)
        took = time.perf_counter_ns() - start
        if exe.emulated:
            return with_arrays(Kind.ANSWER, outs, instructions=getattr(exe, "instructions", None))
        return with_arrays(Kind.ANSWER, outs, ns=took)

    def _measure(self, asked: Message) -> Message:
        names, arrays = asked.texts("programs", PROGRAMS), asked.arrays()
        programs = [self._program(name) for name in names]
        how, warmup = asked.text("how"), asked.integer("warmup", 0, CALLS)
        runs = asked.integer("runs", 1, CALLS)
        if how == "turns" and len(programs) == 2:
            with quiet():
                first, second = (_repeated(p, arrays) for p in programs)
                return Message(Kind.ANSWER, {"ms": in_turns(first, second, runs)})
        calls = [_call(p, arrays) for p in programs]
        if how == "interleaved":
            stats = measure_interleaved(calls, warmup=warmup, runs=runs)
            return Message(Kind.ANSWER, {"stats": [asdict(s) for s in stats]})
        if how != "speedup" or len(calls) > 2:
            raise ProtocolError("programs are measured interleaved, in turns, or for a speedup")
        precision, budget = asked.number("precision", 0, 1e9), asked.number("budget_s", 0, 1e9)
        baseline = calls[1] if len(calls) == 2 else None
        found = measure_speedup(calls[0], baseline, Protocol(warmup, runs, precision, budget))
        return Message(Kind.ANSWER, {"speedup": asdict(found)})

    def _program(self, name: str) -> GraphExecutable:
        if name not in self._programs:
            raise ProtocolError("the device has no such program")
        return self._programs[name]


_ANSWERS: dict[Kind, Callable[[Runner, Message], Message]] = {
    Kind.STATUS: Runner._ready,
    Kind.LOAD: Runner._load,
    Kind.RUN: Runner._run,
    Kind.MEASURE: Runner._measure,
}


def _call(exe: GraphExecutable, arrays: list[Array]) -> Callable[[], Any]:
    exe(*arrays)  # whether they fit is found out before the clock runs
    return lambda: exe(*arrays)


def _repeated(exe: GraphExecutable, arrays: list[Array]) -> Callable[[int], None]:
    """Runs a program a number of times, with as little around it as Python needs."""
    given, dims = bind_inputs(list(exe.inputs.items()), arrays, {})
    run = exe.prepared() or partial(exe.run, dims=dims)

    def call(times: int) -> None:
        for _ in range(times):
            run(given)

    return call


@dataclass(frozen=True)
class _Whole(Image):
    """A program that `compiler.exporting` made one object file of, with its weights."""

    def objects(self, mapped: bool = True) -> list[bytes]:
        """See Image."""
        return list(self.code)

    @property
    def weights(self) -> bytes:
        """See Image."""
        return b""


def elsewhere(path: Path, target: Target) -> GraphExecutable:
    """The program of an object file, for a machine that runs beside this one.

    Raises:
        ModelError: it is none, or for another CPU.
        UnsupportedError, LoweringError, MachineError: see `Machine.load`.
    """
    found = described(path, target)
    machine = machine_of(target)
    image = _Whole(found.program, (path.read_bytes(),))
    exe = ElsewhereExecutable(found.program, machine, machine.load(image))
    exe.elements, exe.indices = found.facts.elements, found.facts.indices
    return exe


def confine(memory: int) -> None:
    """Let this process end with the one that started it, and take no more than `memory` bytes
    beyond what it has (that can be written, as engines of WebAssembly reserve addresses)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_DATA, used + memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILES),
    ):
        hard = resource.getrlimit(limit)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))


def main(descriptor: int, memory: int, parent: int, target: str) -> None:
    """Answer until the server closes the socket."""
    chosen = Target.parse(target)  # has LLVM loaded, which is no memory of the client's
    confine(memory)
    if os.getppid() != parent:  # it has ended before this was said to the system
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    channel, runner = Channel(Stream.of_socket(end), b"runner", b"server"), Runner(chosen)
    limits = Limits(payload=1 << 62, begin_s=PATIENCE_S, transfer_s=PATIENCE_S)
    with contextlib.suppress(Closed):
        while True:
            asked = channel.receive(limits)
            try:
                said = runner.answer(asked)
            except (DtypelabError, MemoryError) as error:
                text = str(error) or "no memory"
                said = Message(Kind.ERROR, {"error": " ".join(text.split())[:4000]})
            channel.send(said, PATIENCE_S)


if __name__ == "__main__":
    given = sys.argv
    main(int(given[1]), int(given[2]), int(given[3]), given[4])
