"""The integer operators: reference, loop nest and compiled code agree, and all are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qnn_checks import RANGES, check, limits, reference

from compiler.errors import TypeInferenceError
from compiler.op.library import get_op
from compiler.types.dtypes import FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8
from compiler.types.tensor_types import TensorType


# ---- quantize, dequantize, simulated_quantize ----------------------------------------------------
def test_quantize_rounds_half_to_even_and_saturates() -> None:
    x = np.array([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1e9, -1e9, np.inf, -np.inf], np.float32)
    q = check("qnn.quantize", x, np.float32(0.5), zero_point=10, **limits("uint8"))
    assert q.tolist() == [8, 8, 10, 10, 12, 12, 255, 0, 255, 0]


def test_quantize_gives_nan_a_value() -> None:
    x = np.array([np.nan, 1.0], np.float32)
    assert check("qnn.quantize", x, np.float32(1), zero_point=3, **limits("int8")).tolist() == [
        -128,
        4,
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("bits", [2, 5, 8])
def test_simulation_is_quantize_then_dequantize(dtype: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    x = rng.normal(0, 3, (2, 3, 4, 5)).astype(np.float32)
    scale = np.array([0.01, 0.3, 2.0], np.float32)
    where = limits(dtype, bits)
    zero = (where["qmin"] + where["qmax"]) // 2
    q = check("qnn.quantize", x, scale, zero_point=zero, axis=1, **where)
    assert where["qmin"] <= q.min()
    assert q.max() <= where["qmax"]
    real = check("qnn.dequantize", q, scale, zero_point=zero, axis=1)
    np.testing.assert_array_equal(
        check("qnn.simulated_quantize", x, scale, zero_point=zero, axis=1, **where), real
    )
    inside = np.abs(real) < 0.9 * 2 ** (bits - 1) * scale.reshape(3, 1, 1) - scale.reshape(3, 1, 1)
    error = np.abs(real - x) / scale.reshape(3, 1, 1)
    assert error[inside].max(initial=0) <= 0.5 + 1e-5


def test_dequantize_of_accumulators_has_a_scale_per_channel() -> None:
    x = np.array([[1 << 24, -3], [(1 << 24) + 1, 7]], np.int32)
    y = check("qnn.dequantize", x, np.array([1, 0.5], np.float32), axis=-1)
    assert y.tolist() == [[16777216.0, -1.5], [16777216.0, 3.5]]


# ---- add -----------------------------------------------------------------------------------------
@pytest.mark.thorough
def test_add_rounds_products_and_sum_to_float32() -> None:
    grid = np.arange(-128, 128, dtype=np.int8)
    a, b = grid.reshape(-1, 1), grid.reshape(1, -1)
    ra, rb = float(np.float32(0.5703125001)), float(np.float32(0.0703125007))
    attrs = {
        "a_scale": ra, "b_scale": rb, "a_zero_point": 3, "b_zero_point": -7,
        "output_zero_point": -20, **limits("int8"),
    }  # fmt: skip
    got = check("qnn.add", a, b, **attrs)
    left = (a.astype(np.float32) - np.float32(3)) * np.float32(ra)
    right = (b.astype(np.float32) + np.float32(7)) * np.float32(rb)
    want = np.clip(np.rint(left + right).astype(int) - 20, -128, 127)
    np.testing.assert_array_equal(got, want)


def test_add_does_not_fuse_a_multiply() -> None:
    """Pairs for which fma(b, rb, a * ra) rounds to another integer than two products and a sum."""
    rng = np.random.default_rng(0)
    ra, rb = np.float32(rng.uniform(0.3, 1, 4000)), np.float32(rng.uniform(0.3, 1, 4000))
    a, b = np.arange(-128, 128)[:, None], np.arange(-128, 128)[None, :]
    checked = 0
    for s, t in zip(ra, rb, strict=True):
        plain = np.float32(a) * s + np.float32(b) * t
        fused = (np.float64(a) * np.float64(s)).astype(np.float32) + np.float64(b) * np.float64(t)
        differ = np.rint(plain) != np.rint(fused)
        inside = np.abs(plain) < 100
        if (differ & inside).any():
            i, j = np.argwhere(differ & inside)[0]
            x, y = np.int8([a[i, 0]] * 16), np.int8([b[0, j]] * 16)
            got = check("qnn.add", x, y, a_scale=float(s), b_scale=float(t), **limits("int8"))
            assert got[0] == np.rint(plain[i, j])
            checked += 1
        if checked == 3:
            break
    assert checked == 3


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), dtypes=st.tuples(*[st.sampled_from(["int8", "uint8"])] * 3))
def test_add_agrees(seed: int, dtypes: tuple[str, str, str]) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(2, 3, 4, 5), (3, 1, 5)]
    a, b = (
        rng.integers(*RANGES[d], s, endpoint=True).astype(d)
        for d, s in zip(dtypes[:2], shapes, strict=True)
    )
    zeros = [int(rng.integers(*RANGES[d], endpoint=True)) for d in dtypes]
    ratios = [float(np.float32(r)) for r in rng.uniform(0.01, 1.5, 2)]
    check(
        "qnn.add", a, b, a_scale=ratios[0], b_scale=ratios[1], a_zero_point=zeros[0],
        b_zero_point=zeros[1], output_zero_point=zeros[2], **limits(dtypes[2]),
    )  # fmt: skip


# ---- averages ------------------------------------------------------------------------------------
def test_mean_of_halves_goes_to_even() -> None:
    x = np.array([[1, 2], [3, 4], [7, 4]], np.uint8)
    got = check(
        "qnn.mean", x, axis=(1,), input_zero_point=1, output_zero_point=5, **limits("uint8")
    )
    assert got.tolist() == [5, 7, 9]  # 0.5, 2.5, 4.5 above 5


@pytest.mark.parametrize("axis", [(), (2, 3), (1,), (-1, 0)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_mean_agrees(axis: tuple[int, ...], keepdims: bool) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (2, 3, 4, 5)).astype(np.uint8)
    attrs = {
        "axis": axis, "keepdims": keepdims, "input_zero_point": 100, "output_zero_point": -5,
        **limits("int8"),
    }  # fmt: skip
    got = check("qnn.mean", x, ratio=float(np.float32(1.7)), **attrs)
    real = (x - 100.0).mean(axis or None, keepdims=keepdims) * 1.7 - 5
    assert np.abs(got - np.clip(real, -128, 127)).max() <= 0.5 + 1e-4


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(["int8", "uint8"]),
    include=st.booleans(),
    ceil=st.booleans(),
)
def test_avg_pool_is_the_float_one_within_rounding(
    seed: int, dtype: str, include: bool, ceil: bool
) -> None:
    rng = np.random.default_rng(seed)
    low, high = RANGES[dtype]
    x = rng.integers(low, high, (1, 2, 7, 6), endpoint=True).astype(dtype)
    zero = int(rng.integers(low, high, endpoint=True))
    window = {
        "pool_size": tuple(map(int, rng.integers(2, 4, 2))),
        "strides": tuple(map(int, rng.integers(1, 4, 2))),
        "padding": tuple(map(int, rng.integers(0, 2, 4))),
        "ceil_mode": ceil, "count_include_pad": include,
    }  # fmt: skip
    middle = (low + high + 1) // 2
    got = check(
        "qnn.avg_pool2d", x, **window, ratio=0.25, input_zero_point=zero, output_zero_point=middle,
        **limits(dtype),
    )  # fmt: skip
    real = reference("nn.avg_pool2d", x.astype(np.float32) - zero, **window) * 0.25 + middle
    assert np.abs(got - np.clip(real, low, high)).max() <= 0.5 + 1e-4


# ---- types ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "types", "attrs", "message"),
    [
        ("qnn.quantize", [((2, 3), INT8), ((), FLOAT32)], {}, "takes float32"),
        ("qnn.quantize", [((2, 3), FLOAT32), ((2,), FLOAT32)], {}, "on axis 1"),
        (
            "qnn.quantize",
            [((2, 3), FLOAT32), ((), FLOAT32)],
            {"out_dtype": "int32"},
            "int8, uint8 or int16",
        ),
        ("qnn.quantize", [((2, 3), FLOAT32), ((), FLOAT32)], {"qmin": -1}, "do not fit"),
        (
            "qnn.dequantize",
            [((2, 3), FLOAT32), ((), FLOAT32)],
            {},
            "int32 or int64",
        ),
        ("qnn.requantize", [((2, 3), INT32), ((), INT32)], {}, "must be float32"),
        ("qnn.requantize", [((2, 3), INT32), ((), FLOAT64)], {}, "must be float32"),
        ("qnn.requantize", [((2, 3), INT32), ((), FLOAT32)], {"rounding": "up"}, "rounding"),
        (
            "qnn.requantize",
            [((2, 3), INT64), ((), FLOAT32)],
            {"rounding": "fixed_upward"},
            "int64 takes float32",
        ),
        ("qnn.add", [((2, 3), UINT8), ((4,), UINT8)], {}, "broadcast"),
        ("qnn.mean", [((2, 3), UINT8)], {"axis": (2,)}, "out of range"),
    ],
)
def test_types_that_do_not_fit(
    name: str, types: list[Any], attrs: dict[str, Any], message: str
) -> None:
    op = get_op(name)
    with pytest.raises(TypeInferenceError, match=message):
        op.infer_type(op.make_attrs(**attrs), [TensorType.of(*t) for t in types])
