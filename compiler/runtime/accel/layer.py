"""Layers on a simulated accelerator: weights in its order, a stream for each size of the data, and
what that cost."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from compiler.codegen.accel import kernels
from compiler.codegen.accel.convolution import Finish, Places, convolution
from compiler.codegen.accel.instructions import encoded
from compiler.runtime.accel.choosing import best_tile, places
from compiler.runtime.accel.simulator import Report, simulator
from compiler.scheduling.accelerator_tiles import Convolution, Tile
from compiler.target.accelerator import Design
from compiler.types.dtypes import Array, custom


@dataclass(frozen=True, eq=False)
class Weights:
    """What a layer computes, of data of any size.

    Attributes:
        name: of its result in the program.
        weights: int8 or codes of a format [units, inputs, rows, columns].
        parameters: per unit what accumulators begin with, and what results are made with.
        apart: whether each unit has an input of its own (depthwise; inputs is 1).
        groups: parts of the units, each of which has `inputs` of its own.
        planes: bytes of a result: 1, or 4 for int32.
        pooled: "max" or "add", if it is the greatest number or the sum of each window, of each
            channel by itself (`apart`, too); "sum" of two tensors of data, whose scales are the
            parameters. Of weights the shape alone counts then.
        flat: whether results, of a single pixel, are [n, units].
        rows: whether data are rows [..., inputs] of which each is multiplied (a dense layer), else
            planes [n, inputs, height, width].
    """

    name: str
    weights: Array
    parameters: tuple[Array, Array]
    finish: Finish
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    apart: bool = False
    rows: bool = False
    planes: int = 1
    pooled: str = ""
    flat: bool = False
    groups: int = 1

    @property
    def units(self) -> int:
        """Channels of the results."""
        return int(self.weights.shape[0])

    @property
    def inputs(self) -> int:
        """Channels of the data."""
        return self.units if self.apart else int(self.weights.shape[1]) * self.groups

    def together(self, block: int) -> int:
        """Groups that are multiplied as one, by zeros between them, for blocks to hold channels of
        one such part only: as few as fill blocks; all, if none do."""
        units, inputs = self.units // self.groups, int(self.weights.shape[1])
        for n in range(1, self.groups):
            if self.groups % n == 0 and n * units % block == 0 and n * inputs % block == 0:
                return n
        return self.groups

    def shape(self, height: int, width: int, block: int) -> Convolution:
        """The convolution of data of a size."""
        tall, wide = (int(n) for n in self.weights.shape[2:])
        return Convolution(
            -(-self.inputs // block), -(-self.units // block), height, width, (tall, wide),
            self.strides, self.padding, self.dilation, self.apart, self.planes, self.pooled,
            self.groups // self.together(block),
        )  # fmt: skip


@dataclass(frozen=True)
class LayerReport:
    """What one input of a layer cost.

    Attributes:
        name: of its result in the program.
        shape, tile: what was computed, and how it was cut.
        macs: products that the network asks for; blocks that channels do not fill have more.
        report: cycles.
        stream: the instructions, as they are encoded.
    """

    name: str
    shape: Convolution
    tile: Tile
    macs: int
    report: Report
    stream: Array


@dataclass(frozen=True)
class _Plan:
    shape: Convolution
    tile: Tile
    stream: Array
    places: Places
    memory: Array
    """With weights and parameters in their places."""


class Layer:
    """A layer on an accelerator of a design; may be called from several threads."""

    def __init__(self, weights: Weights, design: Design):
        self.weights, self.design = weights, design
        self.reports: dict[tuple[int, int], LayerReport] = {}
        self._plans: dict[tuple[int, int], _Plan] = {}
        self._lock = threading.Lock()

    def __call__(self, *xs: Array) -> Array:
        """Results of data [n, channels, height, width], or of rows [n, ..., channels]; of sums two.

        Raises:
            UnsupportedError: a buffer cannot hold one tile.
        """
        w, x = self.weights, xs[0]
        planes = [self._planes(x) for x in xs]
        n, _, height, width = planes[0].shape
        plan = self.plan(height, width)
        tall, wide = plan.shape.out_size
        dtype = np.dtype(np.int32) if w.planes == 4 else x.dtype
        out = np.empty((n, w.units, tall, wide), dtype)
        data, memory = [self._packed(p) for p in planes], plan.memory.copy()
        first, last = plan.places.data, plan.places.results
        shape = (plan.shape.outs, w.planes, tall, wide, self.design.block)
        size = int(np.prod(shape))
        for k in range(n):
            at = first
            for operand in data:
                image = operand[k].reshape(-1).view(np.uint8)
                memory[at : at + image.size] = image
                at += image.size
            self._record(height, width, plan, simulator(self.design).run(plan.stream, memory))
            made = memory[last : last + size].reshape(shape).transpose(0, 4, 2, 3, 1)
            joined = np.ascontiguousarray(made).view(dtype)
            out[k] = joined.reshape(-1, tall, wide)[: w.units]
        if w.rows:
            return out[..., 0].transpose(0, 2, 1).reshape(*x.shape[:-1], w.units)
        return out[..., 0, 0] if w.flat else out

    def _planes(self, x: Array) -> Array:
        if not self.weights.rows:
            return x
        return x.reshape(x.shape[0], -1, x.shape[-1]).transpose(0, 2, 1)[..., None]

    def plan(self, height: int, width: int) -> _Plan:
        """How data of a size are computed."""
        with self._lock:
            if (height, width) not in self._plans:
                self._plans[height, width] = self._made(height, width)
            return self._plans[height, width]

    def _made(self, height: int, width: int) -> _Plan:
        shape = self.weights.shape(height, width, self.design.block)
        tile, _ = best_tile(shape, self.design)
        where, size = places(shape, self.design)
        stream = encoded(convolution(shape, tile, self.design, where, self.weights.finish))
        memory = np.zeros(size, np.uint8)
        for at, array in ((where.weights, self._blocks), (where.parameters, self._vectors)):
            flat = array.reshape(-1).view(np.uint8)
            memory[at : at + flat.size] = flat
        return _Plan(shape, tile, stream, where, memory)

    def _record(self, height: int, width: int, plan: _Plan, report: Report) -> None:
        if (height, width) not in self.reports:
            w, (tall, wide) = self.weights, plan.shape.out_size
            macs = 0 if w.pooled else int(w.weights.size) * tall * wide
            found = LayerReport(w.name, plan.shape, plan.tile, macs, report, plan.stream)
            self.reports[height, width] = found

    @cached_property
    def _zero(self) -> int:
        """The code of zero."""
        if self.design.integer:
            return 0
        dtype = kernels.data_dtype(self.design, False)
        return int(custom(dtype.name).encode(np.zeros(1), dtype)[0])

    def _packed(self, x: Array) -> Array:
        """[n, blocks, height, width, block] of planes."""
        block, (n, channels, height, width) = self.design.block, x.shape
        held = -(-channels // block) * block
        wide = np.full((n, held, height, width), self._zero, x.dtype)
        wide[:, :channels] = x
        blocks = wide.reshape(n, held // block, block, height, width)
        return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))

    @cached_property
    def _blocks(self) -> Array:
        """[blocks of units, blocks summed over, rows, columns, inputs, units] of weights."""
        w, b = self.weights.weights, self.design.block
        if self.weights.pooled:
            return np.zeros(0, w.dtype)
        units, inputs, *taps = w.shape
        several = self.weights.together(b)
        outs, ins = -(-units // b), 1 if self.weights.apart else -(-inputs * several // b)
        wide = np.full((outs * b, ins * b, *taps), self._zero, w.dtype)
        if self.weights.apart:
            unit = np.arange(units)
            wide[unit, unit % b] = w[:, 0]
        else:
            group = np.arange(units) // (units // self.weights.groups)
            first = (group % several * inputs)[:, None] + np.arange(inputs)
            wide[np.arange(units)[:, None], first] = w
        blocks = wide.reshape(outs, b, ins, b, *taps).transpose(0, 2, 4, 5, 3, 1)
        return np.ascontiguousarray(blocks)

    @cached_property
    def _vectors(self) -> Array:
        """[blocks of units, 2, units] of parameters, as bytes."""
        b, units = self.design.block, self.weights.units
        outs, entry = -(-units // b), simulator(self.design).entry_bytes[2]
        found = np.zeros((outs, 2, entry), np.uint8)
        for k, array in enumerate(self.weights.parameters):
            wide = np.zeros(outs * b, array.dtype)
            wide[:units] = array
            found[:, k] = wide.reshape(outs, b).view(np.uint8)
        return found
