"""Operators that move elements, against numpy and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from op_harness import N, check_agreement, reference
from ort_node import onnx_run
from toy_dtype import TOY

from compiler.errors import TypeInferenceError
from compiler.op.library import get_op
from compiler.types.dtypes import BOOL, FLOAT32, INT64, Array, DType
from compiler.types.tensor_types import TensorType

small = st.integers(1, 4)


def numbered(shape: tuple[int, ...]) -> Array:
    """Every element different."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.uint16).reshape(shape)


def agree(op: str, x: Array, **attrs: Any) -> Array:
    """The reference's result on storage of a custom dtype, whose bits must only move."""
    (y,) = check_agreement(op, attrs, [TensorType.of(x.shape, TOY)], [x])
    return y


bounds = st.integers(-8, 8)


@pytest.mark.thorough
@given(
    array_shapes(min_dims=1, max_dims=3, max_side=6),
    st.lists(st.tuples(bounds, bounds, st.sampled_from([-3, -2, -1, 1, 2, 3])), max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_strided_slice_is_numpys(shape: tuple[int, ...], cuts: list[tuple[int, int, int]]) -> None:
    x, cuts = numbered(shape), cuts[: len(shape)]
    want = x[tuple(slice(*c) for c in cuts)]
    attrs = dict(zip(("begin", "end", "strides"), zip(*cuts, strict=True), strict=False))
    attrs = attrs or {"begin": (), "end": ()}
    if want.size:
        np.testing.assert_array_equal(agree("strided_slice", x, **attrs), want)
    else:
        with pytest.raises(TypeInferenceError, match="nothing is left"):
            agree("strided_slice", x, **attrs)


@given(st.integers(1, 7), bounds, bounds, st.sampled_from([-2, -1, 1, 3]))
@settings(max_examples=80, deadline=None)
def test_symbolic_slices_have_numpys_length(n: int, begin: int, end: int, step: int) -> None:
    op, want = get_op("strided_slice"), len(range(n)[begin:end:step])
    attrs = op.make_attrs(begin=(begin,), end=(end,), strides=(step,))
    try:
        t = op.infer_type(attrs, [TensorType.of((N,), FLOAT32)])
    except TypeInferenceError:
        assert want == 0
        return
    assert isinstance(t, TensorType)
    length = t.shape[0]
    assert (length if isinstance(length, int) else length.value({N: n})) == want


@pytest.mark.thorough
@given(st.data(), array_shapes(max_dims=4, max_side=4))
@settings(max_examples=60, deadline=None)
def test_reshape_and_transpose(data: Any, shape: tuple[int, ...]) -> None:
    x = numbered(shape)
    axes = data.draw(st.permutations(range(x.ndim)))
    np.testing.assert_array_equal(agree("transpose", x, axes=tuple(axes)), x.transpose(axes))
    factors = [p for p in (2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3) if x.size % p == 0]
    new, left = [], x.size
    for p in data.draw(st.permutations(factors)):
        if left % p == 0:
            new, left = [*new, p], left // p
    new.append(-1 if data.draw(st.booleans()) else left)
    np.testing.assert_array_equal(
        agree("reshape", x, newshape=tuple(new)), x.reshape([n if n != -1 else left for n in new])
    )


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_pad_is_numpys(mode: str, data: Any) -> None:
    shape = data.draw(array_shapes(max_dims=3, max_side=5))
    widths = [
        data.draw(st.tuples(*[st.integers(0, n - 1 if mode == "reflect" else 3)] * 2))
        for n in shape
    ]
    x = numbered(shape)
    more: dict[str, Any] = {"constant_values": 0} if mode == "constant" else {}
    want = np.pad(x, widths, mode, **more)
    np.testing.assert_array_equal(agree("nn.pad", x, pad_width=tuple(widths), mode=mode), want)


@pytest.mark.thorough
@given(
    st.lists(small, min_size=1, max_size=4),
    st.integers(-2, 1),
    st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_concatenate_undoes_split(sizes: list[int], axis: int, other: int) -> None:
    shape = [other, other]
    shape[axis] = sum(sizes)
    x = numbered((shape[0], shape[1]))
    types = [TensorType.of(x.shape, TOY)]
    parts = check_agreement("split", {"sizes": tuple(sizes), "axis": axis}, types, [x])
    assert [p.shape[axis] for p in parts] == sizes
    part_types = [TensorType.of(p.shape, TOY) for p in parts]
    (whole,) = check_agreement("concatenate", {"axis": axis}, part_types, parts)
    np.testing.assert_array_equal(whole, x)


@pytest.mark.thorough
@given(
    array_shapes(min_dims=1, max_dims=3, max_side=4),
    arrays(np.int64, array_shapes(min_dims=0, max_dims=2, max_side=3), elements=st.integers(-4, 3)),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_take_is_numpys(shape: tuple[int, ...], indices: Array, data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, size = numbered(shape), shape[axis]
    types = [TensorType.of(shape, TOY), TensorType.of(indices.shape, INT64)]
    (got,) = check_agreement("take", {"axis": axis}, types, [x, indices])
    np.testing.assert_array_equal(got, np.take(x, np.clip(indices, -size, size - 1), axis))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "float16", "int64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 17, 33), (0, 2, 1)), ((48, 3, 16), (2, 1, 0)), ((16, 2, 20), (2, 0, 1))],
)
def test_matrices_are_turned_in_squares(
    dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """Whole squares, what is left of both sides, and rows that lie apart."""
    x = (np.arange(np.prod(shape)) * 7 % 251).reshape(shape)
    x = (x % 2 == 0 if dtype == "bool" else x).astype(dtype)
    types = [TensorType.of(shape, DType.parse(dtype))]
    (got,) = check_agreement("transpose", {"axes": axes}, types, [x])
    np.testing.assert_array_equal(got, x.transpose(axes))


@given(
    st.sampled_from(["float32", "int8", "bool", "int64"]),
    st.integers(1, 3),
    st.sampled_from([3, 16, 40, 70]),
    arrays(np.int64, array_shapes(min_dims=0, max_dims=2, max_side=3), elements=st.integers(-4, 3)),
    st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_take_of_whole_rows(
    dtype: str, before: int, width: int, indices: Array, first: bool
) -> None:
    """Rows are read several elements at once, whatever their length and dtype."""
    x = (np.arange(before * 4 * width) * 7 % 251).reshape(before, 4, width)
    x = (x % 2 == 0 if dtype == "bool" else x.astype(np.int8)).astype(dtype)
    x, axis = (x[0], 0) if first else (x, 1)
    types = [TensorType.of(x.shape, DType.parse(dtype)), TensorType.of(indices.shape, INT64)]
    (got,) = check_agreement("take", {"axis": axis}, types, [x, indices])
    np.testing.assert_array_equal(got, np.take(x, indices, axis))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
@given(st.tuples(small, small), st.tuples(st.integers(1, 9), st.integers(1, 9)), st.booleans())
@settings(max_examples=15, deadline=None)
def test_resize_equals_onnxruntime(
    coordinates: str, rounding: str, old: tuple[int, int], new: tuple[int, int], by_scale: bool
) -> None:
    modes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    x = numbered((1, 2, *old))
    feeds: dict[str, Array] = {"x": x.astype(np.float32), "_roi": np.zeros(0, np.float32)}
    if by_scale:
        scales = tuple(float(np.float32(m / n)) for m, n in zip(new, old, strict=True))
        feeds["scales"] = np.array([1, 1, *scales], np.float32)
        attrs: dict[str, Any] = {"scales": scales}
        if any(int(np.float32(n) * np.float32(s)) < 1 for n, s in zip(old, scales, strict=True)):
            return
    else:
        feeds["_scales"] = np.zeros(0, np.float32)
        feeds["sizes"] = np.array([1, 2, *new], np.int64)
        attrs = {"size": new}
    want = onnx_run("Resize", {"mode": "nearest", **modes}, feeds)
    np.testing.assert_array_equal(agree("image.resize2d", x, **attrs, **modes), want)


def test_resize_by_a_whole_factor_needs_no_table() -> None:
    op, t = get_op("image.resize2d"), TensorType.of((N, 3, N, N * 2), FLOAT32)
    assert op.infer_type(op.make_attrs(scales=(2.0, 3.0)), [t]) == TensorType.of(
        (N, 3, N * 2, N * 6), FLOAT32
    )
    with pytest.raises(TypeInferenceError, match="must be known for a scale of 1"):
        op.infer_type(op.make_attrs(scales=(1.5, 2.0)), [t])


def test_symbolic_batch_passes_through() -> None:
    def shape(op: str, *operands: tuple[Any, ...], **attrs: Any) -> Any:
        definition = get_op(op)
        types = [TensorType.of(s, FLOAT32) for s in operands]
        t = definition.infer_type(definition.make_attrs(**attrs), types)
        assert isinstance(t, TensorType)
        return t.shape

    assert shape("reshape", (N, 4, 6), newshape=(0, -1)) == (N, 24)
    assert shape("reshape", (N, 4, 6), newshape=(-1, 24)) == (N, 24)
    assert shape("reshape", (N * 2, 6), newshape=(N, 12)) == (N, 12)
    assert shape("reshape", (N, 6), newshape=(-1, 3)) == (N * 2, 3)
    assert shape("flatten", (N, 4, 6), axis=2) == (N * 4, 6)
    assert shape("concatenate", (N, 4), (3, 4), (N, 4)) == (N * 2 + 3, 4)
    assert shape("nn.pad", (N, 4), pad_width=((1, 2), (0, 0))) == (N + 3, 4)
    assert shape("nn.conv2d", (N, 3, N, N), (8, 3, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1)) == (
        N, 8, (N + 1) // 2, (N + 1) // 2,
    )  # fmt: skip
    assert shape("nn.max_pool2d", (1, 1, N, 5), pool_size=(3, 3)) == (1, 1, N - 2, 3)
    assert shape("mean", (N, 3, 4), axis=(1, -1), keepdims=True) == (N, 1, 1)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "message"),
    [
        ("reshape", {"newshape": (4, 2)}, [(2, 3)], r"\(2, 3\) cannot become \(4, 2\): the sizes"),
        ("reshape", {"newshape": (-1, -1)}, [(2, 3)], r"only one dimension"),
        ("reshape", {"newshape": (4, -1)}, [(2, 3)], r"the sizes differ"),
        ("reshape", {"newshape": (N, 3)}, [(2, 3)], r"the sizes differ"),
        ("reshape", {"newshape": (2, 3, 0)}, [(2, 3)], r"has none to copy"),
        ("transpose", {"axes": (0,)}, [(2, 3)], r"do not name each of 2 axes"),
        ("transpose", {"axes": (0, 0)}, [(2, 3)], r"name an axis twice"),
        ("squeeze", {"axis": (1,)}, [(2, 3)], r"axis 1 of \(2, 3\) does not have length 1"),
        ("concatenate", {"axis": 0}, [(2, 3), (2, 4)], r"\(2, 3\) and \(2, 4\) differ outside"),
        ("concatenate", {"axis": 2}, [(2, 3)], r"axis 2 is out of range for rank 2"),
        ("split", {"sizes": (1, 1), "axis": 1}, [(2, 3)], r"do not add up to axis 1"),
        ("strided_slice", {"begin": (0,), "end": (1,), "strides": (0,)}, [(3,)], r"do not match"),
        ("take", {}, [(2, 3), (2,)], r"indices must be integers, not float32"),
        ("nn.pad", {"pad_width": ((1, 1),)}, [(2, 3)], r"for each axis"),
        ("nn.pad", {"pad_width": ((3, 0),), "mode": "reflect"}, [(3,)], r"cannot reflect 3"),
        ("nn.pad", {"pad_width": ((3, 0),), "mode": "wrap"}, [(3,)], r"not 'wrap'"),
        ("image.resize2d", {}, [(1, 1, 2, 2)], r"give size or scales"),
        ("image.resize2d", {"size": (2, 2), "nearest_mode": "up"}, [(1, 1, 2, 2)], r"not 'up'"),
        ("broadcast_to", {"shape": (2, 4)}, [(3,)], r"do not broadcast"),
        ("add", {}, [(2, 3), (2,)], r"\(2, 3\) and \(2,\) do not broadcast"),
        ("nn.softmax", {"axis": 2}, [(2, 3)], r"out of range"),
        ("nn.batch_norm", {}, [(2, 3), (3,), (3,), (2,), (3,)], r"\(2,\) does not fit axis 1"),
        ("nn.layer_norm", {}, [(2, 3), (2,)], r"do not broadcast|does not fit"),
        ("mean", {"axis": (0, -2)}, [(2, 3)], r"name an axis twice"),
    ],
)
def test_misfits_are_type_errors(
    op: str, attrs: dict[str, Any], shapes: list[tuple[int, ...]], message: str
) -> None:
    definition = get_op(op)
    with pytest.raises(TypeInferenceError, match=message):
        definition.infer_type(
            definition.make_attrs(**attrs), [TensorType.of(s, FLOAT32) for s in shapes]
        )


def test_moves_do_not_round() -> None:
    """NaN payloads survive: storage is moved, never computed with."""
    x = np.array([[0x7FC01234, 0x7F800001]], np.uint32).view(np.float32)
    for y in (
        reference("transpose", [x]),
        reference("nn.pad", [x], pad_width=((0, 1), (0, 0))),
        reference("concatenate", [x, x]),
    ):
        assert set(y.view(np.uint32).ravel()) >= set(x.view(np.uint32).ravel())


@pytest.mark.parametrize("op", ["scatter_elements", "scatter_nd"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scattered_truth_values_are_numpys(op: str, reduction: str) -> None:
    """Twice true is true: sums of truth values are no sums of bits."""
    rng = np.random.default_rng(0)
    data, updates = rng.random(8) < 0.5, rng.random(40) < 0.5
    at = rng.integers(-8, 8, 40)
    indices = at[:, None] if op == "scatter_nd" else at
    types = [TensorType.of(data.shape, BOOL), TensorType.of(indices.shape, INT64),
             TensorType.of(updates.shape, BOOL)]  # fmt: skip
    (got,) = check_agreement(op, {"reduction": reduction}, types, [data, indices, updates])
    want = data.copy()
    step = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(reduction)
    for k, new in zip(at, updates, strict=True):
        want[k] = new if step is None else step(want[k], new)
    np.testing.assert_array_equal(got, want)
