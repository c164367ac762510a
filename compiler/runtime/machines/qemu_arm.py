"""Microcontrollers with Cortex-M processors, by QEMU's emulation of Arm's boards.

Every call starts the board anew: its memory is loaded with the program, weights, tables and inputs,
and the program writes its outputs into a file by a semihosting call. QEMU is told to take 32 ns for
each instruction, so that the processor's timer counts them.
"""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compiler.codegen import linking
from compiler.errors import MachineError, OutOfMemoryError, UnsupportedError
from compiler.runtime.machines.boards import Board, board_of, linker_script, startup
from compiler.runtime.machines.image import NAME, Image
from compiler.runtime.machines.linear_memory import Layout
from compiler.target.registry import Target
from compiler.types.dtypes import Array

PROGRAM = "qemu-system-arm"
INSTALL = f"{PROGRAM} runs code for microcontrollers: apt-get install qemu-system-arm"
LONGEST = 1200
"""Seconds after which a run is given up."""
MARKS = 1024
"""Places in a program at which instructions are counted."""
_HEAD = 64
"""Bytes in front of what a program is given: where its tables and arrays are."""
_OUTPUT = "outputs.bin"
_SAID = "<IIII"
"""What outputs follow: status, bytes of the stack that were used, ticks, marks."""


class QemuArm:
    """See `compiler.runtime.machines.machine.Machine`."""

    name = PROGRAM
    emulated = True

    def missing(self, target: Target) -> str:
        """See Machine."""
        if board_of(target.cpu) is None:
            return f"{PROGRAM} has no board with {target.cpu}: give -mcpu=cortex-m4, say"
        if shutil.which(PROGRAM) is None:
            return INSTALL
        return linking.missing(target)

    def load(self, image: Image) -> OnBoard:
        """See Machine."""
        board = board_of(image.target.cpu)
        if board is None:
            raise UnsupportedError(self.missing(image.target))
        objects = [*image.objects(), harness(image.target, board)]
        return OnBoard(
            board, linking.firmware(objects, image.target, linker_script(board)), image.weights
        )


class OnBoard:
    """A program for a board.

    Attributes:
        code: bytes of instructions and of constants among them.
        marks: instructions up to each `NAME_mark` of the last call, from its beginning on.
        stack: bytes of the stack that the last call used.
    """

    def __init__(self, board: Board, program: bytes, weights: bytes):
        self.board, self.program, self.weights = board, program, weights
        self.code = text_bytes(program)
        self.marks: list[int] = []
        self.stack = 0

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], dims: Sequence[int], arena: int
    ) -> int:
        """See Loaded."""
        other = self.board.other
        layout = Layout(other.origin + _HEAD, len(self.weights))
        call = layout.call(inputs, outputs, dims, arena)
        if call.end > other.origin + other.size:
            raise OutOfMemoryError(
                f"no memory for {(call.end - other.origin) / 2**20:.1f} MiB on the board "
                f"{self.board.name}, which has {other.size >> 20}"
            )
        first, last = (
            (call.outputs[0], call.outputs[-1] + outputs[-1].nbytes) if outputs else (0, 0)
        )
        head = struct.pack("<7I", *call.arguments, first, last)
        parts = {other.origin: head, layout.weights: self.weights, call.at: call.tables}
        for at, a in zip(call.inputs, inputs, strict=True):
            parts[at] = a.tobytes()
        with tempfile.TemporaryDirectory(prefix="dtypelab-") as folder:
            self._emulate(Path(folder), parts)
            said = Path(folder, _OUTPUT).read_bytes()
        size = struct.calcsize(_SAID)
        status, self.stack, count, marked = struct.unpack_from(_SAID, said)
        if status:
            raise MachineError(f"the program returns {status} on {self.board.name}")
        ticks = struct.unpack_from(f"<{marked}I", said, size)
        self.marks = [self.board.instructions(n) for n in ticks]
        made = size + 4 * marked - first
        for at, a in zip(call.outputs, outputs, strict=True):
            held = np.frombuffer(said, np.uint8, a.nbytes, made + at)
            a.reshape(-1).view(np.uint8)[:] = held
        return self.board.instructions(count)

    def _emulate(self, folder: Path, parts: dict[int, bytes]) -> None:
        """Run the board until the program ends."""
        Path(folder, "program.elf").write_bytes(self.program)
        words = [
            PROGRAM, "-machine", self.board.name, "-nographic", "-monitor", "none", "-serial",
            "none", "-semihosting-config", "enable=on,target=native", "-icount", "shift=5",
            "-kernel", "program.elf",
        ]  # fmt: skip
        for k, (at, content) in enumerate(parts.items()):
            if content:
                Path(folder, f"{k}.bin").write_bytes(content)
                words += ["-device", f"loader,file={k}.bin,addr={at:#x},force-raw=on"]
        try:
            done = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MachineError(f"{self.board.name} has not ended after {LONGEST} seconds") from None
        except OSError as error:
            raise MachineError(f"{PROGRAM} does not start: {error.strerror or error}") from None
        if done.returncode or not Path(folder, _OUTPUT).exists():
            said = " ".join((done.stdout + done.stderr).split())
            raise MachineError(f"the program fails on {self.board.name}: {said[:300]}")


def text_bytes(program: bytes) -> int:
    """Bytes of what an ELF file of 32 bits puts into memory that programs only read: of its
    loadable segments that are not writable."""
    at, size, count = (
        struct.unpack_from("<I", program, 28)[0],
        *struct.unpack_from("<HH", program, 42),
    )
    total = 0
    for k in range(count):
        kind, _, _, _, held, _, flags, _ = struct.unpack_from("<8I", program, at + k * size)
        total += held if kind == 1 and not flags & 2 else 0
    return total


@functools.cache
def harness(target: Target, board: Board) -> bytes:
    """Object code of what calls `net_run` of a program, and counts its instructions."""
    words = {"name": NAME, "at": board.other.origin, "marks": MARKS, "output": _OUTPUT}
    return linking.object_of_c(startup(board) + _CALLER % words, target, ["-ffreestanding"])


_CALLER = """
int %(name)s_run(const void *const *, void *const *, const int64_t *, const void *, void *);

static struct {
  uint32_t status, stack, count, marked;
  uint32_t marks[%(marks)d];
} said;
static uint64_t begun;

void %(name)s_mark(void) {
  const uint32_t now = (uint32_t)(ticks() - begun);
  if (said.marked < %(marks)d) said.marks[said.marked++] = now;
}

int main(void) {
  uint32_t *const given = (uint32_t *)%(at)#x;
  begun = ticks();
  said.status = (uint32_t)%(name)s_run(
      (const void *const *)given[0], (void *const *)given[1], (const int64_t *)given[2],
      (const void *)given[3], (void *)given[4]);
  said.count = (uint32_t)(ticks() - begun);
  said.stack = stack_used();
  const char *const name = "%(output)s";
  const uint32_t open[3] = {(uint32_t)name, 5, sizeof("%(output)s") - 1};
  const int file = host(1, open);
  if (file < 0) return 98;
  const uint32_t head[3] = {(uint32_t)file, (uint32_t)&said, 16 + 4 * said.marked};
  const uint32_t body[3] = {(uint32_t)file, given[5], given[6] - given[5]};
  const int lost = host(5, head) + host(5, body);
  const uint32_t closed[1] = {(uint32_t)file};
  host(2, closed);
  return lost ? 97 : 0;
}
"""

QEMU_ARM = QemuArm()
