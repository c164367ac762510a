"""Padded copies by rows: the same sums, from less memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tensor_support import interpret

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default
from compiler.target.registry import Target
from compiler.tensor.stmt import PrimFunc

M55, M4 = (Target.anywhere(f"llvm -mtriple={t}") for t in ("thumbv8.1m", "thumbv7em"))


def convolution(
    size: tuple[int, int], kernel: int, padding: tuple[int, ...], stride: int, **more: Any
) -> PrimFunc:
    """Of blocks of 8 channels."""
    b = FunctionBuilder()
    x, w = b.param("x", (1, 1, *size, 8), "int8"), b.param("w", (8, 8, kernel, kernel), "int8")
    attrs = {"data_layout": "NCHW8c", "out_layout": "NCHW8c", "out_dtype": "int32", **more}
    y = b.call("nn.conv2d", x, w, padding=padding, strides=(stride, stride), **attrs)
    f = b.finish(y)
    return legalize(Function(f.params, f.bindings, f.results, {"primitive": True})).func


def memory(f: PrimFunc) -> dict[str, int]:
    return {b.name: math.prod(n.const for n in b.shape) for b in f.temps}


@pytest.mark.thorough
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    size=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    kernel=st.integers(1, 3),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    value=st.integers(-128, 127).filter(bool),
    target=st.sampled_from([M55, M4]),
)
def test_sums_are_the_same(
    size: tuple[int, int],
    kernel: int,
    padding: tuple[int, ...],
    stride: int,
    dilation: int,
    value: int,
    target: Target,
) -> None:
    span = (kernel - 1) * dilation + 1
    if any(n + padding[k] + padding[k + 2] < span for k, n in enumerate(size)):
        return
    attrs = {"dilation": (dilation, dilation), "padding_value": value}
    check((size, kernel, padding, stride), attrs, target)


def check(given: Any, attrs: dict[str, Any], target: Target) -> PrimFunc:
    """As scheduled, a convolution gives what it gives as written."""
    plain, f = (convolution(*given, **attrs) for _ in range(2))
    schedule_default(f, target, {f.params[1]})
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-128, 128, [n.const for n in b.shape]).astype(b.dtype.storage)
        for b in plain.params
    ]
    want = interpret(plain, [a.copy() for a in arrays])
    np.testing.assert_array_equal(interpret(f, arrays), want)
    return f


@pytest.mark.parametrize(
    "target",
    [
        M55,
        *(
            pytest.param(t, marks=pytest.mark.thorough)
            for t in (M4, Target.anywhere("llvm -mcpu=x86-64-v4"))
        ),
    ],
    ids=lambda t: t.cpu,
)
def test_rows_are_what_a_row_of_outputs_reads(target: Target) -> None:
    f = check(((5, 4), 3, (1, 1, 1, 1), 1), {"padding_value": 5}, target)
    row = (4 + 2) * 8
    if target.architecture.row_copies:
        assert memory(f) == {"pad_rows": 3 * row}
    else:
        assert memory(f) == {"pad": (5 + 2) * row}
