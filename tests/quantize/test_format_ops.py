"""Operators that round to scaled formats and to block formats: every path has ml_dtypes' bits."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from format_emulation import assert_same, mx, nvfp4, scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from qnn_checks import check

import compiler
import datatypes
from compiler.arithmetic.arrays import arithmetic
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.types.dtypes import FLOAT32, Array
from quantize.formats.element import element

FORMATS = (
    "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float8_e4m3fnuz", "float6_e2m3fn",
    "float6_e3m2fn", "float4_e2m1fn", "bfloat16",
)  # fmt: skip
ELEMENTS = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")


def attrs(name: str) -> dict[str, Any]:
    """Attributes that name a format of ml_dtypes and its range."""
    info = ml_dtypes.finfo(getattr(ml_dtypes, name))
    high = float(info.max)
    return {"dtype": f"custom[{name}]{info.bits}", "low": -high, "high": high}


def checked(name: str, *args: Array, target: str = "llvm", **given: Any) -> Array:
    """The result by every path, the compiled one compared in its zeros' signs too."""
    want = check(name, *args, **given)
    f = FunctionBuilder()
    params = [f.param(f"p{k}", np.shape(a), "float32") for k, a in enumerate(args)]
    mod = IRModule({"main": f.finish(f.call(name, *params, **given))})
    assert_same(compiler.build(mod, target=target)(*args), want)
    return want


def all_magnitudes(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Numbers of every exponent that float32 has, with zeros of both signs among them."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[~np.isfinite(x)] = 0.0
    x[rng.random(shape) < 0.1] = -0.0
    return x


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "scale"), list(zip(FORMATS, itertools.cycle([0.0137, 2.0**-20, 1.0]), strict=False))
)
def test_a_scaled_cast_has_the_bits_of_ml_dtypes(name: str, scale: float) -> None:
    rng = np.random.default_rng(1)
    near = (rng.normal(0, 1, 900) * 2.0 ** rng.integers(-12, 12, 900) * scale).astype(np.float32)
    x = np.concatenate([near, all_magnitudes((90,)), np.float32([np.inf, -np.inf, np.nan, -0.0])])
    s = np.float32(scale)
    assert_same(checked("qnn.simulated_cast", x, s, **attrs(name)), scaled(x, s, name))


def test_a_scaled_cast_takes_a_scale_for_each_channel() -> None:
    x = np.random.default_rng(2).normal(0, 3, (2, 5, 3, 4)).astype(np.float32)
    s = np.float32([0.01, 0.5, 1, 3, 0.2])
    got = checked("qnn.simulated_cast", x, s, axis=1, **attrs("float8_e4m3fn"))
    assert_same(got, scaled(x, s[:, None, None], "float8_e4m3fn"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", ["posit8_es2", "posit32_es2", "takum8", "fixed8_4", "lns8_3", "nf4"]
)
def test_every_described_format_is_cast_as_its_codec_says(name: str) -> None:
    fmt = datatypes.get(name)
    x = (np.random.default_rng(3).normal(0, 4, 200)).astype(np.float32)
    most = float(np.finfo(np.float32).max)
    low, high = max(float(fmt.value(fmt.lowest)), -most), min(float(fmt.maxpos), most)
    s = np.float32(0.3)
    got = checked(
        "qnn.simulated_cast", x, s, dtype=f"custom[{name}]{fmt.nbits}", low=low, high=high
    )  # fmt: skip
    codes = datatypes.encode(name, np.clip(x / s, np.float32(low), np.float32(high)))
    assert_same(got, datatypes.decode(name, codes).astype(np.float32) * s)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("float8_e4m3fn", (2, 70, 3, 5), 1),
        ("float8_e5m2", (3, 4, 64), -1),
        ("float4_e2m1fn", (5, 40), 0),
    ],
)
def test_blocks_have_the_bits_of_the_specification(
    name: str, shape: tuple[int, ...], axis: int
) -> None:
    rng = np.random.default_rng(4)
    x = (rng.normal(0, 1, shape) * 2.0 ** rng.integers(-8, 8, shape)).astype(np.float32)
    assert_same(checked("qnn.simulated_blocks", x, axis=axis, **attrs(name)), mx(x, name, axis))


floats = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=40),
    elements=st.floats(width=32) | st.floats(-8, 8, width=32) | st.sampled_from([0.0, -0.0]),
)


@pytest.mark.thorough
@given(floats, st.sampled_from(ELEMENTS), st.sampled_from([1, 7, 16, 32]))
@settings(max_examples=30)
def test_any_blocks_have_the_bits_of_the_specification(x: Array, name: str, size: int) -> None:
    op = get_op("qnn.simulated_blocks")
    made = op.make_attrs(axis=1, block=size, **attrs(name))
    assert_same(op.reference(arithmetic(FLOAT32), made, x), mx(x, name, 1, size))


@pytest.mark.thorough
def test_compiled_blocks_agree_on_every_magnitude_and_on_what_is_no_number() -> None:
    x = all_magnitudes((40, 75))
    x[3, 5], x[9, 70], x[11, 0] = np.nan, np.inf, -np.inf
    x[20] = 0.0
    x[21] = np.float32(1e-45)
    for name in ELEMENTS:
        assert_same(checked("qnn.simulated_blocks", x, axis=1, **attrs(name)), mx(x, name, 1))


@pytest.mark.parametrize("unit", [1.0, 0.037])
def test_scales_of_blocks_may_be_in_any_format(unit: float) -> None:
    x = np.random.default_rng(5).normal(0, 1, (6, 40)).astype(np.float32)
    x[2] *= 1e-6
    x[3] = 0
    got = checked(
        "qnn.simulated_blocks", x, axis=1, block=16, unit=unit, scale_low=2.0**-9, scale_high=448.0,
        scale_dtype="custom[float8_e4m3fn]8", **attrs("float4_e2m1fn"),
    )  # fmt: skip
    assert_same(got, nvfp4(x, unit))


def test_blocks_of_a_tapered_format_use_its_precise_numbers() -> None:
    e = element("posit6_es1")
    assert e.target == 16 < e.high == 256
    x = np.random.default_rng(6).normal(0, 1, (4, 64)).astype(np.float32)
    given = {"dtype": str(e.dtype), "low": e.low, "high": e.high}
    near = checked("qnn.simulated_blocks", x, top=e.target, **given)
    far = checked("qnn.simulated_blocks", x, **given)
    scale = 2.0 ** (np.frexp(np.abs(x).reshape(4, 2, 32).max(axis=2))[1] - 1 - 4)
    blocks = x.reshape(4, 2, 32) / scale[:, :, None]
    assert_same(near, (e.rounded(blocks) * scale[:, :, None]).reshape(4, 64).astype(np.float32))
    assert np.abs(near - x).mean() < 0.75 * np.abs(far - x).mean()


def test_what_cannot_be_rounded_is_refused() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(TypeInferenceError, match="takes float32, not float64"):
        checked("qnn.simulated_cast", x.astype(np.float64), np.float32(1), **attrs("bfloat16"))
    with pytest.raises(TypeInferenceError, match="is not a custom dtype"):
        checked("qnn.simulated_blocks", x, dtype="int8", low=-1.0, high=1.0)
    with pytest.raises(TypeInferenceError, match="not the range of a format"):
        checked("qnn.simulated_blocks", x, dtype="custom[bfloat16]16", low=1.0, high=-1.0)
