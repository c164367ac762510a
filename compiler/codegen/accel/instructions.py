"""Instructions of an accelerator (see `compiler.target.accelerator`) as data: five kinds, each with
tokens that order it against instructions of the other units.

The units stand in a row: load, compute, store. An instruction waits until it can take a token from
the unit before its own or after (`pop_prev`, `pop_next`), and gives one when it is done
(`push_prev`, `push_next`), as VTA's do. Buffers are counted in entries: vectors of data (INPUT),
blocks of weights (WEIGHT), vectors of accumulators (ACC) and of results (OUTPUT); memory in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from compiler.types.dtypes import Array

FIELDS = 32
"""Numbers (int64) of an encoded instruction."""
LOOPS = 6
"""Loops that an instruction of the computing unit counts."""
LOAD, GEMM, ALU, STORE, SUM = range(5)
INPUT, WEIGHT, ACC, OUTPUT = range(4)
BUFFERS = ("input", "weight", "acc", "output")
UNITS = ("load", "compute", "store")
OPCODES = ("load", "gemm", "alu", "store", "sum")
SET, FINISH, TAKE, GREATEST, ADD = range(5)
ALU_NAMES = ("set", "finish", "take", "max", "add")
"""What the ALU does to vectors: `set` copies a vector of parameters into accumulators, `finish`
makes a vector of results of accumulators, with a vector of parameters, `take` one of the bytes of
integers in accumulators; `max` leaves the greater of accumulators and of a vector of bytes, `add`
their sum."""

Loops = tuple[int, ...]
_PLAIN: Loops = (1, 1, 1, 1, 1, 1)
_NONE: Loops = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Tokens:
    """What an instruction waits for, and what it tells its neighbours."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False

    @property
    def bits(self) -> int:
        """As one number."""
        return self.pop_prev | self.pop_next << 1 | self.push_prev << 2 | self.push_next << 3

    @staticmethod
    def of(bits: int) -> Tokens:
        """The inverse of `bits`."""
        return Tokens(*(bool(bits >> k & 1) for k in range(4)))

    def __str__(self) -> str:
        names = ("pop_prev", "pop_next", "push_prev", "push_next")
        return "".join(f" {name}" for name in names if getattr(self, name))


FREE = Tokens()


@dataclass(frozen=True)
class Load:
    """`rows` rows of `columns` entries from memory, `stride` entries apart there, one behind the
    other in the buffer from entry `at` on, inside a border of entries whose bytes are all
    `filling`. What goes to ACC is loaded by the computing unit, the rest by the loading one."""

    buffer: int
    at: int
    address: int
    rows: int
    columns: int
    stride: int
    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0
    filling: int = 0
    tokens: Tokens = FREE

    @property
    def unit(self) -> int:
        """The unit that does it."""
        return 1 if self.buffer == ACC else 0

    @property
    def entries(self) -> int:
        """Entries of the buffer that it writes."""
        return (self.top + self.rows + self.bottom) * (self.left + self.columns + self.right)

    def numbers(self) -> list[int]:
        """As it is encoded."""
        border = [self.top, self.bottom, self.left, self.right]
        place = [self.buffer, self.at, self.address, self.rows, self.columns, self.stride]
        return [LOAD, self.tokens.bits, *place, *border, self.filling]

    def __str__(self) -> str:
        border = ""
        if self.entries != self.rows * self.columns:
            border = f" border {self.top},{self.bottom},{self.left},{self.right}={self.filling}"
        return (
            f"load {BUFFERS[self.buffer]}[{self.at}] <- {self.address:#x} "
            f"{self.rows}x{self.columns} stride {self.stride}{border}{self.tokens}"
        )


class _Computing:
    """What the computing unit does, again and again."""

    extents: Loops
    unit = 1

    @property
    def steps(self) -> int:
        """How often: cycles of an instruction of which each step takes one."""
        return int(np.prod(self.extents, dtype=np.int64))


@dataclass(frozen=True)
class Gemm(_Computing):
    """For each step of six nested loops, acc[dst] += input[src] times weight[wgt]: `extents` count
    the steps, the strides of the three indices say how far each loop moves them from where they
    begin. `signed`: of the bytes of data."""

    dst: int
    src: int
    wgt: int
    extents: Loops = _PLAIN
    dst_strides: Loops = _NONE
    src_strides: Loops = _NONE
    wgt_strides: Loops = _NONE
    signed: bool = False
    tokens: Tokens = FREE

    def numbers(self) -> list[int]:
        """As it is encoded."""
        head = [GEMM, self.tokens.bits, int(self.signed), self.dst, self.src, self.wgt, 0, 0]
        return [*head, *self.extents, *self.dst_strides, *self.src_strides, *self.wgt_strides]

    def __str__(self) -> str:
        return (
            f"gemm acc[{self.dst}] += input[{self.src}] * weight[{self.wgt}] for "
            f"{'x'.join(map(str, self.extents))}{self.tokens}"
        )


@dataclass(frozen=True)
class Alu(_Computing):
    """For each step of the loops, one operation on vectors: `set` acc[dst] = acc[par]; `finish`
    output[dst] = acc[src] with parameters acc[par], on integers clip(nearest(float32(acc) *
    float32(par)) + zero_point, low, high), to even, in float32; on formats the nearest number;
    `take` output[dst] = the byte of acc[src] that begins at bit `low`; `max` acc[dst] = the greater
    of it and input[src], whose bytes are numbers from `low` on, -128 or 0; `add` their sum."""

    what: int
    dst: int
    src: int
    par: int
    extents: Loops = _PLAIN
    dst_strides: Loops = _NONE
    src_strides: Loops = _NONE
    par_strides: Loops = _NONE
    zero_point: int = 0
    low: int = 0
    high: int = 255
    tokens: Tokens = FREE

    def numbers(self) -> list[int]:
        """As it is encoded; the three numbers of bytes in one."""
        immediate = _packed(self.zero_point, self.low, self.high)
        head = [ALU, self.tokens.bits, self.what, self.dst, self.src, self.par, immediate, 0]
        return [*head, *self.extents, *self.dst_strides, *self.src_strides, *self.par_strides]

    def __str__(self) -> str:
        name = ALU_NAMES[self.what]
        return (
            f"alu {name} {self.dst}, {self.src}, {self.par} for "
            f"{'x'.join(map(str, self.extents))}{self.tokens}"
        )


@dataclass(frozen=True)
class Sum(_Computing):
    """For each step of the loops, output[dst] = the sum of x = input[src] and y = input[src +
    apart]: of integers clip(nearest(float32(x - x_zero) * float32(acc[par]) + float32(y - y_zero) *
    float32(acc[par + 1])) + zero_point, low, high), in float32; of formats the nearest number to x
    + y. Two cycles a step, since it reads two vectors of data.

    Attributes:
        x_low, y_low: the least number that a byte stands for, -128 or 0.
    """

    dst: int
    src: int
    par: int
    apart: int
    extents: Loops = _PLAIN
    dst_strides: Loops = _NONE
    src_strides: Loops = _NONE
    par_strides: Loops = _NONE
    x_zero: int = 0
    y_zero: int = 0
    x_low: int = 0
    y_low: int = 0
    zero_point: int = 0
    low: int = 0
    high: int = 255
    tokens: Tokens = FREE

    def numbers(self) -> list[int]:
        """As it is encoded."""
        x = _packed(self.x_zero, self.y_zero, (self.x_low < 0) | (self.y_low < 0) << 1)
        immediate = _packed(self.zero_point, self.low, self.high)
        head = [SUM, self.tokens.bits, x, self.dst, self.src, self.par, immediate, self.apart]
        return [*head, *self.extents, *self.dst_strides, *self.src_strides, *self.par_strides]

    def __str__(self) -> str:
        return (
            f"sum output[{self.dst}] <- input[{self.src}] + input[{self.src + self.apart}] for "
            f"{'x'.join(map(str, self.extents))}{self.tokens}"
        )


@dataclass(frozen=True)
class Save:
    """Entries of the buffer of results from `at` on to memory: `rows` rows of `columns` entries,
    `stride` entries apart there."""

    at: int
    address: int
    rows: int
    columns: int
    stride: int
    tokens: Tokens = FREE

    unit = 2

    @property
    def entries(self) -> int:
        """Entries of the buffer that it reads."""
        return self.rows * self.columns

    def numbers(self) -> list[int]:
        """As it is encoded."""
        place = [OUTPUT, self.at, self.address, self.rows, self.columns, self.stride]
        return [STORE, self.tokens.bits, *place]

    def __str__(self) -> str:
        return (
            f"store {self.address:#x} <- output[{self.at}] {self.rows}x{self.columns} "
            f"stride {self.stride}{self.tokens}"
        )


Instruction = Load | Gemm | Alu | Sum | Save


def encoded(instructions: Iterable[Instruction]) -> Array:
    """A stream as int64 [n, FIELDS]."""
    rows = [i.numbers() for i in instructions]
    out = np.zeros((len(rows), FIELDS), np.int64)
    for k, numbers in enumerate(rows):
        out[k, : len(numbers)] = numbers
    return out


def decoded(stream: Array) -> list[Instruction]:
    """The inverse of `encoded`."""
    return [_decoded([int(v) for v in row]) for row in stream]


def _decoded(v: list[int]) -> Instruction:
    tokens = Tokens.of(v[1])
    extents, dst, src, third = (tuple(v[8 + LOOPS * k : 8 + LOOPS * (k + 1)]) for k in range(4))
    if v[0] == LOAD:
        place, (top, bottom, left, right), filling = v[2:8], v[8:12], v[12]
        buffer, at, address, rows, columns, stride = place
        return Load(
            buffer, at, address, rows, columns, stride, top, bottom, left, right, filling, tokens
        )
    if v[0] == STORE:
        at, address, rows, columns, stride = v[3:8]
        return Save(at, address, rows, columns, stride, tokens)
    if v[0] == GEMM:
        return Gemm(v[3], v[4], v[5], extents, dst, src, third, bool(v[2]), tokens)
    zero_point, low, high = _unpacked(v[6])
    if v[0] == SUM:
        x_zero, y_zero, signs = _unpacked(v[2])
        lows = (-128 * (signs & 1), -64 * (signs & 2))
        return Sum(
            v[3], v[4], v[5], v[7], extents, dst, src, third, x_zero, y_zero, *lows,
            zero_point, low, high, tokens,
        )  # fmt: skip
    return Alu(
        v[2], v[3], v[4], v[5], extents, dst, src, third, zero_point, low, high, tokens
    )  # fmt: skip


def _packed(*halves: int) -> int:
    """Up to three numbers of 16 bits in one."""
    return sum((n & 0xFFFF) << 16 * k for k, n in enumerate(halves))


def _unpacked(whole: int) -> tuple[int, int, int]:
    first, second, third = (_signed(whole >> 16 * k & 0xFFFF) for k in range(3))
    return first, second, third


def _signed(half: int) -> int:
    return half - (1 << 16) if half >> 15 else half
