"""Convolution and pooling: random shapes, strides, paddings, dilations and groups."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from op_case import values
from op_harness import N, check_agreement, reference
from ort_node import onnx_run
from toy_dtype import TOY

import compiler
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.op.window import Axis, Window
from compiler.symbolic import Index
from compiler.types.dtypes import FLOAT32, INT8, INT32, UINT8
from compiler.types.tensor_types import TensorType

small = st.integers(1, 3)
seeds = st.integers(0, 2**32 - 1)
levels = st.sampled_from([0, 3])


@st.composite
def convolutions(draw: Any) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Attributes and operand shapes (data, weight) of a convolution that fits."""
    groups, per_in, per_out = draw(small), draw(small), draw(small)
    kernel, dilation = draw(st.tuples(small, small)), draw(st.tuples(small, small))
    padding = draw(st.tuples(*[st.integers(0, 2)] * 4))
    size = tuple(
        draw(st.integers(max(1, (k - 1) * d + 1 - sum(p)), 8))
        for k, d, p in zip(kernel, dilation, (padding[0::2], padding[1::2]), strict=True)
    )
    attrs = {
        "strides": draw(st.tuples(small, small)),
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    data = (draw(st.integers(1, 2)), groups * per_in, *size)
    return attrs, [data, (groups * per_out, per_in, *kernel)]


def onnx_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes as ONNX names them."""
    names = {"strides": "strides", "dilation": "dilations", "padding": "pads", "groups": "group"}
    return {names[k]: v for k, v in attrs.items() if k in names}


@given(convolutions(), seeds)
@settings(max_examples=60, deadline=None)
def test_conv2d_equals_onnxruntime(
    conv: tuple[dict[str, Any], list[tuple[int, ...]]], seed: int
) -> None:
    attrs, shapes = conv
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    bias = rng.standard_normal(shapes[1][0]).astype(np.float32)
    got = reference("nn.conv2d", [x, w, bias], **attrs)
    want = onnx_run("Conv", onnx_attrs(attrs), {"x": x, "w": w, "b": bias})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@given(convolutions(), st.integers(0, 255), seeds)
@settings(max_examples=30, deadline=None)
def test_integer_conv2d_equals_onnxruntime(
    conv: tuple[dict[str, Any], list[tuple[int, ...]]], zero: int, seed: int
) -> None:
    attrs, shapes = conv
    attrs = {**attrs, "groups": 1}
    shapes = [(shapes[0][0], shapes[1][1], *shapes[0][2:]), shapes[1]]
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, shapes[0]).astype(np.uint8)
    w = rng.integers(-128, 128, shapes[1]).astype(np.int8)
    got = reference("nn.conv2d", [x, w], **attrs, out_dtype="int32", input_zero_point=zero)
    arrays = {"x": x, "w": w.astype(np.int8), "z": np.array(zero, np.uint8)}
    want = onnx_run("ConvInteger", onnx_attrs(attrs), arrays)
    np.testing.assert_array_equal(got, want)


@given(convolutions(), st.sampled_from([FLOAT32, TOY, UINT8, INT8]), seeds, st.booleans())
@settings(max_examples=40, deadline=None)
def test_conv2d_loops_equal_reference(
    conv: tuple[dict[str, Any], list[tuple[int, ...]]], dtype: Any, seed: int, symbolic: bool
) -> None:
    attrs, shapes = conv
    rng = np.random.default_rng(seed)
    if dtype.is_integer:
        attrs = {**attrs, "out_dtype": "int32", "input_zero_point": 5}
    weight = INT8 if dtype.is_integer else dtype
    types = [TensorType.of(s, d) for s, d in zip(shapes, (dtype, weight), strict=True)]
    args = [values(rng, t, -2, 2) for t in types]
    if symbolic:  # height as a symbolic dimension
        types[0] = TensorType.of((*shapes[0][:2], N, shapes[0][3]), dtype)
    check_agreement("nn.conv2d", attrs, types, args, {N: shapes[0][2]})


@given(convolutions(), st.sampled_from([1, 8]), st.sampled_from([1, 9]), levels, seeds)
@settings(max_examples=6, deadline=None)
def test_padding_contributes_nothing_to_weights_that_are_no_numbers(
    conv: tuple[dict[str, Any], list[tuple[int, ...]]],
    channels: int,
    longer: int,
    level: int,
    seed: int,
) -> None:
    """Zeros in place of the padding would be NaN times infinity. All other numbers are small
    integers, whose sums are the same in any order; channels of 8 are blocked."""
    attrs, ((n, c, *size), (o, per_group, *kernel)) = conv
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (n, c * channels, *(k * longer for k in size))).astype(np.float32)
    w = rng.integers(-2, 3, (o * channels, per_group * channels, *kernel)).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        w.flat[rng.integers(w.size)] = value
    b = FunctionBuilder()
    out = b.call("nn.conv2d", b.param("x", x.shape), b.const(w), **attrs)
    mod = IRModule({"main": b.finish(b.call("nn.relu", out))})
    with np.errstate(invalid="ignore"):
        want = compiler.evaluate(mod, x)
    with compiler.PassContext(opt_level=level):
        np.testing.assert_array_equal(compiler.build(mod)(x), want)


@st.composite
def pools(draw: Any) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Attributes and data shape of a pooling that fits."""
    kernel, dilation = draw(st.tuples(small, small)), draw(st.tuples(small, small))
    before, after = (tuple(draw(st.integers(0, k - 1)) for k in kernel) for _ in range(2))
    strides, partial = draw(st.tuples(small, small)), draw(st.booleans())
    size = tuple(
        draw(st.integers(max(1, (k - 1) * d + 1 - i - j - partial * (s - 1)), 9))
        for k, d, s, i, j in zip(kernel, dilation, strides, before, after, strict=True)
    )
    attrs = {
        "pool_size": kernel,
        "strides": strides,
        "padding": (*before, *after),
        "dilation": dilation,
        "ceil_mode": draw(st.booleans()),
        "partial": partial,
    }
    return attrs, (draw(st.integers(1, 2)), draw(small), *size)


@pytest.mark.thorough
@given(pools(), st.sampled_from([FLOAT32, TOY]), seeds, st.booleans())
@settings(max_examples=40, deadline=None)
def test_pooling_loops_equal_reference(
    pool: tuple[dict[str, Any], tuple[int, ...]], dtype: Any, seed: int, include: bool
) -> None:
    attrs, shape = pool
    t = TensorType.of(shape, dtype)
    x = values(np.random.default_rng(seed), t, -9, 9)
    check_agreement("nn.max_pool2d", attrs, [t], [x])
    with np.errstate(invalid="ignore"):
        average = {**attrs, "count_include_pad": include}
        check_agreement("nn.avg_pool2d", average, [t], [x])


@given(pools(), seeds)
@settings(max_examples=60, deadline=None)
def test_max_pool2d_equals_onnxruntime(
    pool: tuple[dict[str, Any], tuple[int, ...]], seed: int
) -> None:
    attrs, shape = pool
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    got = reference("nn.max_pool2d", [x], **attrs)
    more = {"kernel_shape": attrs["pool_size"], "ceil_mode": int(attrs["ceil_mode"])}
    want = onnx_run("MaxPool", {**onnx_attrs(attrs), **more}, {"x": x})
    # Of a window of padding alone, one of its float32 kernels gives the least number, while its
    # others, and those of other dtypes, give minus infinity.
    nothing = np.isneginf(got)
    np.testing.assert_array_equal(got[~nothing], want[~nothing])
    assert (want[nothing] <= np.finfo(np.float32).min).all()


@given(pools(), st.booleans(), seeds)
@settings(max_examples=60, deadline=None)
def test_avg_pool2d_equals_onnxruntime(
    pool: tuple[dict[str, Any], tuple[int, ...]], include: bool, seed: int
) -> None:
    attrs, shape = pool
    attrs = {**attrs, "dilation": (1, 1)}  # the size fits a larger dilation, so it fits this
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    got = reference("nn.avg_pool2d", [x], **attrs, count_include_pad=include)
    more = {
        "kernel_shape": attrs["pool_size"],
        "ceil_mode": int(attrs["ceil_mode"]),
        "count_include_pad": int(include),
    }
    want = onnx_run("AveragePool", {**onnx_attrs(attrs), **more}, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_padding_contributes_nothing() -> None:
    """An infinite weight would turn a padding product into NaN."""
    x, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 0] = np.inf
    bits = [a.astype(np.float16).view(np.uint16) for a in (x, w)]
    types = [TensorType.of(a.shape, TOY) for a in bits]
    attrs = {"padding": (1, 1, 1, 1)}
    (got,) = check_agreement("nn.conv2d", attrs, types, bits)
    np.testing.assert_array_equal(got.view(np.float16)[0, 0], [[4, 4], [4, np.inf]])


def test_a_float_convolution_accumulates_in_order() -> None:
    """In float16, 2048 + 1 + 1 is 2048 one by one but 2050 pairwise."""
    x = np.array([2048, 1, 1], np.float16).reshape(1, 3, 1, 1)
    out = reference("nn.conv2d", [x, np.ones((1, 3, 1, 1), np.float16)])
    assert out.item() == 2048
    assert reference("nn.conv2d", [x[:, ::-1], np.ones((1, 3, 1, 1), np.float16)]).item() == 2050
    wide = reference("nn.conv2d", [x, np.ones((1, 3, 1, 1), np.float16)], out_dtype="float32")
    assert (wide.dtype, wide.item()) == (np.float32, 2050)


def test_integer_accumulation_wraps() -> None:
    x = np.full((1, 1), 2**30, np.int32)
    assert reference("nn.dense", [x, np.full((1, 1), 4, np.int32)]).item() == 0


@pytest.mark.parametrize("ceil_mode", [False, True])
@given(st.integers(1, 12), st.integers(1, 4), small, st.integers(0, 3), st.integers(0, 3), small)
@settings(max_examples=80, deadline=None)
def test_window_taps_by_definition(
    ceil_mode: bool, size: int, kernel: int, stride: int, before: int, after: int, dilation: int
) -> None:
    w = Window(kernel, stride, before, after, dilation)
    assume(max(w.span - before - after, 1) <= size and after < w.span)
    count = w.outputs(size, ceil_mode)
    symbolic = Index.of(w.outputs(N, ceil_mode))
    assert symbolic.value({N: size}) == count
    positions = range(0, size + before + after + stride, stride)
    fits = [p for p in positions if p + w.span <= size + before + after]
    if ceil_mode and fits[-1] + w.span < size + before + after:
        fits += [p for p in [fits[-1] + stride] if p < size + before]
    assert isinstance(count, int)
    assert count == len(fits)
    for y in range(count):
        inside = [k for k in range(kernel) if 0 <= y * stride + k * dilation - before < size]
        first, end = w.first_tap(size, y).const, w.end_tap(size, y).const
        assert list(range(first, end)) == inside
    for k in range(kernel):
        outputs, data = w.valid(size, count, k)
        at = [y * stride + k * dilation - before for y in range(count)[outputs]]
        assert at == list(range(size)[data])
        assert all(y in range(count)[outputs] or not 0 <= y * stride + k * dilation - before < size
                   for y in range(count))  # fmt: skip


@given(st.integers(1, 12), st.integers(1, 5), small, st.integers(0, 2), st.integers(0, 2), small)
@settings(max_examples=100, deadline=None)
def test_first_windows_that_reach_beyond_the_data(
    size: int, kernel: int, stride: int, before: int, after: int, dilation: int
) -> None:
    """As many as a division towards zero says, for known sizes and for open ones."""
    w = Window(kernel, stride, before, after, dilation)
    count = int((size + before + after - w.span) / stride) + 1
    assert w.outputs(size, partial=True) == Index.of(w.outputs(N, partial=True)).value({N: size})
    assert max(0, Index.of(w.outputs(size, partial=True)).const) == max(0, count)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "message"),
    [
        ("nn.conv2d", {}, [(1, 2, 4, 4), (3, 3, 1, 1)], r"do not fit with 1 groups"),
        ("nn.conv2d", {"groups": 2}, [(1, 4, 4, 4), (3, 2, 1, 1)], r"do not fit with 2 groups"),
        ("nn.conv2d", {}, [(1, 2, 4), (3, 2, 1)], r"data must have rank 4, not shape \(1, 2, 4\)"),
        ("nn.conv2d", {}, [(1, 2, 2, 2), (3, 2, 3, 3)], r"does not fit into data \(1, 2, 2, 2\)"),
        ("nn.conv2d", {"padding": (1, 1)}, [(1, 2, 4, 4), (3, 2, 1, 1)], r"padding must be tuple"),
        ("nn.conv2d", {"strides": (0, 1)}, [(1, 2, 4, 4), (3, 2, 1, 1)], r"positive integers"),
        ("nn.conv2d", {"padding": (-1, 0, 0, 0)}, [(1, 1, 4, 4), (1, 1, 1, 1)], r"negative"),
        ("nn.conv2d", {"input_zero_point": 1}, [(1, 1, 4, 4), (1, 1, 1, 1)], r"integer data"),
        ("nn.conv2d", {}, [(1, 1, 4, 4), (2, 1, 1, 1), (3,)], r"bias must be float32 of shape"),
        ("nn.conv2d", {"out_dtype": "flaot32"}, [(1, 1, 4, 4), (2, 1, 1, 1)], r"float32"),
        ("nn.max_pool2d", {"pool_size": (2, 2), "padding": (2, 0, 0, 0)}, [(1, 1, 4, 4)], r"small"),
        ("nn.max_pool2d", {"pool_size": (5, 5)}, [(1, 1, 4, 4)], r"does not fit"),
        ("nn.global_avg_pool2d", {}, [(1, 2)], r"no spatial"),
        ("nn.dense", {}, [(2, 3), (4, 5)], r"\(2, 3\) does not fit weight \(4, 5\)"),
        ("nn.dense", {}, [(2, 3), (4, 3), (5,)], r"bias"),
        ("nn.matmul", {}, [(2, 3), (4, 5)], r"\(2, 3\) and \(4, 5\) do not fit"),
    ],
)  # fmt: skip
def test_misfits_are_type_errors(
    op: str, attrs: dict[str, Any], shapes: list[tuple[int, ...]], message: str
) -> None:
    from compiler.errors import DtypelabError

    definition = get_op(op)
    with pytest.raises(DtypelabError, match=message):
        definition.infer_type(
            definition.make_attrs(**attrs), [TensorType.of(s, FLOAT32) for s in shapes]
        )


def test_mixed_dtypes_need_out_dtype() -> None:
    dense = get_op("nn.dense")
    types = [TensorType.of((2, 3), UINT8), TensorType.of((4, 3), INT8)]
    with pytest.raises(TypeInferenceError, match="out_dtype='int32'"):
        dense.infer_type(dense.make_attrs(), types)
    with pytest.raises(TypeInferenceError, match="integer out_dtype"):
        dense.infer_type(dense.make_attrs(out_dtype="float32"), types)
    made = dense.infer_type(dense.make_attrs(out_dtype="int32"), types)
    assert made == TensorType.of((2, 4), INT32)
    mixed = [TensorType.of((2, 3), FLOAT32), TensorType.of((4, 3), TOY)]
    with pytest.raises(TypeInferenceError, match="cast one of them"):
        dense.infer_type(dense.make_attrs(out_dtype="float32"), mixed)


def test_macs() -> None:
    def count(op: str, *shapes: tuple[Any, ...], **attrs: Any) -> Any:
        definition = get_op(op)
        types = [TensorType.of(s, FLOAT32) for s in shapes]
        made = definition.make_attrs(**attrs)
        assert definition.macs is not None
        result = definition.infer_type(made, types)
        assert isinstance(result, TensorType)
        return definition.macs(made, types, result)

    assert count("nn.conv2d", (1, 4, 5, 5), (6, 2, 3, 3), groups=2) == 6 * 9 * 2 * 9
    assert count("nn.dense", (N, 7), (3, 7)) == N * 21
    assert count("nn.matmul", (2, 3, 4), (4, 5)) == 2 * 3 * 4 * 5


def test_empty_windows_are_those_without_a_tap_inside() -> None:
    empty = set()
    for kernel, stride, before, after, dilation, size in product(
        (1, 2, 3), (1, 2), (0, 1, 3), (0, 1, 3), (1, 2), (1, 2, 4)
    ):
        w = Window(kernel, stride, before, after, dilation)
        count = int(Index.of(w.outputs(size)).const)
        if count < 1:
            continue
        want = any(w.first_tap(size, y) == w.end_tap(size, y) for y in range(count))
        assert Axis(w, Index.of(size), True).may_be_empty(Index.of(count)) == want
        empty.add(want)
    assert empty == {True, False}
