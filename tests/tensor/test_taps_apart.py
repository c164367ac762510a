"""Windows of one channel with a border, whose taps of a row read more numbers for neighbouring
outputs than registers have room for: each tap reads them itself, with the same bits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from windows import convolution, made

from compiler.lowering.legalize import legalize
from compiler.scheduling import apply
from compiler.scheduling.choices import Sketch
from compiler.tuning.kernel_run import KernelRun, random_arrays
from compiler.tuning.tasks import Task

AVX512, AVX2 = "skylake-avx512", "x86-64-v3"


def apart(task: Task) -> bool:
    """Whether taps of a row keep nothing for each other."""
    return "{opaque x0; fence}" in made(task).as_text()


def window(outputs: int, size: int, cpu: str, **given: Any) -> Task:
    return convolution(1, outputs, (size, size), target=f"llvm -mcpu={cpu}", **given)


@pytest.mark.parametrize(
    ("cpu", "outputs", "given"),
    [
        (AVX512, 16, {}),
        (AVX512, 8, {}),
        (AVX512, 32, {"kernel": 5}),
        (AVX512, 16, {"kernel": 4, "padding": (1, 1, 1, 1)}),
        (AVX2, 16, {}),
        (AVX2, 24, {}),
    ],
)
def test_taps_read_for_themselves(cpu: str, outputs: int, given: dict[str, Any]) -> None:
    assert apart(window(outputs, 28, cpu, **given))


@pytest.mark.parametrize(
    ("cpu", "outputs", "size", "given"),
    [
        (AVX512, 16, 28, {"padding": (0, 0, 0, 0)}),  # no tap is left out anywhere
        (AVX512, 16, 28, {"strides": (2, 2)}),
        (AVX512, 16, 10, {}),
        (AVX2, 8, 28, {}),  # one vector
    ],
    ids=["no border", "strides", "few outputs", "one vector"],
)
def test_what_fits_into_registers_is_kept(
    cpu: str, outputs: int, size: int, given: dict[str, Any]
) -> None:
    assert not apart(window(outputs, size, cpu, **given))


def test_vectors_of_data_are_kept() -> None:
    """Of one group a channel, taps read vectors, and each once."""
    task = convolution(16, 16, (28, 28), target=f"llvm -mcpu={AVX512}", groups=16)
    assert "{opaque" not in made(task).as_text()


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.sampled_from([8, 16, 24, 32]),
    st.tuples(st.integers(20, 40), st.integers(12, 40)),
    st.sampled_from([3, 4, 5]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([(1, 1, 1, 1), (2, 0, 1, 2), (0, 2, 2, 0)]),
)
def test_the_bits_are_the_same(
    outputs: int, size: tuple[int, int], kernel: int, batch: int, dilation: int,
    padding: tuple[int, ...],
) -> None:  # fmt: skip
    given: dict[str, Any] = {"padding": padding, "dilation": (dilation, dilation), "batch": batch}
    task = convolution(1, outputs, size, kernel, target="llvm", **given)
    arrays = random_arrays(legalize(task.function), 0)

    def result(grain: int) -> bytes:
        """The choice of a grain, which one thread has no use of, makes it another program."""
        choice = {"mac": task.space.stages["mac"].rule, "": Sketch(tasks=grain)}
        return KernelRun(made(task, choice), task.target, arrays).result()

    found = result(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "_reads_too_much", lambda *given: False)
        assert result(4) == found
