"""Linux programs of other architectures in qemu's user mode emulation: one process an architecture,
which is given code and data through a pipe."""

from __future__ import annotations

import collections
import functools
import os
import shutil
import signal
import struct
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from compiler.codegen import linking
from compiler.codegen.standalone import ALIGN
from compiler.errors import MachineError, OutOfMemoryError
from compiler.runtime.machines import user_runner
from compiler.runtime.machines.elf import Linked, linked
from compiler.runtime.machines.image import NAME, Image
from compiler.runtime.machines.user_runner import CALL, FUNCTIONS, MAP, READ, REQUEST, UNMAP, WRITE
from compiler.target.registry import Target
from compiler.types.dtypes import Array

CPUS = {"aarch64": "max", "riscv64": "rv64,v=true,vlen=128,vext_spec=v1.0"}
"""Architecture -> the CPU that is emulated: one that has every feature that targets may have."""
_CODE, _CODE_END, _PAGE = 1 << 28, 7 << 28, 1 << 16
"""Where code may be: calls of the runner's functions reach no farther than 2 GiB."""


_Request = tuple[int, int, int, bytes | memoryview]


class QemuUser:
    """See `compiler.runtime.machines.machine.Machine`."""

    name = "qemu-user"
    emulated = True

    def missing(self, target: Target) -> str:
        """See Machine."""
        program = f"qemu-{target.architecture.name}"
        if shutil.which(program) is None:
            return f"{program} runs code for {target.triple}: install Debian's package qemu-user"
        return "" if linking.zig() else linking.INSTALL

    def load(self, image: Image) -> Loaded:
        """See Machine."""
        return Loaded(_process(image.target.triple), image)


class _Process:
    """The emulator of one architecture, which begins with the first request and ends with this
    process.

    Attributes:
        generation: how many there were; what was loaded into one is not in the next.
        released: addresses and bytes that nobody needs any more, of which generation.
        spent: instructions of the last call, if they are counted.
        functions: addresses of those that code may call.
    """

    def __init__(self, triple: str):
        self.triple = triple
        self.architecture = triple.partition("-")[0]
        self.lock = threading.RLock()
        self.generation = 0
        self.released: collections.deque[tuple[int, int, int]] = collections.deque()
        self.spent: int | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._counts: BinaryIO | None = None
        self._places: dict[int, int] = {}
        self._overhead = 0
        self.functions: dict[str, int] = {}

    # ---- code, at addresses that are known before it is linked
    def reserve(self, size: int) -> int:
        """An address for that many bytes of code.

        Raises:
            OutOfMemoryError: there is none.
        """
        with self.lock:
            self._release()
            at, size = _CODE, -(-size // _PAGE) * _PAGE
            for begin, end in sorted(self._places.items()):
                if at + size <= begin:
                    break
                at = end
            if at + size > _CODE_END:
                raise OutOfMemoryError(f"no room for {size} bytes of code in {self._name}")
            self._places[at] = at + size
            return at

    def unreserve(self, at: int) -> None:
        """Let other code be there."""
        self._places.pop(at, None)

    # ---- requests
    def map(self, size: int, at: int = 0) -> int:
        """Memory of its own; the address, anywhere or `at`.

        Raises:
            OutOfMemoryError: there is none.
            MachineError: the emulator has stopped.
        """
        self._ask([(MAP, at, size, b"")])
        found = self._answer()
        if found < 0:
            raise OutOfMemoryError(f"no memory for {size / 2**30:.3g} GiB in {self._name}")
        return found

    def write(self, at: int, content: bytes | memoryview) -> None:
        """Put bytes into its memory."""
        self._ask([(WRITE, at, len(content), content)])

    def unmap(self, at: int, size: int) -> None:
        """Give memory back."""
        self._ask([(UNMAP, at, size, b"")])

    def call(
        self,
        function: int,
        pointers: int,
        given: Sequence[tuple[int, Array]],
        made: Sequence[tuple[int, Array]],
    ) -> int:
        """What a function returns, with arrays put into memory before, and read afterwards."""
        parts: list[_Request] = [(WRITE, at, a.nbytes, _bytes(a)) for at, a in given]
        parts.append((CALL, function, pointers, b""))
        read = [(READ, at, a.nbytes, b"") for at, a in made]
        self._ask([*parts, *read])
        answer = self._answer()
        for _, a in made:
            self._fill(_bytes(a))
        if self._counts is not None:
            before, after = struct.unpack("<2Q", self._counts.read(16))
            self.spent = after - before - self._overhead
        return answer

    def begin(self) -> None:
        """Start it, if it does not run.

        Raises:
            MachineError: it does not start.
        """
        with self.lock:
            if self._running is not None and self._running.poll() is None:
                return
            self.end()
            made, file = _counting(self.triple), user_runner.runner(self.triple).path
            words, counts = [_program(self.triple), "-cpu", CPUS[self.architecture]], (-1, -1)
            if made:
                counts = os.pipe()
                words += ["-plugin", f"{made},fd={counts[1]}"]
            pipe, passed = subprocess.PIPE, counts[1:] if made else ()
            try:
                self._running = subprocess.Popen(
                    [*words, file], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL,
                    pass_fds=passed,
                )  # fmt: skip
            except OSError as error:
                raise MachineError(f"{self._name} does not start: {error.strerror}") from None
            finally:
                for fd in passed:
                    os.close(fd)
            self._counts = os.fdopen(counts[0], "rb") if made else None
            self.generation += 1
            self._overhead = 0
            self.call(0, 0, (), ())
            self._overhead, self.spent = self.spent or 0, None
            names = user_runner.functions()
            self._ask([(FUNCTIONS, 0, 0, b"")])
            self.functions = {name: self._answer() for name in names}

    def end(self) -> None:
        """Stop it."""
        process, self._running = self._running, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout, self._counts):
            try:
                if stream is not None:
                    stream.close()
            except OSError:  # what was left to write
                pass
        process.kill()
        process.wait()

    @property
    def _name(self) -> str:
        return f"qemu-{self.architecture}"

    def _release(self) -> None:
        """Give back what was released; not at once, as that may be in the middle of a request."""
        while self.released:
            at, size, generation = self.released.popleft()
            self.unreserve(at)
            if generation == self.generation:
                self.unmap(at, size)

    def _ask(self, requests: Sequence[_Request]) -> None:
        process = self._running
        assert process is not None
        assert process.stdin is not None
        try:
            for number, first, second, content in requests:
                process.stdin.write(REQUEST.pack(number, first, second))
                if len(content):
                    process.stdin.write(content)
            process.stdin.flush()
        except OSError:
            self._stopped()
        except BaseException:  # half a request, or an answer that nobody reads
            self.end()
            raise

    def _answer(self) -> int:
        held = bytearray(8)
        self._fill(memoryview(held))
        return int(struct.unpack("<q", held)[0])

    def _fill(self, view: memoryview) -> None:
        assert self._running is not None
        stream = self._running.stdout
        assert stream is not None
        at = 0
        try:
            while at < len(view):
                got = stream.readinto(view[at:])  # type: ignore[attr-defined]
                if not got:
                    self._stopped()
                at += got
        except MachineError:
            raise
        except BaseException:
            self.end()
            raise

    def _stopped(self) -> None:
        process = self._running
        assert process is not None
        try:
            status = process.wait(5)
        except subprocess.TimeoutExpired:
            status = 0
        self.end()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        raise MachineError(f"a program has stopped {self._name} ({how})")


class Loaded:
    """A program in the process; in the next one, if that has stopped."""

    def __init__(self, process: _Process, image: Image):
        self._process, self._generation = process, -1
        self._finalizer: weakref.finalize[..., Loaded] | None = None
        objects, self._weights = image.objects(), image.weights
        room = sum(map(len, objects)) * 2 + 2 * _PAGE
        with process.lock:
            process.begin()
            self._code = process.reserve(room)
            self._room = -(-room // _PAGE) * _PAGE
            self._program: Linked | None = None
            try:
                self._program = _linked(objects, process.functions, self._code)
                if self._program.end > self._code + self._room:
                    raise MachineError("the linker needs more room than the code has")
                self._load()
            except BaseException:
                process.unreserve(self._code)
                raise

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> int | None:
        """See Loaded."""
        process = self._process
        with process.lock:
            process.begin()
            process._release()
            if self._generation != process.generation:
                self._load()
            layout, size = _layout([*inputs, *outputs], arena, len(dims))
            self._grow(size)
            assert self._program is not None
            at = [self._memory + offset for offset in layout]
            arrays, (tables, work) = at[: len(inputs) + len(outputs)], at[-2:]
            given, made = arrays[: len(inputs)], arrays[len(inputs) :]
            numbers = [*given, *made, *dims]
            places = [tables, tables + 8 * len(given), tables + 8 * len(arrays), self._at, work]
            table = _table([*numbers, *places])
            answer = process.call(
                self._program.entry,
                tables + 8 * len(numbers),
                [*zip(given, inputs, strict=True), (tables, table)],
                [*zip(made, outputs, strict=True)],
            )
            spent = process.spent
        if answer:
            raise MachineError(f"the program returns {answer} in {process._name}")
        return spent

    def _load(self) -> None:
        """Take code and weights to the process."""
        process, program = self._process, self._program
        assert program is not None
        process.map(self._room, self._code)
        for at, content in program.segments:
            process.write(at, content)
        size = max(len(self._weights), ALIGN)
        self._at = process.map(size)
        process.write(self._at, self._weights)
        self._memory, self._size, self._generation = 0, 0, process.generation
        self._finalize([(self._code, self._room), (self._at, size)])

    def _grow(self, size: int) -> None:
        if size > self._size:
            if self._size:
                self._process.unmap(self._memory, self._size)
                self._size = 0
            self._memory = self._process.map(size)
            self._size = size
            held = [(self._code, self._room), (self._at, max(len(self._weights), ALIGN))]
            self._finalize([*held, (self._memory, size)])

    def _finalize(self, places: Sequence[tuple[int, int]]) -> None:
        """Have memory given back when nobody holds this any more."""
        if self._finalizer is not None:
            self._finalizer.detach()
        every = [(at, size, self._generation) for at, size in places]
        self._finalizer = weakref.finalize(self, self._process.released.extend, every)
        self._finalizer.atexit = False


def _layout(arrays: Sequence[Array], arena: int, dims: int) -> tuple[list[int], int]:
    """Where arrays, tables and the arena are, one behind the other, a little apart, so that none is
    where another one ends; and the bytes of all."""
    sizes = [a.nbytes for a in arrays] + [8 * (len(arrays) + dims + 5), arena]
    out, at = [], 0
    for size in sizes:
        out.append(at)
        at += -(-(size + 1) // ALIGN) * ALIGN
    return out, at


def _table(numbers: Sequence[int]) -> Array:
    import numpy as np

    return np.array(numbers, np.int64)


def _bytes(a: Array) -> memoryview:
    return memoryview(a.reshape(-1).view("u1"))  # type: ignore[arg-type]


def _linked(objects: Sequence[bytes], functions: Mapping[str, int], at: int) -> Linked:
    return linked(linking.at_fixed_address(objects, f"{NAME}_run", at, functions))


def _program(triple: str) -> str:
    found = shutil.which(f"qemu-{triple.partition('-')[0]}")
    if found is None:
        raise MachineError(f"qemu-{triple.partition('-')[0]} is no longer installed")
    return found


@functools.cache
def _process(triple: str) -> _Process:
    return _Process(triple)


@functools.cache
def _counting(triple: str) -> Path | None:
    """The plugin that this emulator takes; None: it takes none, and nothing is counted."""
    held = user_runner.runner(triple)
    for k, content in enumerate(user_runner.plugins()):
        path = Path(held.folder.name, f"count{k}.so")
        path.write_bytes(content)
        call = [_program(triple), "-plugin", f"{path},fd=1", str(held.path)]
        null = subprocess.DEVNULL
        done = subprocess.run(call, stdin=null, stdout=null, stderr=null, check=False)
        if not done.returncode:
            return path
    return None


QEMU_USER = QemuUser()
