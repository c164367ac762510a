"""What a GPU's arithmetic does at most, measured there: loops of one instruction on registers only,
several chains of it in each thread, on every multiprocessor."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.runtime.addresses import address
from compiler.runtime.cuda.device import Device
from compiler.runtime.cuda.timing import clock
from compiler.target.cuda import WARP, Chip

CHAINS = 8
"""Sums of a thread, of which none waits for another."""
UNROLLED = 16
"""Instructions of each chain in an iteration."""
THREADS = 256
"""Of a block."""
BLOCKS = 8
"""Of a multiprocessor."""
OLDEST = "ptx70"
"""The version of PTX that has them all."""
TIMES = 4096
"""Iterations."""


@dataclass(frozen=True)
class Instruction:
    """One that multiplies and adds.

    Attributes:
        name: for people.
        opcode: in PTX.
        sums, first, second: registers of a thread that hold the sum and the operands.
        products: multiply-adds of a thread.
        least: the compute capability that has it, times ten.
        kind: type of the registers of a sum.
    """

    name: str
    opcode: str
    sums: int
    first: int
    second: int
    products: int
    least: int = 75
    kind: str = "b32"

    def line(self, chain: int, turn: int) -> str:
        """The instruction, for one of the chains; the operands change from turn to turn, so that
        no product is known from the last one."""
        total = self._group("s", chain, self.sums)
        a = self._group("a", turn % 2, self.first)
        b = self._group("b", (turn + chain) % 2, self.second)
        return f"  {self.opcode} {total}, {a}, {b}, {total};"

    def _group(self, name: str, number: int, count: int) -> str:
        words = ", ".join(f"%{name}{number * count + k}" for k in range(count))
        return words if self.sums == 1 else "{" + words + "}"


INSTRUCTIONS = (
    Instruction("float32 fma", "fma.rn.f32", 1, 1, 1, 1, kind="f32"),
    Instruction("dp4a", "dp4a.s32.s32", 1, 1, 1, 4),
    Instruction(
        "mma int8 (m8n8k16)", "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
        2, 1, 1, 8 * 8 * 16 // WARP,
    ),
    Instruction(
        "mma int8", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
        4, 4, 2, 16 * 8 * 32 // WARP, 80,
    ),
    Instruction(
        "mma float16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        4, 4, 2, 16 * 8 * 16 // WARP, 80, "f32",
    ),
)  # fmt: skip


def text(i: Instruction, chip: Chip) -> str:
    """PTX of the loop: `loop(out, times)` leaves 4 bytes of each thread at `out`."""
    version = ".".join(re.findall(r"\d", max(chip.ptx, OLDEST)))
    operand = "f32" if i.kind == "f32" and i.first == 1 else "b32"
    begin = "mov.b32 {0}, %t;" if operand == "b32" else "cvt.rn.f32.u32 {0}, %t;"
    held = [f"%a{k}" for k in range(2 * i.first)] + [f"%b{k}" for k in range(2 * i.second)]
    sums = [f"%s{k}" for k in range(i.sums * CHAINS)]
    zero = "0f00000000" if i.kind == "f32" else "0"
    add = f"add.{'f32' if i.kind == 'f32' else 's32'} %s0, %s0, {{0}};"
    lines = [
        f".version {version}",
        f".target {chip.name}",
        ".address_size 64",
        ".visible .entry loop(.param .u64 out, .param .u64 times)",
        "{",
        f"  .reg .{i.kind} %s<{len(sums)}>;",
        f"  .reg .{operand} %a<{2 * i.first}>, %b<{2 * i.second}>;",
        "  .reg .b32 %t, %n, %c, %m;",
        "  .reg .b64 %o, %k, %p;",
        "  .reg .pred %q;",
        "  ld.param.u64 %o, [out];",
        "  ld.param.u64 %k, [times];",
        "  mov.u32 %t, %tid.x;",
        "  mov.u32 %n, %ntid.x;",
        "  mov.u32 %c, %ctaid.x;",
        "  mad.lo.u32 %m, %c, %n, %t;",
        *(line for x in held for line in ("  " + begin.format(x), "  add.u32 %t, %t, 7;")),
        *(f"  mov.{i.kind} {x}, {zero};" for x in sums),
        "  cvt.u32.u64 %n, %k;",
        "$again:",
        *(i.line(chain, turn) for turn in range(UNROLLED) for chain in range(CHAINS)),
        "  sub.u32 %n, %n, 1;",
        "  setp.ne.u32 %q, %n, 0;",
        "  @%q bra $again;",
        *("  " + add.format(x) for x in sums[1:]),
        "  cvta.to.global.u64 %o, %o;",
        "  mul.wide.u32 %p, %m, 4;",
        "  add.u64 %o, %o, %p;",
        f"  st.global.{i.kind} [%o], %s0;",
        "  ret;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def limit(
    i: Instruction, device: Device, chip: Chip, runs: int, blocks: int = 0, times: int = 0
) -> float:
    """Multiply-adds a second: the best of some runs, of so many blocks on a multiprocessor and so
    many iterations (0: the module's).

    Raises:
        MachineError: it fails.
    """
    driver = device.driver
    blocks, times = blocks or BLOCKS, times or TIMES
    grid = (driver.properties.multiprocessors * blocks, 1, 1)
    function = device.module(text(i, chip).encode()).function("loop")
    stream = driver.stream()
    out = driver.allocate(4 * grid[0] * THREADS)
    try:
        launch = _launcher(device, function, grid, [out, times], stream)
        with clock(driver, stream) as timed:
            best = min(timed(launch) for _ in range(runs + 1))
        last = np.zeros(1, np.int32)
        driver.download(address(last), out, 4, stream)
        driver.synchronize(stream)
    finally:
        driver.free(out)
        driver.close_stream(stream)
    done = grid[0] * THREADS * times * UNROLLED * CHAINS * i.products
    return float(done / best * 1e3)


def _launcher(
    device: Device, function: int, grid: tuple[int, int, int], given: Sequence[int], stream: int
) -> Callable[[], None]:
    def launch() -> None:
        device.driver.launch(function, grid, (THREADS, 1, 1), given, 0, stream)

    return launch


def limits(device: Device, chip: Chip, runs: int) -> dict[str, float]:
    """Name -> multiply-adds a second, of the instructions that a chip has."""
    mine = (i for i in INSTRUCTIONS if i.least <= chip.capability)
    return {i.name: limit(i, device, chip, runs) for i in mine}
