"""Exported programs for microcontrollers: what comes along for a board, and their memory."""

from __future__ import annotations

import struct
from dataclasses import replace

from compiler.codegen import linking
from compiler.codegen.c.names import comment
from compiler.codegen.standalone import ALIGN
from compiler.errors import LoweringError, UnsupportedError
from compiler.exporting.interface import Interface
from compiler.exporting.needs import Needs
from compiler.runtime.machines.boards import Board, Memory, board_of, linker_script, startup
from compiler.symbolic import Index
from compiler.target.registry import Target

_PLENTY = 1 << 28
_WRITABLE = 2
_LOADED = 1


def board_for(target: Target) -> Board:
    """The board that the program which comes along is for.

    Raises:
        UnsupportedError: none has such a CPU.
    """
    board = board_of(target.cpu)
    if board is None:
        raise UnsupportedError(
            f"target {str(target)!r}: no board with {target.cpu} is known: give -mcpu=cortex-m4"
        )
    return board


def check_sizes(i: Interface) -> None:
    """Refuse programs whose memory is not known when they are linked.

    Raises:
        UnsupportedError: sizes are open.
    """
    if i.dims:
        names = ", ".join(i.dims.values())
        raise UnsupportedError(
            f"the memory of a microcontroller is shared out when a program is linked, and {names} "
            "may be anything: give all inputs their sizes (--shape)"
        )


def files(i: Interface, code: bytes, board: Board) -> dict[str, tuple[bytes, str]]:
    """Name -> content, and what it is, of all but header and `code`, the object file."""
    target = i.program.target
    library: bool | None = None
    if not missing(target):
        objects = [code, *_beside(i, board)]
        library = linking.calls_mathematics(objects, target, linker_script(_large(board)))
    return {
        "main.c": (main_program(i).encode(), "runs it on files of plain numbers, by semihosting"),
        "startup.c": (startup(board).encode(), f"what {board.name} begins with"),
        "memory.ld": (linker_script(board).encode(), f"where things are in {board.name}'s memory"),
        "Makefile": (
            _makefile(i, board, library).encode(),
            "makes `main.elf`; `make run` runs it in QEMU",
        ),
    }


def needs(i: Interface, code: bytes, board: Board) -> Needs:
    """What a program takes, linked with what comes along.

    Args:
        code: its object file.

    Raises:
        LoweringError: it cannot be linked; what is missing is said.
    """
    objects, script = [code, *_beside(i, board)], linker_script(_large(board))
    return needs_of(linking.firmware(objects, i.program.target, script))


def _beside(i: Interface, board: Board) -> list[bytes]:
    """Object files of the sources that come along."""
    texts = (startup(board), main_program(i, whole=True))
    return [linking.object_of_c(t, i.program.target, ["-ffreestanding"]) for t in texts]


def _large(board: Board) -> Board:
    """The board with memory for any program."""
    return replace(
        board,
        flash=Memory(board.flash.origin, _PLENTY),
        ram=Memory(board.ram.origin, _PLENTY),
        other=Memory(1 << 30, _PLENTY),
    )


def needs_of(program: bytes) -> Needs:
    """What the segments of an ELF file of 32 bits take."""
    (at,) = struct.unpack_from("<I", program, 28)
    size, count = struct.unpack_from("<HH", program, 42)
    flash = ram = 0
    for k in range(count):
        kind, _, _, _, stored, held, flags, _ = struct.unpack_from("<8I", program, at + k * size)
        if kind == _LOADED:
            flash += stored
            ram += held if flags & _WRITABLE else 0
    return Needs(flash, ram)


def missing(target: Target) -> str:
    """Why memory cannot be told here, in one sentence; empty: it can."""
    try:
        linking.compiler_of(target)
    except LoweringError as error:
        return str(error)
    return ""


def main_program(i: Interface, whole: bool = False) -> str:
    """A program that reads inputs from files of plain numbers and writes the outputs into others,
    through a debugger or an emulator. `whole`: without its header."""
    name = i.name
    head = [f'#include "{name}.h"'] if not whole else _declared(i)
    aligned = f"__attribute__((aligned({ALIGN})))"
    held = [f"static unsigned char arena[{max(1, i.arena_bytes or 0)}] {aligned};"]
    held += [
        f"static {o.c_type} {o.name}[{max(1, Index.of(o.type.size).constant() or 0)}] {aligned};"
        for o in (*i.inputs, *i.outputs)
    ]
    read = [
        f'  if (!moved("{o.name}.bin", {o.name}, sizeof({o.name}), 0)) return 1;' for o in i.inputs
    ]
    wrote = [
        f'  if (!moved("{o.name}.bin", {o.name}, sizeof({o.name}), 1)) return 1;' for o in i.outputs
    ]
    given = ", ".join([*(o.name for o in (*i.inputs, *i.outputs)), "arena"])
    return "\n".join([
        comment(f"Runs {name}: reads each input from NAME.bin, writes each output to NAME.bin."),
        *head, "#include <stdint.h>", "",
        "int host(int operation, const void *arguments);", "void say(const char *text);",
        "uint64_t ticks(void);", "", *held, "", _MOVED, "", "int main(void) {", *read,
        "  const uint64_t begun = ticks();",
        f"  if ({name}({given})) return 2;",
        "  const uint32_t taken = (uint32_t)(ticks() - begun);",
        *wrote, '  say_number(taken);', "  return 0;", "}", "",
    ])  # fmt: skip


def _declared(i: Interface) -> list[str]:
    """What a header declares and defines, without its comments."""
    return ["#include <stdint.h>", *i.prototypes()[-2:], *i.inline()]


_MOVED = """/* Reads or writes a whole file of the machine that the debugger or emulator runs on. */
static int moved(const char *name, void *at, uint32_t bytes, int out) {
  uint32_t length = 0;
  while (name[length]) ++length;
  const uint32_t open[3] = {(uint32_t)name, out ? 5 : 1, length};
  const int file = host(1, open);
  if (file < 0) {
    say(name);
    say(" does not open\\n");
    return 0;
  }
  const uint32_t part[3] = {(uint32_t)file, (uint32_t)at, bytes};
  const int lost = host(out ? 5 : 6, part);
  const uint32_t closed[1] = {(uint32_t)file};
  host(2, closed);
  if (lost) {
    say(name);
    say(" is too short, or there is no room\\n");
  }
  return !lost;
}

/* Says how many steps of the timer the network took. */
static void say_number(uint32_t value) {
  char text[12];
  int at = 11;
  text[at] = 0;
  do {
    text[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  say(text + at);
  say(" ticks\\n");
}"""


def _makefile(i: Interface, board: Board, library: bool | None) -> str:
    """`library`: whether functions of mathematics are called; None: it is not known."""
    flags = " ".join(["$(TARGET)", *linking.THUMB_CPU])
    told = {
        True: [
            "# Functions of mathematics are those of a C library, which needs no system for it."
        ],
        False: [],
        None: [
            "# If functions of mathematics are missing, with a library of them:",
            f"# make TARGET={linking.zig_triple(i.program.target, static=True)} LIBRARY=-lm",
        ],
    }
    return "\n".join([
        "# With Arm's GCC: make CC='arm-none-eabi-gcc -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 "
        f"-mcpu={board.cpu}'",
        *told[library],
        f"TARGET = {linking.zig_triple(i.program.target, static=bool(library))}",
        f"LIBRARY ={' -lm' if library else ''}",
        f"CC = python3 -m ziglang cc -target {flags}",
        "FLAGS = -O2 -ffreestanding -static -nostartfiles -Wl,--entry=reset -Wl,--gc-sections", "",
        f"main.elf: main.c startup.c {i.name}.h {i.name}.o memory.ld",
        f"\t$(CC) $(FLAGS) -T memory.ld -o $@ startup.c main.c {i.name}.o $(LIBRARY)", "",
        "run: main.elf",
        f"\tqemu-system-arm -machine {board.name} -nographic -monitor none -serial none \\",
        "\t  -semihosting-config enable=on,target=native -icount shift=5 -kernel main.elf", "",
        "clean:", "\trm -f main.elf", "", ".PHONY: run clean", "",
    ])  # fmt: skip
