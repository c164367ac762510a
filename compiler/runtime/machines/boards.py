"""Boards with microcontrollers as data, and what programs on them begin with: vectors, start-up
code, a script for the linker.

Sources: Arm's application notes AN386, AN500 and AN547 (memory maps, clocks), the Armv7-M and
Armv8-M architecture reference manuals (vectors, SysTick, CPACR), Arm's semihosting specification.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Addresses from `origin` on."""

    origin: int
    size: int


@dataclass(frozen=True)
class Board:
    """A board that QEMU emulates.

    Attributes:
        name: what QEMU calls it.
        cpu: of Arm's; LLVM's name of it.
        flash: where code and constants are, read-only for programs.
        ram: fast memory, for the stack, the arena, inputs and outputs.
        other: larger and slower memory, where a program that is measured here finds what its caller
            gives it.
        clock: of the processor and its timer, in Hz.
    """

    name: str
    cpu: str
    flash: Memory
    ram: Memory
    other: Memory
    clock: int

    def instructions(self, ticks: int) -> int:
        """How many instructions the processor's timer has counted, if each takes 32 ns, as with
        QEMU's option `-icount shift=5`."""
        return round(ticks * 1e9 / self.clock / 32)


_MIB = 1 << 20
BOARDS = (
    Board(
        "mps2-an386", "cortex-m4", Memory(0, 4 * _MIB), Memory(0x20000000, 4 * _MIB),
        Memory(0x21000000, 16 * _MIB), 25000000,
    ),
    Board(
        "mps2-an500", "cortex-m7", Memory(0, 4 * _MIB), Memory(0x20000000, 4 * _MIB),
        Memory(0x60000000, 16 * _MIB), 25000000,
    ),
    Board(
        "mps3-an547", "cortex-m55", Memory(0, _MIB // 2), Memory(0x20000000, _MIB // 2),
        Memory(0x60000000, 256 * _MIB), 32000000,
    ),
)  # fmt: skip
"""One for each CPU."""

STACK = 16 << 10
"""Bytes of memory that programs are given for their stack; how many they use is measured."""


def board_of(cpu: str) -> Board | None:
    """The board with a CPU, if there is one."""
    return next((b for b in BOARDS if b.cpu == cpu), None)


def linker_script(board: Board) -> str:
    """Where the parts of a program go: constants stay in flash."""

    def memory(name: str, kind: str, m: Memory) -> str:
        return f"  {name} ({kind}) : ORIGIN = {m.origin:#x}, LENGTH = {m.size:#x}"

    return "\n".join([
        f"/* Memory of {board.name} ({board.cpu}). */",
        "ENTRY(reset)", "MEMORY {",
        memory("flash", "rx", board.flash), memory("ram", "rw", board.ram),
        memory("other", "rwx", board.other), "}",
        "SECTIONS {",
        "  .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) . = ALIGN(8); } > flash",
        "  .ARM.exidx : { *(.ARM.exidx*) } > flash",
        "  .data : ALIGN(8) {",
        "    data_begin = .; *(.data*) . = ALIGN(8); data_end = .;",
        "  } > ram AT> flash",
        "  data_from = LOADADDR(.data);",
        "  .bss (NOLOAD) : ALIGN(64) {",
        "    bss_begin = .; *(.bss*) *(COMMON) . = ALIGN(8); bss_end = .;",
        "  } > ram",
        "  .stack (NOLOAD) : ALIGN(8) {",
        f"    stack_begin = .; . += {STACK:#x}; stack_end = .;",
        "  } > ram",
        "  /DISCARD/ : { *(.comment) *(.ARM.attributes) *(.debug*) }",
        "}", "",
    ])  # fmt: skip


def startup(board: Board) -> str:
    """Start-up code in C: memory is set up, `main` is called, and what it returns is the exit
    status. It also has what programs under an emulator or a debugger use: `host`, `say`,
    `ticks` (see `Board.instructions`) and `stack_used`."""
    return _STARTUP % {"board": board.name, "cpu": board.cpu}


_STARTUP = """/* Start-up code of %(board)s (%(cpu)s). */
#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))
extern uint32_t stack_begin[], stack_end[], bss_begin[], bss_end[];
extern uint32_t data_begin[], data_end[], data_from[];
int main(void);
void reset(void);

static volatile uint32_t wraps; /* how often the 24 bits of SysTick have run out */

/* A semihosting call: what a debugger or an emulator does for the program. */
int host(int operation, const void *arguments) {
  register int result __asm__("r0") = operation;
  register const void *given __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xab" : "+r"(result) : "r"(given) : "memory", "cc");
  return result;
}

void say(const char *text) { host(4, text); }

static void leave(uint32_t status) {
  const uint32_t arguments[2] = {0x20026, status};
  host(0x20, arguments);
  for (;;) {
  }
}

static void say_hex(uint32_t value) {
  char text[10] = "        \\n";
  for (int i = 0; i < 8; ++i) text[i] = "0123456789abcdef"[(value >> (28 - 4 * i)) & 15];
  say(text);
}

/* Tells what has gone wrong: status register of faults, and the address if one is known. */
static void fault(void) {
  say("fault, status and address:\\n");
  say_hex(REGISTER(0xE000ED28));
  say_hex(REGISTER(0xE000ED38));
  leave(99);
}

static void tick(void) { ++wraps; }

/* Steps of the timer since the start. */
uint64_t ticks(void) {
  uint32_t high, low;
  do {
    high = wraps;
    low = REGISTER(0xE000E018);
  } while (high != wraps);
  return ((uint64_t)high << 24) + (0xffffff - low);
}

/* Bytes of the stack that have been written. */
uint32_t stack_used(void) {
  const uint32_t *at = stack_begin;
  while (at < stack_end && *at == 0xA5A5A5A5) ++at;
  return (uint32_t)((const char *)stack_end - (const char *)at);
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_end, (const void *)reset, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault, 0,
    0, 0, 0, (const void *)fault,
    (const void *)fault, 0, (const void *)fault, (const void *)tick};

__attribute__((noinline)) static void begin(void) {
  for (uint32_t *to = data_begin, *from = data_from; to < data_end;) *to++ = *from++;
  for (uint32_t *to = bss_begin; to < bss_end;) *to++ = 0;
  REGISTER(0xE000E014) = 0xffffff; /* SysTick: all its bits, an interrupt at 0, on */
  REGISTER(0xE000E018) = 0;
  REGISTER(0xE000E010) = 7;
  leave((uint32_t)main());
}

void reset(void) {
  REGISTER(0xE000ED88) |= 0xFu << 20; /* the floating-point unit */
  __asm__ volatile("dsb\\n\\tisb" ::: "memory");
  uint32_t *here;
  __asm__ volatile("mov %%0, sp" : "=r"(here));
  for (uint32_t *to = stack_begin; to < here - 8; ++to) *to = 0xA5A5A5A5;
  begin();
}
"""
