"""Convolutions on vectors that are shorter than a line of the cache, or than a step of their sums:
no loop computes where in a block of channels it is, and no line is fetched ahead twice."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tile_choices import convolution

from compiler.build import compile_program
from compiler.scheduling.apply import AHEAD
from compiler.target.cpus import LINE
from compiler.target.registry import Target

TARGETS = (
    "llvm -mcpu=x86-64-v2",
    "llvm -mcpu=haswell",
    "llvm -mcpu=skylake-avx512",
    "llvm -mtriple=aarch64-linux",
)


def source(target: Target, channels: int, outputs: int, kernel: int) -> str:
    """LLVM text of the convolution of a network of one."""
    program = compile_program(convolution("float32", channels, outputs, 8, kernel), target)
    (found,) = (k.source for k in program.kernels if "fma" in k.source or "fmul" in k.source)
    return found


@settings(max_examples=12, deadline=None)
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
    assert not re.findall(r"(?:urem|srem|udiv|sdiv) i64 %\w+, (?!1\n)\d+", text)


@pytest.mark.parametrize("target", TARGETS)
def test_a_line_is_fetched_once(target: str) -> None:
    """Weights are walked in whole lines; there are no other vectors that a kernel loads."""
    t = Target.anywhere(target)
    text = source(t, 128, 128, 1)
    fetched = re.findall(r"call void @llvm.prefetch", text)
    loaded = re.findall(rf"load <{t.vector_bytes // 4} x float>", text)
    assert fetched
    assert len(fetched) * LINE == len(loaded) * t.vector_bytes


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
