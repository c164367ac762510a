"""What the main kernels take of NVIDIA's chips, and the bound that this implies, without a GPU:
registers and spills as ptxas counts them, occupancy, and the instructions of the innermost loop.

Occupancy follows the CUDA C++ Programming Guide (12.9), section "Multiprocessor Level" and the
table of technical specifications by compute capability, as NVIDIA's occupancy calculator does:
registers are given to warps 256 at a time and warps come by fours, shared memory by 128 bytes (256
up to 7.5), of which newer chips keep 1 KiB a block. The bound takes what a multiprocessor does a
cycle at best: 4 instructions of a warp, one of which accesses memory, and as many products as the
guide's table of throughputs says. Waiting for memory, its width and conflicts are in none of it:
the speed is unmeasured. Bytes are those of a thread, also where others read the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from compiler.build import compile_program
from compiler.codegen.kernel_abi import Stage
from compiler.codegen.ptx.assembler import Assembled, assemble, assembler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.target.cuda import CHIPS, WARP, Chip
from compiler.types.dtypes import DType
from experiments.benchmarks.row_files import write_rows

USED = ("sm_75", "sm_80", "sm_90", "sm_90a")
SCHEDULERS = 4
"""Of a multiprocessor, of an instruction a cycle each."""
BLOCKS = {75: 16, 80: 32, 86: 16, 89: 24, 90: 32}
"""Blocks that a multiprocessor holds at most, by compute capability."""
RATES = {
    "f32": {75: 64, 80: 64, 86: 128, 89: 128, 90: 128},
    "f64": {75: 2, 80: 32, 86: 2, 89: 2, 90: 64},
    "int": {75: 64, 80: 64, 86: 64, 89: 64, 90: 64},
}
"""Products of threads that a multiprocessor starts a cycle, by compute capability."""
_OPCODE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)\s")
_LABEL = re.compile(r"^(\$L\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L\w+);")
_PRODUCT = re.compile(r"^(?:fma|mad|dp4a|mul\.(?:rn\.)?f|mul\.lo|mul\.wide\.[su]16)")
"""Not products of addresses (mul.wide of 32 bits) and of divisions by constants (mul.hi);
those of matrices have no count yet."""


@dataclass(frozen=True)
class Kernel:
    """A row of the table: one kernel on one chip.

    Attributes:
        kernel: what it computes.
        chip: such as `sm_80`.
        registers: of 32 bits, of a thread.
        shared: bytes of shared memory of a block.
        spills: bytes that a thread stores and loads since there are too few registers.
        threads: of a block.
        warps: that a multiprocessor holds at once.
        occupancy: that by the most it could hold.
        instructions: of the innermost loop with products (or of all code, if there is none), as
            PTX writes them.
        products: multiplications among them, of a thread, those that decode a format's numbers
            and positions among them: `dp4a` counts 4.
        loads: of global and of shared memory among them, and stores.
        global_bytes: moved from and to global memory for each product.
        shared_bytes: the same of shared memory.
        per_instruction: products for each instruction.
        peak: share of the peak of those products that instructions and accesses allow.
    """

    kernel: str
    chip: str
    registers: int
    shared: int
    spills: int
    threads: int
    warps: int
    occupancy: float
    instructions: int
    products: int
    loads: int
    global_bytes: float
    shared_bytes: float
    per_instruction: float
    peak: float


@dataclass(frozen=True)
class Mix:
    """What a stretch of PTX does: instructions, those that multiply, by kind of pipe, products,
    accesses, bytes of global and of shared memory."""

    instructions: int
    multiplying: dict[str, int]
    products: int
    accesses: int
    of_global: int
    of_shared: int


def body(ptx: str) -> list[str]:
    """The opcodes of the innermost loop with the most products, or of the whole kernel if no loop
    has any."""
    lines = ptx.splitlines()
    at = {m[1]: k for k, line in enumerate(lines) if (m := _LABEL.match(line))}
    loops = []
    for k, line in enumerate(lines):
        found = _BRANCH.search(line)
        if found and at.get(found[1], k) < k:
            loops.append((at[found[1]], k))
    innermost = [
        (a, b) for a, b in loops if not any((a, b) != x and a <= x[0] <= x[1] <= b for x in loops)
    ]
    parts = [_opcodes(lines[a : b + 1]) for a, b in innermost]
    best = max(parts, key=lambda ops: mix(ops).products, default=[])
    return best if mix(best).products else _opcodes(lines)


def _opcodes(lines: list[str]) -> list[str]:
    found = (_OPCODE.match(line) for line in lines)
    return [m[1] for m in found if m is not None]


def mix(opcodes: list[str]) -> Mix:
    """What opcodes such as `ld.global.v4.b32` do."""
    multiplying: dict[str, int] = {}
    products = accesses = 0
    moved = {"global": 0, "shared": 0}
    for op in opcodes:
        if _PRODUCT.match(op):
            kind = "f64" if op.endswith("f64") else "int" if "f" not in op[3:] else "f32"
            multiplying[kind] = multiplying.get(kind, 0) + 1
            products += 4 if op.startswith("dp4a") else 1
        words = op.split(".")
        if words[0] in ("ld", "st") and "param" not in words:
            accesses += 1
            count = next((int(w[1:]) for w in words if re.fullmatch(r"v\d", w)), 1)
            size = int(re.sub(r"\D", "", words[-1])) // 8 * count
            moved["shared" if "shared" in words else "global"] += size
    return Mix(len(opcodes), multiplying, products, accesses, moved["global"], moved["shared"])


def occupancy(chip: Chip, registers: int, shared: int, threads: int) -> int:
    """Warps that a multiprocessor holds at once, of blocks that take so much (see the module's
    text); 0: not even one block fits."""
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // 256) * 256
    by_registers = chip.registers // of_warp // SCHEDULERS * SCHEDULERS // warps
    newer = chip.capability >= 80
    kept, unit = (1 << 10, 128) if newer else (0, 256)
    taken = -(-(shared + kept) // unit) * unit
    by_shared = (chip.shared + kept) // taken if taken else BLOCKS[chip.capability]
    by_threads = chip.threads // WARP // warps
    return min(by_registers, by_shared, by_threads, BLOCKS[chip.capability]) * warps


def peak(chip: Chip, m: Mix) -> float:
    """The share of the peak of a kernel's products that its instructions and accesses
    allow, of a multiprocessor full of warps; 0 if it has none."""
    pipe = max(
        (n * WARP / RATES[kind][chip.capability] for kind, n in m.multiplying.items()), default=0.0
    )
    issue = m.instructions / SCHEDULERS
    return pipe / max(pipe, issue, float(m.accesses))


def _module(op: str, *types: tuple[tuple[int, ...], str], **attrs: Any) -> IRModule:
    b = FunctionBuilder()
    given = [b.param(f"p{k}", shape, DType.parse(d)) for k, (shape, d) in enumerate(types)]
    return IRModule({"main": b.finish(b.call(op, *given, **attrs))})


def _in_format(mod: IRModule, fmt: str) -> IRModule:
    import datatypes

    out: IRModule = datatypes.change_dtype(mod, "float32", fmt)
    return out


_F32, _I8 = "float32", "int8"
_GEMM = ((256, 512), _F32), ((512, 512), _F32)
_MAPS = ((1, 64, 28, 28), _F32)
_PADDED = (1, 1, 1, 1)
MODULES: dict[str, Callable[[], IRModule]] = {
    "gemm float32": lambda: _module("nn.dense", *_GEMM),
    "gemm int8": lambda: _module(
        "nn.dense", ((256, 512), _I8), ((512, 512), _I8), out_dtype="int32"
    ),
    "gemm posit16_es1": lambda: _in_format(_module("nn.dense", *_GEMM), "posit16_es1"),
    "gemm float8_e4m3fn": lambda: _in_format(_module("nn.dense", *_GEMM), "float8_e4m3fn"),
    "convolution float32": lambda: _module(
        "nn.conv2d", _MAPS, ((64, 64, 3, 3), _F32), padding=_PADDED
    ),
    "depthwise float32": lambda: _module(
        "nn.conv2d", _MAPS, ((64, 1, 3, 3), _F32), padding=_PADDED, groups=64
    ),
    "softmax float32": lambda: _module("nn.softmax", ((256, 512), _F32)),
    "layer norm float32": lambda: _module(
        "nn.layer_norm", ((256, 512), _F32), ((512,), _F32), ((512,), _F32)
    ),
    "pooling float32": lambda: _module("nn.max_pool2d", _MAPS, pool_size=(2, 2), strides=(2, 2)),
}
"""Shapes of middling layers."""


def rows_of(name: str, chip: str) -> list[Kernel]:
    """A row for each kernel of the program: the one with the most products last.

    Raises:
        UnsupportedError: ptxas is not installed.
    """
    program = compile_program(MODULES[name](), f"cuda -arch={chip}")
    out = []
    for k in program.kernels:
        found, _ = assemble(k.code, chip)
        by_name = {a.kernel: a for a in found}
        entries = re.split(r"(?=\.visible \.entry )", k.code.decode())[1:]
        for stage, text in zip(k.stages, entries, strict=True):
            out.append(_row(name, CHIPS[chip], stage, by_name[stage.symbol], text))
    if len(out) > 1:
        out = [_numbered(r, k) for k, r in enumerate(out)]
    return sorted(out, key=lambda r: r.products)


def _numbered(row: Kernel, k: int) -> Kernel:
    from dataclasses import replace

    return replace(row, kernel=f"{row.kernel} {k}")


def _row(name: str, chip: Chip, stage: Stage, took: Assembled, text: str) -> Kernel:
    assert stage.launch is not None
    x, y, z = stage.launch.threads
    threads, shared = x * y * z, took.shared + stage.launch.shared
    warps = occupancy(chip, took.registers, shared, threads)
    m = mix(body(text))
    products = max(m.products, 1)
    return Kernel(
        name,
        chip.name,
        took.registers,
        shared,
        took.spills,
        threads,
        warps,
        warps * WARP / chip.threads,
        m.instructions,
        m.products,
        m.accesses,
        m.of_global / products,
        m.of_shared / products,
        m.products / m.instructions,
        peak(chip, m),
    )


def run(output: Path | None = None) -> bool:
    """Print the table, and write it as CSV; always true, for nothing is measured."""
    if not assembler():
        click.echo("cuda_kernels: ptxas is not installed: pip install nvidia-cuda-nvcc")
        return True
    click.echo(
        "kernels of NVIDIA's GPUs, as ptxas takes them; bounds, not speed, which is unmeasured\n"
        f"{'kernel':24} {'chip':7} regs shared spill thr warps  occ  instr prod  ld/st "
        "global/p shared/p prod/in  peak"
    )
    rows = []
    for name in MODULES:
        for chip in USED:
            for r in rows_of(name, chip):
                rows.append(r)
                click.echo(
                    f"{r.kernel:24} {r.chip:7} {r.registers:4} {r.shared:6} {r.spills:5} "
                    f"{r.threads:3} {r.warps:5} {r.occupancy:4.2f} {r.instructions:6} "
                    f"{r.products:4} {r.loads:6} {r.global_bytes:8.2f} {r.shared_bytes:8.2f} "
                    f"{r.per_instruction:7.2f} {r.peak:5.2f}"
                )
    if output is not None:
        write_rows(output, rows, Kernel)
    return True
