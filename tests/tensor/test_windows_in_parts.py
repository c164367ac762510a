"""Convolutions whose weights are more than the nearest caches hold: all tiles take some channels
before any takes the next, with the bits of sums that are formed at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from windows import convolution, made

from compiler.lowering.legalize import legalize
from compiler.scheduling import long_sums
from compiler.scheduling.choices import Choice
from compiler.target.registry import host
from compiler.tuning.kernel_run import KernelRun, random_arrays
from compiler.tuning.tasks import Task
from compiler.tuning.tile_space import TileSpace

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Every example is compiled twice: to shrink one would take minutes."""
runs = pytest.mark.skipif(
    not {"avx2", "fma"} <= host().enabled, reason="this CPU has no AVX2 with fused multiply-adds"
)


def at_once(task: Task) -> Choice:
    """The rule's tile, whose loops over tiles are in an order of their own."""
    space = task.space.stages["mac"]
    assert isinstance(space, TileSpace)
    return {"mac": replace(space.rule, walk=0)}


def test_weights_that_are_not_near_are_walked_in_parts() -> None:
    text = made(convolution(512, 512)).as_text()
    assert "for mac.parts in 32:" in text
    blocks, parts, rows = (text.index(f"for mac.{n} in") for n in ("part.co", "parts", "part.y"))
    assert blocks < parts < rows
    assert "parts" not in made(convolution(512, 512), at_once(convolution(512, 512))).as_text()


@pytest.mark.parametrize(
    ("channels", "given"),
    [
        (64, {}),
        (512, {"kernel": 1}),
        (512, {"size": (2, 2)}),
        (512, {"target": "llvm -mcpu=skylake-avx512"}),
        (512, {"target": "llvm -mcpu=x86-64-v2"}),
    ],
    ids=["near", "one tap", "few tiles", "long vectors", "no fma"],
)
def test_others_are_not(channels: int, given: dict[str, Any]) -> None:
    task = convolution(channels, channels, **given)
    assert "parts" not in made(task).as_text()


@runs
@settings(max_examples=8, deadline=None, phases=PHASES)
@given(
    st.sampled_from([(32, 32), (48, 24), (32, 40), (64, 72)]),
    st.tuples(st.integers(5, 12), st.integers(5, 12)),
    st.sampled_from([3, 5]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 2)]),
)
def test_the_bits_of_windows_summed_at_once(
    channels: tuple[int, int], size: tuple[int, int], kernel: int, stride: int, dilation: int,
    batch: int, padding: tuple[int, ...],
) -> None:  # fmt: skip
    assume(min(size) + min(padding[:2]) > dilation * (kernel - 1))
    attrs = {"strides": (stride, stride), "dilation": (dilation, dilation), "padding": padding}
    task = convolution(*channels, size, kernel, batch, **attrs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_sums, "FAR", 0.0)
        patch.setattr(long_sums, "WALKS", 1)
        patch.setattr(long_sums, "NEAR", 8.0)
        parts = made(task)
    whole = made(task, at_once(task))
    assert "parts" not in whole.as_text()
    assert "for mac.parts in" in parts.as_text()
    inputs = random_arrays(legalize(task.function), 0)
    results = [KernelRun(k, task.target, inputs).result() for k in (parts, whole)]
    assert results[0] == results[1]
