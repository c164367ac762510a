"""Convolutions whose data lies far away, and is in few products: a row of outputs takes every part
of the weights before the next row, with the bits of the other order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from windows import convolution, made

from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import Kernel
from compiler.scheduling import apply
from compiler.tuning.kernel_run import KernelRun, random_arrays
from compiler.tuning.tile_space import TileSpace

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Every example is compiled twice: to shrink one would take minutes."""


def rows_first(kernel: Kernel) -> bool:
    """Whether the loop over rows of outputs is around that over blocks of channels."""
    text = kernel.as_text()
    return text.index("for relu_s.i2 in") < text.index("for relu_s.i1o in")


@pytest.mark.parametrize("cpu", ["skylake-avx512", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize(
    ("channels", "outputs", "given"),
    [
        (256, 256, {"size": (56, 56), "kernel": 1}),
        (256, 512, {"size": (56, 56), "kernel": 1, "strides": (2, 2)}),
        (128, 128, {"size": (56, 56), "strides": (2, 2)}),
        (256, 256, {"size": (56, 56), "kernel": 1, "batch": 2}),
    ],
    ids=["one tap", "some of the data", "little shared", "batch"],
)
def test_rows_go_first(cpu: str, channels: int, outputs: int, given: dict[str, Any]) -> None:
    task = convolution(channels, outputs, target=f"llvm -mcpu={cpu}", **given)
    assert rows_first(made(task))


@pytest.mark.parametrize(
    ("channels", "outputs", "given"),
    [
        (128, 512, {"size": (28, 28), "kernel": 1}),
        (128, 512, {"size": (28, 28), "kernel": 1, "batch": 8}),
        (256, 64, {"size": (56, 56), "kernel": 1}),
        (512, 1024, {"size": (28, 28), "kernel": 1}),
        (128, 128, {"size": (56, 56)}),
    ],
    ids=["near data", "near data of many", "few parts", "many weights", "shared data"],
)
def test_others_keep_a_part_of_the_weights_for_all_rows(
    channels: int, outputs: int, given: dict[str, Any]
) -> None:
    task = convolution(channels, outputs, target="llvm -mcpu=skylake-avx512", **given)
    assert not rows_first(made(task))


def test_a_choice_says_otherwise() -> None:
    task = convolution(256, 256, (56, 56), 1, target="llvm -mcpu=skylake-avx512")
    space = task.space.stages["mac"]
    assert isinstance(space, TileSpace)
    assert rows_first(made(task, {"mac": space.rule}))
    assert not rows_first(made(task, {"mac": replace(space.rule, walk=0)}))


@settings(max_examples=8, deadline=None, phases=PHASES)
@given(
    st.sampled_from([(32, 64), (48, 24), (16, 40), (64, 72)]),
    st.tuples(st.integers(3, 12), st.integers(3, 12)),
    st.sampled_from([1, 3]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 1, 2)]),
)
def test_the_bits_are_those_of_the_other_order(
    channels: tuple[int, int], size: tuple[int, int], kernel: int, stride: int, batch: int,
    dilation: int, padding: tuple[int, ...],
) -> None:  # fmt: skip
    assume(min(size) + min(padding[:2]) > stride * dilation * kernel)
    attrs = {"strides": (stride, stride), "dilation": (dilation, dilation), "padding": padding}
    task = convolution(*channels, size, kernel, batch, "llvm", **attrs)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"FAR": 0, "FEWER": 0, "SHARED": 1e9, "PARTS": 1}.items():
            patch.setattr(apply, name, value)
        rows = made(task)
    space = task.space.stages["mac"]
    assert isinstance(space, TileSpace)
    whole = made(task, {"mac": replace(space.rule, walk=0)})
    assert rows.as_text() != whole.as_text()
    inputs = random_arrays(legalize(task.function), 0)
    results = [KernelRun(k, task.target, inputs).result() for k in (rows, whole)]
    assert results[0] == results[1]
