"""What the main kernels take of NVIDIA's chips, and the bound that this implies, without a GPU:
registers and spills as ptxas counts them, occupancy, and the instructions of the innermost loop.

Occupancy follows the CUDA C++ Programming Guide (12.9), section "Multiprocessor Level" and the
table of technical specifications by compute capability, as NVIDIA's occupancy calculator does:
registers are given to warps 256 at a time and warps come by fours, shared memory by 128 bytes (256
up to 7.5), of which newer chips keep 1 KiB a block. The bound takes what a multiprocessor does a
cycle at best: 4 instructions of a warp, one of which accesses memory, and as many products as the
guide's table of throughputs says, of matrices as many as NVIDIA's descriptions of its architectures
(Turing, 2018; A100, 2020; GA102, 2021; Ada, 2023; H100, 2022) say of bytes; instructions of warps
do not reach all of H100's, of whose matrices groups of four warps multiply more. Waiting for
memory, its width and conflicts are in none of it: the speed is unmeasured. Bytes are those of a
thread, also where others read the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

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
    "matrix": {75: 1024, 80: 2048, 86: 1024, 89: 1024, 90: 4096},
}
"""Instructions of threads that multiply, or products of matrices of bytes, that a multiprocessor
starts a cycle, by compute capability."""
_OPCODE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)(?:\s|$)")
_LABEL = re.compile(r"^(\$L\w+):")
_BRANCH = re.compile(r"^\s*(@!?%p\d+\s+)?bra(?:\.uni)?\s+(\$L\w+);")
_ENDS = re.compile(r"^\s*(?:ret|exit);")
_COPY = re.compile(r"^\s*(cp\.async\.c[ag]\.shared\.global)\s+\[[^]]*\], \[[^]]*\], (\d+)")
_COPIES = re.compile(r"^cp\.async\.c[ag]\.")
_MATRIX = re.compile(r"^mma\.sync\.aligned\.m(\d+)n(\d+)k(\d+)\.")
_PRODUCT = re.compile(r"^(?:fma|mad|dp4a|mul\.(?:rn\.)?f|mul\.lo|mul\.wide\.[su]16)")
"""Not products of addresses (mul.wide of 32 bits) and of divisions by constants (mul.hi)."""


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
        instructions: of the innermost loop with half of the products or more (or of all code, if
            no loop has any), as PTX writes them.
        products: multiplications among them, of a thread, those that decode a format's numbers
            and positions among them: `dp4a` counts 4, `mma.sync` what a warp multiplies by 32.
        loads: of global and of shared memory among them, and stores; `ldmatrix` and asynchronous
            copies count one.
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
    """The opcodes of the innermost loop that has half of the products of any loop or more, of the
    whole kernel if no loop has any."""
    blocks, edges = _blocks(ptx.splitlines())
    loops = [sorted(_natural(*back, edges)) for back in _backward(edges)]
    found = [_opcodes([line for k in loop for line in blocks[k]]) for loop in loops]
    most = max((mix(ops).products for ops in found), default=0)
    if not most:
        return _opcodes(ptx.splitlines())
    return min((ops for ops in found if 2 * mix(ops).products >= most), key=len)


def _blocks(lines: list[str]) -> tuple[list[list[str]], list[list[int]]]:
    """Stretches of code with no label or branch within, and where each goes on."""
    blocks: list[list[str]] = [[]]
    at: dict[str, int] = {}
    for line in lines:
        if label := _LABEL.match(line):
            blocks.append([])
            at[label[1]] = len(blocks) - 1
        blocks[-1].append(line)
        if _BRANCH.match(line) or _ENDS.match(line):
            blocks.append([])
    edges: list[list[int]] = []
    for k, block in enumerate(blocks):
        last = block[-1] if block else ""
        branch = _BRANCH.match(last)
        ends = [at[branch[2]]] if branch and branch[2] in at else []
        goes_on = not _ENDS.match(last) and not (branch and not branch[1])
        edges.append([*ends, *([k + 1] if goes_on and k + 1 < len(blocks) else [])])
    return blocks, edges


def _backward(edges: list[list[int]]) -> list[tuple[int, int]]:
    """Branches from within a loop to its first block: to one that a walk from the entry on came
    through and has not left."""
    found, seen, path = [], {0}, [(0, iter(edges[0]))]
    while path:
        here, left = path[-1]
        for k in left:
            if any(k == x for x, _ in path):
                found.append((here, k))
            if k not in seen:
                seen.add(k)
                path.append((k, iter(edges[k])))
                break
        else:
            path.pop()
    return found


def _natural(last: int, first: int, edges: list[list[int]]) -> set[int]:
    """The loop of a branch from the end of one block back to another: what comes to the branch
    without passing the latter (Aho, Lam, Sethi and Ullman, Compilers, 2006, section 9.6)."""
    loop, left = {first, last}, [last]
    while left:
        here = left.pop()
        for k, ends in enumerate(edges):
            if here in ends and k not in loop and here != first:
                loop.add(k)
                left.append(k)
    return loop


def _opcodes(lines: list[str]) -> list[str]:
    """Opcodes; that of a copy with its bytes at the end, as a load has them."""
    copies = (_COPY.match(line) for line in lines)
    found = [_OPCODE.match(line) for line in lines]
    return [
        f"{c[1]}.b{8 * int(c[2])}" if c is not None else m[1]
        for c, m in zip(copies, found, strict=True)
        if m is not None
    ]


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
        if of := _MATRIX.match(op):
            of_thread = math.prod(map(int, of.groups())) // WARP
            multiplying["matrix"] = multiplying.get("matrix", 0) + of_thread
            products += of_thread
        words = op.split(".")
        if _COPIES.match(op) or (words[0] in ("ld", "st", "ldmatrix") and "param" not in words):
            accesses += 1
            counts = [int(w[1:]) for w in words if re.fullmatch(r"[vx]\d", w)]
            # A matrix is 8 rows of 16 bytes: 4 bytes a thread, though its elements are written b16.
            size = 32 if words[0] == "ldmatrix" else int(re.sub(r"\D", "", words[-1]))
            ends = [x for x in ("global", "shared") if x in words] or ["global"]
            for end in ends:
                moved[end] += size // 8 * math.prod(counts)
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


def _bytes(m: int, n: int, k: int) -> IRModule:
    return _module("nn.dense", ((m, k), _I8), ((n, k), _I8), out_dtype="int32")


def _convolution_of_bytes(weight: tuple[int, ...], **attrs: Any) -> IRModule:
    """Of a network: what is known of the weights when it is built says how channels lie."""
    b = FunctionBuilder()
    x, w = b.param("x", _MAPS[0], _I8), np.random.default_rng(0).integers(-127, 128, weight)
    y = b.call(
        "nn.conv2d", x, b.const(w.astype(np.int8)), padding=_PADDED, out_dtype="int32", **attrs
    )
    return IRModule({"main": b.finish(y)})


MODULES: dict[str, Callable[[], IRModule]] = {
    "gemm float32": lambda: _module("nn.dense", *_GEMM),
    "gemm int8": lambda: _bytes(256, 512, 512),
    "gemm int8 dp4a": lambda: _bytes(256, 512, 512),
    "gemm int8 8192": lambda: _bytes(8192, 8192, 8192),
    "gemm posit16_es1": lambda: _in_format(_module("nn.dense", *_GEMM), "posit16_es1"),
    "gemm float8_e4m3fn": lambda: _in_format(_module("nn.dense", *_GEMM), "float8_e4m3fn"),
    "convolution float32": lambda: _module(
        "nn.conv2d", _MAPS, ((64, 64, 3, 3), _F32), padding=_PADDED
    ),
    "convolution int8": lambda: _convolution_of_bytes((64, 64, 3, 3)),
    "depthwise float32": lambda: _module(
        "nn.conv2d", _MAPS, ((64, 1, 3, 3), _F32), padding=_PADDED, groups=64
    ),
    "depthwise int8": lambda: _convolution_of_bytes((64, 1, 3, 3), groups=64),
    "softmax float32": lambda: _module("nn.softmax", ((256, 512), _F32)),
    "layer norm float32": lambda: _module(
        "nn.layer_norm", ((256, 512), _F32), ((512,), _F32), ((512,), _F32)
    ),
    "pooling float32": lambda: _module("nn.max_pool2d", _MAPS, pool_size=(2, 2), strides=(2, 2)),
}
"""Shapes of middling layers, and one large product."""
OPTIONS = {"gemm int8 dp4a": " -mattr=-mma"}
"""Of the target, beside the chip."""


def rows_of(name: str, chip: str) -> list[Kernel]:
    """A row for each kernel of the program: the one with the most products last.

    Raises:
        UnsupportedError: ptxas is not installed.
    """
    program = compile_program(MODULES[name](), f"cuda -arch={chip}{OPTIONS.get(name, '')}")
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
