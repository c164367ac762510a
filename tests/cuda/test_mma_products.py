"""Products of bytes by the warps of a block: the interpreter's sums, whatever the sizes and signs,
without races, and as few loads as the tiles say."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from grid_interpreter import interpreted
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grid_consumers import numbers

import compiler
from compiler.build import compile_program
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.cuda.device import opened
from compiler.scheduling.grids import warp_tiles
from compiler.target.intrinsics import matrix_steps
from compiler.target.registry import Target

RNG = np.random.default_rng(0)
CHIPS = ("sm_75", "sm_80", "sm_90", "sm_90a")
SIGNS = ("int8", "uint8")
needs_ptxas = pytest.mark.skipif(not assembler(), reason="ptxas is not installed")


def dense(m: int, n: int, k: int, data: str = "int8", weight: str = "int8") -> IRModule:
    b = FunctionBuilder()
    y = b.call(
        "nn.dense", b.param("x", (m, k), data), b.param("w", (n, k), weight), out_dtype="int32"
    )
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], constant: bool = True, data: str = "int8", **attrs: Any
) -> IRModule:
    b = FunctionBuilder()
    weight = numbers(RNG, "int8", w)
    y = b.call(
        "nn.conv2d",
        b.param("x", x, data),
        b.const(weight) if constant else b.param("w", w, "int8"),
        out_dtype="int32",
        **attrs,
    )
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def check(mod: IRModule, chip: str, *args: np.ndarray) -> None:
    """By warps, on the CPU and by the interpreter of PTX."""
    want = compiler.evaluate(mod, *args)
    for runner in ("simt", "ptx"):
        exe = compiler.build(mod, target=f"cuda -arch={chip} -runner={runner}")
        assert "mma.m" in str(exe.as_text())
        np.testing.assert_array_equal(exe(*args), want)


def test_a_product_by_warps() -> None:
    check(
        dense(24, 20, 36), "sm_80", numbers(RNG, "int8", (24, 36)), numbers(RNG, "int8", (20, 36))
    )


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(8, 150),
    n=st.integers(8, 150),
    words=st.integers(8, 60),
    signs=st.tuples(st.sampled_from(SIGNS), st.sampled_from(SIGNS)),
    chip=st.sampled_from(["sm_75", "sm_80"]),
)
def test_dense(m: int, n: int, words: int, signs: tuple[str, str], chip: str) -> None:
    k = 4 * words
    args = [numbers(RNG, t, s) for t, s in zip(signs, ((m, k), (n, k)), strict=True)]
    check(dense(m, n, k, *signs), chip, *args)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    channels=st.tuples(st.sampled_from([8, 16, 32, 48]), st.sampled_from([8, 12, 16, 40])),
    groups=st.sampled_from([1, 1, 2]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 2),
    constant=st.booleans(),
    chip=st.sampled_from(["sm_75", "sm_80"]),
)
def test_convolutions(
    batch: int,
    size: tuple[int, int],
    channels: tuple[int, int],
    groups: int,
    kernel: int,
    stride: int,
    pad: int,
    constant: bool,
    chip: str,
) -> None:
    out = [(n + 2 * pad - kernel) // stride + 1 for n in size]
    many = channels[0] * kernel**2 >= 32
    if min(out) < 1 or batch * out[0] * out[1] < 8 or not many:
        return
    x = (batch, channels[0] * groups, *size)
    w = (channels[1] * groups, channels[0], kernel, kernel)
    mod = convolution(x, w, constant, groups=groups, padding=(pad,) * 4, strides=(stride,) * 2)
    args = [numbers(RNG, "int8", x), *([] if constant else [numbers(RNG, "int8", w)])]
    check(mod, chip, *args)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(17, 20, 36), (16, 16, 72)])
def test_threads_share_without_races(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    mod, args = dense(m, n, k), [numbers(RNG, "int8", s) for s in ((m, k), (n, k))]
    np.testing.assert_array_equal(interpreted(mod)(*args), compiler.evaluate(mod, *args))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_warps_share_without_races(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = opened("ptx").driver
    monkeypatch.setattr(driver, "seed", seed)
    monkeypatch.setattr(driver, "races", True)
    mod, args = dense(130, 70, 200), [numbers(RNG, "int8", s) for s in ((130, 200), (70, 200))]
    exe = compiler.build(mod, target="cuda -arch=sm_80 -runner=ptx")
    np.testing.assert_array_equal(exe(*args), compiler.evaluate(mod, *args))


def test_tiles_are_shared_out() -> None:
    """Every thread brings whole groups, and warps divide the tile."""
    for turned, late in product((False, True), repeat=2):
        found = warp_tiles.warp_tiles(1024, turned, late)
        assert found
        for t in found:
            rows, columns = t.warp
            assert t.rows % rows == t.columns % columns == 0
            assert t.each[0] * t.each[1] * 32 == rows * columns
            assert t.stages * t.shared <= (99 if late else 48) << 10
            for n in (t.rows, t.columns):
                assert n * t.steps % (t.threads * warp_tiles.TOGETHER) == 0


def test_the_instructions_can_be_switched_off() -> None:
    mod = dense(64, 64, 64)
    texts = {
        t: compile_program(mod, f"cuda {t}").kernels[0].code.decode()
        for t in ("-arch=sm_80", "-arch=sm_80 -mattr=-mma", "-arch=sm_80 -mattr=-mma,+mma")
    }
    assert ["mma.sync" in x for x in texts.values()] == [True, False, True]
    assert ["dp4a" in x for x in texts.values()] == [False, True, False]
    with pytest.raises(UnsupportedError, match="feature"):
        Target.parse("cuda -mattr=-wgmma")
    with pytest.raises(UnsupportedError, match="takes features such as -mma"):
        Target.parse("cuda -mattr=mma")
    blocks = [matrix_steps(Target.parse(f"cuda {t}")) for t in texts]
    assert blocks == [16, 0, 16]  # channels that lie together
    machines = {Target.parse(f"cuda {t}").machine for t in ("", "-mattr=-mma", "-runner=simt")}
    assert len(machines) == 3


@needs_ptxas
@pytest.mark.thorough
@pytest.mark.parametrize("chip", CHIPS)
def test_nothing_is_spilled(chip: str) -> None:
    for mod in (
        dense(1024, 1024, 1024),
        dense(8192, 8192, 8192),
        convolution((16, 64, 56, 56), (64, 64, 3, 3), padding=(1, 1, 1, 1)),
        convolution((16, 256, 14, 14), (256, 256, 3, 3), padding=(1, 1, 1, 1)),
    ):
        kernels = compile_program(mod, f"cuda -arch={chip}").kernels
        found = [(k.code.decode(), *assemble(k.code, chip)[0]) for k in kernels]
        ((text, took),) = [x for x in found if "mma.sync" in x[0]]
        assert took.spills == took.stack == 0
        assert "ldmatrix.sync.aligned.m8n8.x4" in text
        assert ("ld.global.nc.v4" if chip == "sm_75" else "cp.async.cg.shared.global") in text
        assert not (chip != "sm_75" and "ld.global" in text)  # operands go through no register
        assert "ld.shared" not in text
        of_one = 2 if chip != "sm_75" else 8
        loads = text.count("ldmatrix.sync")
        assert text.count("mma.sync") >= loads * of_one  # what neighbours share is loaded once
