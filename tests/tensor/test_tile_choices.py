"""Tiles as data: every candidate computes the same bits, and what does not fit is refused."""

import random
from dataclasses import replace

import numpy as np
import pytest

import compiler
from compiler.errors import ScheduleError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.passes.manager import PassContext
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling import Schedule
from compiler.scheduling.default import rule_tile, untiled
from compiler.scheduling.tile_config import TileChoice, candidates, choice_of, retile
from compiler.symbolic import Var as Dim
from compiler.target.registry import Target
from compiler.tuning.kernel_run import KernelRun, random_arrays

RNG = np.random.default_rng(5)


def convolution(
    dtype: str, channels: int, outputs: int, size: int, kernel: int, groups: int = 1,
    stride: int = 1, batch: int | Dim = 1, zero_point: int = 3,
) -> IRModule:  # fmt: skip
    b = FunctionBuilder()
    x = b.param("x", (batch, channels, size, size), dtype)
    shape = (outputs, channels // groups, kernel, kernel)
    attrs = {"groups": groups, "strides": (stride, stride), "padding": (kernel // 2,) * 4}
    if dtype == "float32":
        y = b.call("nn.conv2d", x, b.const(RNG.normal(size=shape).astype(np.float32)), **attrs)
        return IRModule({"main": b.finish(b.call("nn.relu", y))})
    weight = b.const(RNG.integers(-128, 128, shape).astype(np.int8))
    y = b.call("nn.conv2d", x, weight, out_dtype="int32", input_zero_point=zero_point, **attrs)
    scale = b.const(RNG.uniform(1e-4, 3e-3, outputs).astype(np.float32))
    return IRModule({"main": b.finish(b.call("qnn.requantize", y, scale, out_dtype="uint8"))})


def dense(dtype: str) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (3, 100), dtype)
    weight = RNG.integers(-128, 128, (40, 100))
    if dtype == "float32":
        return IRModule(
            {"main": b.finish(b.call("nn.dense", x, b.const(weight.astype("float32"))))}
        )
    y = b.call("nn.dense", x, b.const(weight.astype(np.int8)), out_dtype="int32")
    scale = b.const(RNG.uniform(1e-4, 3e-3, 40).astype(np.float32))
    return IRModule({"main": b.finish(b.call("qnn.requantize", y, scale, out_dtype="uint8"))})


def pooling() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (1, 32, 9, 9))
    y = b.call("nn.max_pool2d", x, pool_size=(3, 3), strides=(2, 2))
    return IRModule({"main": b.finish(b.call("mean", y, axis=(2, 3), keepdims=True))})


NETS = {
    "blocked": lambda d: convolution(d, 40, 48, 9, 3),
    "stem": lambda d: convolution(d, 3, 19, 11, 5, stride=2),
    "pointwise": lambda d: convolution(d, 17, 33, 7, 1),
    "depthwise": lambda d: convolution(d, 32, 32, 10, 3, groups=32),
    "strided depthwise": lambda d: convolution(d, 24, 24, 10, 3, groups=24, stride=2),
    "grouped": lambda d: convolution(d, 8, 12, 6, 3, groups=2),
    "symbolic": lambda d: convolution(d, 16, 16, 6, 3, batch=Dim("n")),
    "dense": dense,
    "pooling": lambda d: pooling(),
}


def workloads(mod: IRModule, target: Target) -> list[tuple[Function, str, list[TileChoice]]]:
    """(primitive function, stage, candidates) of every stage with a tile."""
    out = []
    for b in compiler.optimize(mod, target).main.bindings:
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            s, constants = scheduled(b.value.op)
            for stage in s.stages():
                tile = rule_tile(s, stage, target, constants)
                if tile is not None:
                    out.append((b.value.op, stage, candidates(s, stage, tile, target, constants)))
    return out


def scheduled(f: Function) -> tuple[Schedule, set[object]]:
    legal = legalize(f)
    pairs = zip(legal.func.params, legal.inputs, strict=False)
    constants: set[object] = {p for p, a in pairs if isinstance(a, Constant)}
    return untiled(legal.func), constants


@pytest.mark.sampled(60)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("net", NETS)
def test_candidates_give_the_same_bits(net: str, dtype: str, target: str) -> None:
    try:
        chosen = Target.parse(target)
    except UnsupportedError as e:
        pytest.skip(str(e))
    found = workloads(NETS[net](dtype), chosen)
    tried = 0
    for f, stage, choices in found:
        legal = legalize(f)
        inputs = random_arrays(legal, 1)
        default = compile_kernel(legal, chosen)
        want = KernelRun(default, chosen, inputs).result()
        for choice in random.Random(f"{net} {stage}").sample(choices, min(3, len(choices))):
            kernel = compile_kernel(legalize(f), chosen, {stage: choice})
            assert str(kernel.func) != str(default.func), choice
            assert KernelRun(kernel, chosen, inputs).result() == want, choice
            tried += 1
    assert tried or net in ("grouped", "pooling")


def test_a_choice_survives_json_and_gives_the_rules_tile() -> None:
    target = Target.parse("llvm")
    ((f, stage, choices),) = workloads(convolution("uint8", 16, 32, 8, 3), target)[-1:]
    assert 10 < len(choices) < 200
    assert len(set(choices)) == len(choices)
    for c in choices:
        assert TileChoice.from_json(c.to_json()) == c
    s, constants = scheduled(f)
    tile = rule_tile(s, stage, target, constants)
    assert tile is not None
    assert retile(s, stage, tile, choice_of(tile), target, constants) == tile
    assert choice_of(tile) not in choices


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 5}, "lanes must be one of"),
        ({"lanes": 0}, "lanes must be one of"),
        ({"blocks": 0}, "blocks must be within"),
        ({"blocks": 9}, "blocks must be within"),
        ({"widths": ((0, 2),)}, "widths go along"),
        ({"widths": ((3, 2), (2, 2))}, "widths go along"),
        ({"widths": ((3, 99),)}, "width along axis 3"),
        ({"widths": ((2, 8), (3, 9))}, "does not fit any registers"),
        ({"step": 7}, "step must be"),
        ({"unrolled": 0}, "unrolled must be"),
    ],
)
def test_a_choice_that_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    target = Target.parse("llvm")
    ((f, stage, choices),) = workloads(convolution("uint8", 16, 32, 8, 3), target)[-1:]
    wrong = replace(choices[0], **change)
    with pytest.raises(ScheduleError, match=message):
        compile_kernel(legalize(f), target, {stage: wrong})


def test_a_choice_for_no_stage_is_refused() -> None:
    target = Target.parse("llvm")
    ((f, _, choices),) = workloads(convolution("uint8", 16, 32, 8, 3), target)[-1:]
    with pytest.raises(ScheduleError, match="has no tile for nonsense"):
        compile_kernel(legalize(f), target, {"nonsense": choices[0]})


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("block", [4, 8, 16])
def test_places_in_blocks_of_channels_are_constants(target: str, kernel: int, block: int) -> None:
    """No dot product gathers its bytes one by one, or divides to find its block of channels."""
    try:
        Target.parse(target)
    except UnsupportedError as e:
        pytest.skip(str(e))
    with PassContext(config={"AlterOpLayout.block": block}):
        mod = convolution("uint8", 32, 48, 14, kernel, zero_point=0)
        exe = compiler.build(mod, target=target)
    (text,) = (k.llvm_text() for k in exe.program.kernels if "conv2d" in k.func.name)
    assert "load i8," not in text
    assert "urem" not in text


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_large_constants_are_fetched_ahead(dtype: str) -> None:
    """Those that the nearest cache does not hold, by the part that rows of the result share."""
    if "avx512f" not in Target.parse("llvm").enabled:
        pytest.skip("this CPU has other tiles")
    for channels, ahead in ((32, False), (256, True)):
        mod = convolution(dtype, channels, channels, 14, 1, zero_point=0)
        exe = compiler.build(mod, target="llvm -mattr=-amx-int8")
        (kernel,) = (k for k in exe.program.kernels if "conv2d" in k.func.name)
        # A part: two vectors of 16 channels, all that they are multiplied with.
        part = 2 * 16 * channels * (1 if dtype == "uint8" else 4)
        assert list(kernel.func.prefetch.values()) == [max(part, 8192)] * ahead
        assert ("@llvm.prefetch" in kernel.llvm_text()) == ahead
