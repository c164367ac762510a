"""How sums are formed: the reference against exact rationals, compiled code against it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.arithmetic import fused_multiply_add
from compiler.errors import TypeInferenceError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.accumulate import MODES
from compiler.types.dtypes import Array
from datatypes.formats import Format, get, minifloat

ROUNDED_LAST = ("exact", "float32", "float64")
COMMON = ("posit8_es0", "posit16_es1", "float8_e4m3fn", "float8_e5m2", "bfloat16", "fixed8_4")
LAYERS: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "dense": ("nn.dense", ((3, 9), (18, 9), (18,)), {}),
    "matmul": ("nn.matmul", ((2, 3, 7), (2, 7, 5)), {}),
    "plain": ("nn.conv2d", ((1, 16, 6, 6), (16, 16, 3, 3), (16,)), {"padding": (1, 1, 1, 1)}),
    "grouped": ("nn.conv2d", ((1, 4, 5, 5), (6, 2, 3, 3), (6,)), {"groups": 2}),
    "depthwise": ("nn.conv2d", ((2, 16, 5, 5), (16, 1, 3, 3)), {"groups": 16, "strides": (2, 2)}),
    "dilated": ("nn.conv2d", ((1, 2, 7, 7), (2, 2, 3, 2)), {"dilation": (2, 3)}),
    "sum": ("sum", ((4, 21),), {"axis": 1}),
    "mean": ("mean", ((3, 2, 7),), {"axis": (0, 2)}),
    "pool": ("nn.avg_pool2d", ((1, 16, 5, 5),), {"pool_size": (3, 3), "padding": (1, 1, 1, 1)}),
    "global": ("nn.global_avg_pool2d", ((1, 4, 5, 5),), {}),
}


def layer(name: str, fmt: str, mode: str, seed: int, scale: float = 2.0) -> tuple[IRModule, Array]:
    """A layer whose second and third operands are constants, in a format; and its data."""
    op, shapes, attrs = LAYERS[name]
    rng = np.random.default_rng(seed)
    data, *rest = (rng.normal(size=s).astype(np.float32) * np.float32(scale) for s in shapes)
    b = FunctionBuilder()
    x = b.param("x", data.shape)
    mod = IRModule({"main": b.finish(b.call(op, x, *map(b.const, rest), **attrs))})
    return datatypes.change_dtype(mod, "float32", fmt, accumulate=mode), data


def dot(fmt: Format, mode: str, x: Array, w: Array, lowering: str | None = None) -> Array:
    """Codes of the dot products of rows of codes x with rows of w; interpreted without lowering."""
    b = FunctionBuilder()
    dtype = f"custom[{fmt.name}]{fmt.nbits}"
    p, q = b.param("x", x.shape, dtype), b.param("w", w.shape, dtype)
    mod = IRModule({"main": b.finish(b.call("nn.dense", p, q, accumulate=mode))})
    if lowering is None:
        return np.asarray(compiler.evaluate(mod, x, w))
    return np.asarray(compiler.build(mod, dtype_lowering=lowering)(x, w))


def by_rationals(fmt: Format, mode: str, x: Sequence[int], w: Sequence[int]) -> int:
    """The code of a dot product of finite codes, in exact rationals."""
    single = minifloat(8, 23)
    acc = Fraction(0)
    for a, b in zip(x, w, strict=True):
        p, q = fmt.decode_exact(a), fmt.decode_exact(b)
        assert isinstance(p, Fraction)
        assert isinstance(q, Fraction)
        acc += p * q
        if mode == "fma":
            rounded = fmt.decode_exact(fmt.encode_exact(acc))
        elif mode == "float32":
            rounded = single.decode_exact(single.encode_exact(acc))
        else:
            rounded = acc if mode == "exact" else Fraction(float(acc))
        if not isinstance(rounded, Fraction):  # it stays NaN
            return fmt.nan_code
        acc = rounded
    return fmt.encode_exact(acc)


def codes(fmt: Format, length: int) -> st.SearchStrategy[list[list[int]]]:
    """Two vectors of codes of moderate finite values."""
    orders = st.integers(max(fmt.lowest, -fmt.highest), fmt.highest).map(fmt.code)
    return st.lists(st.lists(orders, min_size=length, max_size=length), min_size=2, max_size=2)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mode", ["fma", *ROUNDED_LAST])
@pytest.mark.parametrize("name", ["posit8_es0", "posit16_es1", "float8_e4m3fn", "fixed8_4"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_reference_of_a_dot_product_is_that_of_exact_rationals(
    name: str, mode: str, data: Any
) -> None:
    fmt = get(name)
    x, w = data.draw(codes(fmt, 6))
    want = by_rationals(fmt, mode, x, w)
    got = dot(fmt, mode, np.array([x], fmt.storage), np.array([w], fmt.storage))
    values = datatypes.decode(fmt, np.array([int(got[0, 0]), want]))
    np.testing.assert_array_equal(*values)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.floats(-(2.0**60), 2.0**60).filter(lambda v: v == 0 or abs(v) > 2.0**-60),
        min_size=3,
        max_size=3,
    )
)
def test_fused_multiply_add_of_float64_is_correctly_rounded(v: list[float]) -> None:
    a, b, c = v
    want = float(Fraction(a) * Fraction(b) + Fraction(c))
    assert float(fused_multiply_add.multiply_add(np.array(a), np.array(b), np.array(c))) == want


def check_layer(name: str, fmt: str, mode: str, lowering: str | None = None) -> None:
    mod, data = layer(name, fmt, mode, seed=len(name) + len(fmt))
    want = compiler.evaluate(mod, data)
    got = compiler.build(mod, dtype_lowering=lowering)(data)
    np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["fma", "float32", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_operator_gives_the_bits_of_its_reference(name: str, mode: str) -> None:
    check_layer(name, "posit16_es1", mode)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYERS)
def test_exact_sums_of_every_operator_give_the_bits_of_its_reference(name: str) -> None:
    check_layer(name, "posit8_es0", "exact")


@pytest.mark.sampled(21)
@pytest.mark.parametrize("mode", ["fma", "float32", "float64"])
@pytest.mark.parametrize("fmt", [*COMMON, "posit32_es2", "takum16"])
def test_every_format_gives_the_bits_of_the_reference(fmt: str, mode: str) -> None:
    check_layer("dense", fmt, mode)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", ["fma", *ROUNDED_LAST])
@pytest.mark.parametrize("lowering", ["library", "table", "vector"])
def test_every_lowering_gives_the_bits_of_the_reference(lowering: str, mode: str) -> None:
    check_layer("dense", "posit8_es0", mode, lowering)
    check_layer("depthwise", "posit8_es0", mode, lowering)


@pytest.mark.parametrize("fmt", ["posit16_es1", "posit32_es2"])
@pytest.mark.parametrize("mode", ["fma", "float32", "float64"])
def test_library_lowering_of_wide_posits_gives_the_bits_of_the_reference(
    fmt: str, mode: str
) -> None:
    check_layer("dense", fmt, mode, "library")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_threads_do_not_change_bits(mode: str) -> None:
    mod, data = layer("plain", "posit8_es0", mode, seed=3)
    one, two = (compiler.build(mod, threads=n)(data) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lowering", [None, "vector", "library"])
@pytest.mark.parametrize("mode", MODES)
def test_nar_in_a_sum_stays(mode: str, lowering: str | None) -> None:
    fmt = get("posit8_es0")
    x = np.array([[0x40, fmt.nan_code, 0x40], [0x40, 0x40, 0x40]], fmt.storage)
    got = dot(fmt, mode, x, np.array([[0, 0x40, 0xC0]], fmt.storage), lowering)
    assert got.tolist() == [[fmt.nan_code], [0]]


@pytest.mark.thorough
@pytest.mark.parametrize("lowering", [None, "vector", "library"])
def test_exact_sums_neither_saturate_nor_cancel_too_early(lowering: str | None) -> None:
    fmt = get("posit8_es0")
    most, least = fmt.code(fmt.highest), fmt.code(1)
    x = np.array([[most] * 1000 + [least] + [fmt.code(-fmt.highest)] * 1000], fmt.storage)
    w = np.array([[most] * 1000 + [0x40] + [most] * 1000], fmt.storage)
    assert dot(fmt, "exact", x, w, lowering).tolist() == [[least]]
    assert dot(fmt, "fma", x, w, lowering).tolist() != [[least]]


@pytest.mark.parametrize("lowering", ["vector", "library"])
@pytest.mark.parametrize("name", ["posit8_es0", "posit16_es1"])
def test_modes_are_printed_and_parsed(name: str, lowering: str) -> None:
    mod, data = layer("dense", name, "float64", seed=1)
    assert 'accumulate="float64"' in mod.astext()
    again = compiler.parse(mod.astext(show_meta_data=True))
    got = compiler.build(again, dtype_lowering=lowering)(data)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, data))
    assert "accumulate" not in layer("dense", name, "sequential", seed=1)[0].astext()


def test_logarithmic_formats_only_have_sequential_sums() -> None:
    with pytest.raises(UnsupportedError, match="only sequential accumulation"):
        layer("dense", "lns16_8", "fma", seed=0)


def test_unknown_modes_and_modes_of_floats_are_errors() -> None:
    with pytest.raises(UnsupportedError, match=r"unknown accumulation 'quire'.*exact"):
        layer("dense", "posit8_es0", "quire", seed=0)
    b = FunctionBuilder()
    x = b.param("x", (2, 2))
    with pytest.raises(TypeInferenceError, match="custom datatypes; float32 takes 'sequential'"):
        b.call("nn.dense", x, x, accumulate="exact")
