"""Convolutions on simulated accelerators: their bits, tokens that order them, and their cycles."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.accel.convolution import Finish, convolution
from compiler.codegen.accel.instructions import (
    ACC,
    FINISH,
    INPUT,
    OUTPUT,
    SET,
    TAKE,
    WEIGHT,
    Alu,
    Gemm,
    Instruction,
    Load,
    Sum,
    encoded,
)
from compiler.errors import MachineError, UnsupportedError
from compiler.runtime.accel.choosing import best_tile, places, timed
from compiler.runtime.accel.layer import Layer, Weights
from compiler.runtime.accel.simulator import Report, simulator
from compiler.scheduling.accelerator_tiles import Convolution, Tile, cycles, room, tiles
from compiler.target.accelerator import Design
from compiler.types.dtypes import Array

SMALL = Design.parse("accel -block=4 -input=512 -weight=1K -acc=2K")
RESNET50 = [
    (64, 56, 1), (128, 56, 2), (128, 28, 1), (256, 28, 2), (256, 14, 1), (512, 14, 2), (512, 7, 1),
]  # fmt: skip
"""Channels, size of the data and stride of the convolutions 3x3 of ResNet-50."""


def reference(x: Array, w: Weights) -> Array:
    """int64 sums [n, units, height, width]."""
    top, left, bottom, right = w.padding
    edges = ((0, 0), (0, 0), (top, bottom), (left, right))
    wide = np.pad(x.astype(np.int64), edges, constant_values=w.finish.filling)
    units, _, kh, kw = w.weights.shape
    (sy, sx), (dy, dx) = w.strides, w.dilation
    tall = (wide.shape[2] - (kh - 1) * dy - 1) // sy + 1
    long = (wide.shape[3] - (kw - 1) * dx - 1) // sx + 1
    out = np.zeros((len(x), units, tall, long), np.int64)
    for y in range(kh):
        for z in range(kw):
            part = wide[:, :, y * dy :, z * dx :][:, :, ::sy, ::sx][:, :, :tall, :long]
            tap = w.weights[:, :, y, z].astype(np.int64)
            if w.apart:
                out += part * tap.reshape(1, -1, 1, 1)
                continue
            mine, inputs = units // w.groups, w.weights.shape[1]
            for g in range(w.groups):
                own, data = slice(g * mine, (g + 1) * mine), slice(g * inputs, (g + 1) * inputs)
                out[:, own] += np.einsum("ncyx,oc->noyx", part[:, data], tap[own])
    return out + w.parameters[0].astype(np.int64).reshape(1, -1, 1, 1)


def weights(rng: np.random.Generator, units: int, inputs: int, k: tuple[int, int]) -> Weights:
    w = rng.integers(-128, 128, (units, inputs, *k)).astype(np.int8)
    bias = rng.integers(-500, 500, units).astype(np.int32)
    scale = rng.uniform(1e-4, 2e-3, units).astype(np.float32)
    return Weights("y", w, (bias, scale), Finish(11, 0, 250))


@st.composite
def layers(draw: st.DrawFn) -> tuple[Weights, Array]:
    """A layer and its data."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    apart, signed = draw(st.booleans()), draw(st.booleans())
    groups = 1 if apart else draw(st.sampled_from([1, 1, 2, 3, 4, 6]))
    units = draw(st.integers(1, 13)) if groups == 1 else groups * draw(st.sampled_from([1, 2, 4]))
    of_a_group = 1 if apart else draw(st.integers(1, 13) if groups == 1 else st.integers(1, 4))
    inputs = units if apart else of_a_group * groups
    plain = weights(rng, units, of_a_group, kernel)
    two = st.tuples(st.integers(1, 2), st.integers(1, 2))
    low = -128 if signed else 0
    layer = Weights(
        "y", plain.weights, plain.parameters,
        Finish(3, low, low + 250, signed, draw(st.integers(0, 127))), draw(two),
        draw(st.tuples(*[st.integers(0, 2)] * 4)), draw(two), apart,
        planes=draw(st.sampled_from([1, 4])), groups=groups,
    )  # fmt: skip
    least = [(k - 1) * d + 1 for k, d in zip(kernel, layer.dilation, strict=True)]
    size = [n + draw(st.integers(0, 6)) for n in least]
    x = rng.integers(low, low + 256, (2, inputs, *size))
    return layer, x.astype(np.int8 if signed else np.uint8)


@given(layers())
@settings(max_examples=12, deadline=None)
def test_bits_of_layers(given_: tuple[Weights, Array]) -> None:
    w, x = given_
    made = Layer(w, SMALL)(x)
    sums = reference(x, w)
    if w.planes == 4:
        assert made.dtype == np.int32
        np.testing.assert_array_equal(made, sums)
        return
    scale = w.parameters[1].reshape(1, -1, 1, 1)
    wanted = np.rint(sums.astype(np.float32) * scale).astype(np.int64) + w.finish.zero_point
    np.testing.assert_array_equal(made, np.clip(wanted, w.finish.low, w.finish.high))


SHAPES = [
    Convolution(3, 4, 9, 7, (3, 3), (1, 1), (1, 1, 1, 1)),
    Convolution(4, 3, 8, 8, (3, 3), (2, 2), (0, 1, 1, 0)),
    Convolution(4, 4, 9, 6, (3, 3), (1, 1), (1, 1, 1, 1), apart=True),
    Convolution(5, 6, 4, 5, planes=4),
    Convolution(4, 4, 9, 6, (3, 2), (2, 1), (1, 1, 1, 0), apart=True, pooled="max"),
    Convolution(4, 4, 9, 6, apart=True, pooled="sum"),
    Convolution(6, 4, 7, 6, (3, 3), (1, 2), (1, 1, 1, 1), groups=2),
]


def every_tile(c: Convolution, d: Design) -> list[Tile]:
    """Tiles of all kinds that fit."""
    tall, wide = c.out_size
    found = [
        Tile(rows, columns, outs, outs if c.apart else ins, slots, first)
        for rows in {1, 2, tall}
        for columns in {wide, 3}
        for outs in {1, 2, c.outs // c.groups}
        for ins in {1, c.ins // c.groups}
        for slots in (1, 2)
        for first in (False, True)
    ]
    return sorted({t for t in found if room(c, t).fits(d, t.slots)}, key=str)


@pytest.mark.thorough
@pytest.mark.parametrize("c", SHAPES, ids=str)
def test_all_tiles_give_the_same_bits(c: Convolution) -> None:
    rng = np.random.default_rng(3)
    where, size = places(c, SMALL)
    first = rng.integers(0, 256, size).astype(np.uint8)
    first[where.parameters : where.results] = 1  # no scale is no number
    results, tried = set(), every_tile(c, SMALL)
    for t in tried:
        memory = first.copy()
        stream = encoded(convolution(c, t, SMALL, where, Finish()))
        report = simulator(SMALL).run(stream, memory)
        assert report.gemm == (0 if c.pooled else c.steps)
        assert not c.pooled or report.alu >= c.steps
        assert not races(convolution(c, t, SMALL, where, Finish()), report)
        results.add(memory[where.results :].tobytes())
    assert len(tried) > 20
    assert len(results) == 1


def touched(i: Instruction) -> tuple[list[tuple[int, range]], list[tuple[int, range]]]:
    """(buffer, entries) that an instruction reads, and writes."""
    if isinstance(i, Load):
        return [], [(i.buffer, range(i.at, i.at + i.entries))]
    if isinstance(i, Gemm):
        acc = (ACC, span(i.dst, i.extents, i.dst_strides))
        data = (INPUT, span(i.src, i.extents, i.src_strides))
        return [acc, data, (WEIGHT, span(i.wgt, i.extents, i.wgt_strides))], [acc]
    if isinstance(i, Alu):
        parameters = (ACC, span(i.par, i.extents, i.par_strides))
        acc = (ACC, span(i.dst, i.extents, i.dst_strides))
        if i.what == SET:
            return [parameters], [acc]
        if i.what not in (FINISH, TAKE):
            return [(INPUT, span(i.src, i.extents, i.src_strides)), acc], [acc]
        read = [(ACC, span(i.src, i.extents, i.src_strides))]
        read += [parameters] if i.what == FINISH else []
        return read, [(OUTPUT, span(i.dst, i.extents, i.dst_strides))]
    if isinstance(i, Sum):
        firsts = [(INPUT, i.src), (INPUT, i.src + i.apart)]
        read = [(buffer, span(at, i.extents, i.src_strides)) for buffer, at in firsts]
        read += [(ACC, span(i.par + k, i.extents, i.par_strides)) for k in range(2)]
        return read, [(OUTPUT, span(i.dst, i.extents, i.dst_strides))]
    return [(OUTPUT, range(i.at, i.at + i.entries))], []


def span(first: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> range:
    last = first + sum((e - 1) * s for e, s in zip(extents, strides, strict=True))
    return range(first, last + 1)


def races(program: list[Instruction], report: Report) -> list[tuple[int, int]]:
    """Pairs of instructions that are at work at once, one of which writes what the other reads or
    writes."""
    found = []
    ends = [(int(b), int(e)) for b, e, _ in report.trace]
    for j, k in combinations(range(len(program)), 2):
        if ends[j][0] >= ends[k][1] or ends[k][0] >= ends[j][1]:
            continue
        (rj, wj), (rk, wk) = touched(program[j]), touched(program[k])
        pairs = [(a, b) for a in wj for b in rk + wk] + [(a, b) for a in rj for b in wk]
        if any(a == b and max(x[0], y[0]) <= min(x[-1], y[-1]) for (a, x), (b, y) in pairs):
            found.append((j, k))
    return found


def test_races_are_found_without_tokens() -> None:
    c, t = SHAPES[0], Tile(1, 7, 1, 1)
    program = convolution(c, t, SMALL, places(c, SMALL)[0])
    stream = encoded(program)
    stream[:, 1] &= ~0b0110  # compute frees nothing, and nobody waits for that
    report = simulator(SMALL).run(stream, None, functional=False)
    assert races(program, report)


def test_double_buffers_overlap() -> None:
    c = Convolution(4, 4, 28, 28, (3, 3), (1, 1), (1, 1, 1, 1))
    d = Design.parse("accel -bandwidth=4")
    one, two = (timed(c, Tile(4, 28, 2, 2, slots), d) for slots in (1, 2))
    assert two.cycles < 0.8 * one.cycles
    assert two.gemm == one.gemm == c.steps


@pytest.mark.parametrize(
    ("channels", "size", "stride"),
    [RESNET50[0], *(pytest.param(*r, marks=pytest.mark.thorough) for r in RESNET50[1:])],
)
def test_convolutions_of_resnet50_keep_the_multipliers_busy(
    channels: int, size: int, stride: int
) -> None:
    d = Design.parse("accel -input=32K -weight=256K -acc=128K -bandwidth=16")
    blocks = channels // d.block
    c = Convolution(blocks, blocks, size, size, (3, 3), (stride, stride), (1, 1, 1, 1))
    tile, report = best_tile(c, d)
    assert report.gemm == c.steps
    assert report.utilization >= 0.93
    assert 0.9 < cycles(c, tile, d) / report.cycles < 1.1
    # No design is quicker than its bus, or than its multipliers.
    least = (c.ins * size * size + c.outs * c.out_size[0] ** 2) * 16 + c.outs * c.ins * 9 * 256
    assert report.loaded + report.stored >= least - c.ins * size * size * 16 * (stride - 1)
    assert report.cycles >= max(c.steps, (report.loaded + report.stored) / d.bandwidth)


@pytest.mark.thorough
def test_what_the_bus_bounds() -> None:
    c = Convolution(32, 32, 7, 7, (3, 3), (1, 1), (1, 1, 1, 1))
    d = Design.parse("accel -bandwidth=1")
    report = best_tile(c, d)[1]
    assert report.utilization < 0.25
    assert report.loaded + report.stored > 0.9 * report.cycles


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-input=256", "input buffer of 256 bytes .* 5x5, which needs 400 bytes"),
        ("-weight=4K", "weight buffer of 4096 bytes .* 5x5, which needs 6400 bytes"),
    ],
)
def test_buffers_without_room_for_a_tile(text: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        tiles(Convolution(1, 1, 8, 8, (5, 5)), Design.parse(f"accel {text}"))


def test_memory_that_is_too_small() -> None:
    c = SHAPES[0]
    where, size = places(c, SMALL)
    stream = encoded(convolution(c, best_tile(c, SMALL)[0], SMALL, where))
    with pytest.raises(MachineError, match="goes beyond memory"):
        simulator(SMALL).run(stream, np.zeros(size - 100, np.uint8))
