"""Convolutions on vectors that are shorter than a line of the cache, or than a step of their sums:
no loop computes where in a block of channels it is, and no line is fetched ahead twice."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tile_choices import convolution

import compiler
from compiler.build import compile_program
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.lowering.legalize import Legalized, legalize
from compiler.runtime.kernels import KernelSource, compile_kernel
from compiler.scheduling.apply import AHEAD
from compiler.scheduling.select import ALONE
from compiler.scheduling.tile_config import TileChoice
from compiler.target.cpus import LINE
from compiler.target.registry import Target
from compiler.tuning.kernel_run import KernelRun
from compiler.tuning.space import space_of
from datatypes import change_dtype

TARGETS = (
    "llvm -mcpu=x86-64-v2",
    "llvm -mcpu=haswell",
    "llvm -mcpu=skylake-avx512",
    "llvm -mtriple=aarch64-linux",
)
DIVIDED = re.compile(r"(?:urem|srem|udiv|sdiv) i64 %\w+, (?!1\n)\d+")


def source(target: Target, channels: int, outputs: int, kernel: int) -> str:
    """LLVM text of the convolution of a network of one."""
    program = compile_program(convolution("float32", channels, outputs, 8, kernel), target)
    (found,) = (k.source for k in program.kernels if "fma" in k.source or "fmul" in k.source)
    return found


def rule_of(
    mod: IRModule, target: Target, operator: str = "conv2d"
) -> tuple[Legalized, TileChoice]:
    """The loops of a network's one convolution, say, and what the rules choose for it."""
    main = compiler.optimize(mod, target).main
    called = [b.value.op for b in main.bindings if isinstance(b.value, Call)]
    layers = [f for f in called if isinstance(f, Function) and operator in str(f)]
    (legal,) = (legalize(f) for f in layers)
    pairs = zip(legal.func.params, legal.inputs, strict=False)
    space = space_of(legal.func, target, {b for b, a in pairs if isinstance(a, Constant)})
    assert space is not None
    rule = space.stages["mac"].rule
    assert isinstance(rule, TileChoice)
    return legal, rule


@pytest.mark.thorough
@settings(max_examples=12)
@given(
    st.sampled_from(TARGETS),
    st.sampled_from([16, 32, 48, 80]),
    st.sampled_from([32, 64]),
    st.sampled_from([1, 3]),
)
def test_places_in_blocks_of_channels_are_constants(
    target: str, channels: int, outputs: int, kernel: int
) -> None:
    text = source(Target.anywhere(target), channels, outputs, kernel)
    assert not DIVIDED.findall(text)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("unrolled", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_they_are_constants_whatever_is_unrolled(kernel: int, dtype: str, unrolled: int) -> None:
    """A step is walked by its blocks, of dot products, too, and these by what is unrolled."""
    target = Target.anywhere("llvm -mcpu=haswell")
    legal, rule = rule_of(convolution(dtype, 32, 32, 8, kernel), target)
    choice = {"mac": replace(rule, unrolled=unrolled)}
    made = KernelSource(legal, target, choice).scheduled()
    assert not DIVIDED.findall(str(made.code(target).text))


def test_long_products_are_not_unrolled() -> None:
    """A product of a custom format is many instructions: a body of several spills."""
    target = Target.anywhere("llvm -mcpu=haswell")
    mod = convolution("float32", 32, 32, 8, 1)
    assert rule_of(mod, target)[1].unrolled == 8
    assert rule_of(change_dtype(mod, "float32", "posit16_es1"), target)[1].unrolled == 1


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        ("llvm -mcpu=haswell", 8),
        ("llvm -mcpu=x86-64-v2", 2),
        ("llvm -mcpu=skylake-avx512", 1),
        ("wasm32", 1),
    ],
)
def test_a_body_with_taps_has_few_steps(target: str, steps: int) -> None:
    """Where vectors are short it has two steps, or a block of channels where multiply-adds leave
    registers for it, but not where several fill more than registers."""
    mod = convolution("float32", 32, 32, 8, 3)
    assert rule_of(mod, Target.anywhere(target))[1].unrolled == steps


@pytest.mark.parametrize(
    ("target", "outputs", "dtype", "tile"),
    [
        ("llvm -mcpu=skylake-avx512", 16, "float32", (1, ALONE)),
        ("llvm -mcpu=skylake-avx512", 32, "float32", (2, 1)),
        ("llvm -mcpu=skylake-avx512", 16, "bfloat16", (1, 1)),
        ("llvm -mcpu=haswell", 8, "float32", (1, 8)),
        ("llvm -mtriple=aarch64-linux", 4, "float32", (1, 2)),
        ("llvm -mtriple=riscv64-linux -mattr=+v", 16, "float32", (1, 1)),  # eight registers
    ],
)
def test_a_window_of_one_long_vector_has_a_longer_body(
    target: str, outputs: int, dtype: str, tile: tuple[int, int]
) -> None:
    mod = convolution("float32", 32, outputs, 28, 3)
    if dtype != "float32":
        mod = change_dtype(mod, "float32", dtype)
    rule = rule_of(mod, Target.anywhere(target))[1]
    assert (rule.blocks, rule.unrolled) == tile


@pytest.mark.parametrize(
    ("target", "channels", "outputs", "size", "kernel", "tile"),
    [
        ("llvm -mcpu=skylake-avx512", 64, 64, 28, 1, (4, ((3, 6),))),
        ("llvm -mcpu=skylake-avx512", 24, 80, 56, 1, (4, ((3, 6),))),  # five vectors: four and one
        ("llvm -mcpu=skylake-avx512", 80, 64, 28, 1, (2, ((3, 14),))),  # longer sums
        ("llvm -mcpu=skylake-avx512", 64, 32, 28, 1, (2, ((3, 14),))),  # two vectors in all
        ("llvm -mcpu=skylake-avx512", 64, 64, 14, 1, (2, ((3, 14),))),  # tiles of five, not six
        ("llvm -mcpu=skylake-avx512", 32, 64, 28, 3, (2, ((3, 14),))),  # taps
        ("llvm -mtriple=aarch64-linux", 64, 64, 28, 1, (2, ((3, 14),))),
    ],
)
def test_short_sums_have_wide_tiles(
    target: str, channels: int, outputs: int, size: int, kernel: int, tile: tuple[int, object]
) -> None:
    mod = convolution("float32", channels, outputs, size, kernel)
    rule = rule_of(mod, Target.anywhere(target))[1]
    assert (rule.blocks, rule.widths) == tile


@pytest.mark.parametrize(
    ("target", "size", "kernel", "stride", "outputs"),
    [
        ("llvm -mcpu=skylake-avx512", 28, 5, 1, 14),
        ("llvm -mcpu=skylake-avx512", 13, 3, 1, 13),
        ("llvm -mcpu=skylake-avx512", 28, 3, 2, 7),  # half of the data is another output's
        ("llvm -mcpu=haswell", 28, 5, 1, 7),
        ("llvm -mtriple=aarch64-linux", 28, 5, 1, 7),
    ],
)
def test_depthwise_tiles_are_as_wide_as_registers_allow(
    target: str, size: int, kernel: int, stride: int, outputs: int
) -> None:
    mod = convolution("float32", 64, 64, size, kernel, 64, stride)
    rule = rule_of(mod, Target.anywhere(target))[1]
    assert (rule.blocks, rule.widths) == (1, ((3, outputs),))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
def test_a_line_is_fetched_once(target: str) -> None:
    """Weights are walked in whole lines; there are no other vectors that a kernel loads."""
    t = Target.anywhere(target)
    text = source(t, 512, 32, 1)
    fetched = re.findall(r"call void @llvm.prefetch", text)
    loaded = re.findall(rf"load <{t.vector_bytes // 4} x float>", text)
    assert fetched
    assert len(fetched) * LINE == len(loaded) * t.vector_bytes


@pytest.mark.parametrize(
    ("outputs", "size", "kernel", "tile"),
    [
        (24, 16, 1, (3, ((3, 4),))),  # three vectors by four outputs fill the registers
        (24, 14, 1, (3, ((2, 2), (3, 2)))),  # of rows that four outputs do not divide
        (24, 16, 3, (3, ((3, 4),))),
        (40, 16, 3, (3, ((3, 4),))),
        (56, 18, 3, (2, ((3, 6),))),  # windows of taps, where two vectors leave none over
        (56, 18, 1, (3, ((2, 2), (3, 2)))),
        (32, 18, 1, (2, ((3, 6),))),  # four vectors are twice two
        (128, 1, 1, (4, ())),  # more sums where there is one output: they do not wait
        (24, 1, 1, (2, ())),
        (24, 3, 1, (3, ((2, 2), (3, 2)))),
    ],
)
def test_tiles_fill_16_registers(
    outputs: int, size: int, kernel: int, tile: tuple[int, tuple[tuple[int, int], ...]]
) -> None:
    """With fused multiply-adds; and their weights are not fetched ahead, for want of room."""
    target = Target.anywhere("llvm -mcpu=haswell")
    mod = convolution("float32", 128, outputs, size, kernel)
    legal, rule = rule_of(mod, target)
    assert (rule.blocks, rule.widths) == tile
    if rule.blocks == 3:
        assert not dict(KernelSource(legal, target, None).scheduled().func.prefetch)
    for other in ("llvm -mcpu=x86-64-v2", "llvm -mcpu=skylake-avx512"):
        assert rule_of(mod, Target.anywhere(other))[1].blocks <= 2
    formats = change_dtype(mod, "float32", "bfloat16")
    assert rule_of(formats, target)[1].blocks <= 2


def test_short_vectors_are_not_fetched_far_ahead() -> None:
    """A part of the weights that long vectors fetch as a whole before it is needed."""
    far = {
        target: {
            distance
            for k in compile_program(
                convolution("float32", 128, 128, 16, 3), Target.anywhere(target)
            ).kernels
            for distance in k.func.prefetch.values()
        }
        for target in ("llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512")
    }
    assert far["llvm -mcpu=haswell"] == {AHEAD}
    assert min(far["llvm -mcpu=skylake-avx512"]) > AHEAD


@pytest.mark.parametrize(
    ("size", "kernel", "widths", "fetched"),
    [
        (18, 1, ((3, 6),), False),
        (18, 3, ((3, 6),), True),
        (14, 1, ((3, 5),), True),
        (1, 1, (), True),
    ],
)
def test_twelve_sums_of_bytes_leave_no_register_for_fetches(
    size: int, kernel: int, widths: tuple[tuple[int, int], ...], fetched: bool
) -> None:
    """But in windows of taps, which spill without (transform/test_widen_bytes)."""
    mod = convolution("uint8", 512, 1024, size, kernel)
    legal, rule = rule_of(mod, target := Target.anywhere("llvm -mcpu=haswell"))
    assert (rule.dot, rule.lanes, rule.blocks, rule.widths) == (True, 8, 2, widths)
    ahead = KernelSource(legal, target, None).scheduled().func.prefetch
    assert set(ahead.values()) == ({AHEAD} if fetched else set())
    legal, _ = rule_of(mod, longer := Target.anywhere("llvm -mcpu=cascadelake"))
    assert KernelSource(legal, longer, None).scheduled().func.prefetch


def product(rows: int, columns: int, depth: int, dtype: str) -> IRModule:
    """Two computed operands, multiplied."""
    b = FunctionBuilder()
    x, y = b.param("x", (2, rows, depth), dtype), b.param("y", (2, depth, columns), dtype)
    return IRModule({"main": b.finish(b.call("nn.matmul", x, y))})


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "tile"),
    [
        (128, 128, "float32", (3, ((1, 4),))),
        (13, 64, "float32", (3, ((1, 4),))),
        (13, 64, "float64", (3, ((1, 4),))),
        (128, 32, "float32", (4, ((1, 3),))),  # four vectors are not three
        (128, 40, "float32", (3, ((1, 4),))),
        (12, 16, "float32", (2, ((1, 6),))),
    ],
)
def test_products_of_computed_operands_fill_16_registers(
    rows: int, columns: int, dtype: str, tile: tuple[int, tuple[tuple[int, int], ...]]
) -> None:
    mod = product(rows, columns, 32, dtype)
    rule = rule_of(mod, Target.anywhere("llvm -mcpu=haswell"), "matmul")[1]
    assert (rule.blocks, rule.widths) == tile
    for other in map(Target.anywhere, ("llvm -mcpu=x86-64-v2", "llvm -mcpu=skylake-avx512")):
        lanes = other.vector_bytes // np.dtype(dtype).itemsize
        assert rule_of(mod, other, "matmul")[1].blocks == min(4, -(-columns // lanes))
    few, last = change_dtype(mod, dtype, "bfloat16"), Target.anywhere("llvm -mcpu=haswell")
    assert rule_of(few, last, "matmul")[1].blocks != 3


@pytest.mark.sampled(3)
@settings(max_examples=20)
@given(
    st.integers(8, 30),
    st.integers(33, 75),
    st.integers(1, 40),
    st.sampled_from([np.float32, float]),
)
def test_they_are_added_in_the_same_order(rows: int, columns: int, depth: int, kind: type) -> None:
    """Whatever the tile: the same bits as of the schedule for a CPU of shorter vectors."""
    rng = np.random.default_rng(rows * columns)
    mod = product(rows, columns, depth, np.dtype(kind).name)
    x = rng.normal(size=(2, rows, depth)).astype(kind)
    y = rng.normal(size=(2, depth, columns)).astype(kind)
    got = compiler.build(mod, "llvm -mcpu=haswell")(x, y)
    np.testing.assert_allclose(got, x @ y, rtol=1e-4, atol=1e-4)
    legal, rule = rule_of(mod, target := Target.parse("llvm -mcpu=haswell"), "matmul")
    run = compile_kernel(legal, target, {"mac": replace(rule, blocks=1, widths=())})
    assert got.tobytes() == KernelRun(run, target, [x, y]).result()
