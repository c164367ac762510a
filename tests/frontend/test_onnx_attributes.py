"""Attributes of windows, borders and slices drawn by hypothesis, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx_models import Case, Const, check

few = settings(max_examples=60, deadline=None)
small = st.integers(1, 3)


def values(*shape: int) -> np.ndarray:
    size = int(np.prod(shape))
    return np.sin(np.arange(size, dtype=np.float32) * 1.7).reshape(shape)


@st.composite
def windows(draw: st.DrawFn, most_padding: bool = True) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Image size and attributes of a 2-D window that fits."""
    kernel, strides, dilation = ([draw(small) for _ in "yx"] for _ in range(3))
    size = tuple(draw(st.integers(1, 9)) for _ in "yx")
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilation}
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if auto.startswith("SAME"):
        attrs["dilations"] = dilation = [1, 1]  # all that onnxruntime supports here
    pads = [0] * 4
    if auto == "NOTSET":
        # onnxruntime wants pools' padding smaller than the kernel
        pads = [draw(st.integers(0, 2 if most_padding else kernel[k % 2] - 1)) for k in range(4)]
        attrs["pads"] = pads
    else:
        attrs["auto_pad"] = auto
    for k in range(2):
        reach = (kernel[k] - 1) * dilation[k] + 1
        if auto.startswith("SAME"):
            # onnxruntime pads negatively where strides jump over elements
            assume(strides[k] <= reach)
        else:
            assume(size[k] + pads[k] + pads[k + 2] >= reach)
    return size, attrs


@few
@given(windows(), small, small, st.integers(1, 3), st.booleans(), st.booleans())
def test_conv(window: Any, batch: int, per: int, groups: int, bias: bool, symbolic: bool) -> None:
    size, attrs = window
    kernel = attrs["kernel_shape"]
    x = values(batch, 2 * groups, *size)
    operands = [x, Const(values(per * groups, 2, *kernel))]
    if bias:
        operands.append(Const(values(per * groups)))
    case = Case("Conv", tuple(operands), {**attrs, "group": groups})
    check(case.model(symbolic), case.arrays)


@few
@given(windows(most_padding=False), small, st.booleans())
def test_max_pool(window: Any, batch: int, symbolic: bool) -> None:
    size, attrs = window
    case = Case("MaxPool", (values(batch, 2, *size) - 2,), attrs)
    check(case.model(symbolic), case.arrays)


@few
@given(windows(most_padding=False), st.booleans(), st.booleans())
def test_average_pool(window: Any, include: bool, symbolic: bool) -> None:
    size, attrs = window
    attrs = {**attrs, "count_include_pad": int(include)}
    del attrs["dilations"]  # since opset 19 only
    case = Case("AveragePool", (values(2, 2, *size),), attrs)
    check(case.model(symbolic), case.arrays)


@few
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)), min_size=1,
                max_size=4),
       st.sampled_from(["constant", "reflect", "edge"]))  # fmt: skip
def test_pad(axes: list[tuple[int, int, int]], mode: str) -> None:
    if mode == "reflect":
        assume(all(max(a, b) < n for n, a, b in axes))
    pads = [a for _, a, _ in axes] + [b for _, _, b in axes]
    case = Case("Pad", (values(*(n for n, _, _ in axes)), Const(np.array(pads))), {"mode": mode})
    check(case.model(), case.arrays)


bound = st.integers(-9, 9) | st.sampled_from([2**63 - 1, -(2**63), 2**31 - 1])
step = st.integers(-3, 3).filter(bool)


def _not_empty(cut: tuple[int, int, int, int]) -> bool:
    size, begin, end, stride = cut
    return len(range(size)[slice(begin, end, stride)]) > 0


cuts_of_axes = st.lists(
    st.tuples(st.integers(1, 7), bound, bound, step).filter(_not_empty), min_size=1, max_size=3
)


@pytest.mark.thorough
@few
@given(cuts_of_axes, st.booleans())
def test_slice(cuts: list[tuple[int, int, int, int]], negative_axes: bool) -> None:
    rank = len(cuts)
    axes = [k - rank if negative_axes else k for k in range(rank)][::-1]
    columns = [[c[i] for c in cuts][::-1] for i in (1, 2)]
    steps = [c[3] for c in cuts][::-1]
    consts = [Const(np.array(v, np.int64)) for v in (*columns, axes, steps)]
    case = Case("Slice", (values(*(c[0] for c in cuts)), *consts))
    check(case.model(), case.arrays)


@few
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_transpose_and_reduce(shape: list[int], data: st.DataObject) -> None:
    perm = data.draw(st.permutations(range(len(shape))))
    case = Case("Transpose", (values(*shape),), {"perm": list(perm)})
    check(case.model(symbolic=True), case.arrays)
    axes = data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))
    signed = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    op = data.draw(st.sampled_from(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"]))
    keep = data.draw(st.integers(0, 1))
    reduce = Case(op, (values(*shape), Const(np.array(signed, np.int64))), {"keepdims": keep}, 18)
    check(reduce.model(), reduce.arrays)
