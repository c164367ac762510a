"""Instruction streams of convolutions, pooling and sums on an accelerator, cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from compiler.codegen.accel.instructions import (
    ACC,
    ADD,
    FINISH,
    GREATEST,
    INPUT,
    SET,
    TAKE,
    WEIGHT,
    Alu,
    Gemm,
    Instruction,
    Load,
    Loops,
    Save,
    Sum,
)
from compiler.scheduling.accelerator_tiles import Convolution, Tile, room
from compiler.target.accelerator import Design


@dataclass(frozen=True)
class Places:
    """Where a convolution's arrays are in memory, in bytes, and bytes of an entry of each there:
    data [operands, ins, height, width] vectors, weights [outs, summed, kernel] blocks, parameters
    [outs, 2] vectors (what accumulators begin with, and what results are made with; of sums the
    operands' scales), results [outs, planes, rows, columns] vectors."""

    data: int
    weights: int
    parameters: int
    results: int
    entry: tuple[int, int, int, int]


@dataclass(frozen=True)
class Finish:
    """How results are made: see `Alu`; where a result has several bytes, these are taken from the
    accumulator, the lowest first. `signed`: of the bytes of data; `filling`: the bytes of padding;
    `addends`: of the operands of a sum, their zero points and whether their bytes are signed."""

    zero_point: int = 0
    low: int = 0
    high: int = 255
    signed: bool = False
    filling: int = 0
    addends: tuple[tuple[int, bool], tuple[int, bool]] = ((0, False), (0, False))


class _Slots:
    """What is in the slots of a buffer; the one that was used longest ago is replaced."""

    def __init__(self, count: int):
        self.held: list[object] = [None] * count
        self.used = list(range(-count, 0))

    def take(self, what: object, now: int) -> tuple[int, bool]:
        """The slot that holds this from now on, and whether it must be loaded."""
        missing = what not in self.held
        k = self.used.index(min(self.used)) if missing else self.held.index(what)
        self.held[k], self.used[k] = what, now
        return k, missing


@dataclass(frozen=True)
class _Part:
    """Positions `begin` to `end` of an axis."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def moved(self, by: int) -> _Part:
        return _Part(self.begin + by, self.end + by)


def _parts(n: int, size: int) -> list[_Part]:
    return [_Part(k, min(k + size, n)) for k in range(0, n, size)]


@dataclass(frozen=True)
class _Step:
    outs: _Part
    rows: _Part
    columns: _Part
    ins: _Part
    first: bool
    last: bool


def _steps(c: Convolution, t: Tile) -> Iterator[_Step]:
    tall, wide = c.out_size
    pixels = [(y, x) for y in _parts(tall, t.rows) for x in _parts(wide, t.columns)]
    mine = c.outs // c.groups
    outs = [p.moved(g * mine) for g in range(c.groups) for p in _parts(mine, t.outs)]
    if t.pixels_first:
        order = [(o, y, x) for y, x in pixels for o in outs]
    else:
        order = [(o, y, x) for o in outs for y, x in pixels]
    for o, y, x in order:
        first = o.begin // mine * c.summed
        ins = [o] if c.apart else [p.moved(first) for p in _parts(c.summed, t.ins)]
        for k, i in enumerate(ins):
            yield _Step(o, y, x, i, k == 0, k == len(ins) - 1)


def convolution(
    c: Convolution, t: Tile, d: Design, places: Places, how: Finish = Finish()
) -> list[Instruction]:
    """The instructions of one convolution of one image.

    Data and weights of a step are loaded once step number `slots` before it has been computed, for
    which that gives a token; results are made once those `slots` tiles before have been stored.
    """
    return _Stream(c, t, d, places, how).run()


class _Stream:
    def __init__(self, c: Convolution, t: Tile, d: Design, places: Places, how: Finish):
        self.c, self.t, self.d, self.places, self.how = c, t, d, places, how
        self.room = room(c, t)
        self.out: list[Instruction] = []

    def run(self) -> list[Instruction]:
        """All instructions, in an order in which they could be done one by one."""
        steps, t = list(_steps(self.c, self.t)), self.t
        data, weights = _Slots(self.room.data_slots), _Slots(self.room.weight_slots)
        taken = []
        for k, s in enumerate(steps):
            at, new = data.take((s.ins, s.rows, s.columns), k)
            where, fresh = weights.take((s.outs, s.ins), k)
            fresh = fresh and not self.c.pooled
            taken.append((at * self.room.data, new, where * self.room.weights, fresh))
        loads = [new or fresh for _, new, _, fresh in taken]
        tiles = sum(s.last for s in steps)
        done, params = 0, None
        for k, s in enumerate(steps):
            at, new, where, fresh = taken[k]
            found = list(self._data(s, at)) if new else []
            found += [self._weights(s, where)] if fresh else []
            if found:
                found[0] = _with(found[0], pop_next=k >= t.slots)
                found[-1] = _with(found[-1], push_next=True)
            self.out += found
            scaled = self.d.integer or self.c.pooled != "sum"
            if s.first and scaled and s.outs != params:
                self.out.append(self._parameters(s))
                params = s.outs
            frees = k + t.slots < len(steps) and loads[k + t.slots]
            tokens = {"pop_prev": loads[k], "push_prev": frees}
            slot = done % t.slots * self.room.results
            made: list[Alu | Sum] = []
            if self.c.pooled == "sum":
                made = [_with(self._sum(s, at, slot), **tokens)]
            else:
                self.out += [self._set(s)] if s.first else []
                work = self._pooled(s, at) if self.c.pooled else self._gemm(s, at, where)
                self.out.append(_with(work, **tokens))
                made += self._results(s, slot) if s.last else []
            if s.last:
                made[0] = _with(made[0], pop_next=done >= t.slots)
                made[-1] = _with(made[-1], push_next=True)
                self.out += made
                saves = list(self._saves(s, slot))
                saves[0] = _with(saves[0], pop_prev=True)
                saves[-1] = _with(saves[-1], push_prev=done + t.slots < tiles)
                self.out += saves
                done += 1
        return self.out

    def _data(self, s: _Step, at: int) -> Iterator[Load]:
        c, entry = self.c, self.places.entry[0]
        y, x = s.rows.begin * c.strides[0] - c.padding[0], s.columns.begin * c.strides[1]
        top, rows, bottom = _inside(y, c.needs(0, s.rows.size), c.height)
        left, columns, right = _inside(x - c.padding[1], c.needs(1, s.columns.size), c.width)
        plane = c.height * c.width
        start = s.ins.begin * plane + max(y, 0) * c.width + max(x - c.padding[1], 0)
        size = (top + rows + bottom) * (left + columns + right)
        for operand in range(c.operands):
            base = self.places.data + operand * c.ins * plane * entry
            if columns == c.width and not (top or bottom or left or right):
                address = base + start * entry
                yield Load(INPUT, at, address, s.ins.size, rows * c.width, plane)
                at += s.ins.size * size
                continue
            for k in range(s.ins.size):
                address = base + (start + k * plane) * entry if rows * columns else base
                yield Load(
                    INPUT, at, address, rows, columns, c.width,
                    top, bottom, left, right, self.how.filling,
                )  # fmt: skip
                at += size

    def _weights(self, s: _Step, at: int) -> Load:
        c = self.c
        first, count = (0, 1) if c.apart else (s.ins.begin % c.summed, s.ins.size)
        start = (s.outs.begin * c.summed + first) * c.taps
        address = self.places.weights + start * self.places.entry[1]
        return Load(WEIGHT, at, address, s.outs.size, count * c.taps, c.summed * c.taps)

    def _parameters(self, s: _Step) -> Load:
        address = self.places.parameters + 2 * s.outs.begin * self.places.entry[2]
        return Load(ACC, self._par, address, 1, 2 * s.outs.size, 2 * s.outs.size)

    @property
    def _par(self) -> int:
        return self.d.accs - 2 * self.t.outs

    def _set(self, s: _Step) -> Alu:
        size = s.rows.size * s.columns.size
        extents, strides = (1, 1, 1, 1, s.outs.size, size), (0, 0, 0, 0, size, 1)
        return Alu(SET, 0, 0, self._par, extents, strides, par_strides=(0, 0, 0, 0, 2, 0))

    def _gemm(self, s: _Step, at: int, where: int) -> Gemm:
        c, (tall, wide) = self.c, (s.rows.size, s.columns.size)
        height, width = c.needs(0, tall), c.needs(1, wide)
        plane, ins = height * width, 1 if c.apart else s.ins.size
        extents: Loops = (s.outs.size, ins, *c.kernel, tall, wide)
        dst: Loops = (tall * wide, 0, 0, 0, wide, 1)
        src: Loops = (
            plane if c.apart else 0, plane, c.dilation[0] * width, c.dilation[1],
            c.strides[0] * width, c.strides[1],
        )  # fmt: skip
        wgt: Loops = (ins * c.taps, c.taps, c.kernel[1], 1, 0, 0)
        return Gemm(0, at, where, extents, dst, src, wgt, self.how.signed)

    def _pooled(self, s: _Step, at: int) -> Alu:
        walk, what = self._gemm(s, at, 0), GREATEST if self.c.pooled == "max" else ADD
        return Alu(
            what, 0, at, self._par, walk.extents, walk.dst_strides, walk.src_strides,
            low=-128 if self.how.signed else 0,
        )  # fmt: skip

    def _sum(self, s: _Step, at: int, slot: int) -> Sum:
        walk, h = self._gemm(s, at, 0), self.how
        (x_zero, x_signed), (y_zero, y_signed) = h.addends
        return Sum(
            slot, at, self._par, s.ins.size * s.rows.size * s.columns.size, walk.extents,
            walk.dst_strides, walk.src_strides, (2, 0, 0, 0, 0, 0), x_zero, y_zero,
            -128 * x_signed, -128 * y_signed, h.zero_point, h.low, h.high,
        )  # fmt: skip

    def _results(self, s: _Step, slot: int) -> Iterator[Alu]:
        size, planes = s.rows.size * s.columns.size, self.c.planes
        extents, strides = (1, 1, 1, 1, s.outs.size, size), (0, 0, 0, 0, size, 1)
        made, h = (0, 0, 0, 0, size * planes, 1), self.how
        if planes == 1 and self.c.pooled != "max":
            yield Alu(
                FINISH, slot, 0, self._par + 1, extents, made, strides, (0, 0, 0, 0, 2, 0),
                h.zero_point, h.low, h.high,
            )  # fmt: skip
            return
        for k in range(planes):
            yield Alu(TAKE, slot + k * size, 0, 0, extents, made, strides, low=8 * k)

    def _saves(self, s: _Step, slot: int) -> Iterator[Save]:
        tall, wide = self.c.out_size
        rows, columns, entry = s.rows.size, s.columns.size, self.places.entry[3]
        count = s.outs.size * self.c.planes
        start = (s.outs.begin * self.c.planes * tall + s.rows.begin) * wide + s.columns.begin
        address = self.places.results + start * entry
        if columns == wide:
            yield Save(slot, address, count, rows * wide, tall * wide)
            return
        for k in range(count):
            here = address + k * tall * wide * entry
            yield Save(slot + k * rows * columns, here, rows, columns, wide)


def _inside(begin: int, count: int, size: int) -> tuple[int, int, int]:
    """How many of `count` positions from `begin` on are before an axis of `size`, on it, after."""
    before = min(max(-begin, 0), count)
    on = max(min(begin + count, size) - max(begin, 0), 0)
    return before, on, count - before - on


T = TypeVar("T", bound=Instruction)


def _with(i: T, **tokens: bool) -> T:
    given = {name: True for name, value in tokens.items() if value}
    return replace(i, tokens=replace(i.tokens, **given)) if given else i
