"""Tiles of convolutions for an accelerator (see `compiler.target.accelerator`): what fits into its
buffers, and how many cycles that takes by a model of its units.

A tile of results is `rows` x `columns` pixels of `outs` blocks of channels; it is summed up in
steps over `ins` blocks of channels of the data. With two slots a buffer is loaded while what is in
its other half is computed with. A tile that is in a slot already is not loaded again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.errors import UnsupportedError
from compiler.target.accelerator import Design


@dataclass(frozen=True)
class Convolution:
    """The shape of a convolution, channels counted in blocks.

    Attributes:
        ins, outs: blocks of channels.
        height, width: of the data.
        kernel, strides, dilation: rows and columns.
        padding: top, left, bottom, right.
        apart: whether every block of results comes from the same block of data alone (depthwise).
        planes: bytes of a result: 4 of accumulators as they are.
        pooled: what the ALU does with the numbers of each window, where it is no convolution but
            pooling (`apart`, too): "max" or "add"; or "sum", where it adds two tensors, number by
            number (windows of one pixel). There are no weights then.
        groups: parts that blocks of results and of data are in, each as many as the others: results
            come from the data of their own group alone.
    """

    ins: int
    outs: int
    height: int
    width: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    apart: bool = False
    planes: int = 1
    pooled: str = ""
    groups: int = 1

    @property
    def weighted(self) -> int:
        """Blocks of weights."""
        return 0 if self.pooled else self.outs * self.summed * self.taps

    @property
    def operands(self) -> int:
        """Tensors of data."""
        return 2 if self.pooled == "sum" else 1

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @cached_property
    def out_size(self) -> tuple[int, int]:
        """Rows and columns of the results."""
        top, left, bottom, right = self.padding
        sizes = (self.height + top + bottom, self.width + left + right)
        tall, wide = (
            (size - (k - 1) * d - 1) // s + 1
            for size, k, d, s in zip(sizes, self.kernel, self.dilation, self.strides, strict=True)
        )
        return tall, wide

    @property
    def summed(self) -> int:
        """Blocks of data that a block of results is summed over."""
        return 1 if self.apart else self.ins // self.groups

    @property
    def steps(self) -> int:
        """Vectors by blocks, or vectors that are compared: cycles of the multipliers, or of the
        ALU."""
        tall, wide = self.out_size
        return self.outs * self.summed * self.taps * tall * wide * self.operands

    def needs(self, axis: int, count: int) -> int:
        """Rows (axis 0) or columns of data, padding included, that so many of the results need."""
        k, s, d = self.kernel[axis], self.strides[axis], self.dilation[axis]
        return (count - 1) * s + (k - 1) * d + 1


@dataclass(frozen=True)
class Tile:
    """How a convolution is cut. `pixels_first`: all channels of a tile of pixels before the next
    tile; else all pixels of a tile of channels. `slots`: 2 for double buffering."""

    rows: int
    columns: int
    outs: int
    ins: int
    slots: int = 2
    pixels_first: bool = False

    def __str__(self) -> str:
        first = "pixels" if self.pixels_first else "channels"
        buffers = "double" if self.slots == 2 else "single"
        return (
            f"{self.rows}x{self.columns} pixels, {self.ins} by {self.outs} blocks, {first} "
            f"outside, {buffers} buffers"
        )


@dataclass(frozen=True)
class Room:
    """Entries of the buffers that a tile takes: of one slot of data, weights, results; how many
    slots data and weights have; and all that the accumulators take."""

    data: int
    weights: int
    results: int
    data_slots: int
    weight_slots: int
    accs: int

    def fits(self, d: Design, slots: int) -> bool:
        """Whether there is room."""
        return (
            self.data * self.data_slots <= d.inputs
            and self.weights * self.weight_slots <= d.weights
            and self.results * slots <= d.accs
            and self.accs <= d.accs
        )


def counts(c: Convolution, t: Tile) -> tuple[int, int, int, int]:
    """How many tiles: of channels of results, rows, columns, channels of data of a group."""
    tall, wide = c.out_size
    ins = 1 if c.apart else -(-c.summed // t.ins)
    outs = c.groups * -(-(c.outs // c.groups) // t.outs)
    return outs, -(-tall // t.rows), -(-wide // t.columns), ins


def room(c: Convolution, t: Tile) -> Room:
    """What a tile takes."""
    outs, rows, columns, ins = counts(c, t)
    data = (t.outs if c.apart else t.ins) * c.needs(0, t.rows) * c.needs(1, t.columns)
    data *= c.operands
    results = t.outs * t.rows * t.columns
    weights = 0 if c.pooled else t.outs * (1 if c.apart else t.ins) * c.taps
    kinds = rows * columns * (outs if c.apart else c.groups * ins)
    held = 0 if c.pooled == "sum" else results
    return Room(
        data, weights, results * c.planes,
        min(t.slots, kinds), min(t.slots, outs * ins), held + 2 * t.outs,
    )  # fmt: skip


def cycles(c: Convolution, t: Tile, d: Design) -> int:
    """About how many cycles a tile takes: the busiest unit's, and what cannot overlap."""
    outs, rows, columns, ins = counts(c, t)
    r, pixels = room(c, t), rows * columns
    # How often all data and all weights are loaded.
    again = outs // c.groups
    if t.pixels_first:
        data = 1 if c.apart or ins <= r.data_slots else again
        weights = 1 if outs * ins <= r.weight_slots else pixels
    else:
        data = 1 if c.apart or pixels * ins <= r.data_slots else again
        weights = 1 if ins <= r.weight_slots else pixels
    tall, wide = c.out_size
    plane = rows * min(c.needs(0, t.rows), c.height) * columns * min(c.needs(1, t.columns), c.width)
    loads = data * c.ins * pixels * c.operands
    on_bus = data * c.ins * plane * c.operands * d.input_bytes / d.bandwidth
    written = loads * c.needs(0, t.rows) * c.needs(1, t.columns)
    held = weights * c.weighted
    on_bus_weights = held * d.weight_bytes / d.bandwidth
    load = max(on_bus, written) + loads * d.latency
    load += max(on_bus_weights, held) + (0 if c.pooled else weights * outs * ins * d.latency)
    results = c.outs * tall * wide
    changes = outs if not t.pixels_first or outs == 1 else outs * pixels
    params = changes * (d.latency + 2 * t.outs * d.acc_bytes / d.bandwidth)
    made = results * c.planes
    # A sum is one instruction; else accumulators are set first, and results made of them.
    more, instructions = (0, 1) if c.pooled == "sum" else (results + made, ins + 1 + c.planes)
    work = c.steps + more + outs * pixels * instructions * d.fill + params
    store = made * d.input_bytes / d.bandwidth + outs * pixels * d.latency
    if t.slots == 1:
        return int(load + work + store)
    bus = on_bus + on_bus_weights + made * d.input_bytes / d.bandwidth
    tile = (
        r.data * d.input_bytes + r.weights * d.weight_bytes + r.results * d.input_bytes
    ) / d.bandwidth
    return int(max(load, work, store, bus) + tile + (t.ins + 2) * d.latency)


def tiles(c: Convolution, d: Design, most: int = 24) -> list[Tile]:
    """The most promising tiles, best first.

    Raises:
        UnsupportedError: a buffer cannot hold one tile; says how many bytes that needs.
    """
    best = heapq.nsmallest(
        most, _fitting(c, d), key=lambda t: (cycles(c, t, d), t.slots, t.pixels_first)
    )
    if not best:
        raise UnsupportedError(_too_large(c, d))
    return best


def _fitting(c: Convolution, d: Design) -> Iterator[Tile]:
    tall, wide = c.out_size
    for slots in (2, 1):
        for outs in cuts(c.outs // c.groups):
            for ins in [outs] if c.apart else cuts(c.summed):
                for columns in cuts(wide)[:6]:
                    for rows in cuts(tall):
                        plain = Tile(rows, columns, outs, ins, slots)
                        if room(c, plain).fits(d, slots):
                            yield plain
                            yield replace(plain, pixels_first=True)
    smallest = Tile(1, 1, 1, 1, 1)
    if room(c, smallest).fits(d, 1):
        yield smallest


def cuts(n: int) -> list[int]:
    """Sizes of equal parts of `n`, largest first."""
    return sorted({-(-n // k) for k in range(1, n + 1)}, reverse=True)


def _too_large(c: Convolution, d: Design) -> str:
    r = room(c, Tile(1, 1, 1, 1, 1))
    for name, entries, held, entry in (
        ("input", r.data, d.input, d.input_bytes),
        ("weight", r.weights, d.weight, d.weight_bytes),
        ("acc", r.accs, d.acc, d.acc_bytes),
    ):
        if entries * entry > held:
            what = f"{'pooling' if c.pooled else 'a convolution'} {c.kernel[0]}x{c.kernel[1]}"
            what = "a sum" if c.pooled == "sum" else what
            return (
                f"target {d}: the {name} buffer of {held} bytes cannot hold one tile of "
                f"{what}, which needs {entries * entry} bytes: give "
                f"it -{name}={entries * entry} or more"
            )
    raise AssertionError("a tile of one pixel fits")
