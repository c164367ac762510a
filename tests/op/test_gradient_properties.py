"""Rules of linear operators: what flows back is the adjoint, <dy, f(x)> = <gradient, x>, for any
shapes and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, tensor_type

FEW = settings(max_examples=30, deadline=None)
small = st.integers(1, 3)


def check_adjoint(op: str, shapes: Sequence[Sequence[int]], which: int, **attrs: Any) -> None:
    """Of an operator that is linear in one operand."""
    b = FunctionBuilder()
    try:
        y = b.call(op, *(b.param(f"p{k}", s, "float64") for k, s in enumerate(shapes)), **attrs)
    except TypeInferenceError:
        assume(False)
    mod = IRModule({"main": b.finish(y)})
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(tuple(s)) for s in shapes]
    back = rng.standard_normal(tensor_type(y).static_shape)
    both = compiler.gradient(mod, [f"p{which}"], cotangent="flows")
    result, gradient = compiler.evaluate(both, *args, back)
    want = float((result * back).sum())
    scale = float(np.abs(result * back).sum()) + 1e-9
    assert abs(float((gradient * args[which]).sum()) - want) <= 1e-12 * scale


@pytest.mark.thorough
@FEW
@given(
    st.tuples(small, small), st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(small, small),
    st.tuples(small, small), st.tuples(*[st.integers(0, 3)] * 4), st.sampled_from([1, 2]),
    st.integers(0, 1),
)  # fmt: skip
def test_convolutions(
    channels: tuple[int, int], sizes: tuple[int, int], kernel: tuple[int, int],
    strides: tuple[int, int], dilation: tuple[int, int], padding: tuple[int, ...], groups: int,
    which: int,
) -> None:  # fmt: skip
    inputs, outputs = (groups * c for c in channels)
    shapes = (2, inputs, *sizes), (outputs, channels[0], *kernel)
    how = {"strides": strides, "dilation": dilation, "padding": padding, "groups": groups}
    check_adjoint("nn.conv2d", shapes, which, **how)


@pytest.mark.thorough
@FEW
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)), st.tuples(small, small),
    st.tuples(small, small), st.tuples(*[st.integers(0, 2)] * 4), st.booleans(), st.booleans(),
)  # fmt: skip
def test_mean_pools(
    sizes: tuple[int, int], window: tuple[int, int], strides: tuple[int, int],
    padding: tuple[int, ...], ceil_mode: bool, count_include_pad: bool,
) -> None:  # fmt: skip
    how = {"strides": strides, "padding": padding, "ceil_mode": ceil_mode}
    how |= {"pool_size": window, "count_include_pad": count_include_pad}
    check_adjoint("nn.avg_pool2d", [(1, 2, *sizes)], 0, **how)


@FEW
@given(
    st.integers(1, 9), st.integers(-9, 9), st.integers(-10, 10), st.sampled_from([-3, -2, -1, 1, 2])
)
def test_slices(size: int, begin: int, end: int, step: int) -> None:
    how: dict[str, Any] = {"begin": (begin,), "end": (end,), "strides": (step,), "axes": (1,)}
    check_adjoint("strided_slice", [(2, size, 2)], 0, **how)


@FEW
@given(st.tuples(*[st.tuples(small, small)] * 2), st.sampled_from(["constant", "reflect", "edge"]))
def test_padding(widths: tuple[tuple[int, int], ...], mode: str) -> None:
    check_adjoint("nn.pad", [(4, 5)], 0, pad_width=widths, mode=mode)


@FEW
@given(st.lists(small, max_size=3), st.lists(small, max_size=3), st.integers(0, 1))
def test_products_of_matrices(left: list[int], right: list[int], which: int) -> None:
    check_adjoint("nn.matmul", [(*left, 3), (*right[:-1], 3, *right[-1:])], which)


@FEW
@given(st.lists(small, max_size=3), st.lists(small, max_size=3), st.integers(0, 1))
def test_broadcasting(left: list[int], right: list[int], which: int) -> None:
    check_adjoint("multiply", [left, right], which)
