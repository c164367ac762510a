"""WebAssembly in Node: one process, kept between calls, that answers on a pipe."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import shutil
import struct
import subprocess
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from compiler.codegen import linking
from compiler.errors import MachineError
from compiler.runtime.machines.image import NAME, Image
from compiler.runtime.machines.linear_memory import PAGE, Layout, no_memory
from compiler.target.registry import Target
from compiler.types.dtypes import Array

INSTALL = "Node runs WebAssembly: install node, version 18 or newer, where PATH finds it"
OLDEST, RELAXED = 18, 22
"""The first version of Node that runs our programs, and the first with relaxed SIMD as it is in the
standard: the dot product of version 20, behind a flag, gives other results."""

HOST = """
const fs = require('fs'), programs = new Map();
function read(count) {
  const out = Buffer.allocUnsafe(count);
  for (let k = 0; k < count;) {
    const got = fs.readSync(0, out, k, count - k, null);
    if (!got) process.exit(0);
    k += got;
  }
  return out;
}
function write(part) {
  for (let k = 0; k < part.length;) k += fs.writeSync(1, part, k);
}
function bytes(memory, at, count) { return new Uint8Array(memory.buffer, at, count); }
const tasks = {
  load(m) {
    const module = new WebAssembly.Module(read(m.module));
    const { exports } = new WebAssembly.Instance(module, {});
    programs.set(m.id, exports);
    return [{ base: exports.__heap_base.value }];
  },
  run(m) {
    const { memory, [m.name]: run } = programs.get(m.id);
    const lacking = m.end - memory.buffer.byteLength;
    const contents = m.writes.map(([at, count]) => [at, read(count)]);
    if (lacking > 0) memory.grow(Math.ceil(lacking / m.page));
    for (const [at, content] of contents) bytes(memory, at, content.length).set(content);
    const times = [];
    let failed = 0;
    for (let k = 0; k < m.count && !failed; ++k) {
      const begin = performance.now();
      failed = run(...m.arguments);
      times.push(performance.now() - begin);
    }
    return [{ failed, times }, ...m.reads.map(([at, count]) => bytes(memory, at, count))];
  },
  drop(m) { programs.delete(m.id); return [{}]; },
};
for (;;) {
  const message = JSON.parse(read(read(4).readUInt32LE(0)).toString());
  let parts;
  try { parts = tasks[message.task](message); }
  catch (error) { parts = [{ error: `${error}`, range: error instanceof RangeError }]; }
  const head = Buffer.from(JSON.stringify(parts[0])), size = Buffer.alloc(4);
  size.writeUInt32LE(head.length);
  [size, head, ...parts.slice(1)].forEach(write);
}
"""
"""What Node runs: it answers messages, each 4 bytes of length, that much JSON, and bytes."""


class Node:
    """See `compiler.runtime.machines.machine.Machine`."""

    name = "node"
    emulated = False

    def missing(self, target: Target) -> str:
        """See Machine."""
        if shutil.which("node") is None:
            return INSTALL
        if _version() < OLDEST:
            return f"{INSTALL}; the one there is version {_version()}"
        if "relaxed-simd" in target.enabled and _version() < RELAXED:
            return (
                f"relaxed SIMD needs node, version {RELAXED} or newer; the one there is version "
                f"{_version()}"
            )
        return linking.missing(target)

    def load(self, image: Image) -> Instance:
        """See Machine."""
        module = linking.wasm_module(image.objects(), [f"{NAME}_run"])
        return Instance(module, image.weights)


@functools.cache
def _version() -> int:
    """Node's major version; 0 if it does not say it."""
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
    major = done.stdout.strip().removeprefix("v").partition(".")[0]
    return int(major) if major.isdigit() else 0


class _Process:
    """The process, which begins with the first message and ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: subprocess.Popen[bytes] | None = None
        self.ids = itertools.count()
        self.generation = 0

    def current(self) -> int:
        """The number of the process that runs, which is started if there is none.

        Raises:
            MachineError: it does not start.
        """
        with self._lock:
            try:
                self._started()
            except OSError as error:
                raise MachineError(f"node does not start: {error.strerror or error}") from None
            return self.generation

    def ask(
        self, head: dict[str, Any], parts: Sequence[bytes | memoryview], into: Sequence[Array] = ()
    ) -> dict[str, Any]:
        """Send a message, and receive the answer and the content of arrays.

        Raises:
            MachineError: the process has stopped, or says that it failed.
        """
        with self._lock:
            try:
                return self._asked(head, parts, into)
            except OSError as error:  # BrokenPipeError, or it does not start
                self.end()
                raise MachineError(f"node has stopped: {error.strerror or error}") from None
            except BaseException:  # an answer may be left in the pipe
                self.end()
                raise

    def _asked(
        self, head: dict[str, Any], parts: Sequence[bytes | memoryview], into: Sequence[Array]
    ) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None
        text = json.dumps(head).encode()
        process.stdin.write(struct.pack("<I", len(text)) + text)
        for part in parts:
            process.stdin.write(part)
        process.stdin.flush()
        (size,) = struct.unpack("<I", self._read(4))
        answer: dict[str, Any] = json.loads(self._read(size))
        if "error" not in answer:
            for a in into:
                self._fill(_bytes_of(a))
        return answer

    def _read(self, count: int) -> bytes:
        out = bytearray(count)
        self._fill(memoryview(out))
        return bytes(out)

    def _fill(self, view: memoryview) -> None:
        assert self._running is not None
        assert self._running.stdout is not None
        at = 0
        while at < len(view):
            got = self._running.stdout.readinto(view[at:])  # type: ignore[attr-defined]
            if not got:
                raise OSError("it has closed its output")
            at += got

    def _started(self) -> subprocess.Popen[bytes]:
        if self._running is None or self._running.poll() is not None:
            self.end()
            pipe = subprocess.PIPE
            call = ["node", "-e", HOST]
            self._running = subprocess.Popen(call, stdin=pipe, stdout=pipe)
            self.generation += 1
        return self._running

    def end(self) -> None:
        """Let the process go, if there is one."""
        if self._running is not None:
            for stream in (self._running.stdin, self._running.stdout):
                try:
                    if stream is not None:
                        stream.close()
                except OSError:  # what was left to write
                    pass
            self._running.kill()
            self._running.wait()
            self._running = None


_PROCESS = _Process()
atexit.register(_PROCESS.end)


class Instance:
    """A module in the process; in the next one, if that has stopped."""

    def __init__(self, module: bytes, weights: bytes):
        self._module, self._content = module, weights
        self._id, self._generation = next(_PROCESS.ids), -1
        self._layout = Layout(0, 0)
        self._load()
        self._finalizer = weakref.finalize(self, _dropped, self._id)
        self._finalizer.atexit = False

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> None:
        """See Loaded; instructions are not counted."""
        self.timed(inputs, outputs, dims, arena, 1)

    def timed(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        dims: Sequence[int],
        arena: int,
        count: int,
    ) -> list[float]:
        """The same several times; returns the milliseconds of each, which Node measures."""
        with _PROCESS._lock:
            if self._generation != _PROCESS.current():
                self._load()
            call = self._layout.call(inputs, outputs, dims, arena)
            parts = [_bytes_of(a) for a in inputs]
            places = [*zip(call.inputs, (a.nbytes for a in inputs), strict=True)]
            made = [*zip(call.outputs, (a.nbytes for a in outputs), strict=True)]
            head = {
                "task": "run", "id": self._id, "name": f"{NAME}_run", "end": call.end,
                "page": PAGE, "arguments": call.arguments, "count": count, "reads": made,
                "writes": [*places, (call.at, len(call.tables))],
            }  # fmt: skip
            answer = self._asked(head, [*parts, call.tables], call.end, outputs)
        if answer["failed"]:
            raise MachineError(f"the program returns {answer['failed']} in node")
        return list(answer["times"])

    def _load(self) -> None:
        head = {"task": "load", "id": self._id, "module": len(self._module)}
        answer = self._asked(head, [self._module], 0)
        self._generation = _PROCESS.current()
        self._layout = Layout(int(answer["base"]), len(self._content))
        end = self._layout.floor
        head = {
            "task": "run", "id": self._id, "name": f"{NAME}_run", "end": end, "page": PAGE,
            "arguments": [], "count": 0, "reads": [],
            "writes": [(self._layout.weights, len(self._content))],
        }  # fmt: skip
        self._asked(head, [self._content], end)

    def _asked(
        self,
        head: dict[str, Any],
        parts: Sequence[bytes | memoryview],
        end: int,
        into: Sequence[Array] = (),
    ) -> dict[str, Any]:
        answer = _PROCESS.ask(head, parts, into)
        if "error" not in answer:
            return answer
        if answer.get("range") and end:
            raise no_memory(end)
        raise MachineError(f"the program fails in node: {answer['error']}")


def _bytes_of(a: Any) -> memoryview:
    """The content of a contiguous array, be it empty or of a dtype that numpy does not know."""
    return memoryview(a.reshape(-1).view("u1"))


def _dropped(number: int) -> None:
    if _PROCESS._running is not None:
        with contextlib.suppress(MachineError):
            _PROCESS.ask({"task": "drop", "id": number}, ())


NODE = Node()
