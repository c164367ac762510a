"""Exact sums by the quick way: right for every data, and taken for ordinary data."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_accumulate import LAYERS, by_rationals, check_layer, layer

import compiler
import datatypes
from compiler.arithmetic.arrays import arithmetic
from compiler.build import optimize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.transform.speculative_exact_sums import parts_to_try, spread
from compiler.types.dtypes import FLOAT64, Array
from datatypes.formats import Format, get

TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
FORMATS = ["posit16_es1", "posit16_es2", "posit8_es0", "float8_e5m2", "float16"]


def dense(fmt: Format, x: tuple[int, ...], w: Array, bias: Array | None = None) -> IRModule:
    """Exact products with constant codes."""
    b = FunctionBuilder()
    dtype = f"custom[{fmt.name}]{fmt.nbits}"
    constants = [b.const(c, dtype) for c in (w, bias) if c is not None]
    y = b.call("nn.dense", b.param("x", x, dtype), *constants, accumulate="exact")
    return IRModule({"main": b.finish(y)})


def rounded(exe: Any) -> bool:
    """Whether the quick way of a one-layer program rounded when it last ran."""
    (flag,) = {s.watch for s in exe.program.steps if s.watch is not None}
    return bool(exe._local.workspace.view(np.int32)[int(flag.offset.const) // 4])


def codes_within(fmt: Format, low: float, high: float, shape: tuple[int, ...], seed: int) -> Array:
    """Codes of either sign whose magnitudes are spread evenly over [2**low, 2**high)."""
    rng = np.random.default_rng(seed)
    values = 2.0 ** rng.uniform(low, high, shape) * rng.choice([-1, 1], shape)
    most = float(fmt.maxpos)
    return datatypes.encode(fmt, np.clip(values, -most, most))


def check(fmt: Format, x: Array, w: Array, bias: Array | None = None, target: str = "llvm") -> None:
    """Compiled sums against exact rationals."""
    exe = compiler.build(dense(fmt, x.shape, w, bias), target=target)
    check_sums(fmt, exe, x, w, bias)


def check_sums(fmt: Format, exe: Any, x: Array, w: Array, bias: Array | None = None) -> None:
    """Sums of a program with weights w."""
    one = fmt.encode_exact(Fraction(1))
    last = [] if bias is None else [one]
    rows = [row.tolist() + last for row in x]
    columns = [w[k].tolist() + ([] if bias is None else [int(bias[k])]) for k in range(len(w))]
    want = [[by_rationals(fmt, "exact", p, q) for q in columns] for p in rows]
    got, want = (datatypes.decode(fmt, np.asarray(v, fmt.storage)) for v in (exe(x), want))
    np.testing.assert_array_equal(got, want)


RANGES = [(-28, 28), (-3, 3), (-13, 1), (20, 28)]
EVERY = [(f, t, r) for f in FORMATS for t in TARGETS for r in RANGES]
SAMPLE = [
    *[(f, TARGETS[0], RANGES[0]) for f in FORMATS],
    *[("posit16_es1", t, r) for t, r in zip(TARGETS, RANGES[1:], strict=True)],
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "target", "exponents"),
    [c if c in SAMPLE else pytest.param(*c, marks=pytest.mark.slow) for c in EVERY],
)
def test_sums_of_any_magnitudes_are_those_of_exact_rationals(
    name: str, target: str, exponents: tuple[int, int]
) -> None:
    low, high = exponents
    fmt = get(name)
    w = codes_within(fmt, low, high, (5, 9), 1)
    bias = codes_within(fmt, low, high, (5,), 2)
    for reach in ((-2, 2), (low, high)):
        x = codes_within(fmt, *reach, (6, 9), 3)
        check(fmt, x, w, target=target)
        check(fmt, x, w, bias, target=target)


@cache
def hard(name: str) -> tuple[Format, Array, Any]:
    """Weights of any magnitude, and such that cancel, saturate and vanish; their program."""
    fmt = get(name)
    w = codes_within(fmt, -28, 28, (2, 40), 7)
    w[1] = np.resize([fmt.code(fmt.highest), fmt.code(-fmt.highest), fmt.code(1), 0], 40)
    return fmt, w, compiler.build(dense(fmt, (1, 40), w))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", ["posit16_es1", "posit8_es0"])
def test_sums_of_any_codes_are_those_of_exact_rationals(name: str, data: Any) -> None:
    fmt, w, exe = hard(name)
    most = fmt.highest
    orders = st.sampled_from([-most, -1, 0, 1, most]) | st.integers(-most, most)
    row = data.draw(st.lists(orders, min_size=40, max_size=40))
    check_sums(fmt, exe, np.array([[fmt.code(k) for k in row]], fmt.storage), w)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 40])
def test_ordinary_data_take_the_quick_way_and_others_the_sure_one(rows: int) -> None:
    fmt = get("posit16_es1")
    rng = np.random.default_rng(0)
    w = datatypes.encode(fmt, rng.normal(size=(30, 300)) / 17)
    x = datatypes.encode(fmt, rng.normal(size=(rows, 300)))
    exe = compiler.build(dense(fmt, x.shape, w))
    slow = compiler.build(dense(fmt, x.shape, w), dtype_lowering="library")
    np.testing.assert_array_equal(exe(x), slow(x))
    assert not rounded(exe)
    x[-1, 7], x[-1, 8] = fmt.code(fmt.highest), fmt.code(1)
    np.testing.assert_array_equal(exe(x), slow(x))
    assert rounded(exe)


@pytest.mark.thorough
def test_weights_of_any_magnitude_are_tried_in_parts() -> None:
    fmt = get("posit16_es1")
    w = codes_within(fmt, -28, 28, (20, 200), 1)
    x = datatypes.encode(fmt, np.random.default_rng(0).normal(size=(8, 200)))
    exe = compiler.build(dense(fmt, x.shape, w))
    watched = [s for s in exe.program.steps if s.watch is not None]
    later = [s for s in exe.program.steps if s.when is not None]
    assert len(watched) == 3  # products; joining their sums rounds, and is not watched
    assert len(later) >= 9
    check(fmt, x, w)
    exe(x)
    assert not rounded(exe)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [n for n in LAYERS if n in ("dense", "plain", "depthwise")])
def test_layers_of_outliers_give_the_bits_of_their_reference(name: str, threads: int) -> None:
    mod, data = layer(name, "posit16_es1", "exact", seed=5)
    exe = compiler.build(mod, threads=threads)
    for value in (2.0**-28, 2.0**28, np.nan, 1.0):
        data.flat[3] = value
        np.testing.assert_array_equal(exe(data), compiler.evaluate(mod, data))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["posit16_es1", "float16", "float8_e5m2"])
def test_a_product_of_two_inputs_is_tried_whole(name: str) -> None:
    check_layer("matmul", name, "exact")


def test_codes_that_are_no_numbers_take_the_sure_way_or_stay() -> None:
    fmt = get("float8_e5m2")
    w = datatypes.encode(fmt, [[1.0, 0.0], [np.inf, 1.0], [2.0**-14, 57344.0]])
    x = datatypes.encode(fmt, [[np.inf, 1.0], [0.0, 1.0], [np.nan, 1.0], [-np.inf, 0.0]])
    mod = dense(fmt, x.shape, w)
    got = datatypes.decode(fmt, compiler.build(mod)(x))
    np.testing.assert_array_equal(got, datatypes.decode(fmt, compiler.evaluate(mod, x)))


floats = st.floats(-(2.0**200), 2.0**200).filter(lambda v: v == 0 or abs(v) > 2.0**-200)


@settings(max_examples=300)
@given(st.lists(floats, min_size=2, max_size=3), st.lists(st.integers(-60, 60), min_size=3))
def test_sums_of_floats_are_rounded_to_odd(terms: list[float], shifts: list[int]) -> None:
    # Near each other, so that they overlap.
    near = [math.frexp(v)[0] * 2.0**k for v, k in zip(terms, shifts, strict=False)]
    op = get_op("add_to_odd")
    for values in (terms, near):
        got = op.reference(arithmetic(FLOAT64), None, *map(np.array, values))
        exact = sum(map(Fraction, values))
        if exact == Fraction(float(got)):
            continue
        bits = np.float64(got).view(np.int64)
        assert bits & 1
        other = float(
            (bits + (1 if abs(exact) > abs(Fraction(float(got))) else -1)).view(np.float64)
        )
        low, high = sorted((Fraction(float(got)), Fraction(other)))
        assert low < exact < high


def test_what_is_tried_follows_from_the_data() -> None:
    assert spread(np.array([0.0, 1.0, 0.75, np.nan, -4.0])) == 5
    assert spread(np.array([0.0, np.inf])) == 0
    assert parts_to_try((20, 20), [20], 512) == 1
    assert parts_to_try((20, 57), [57, 29, 20], 512) == 3
    assert parts_to_try((20, 57), [57], 512) == 0


# ---- sums of integers ----------------------------------------------------------------------------


def multiplies_integers(mod: IRModule, target: str) -> bool:
    """Whether products of int16 are tried."""
    return '"int16"' in optimize(mod, target, "vector").astext()


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["posit8_es0", "fixed8_4"])
def test_short_values_are_multiplied_as_integers(name: str, target: str) -> None:
    fmt = get(name)
    w, bias = codes_within(fmt, -6, 2, (20, 60), 1), codes_within(fmt, -6, 6, (20,), 2)
    x = codes_within(fmt, -6, 6, (7, 60), 3)
    assert multiplies_integers(dense(fmt, x.shape, w, bias), target)
    check(fmt, x, w, target=target)
    check(fmt, x, w, bias, target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_of_integers_that_is_no_number_takes_the_sure_way(value: float, target: str) -> None:
    fmt = get("posit8_es0")
    x = datatypes.encode(fmt, np.random.default_rng(0).normal(size=(40, 30)))
    w = codes_within(fmt, -6, 6, (16, 30), 1)
    mod = dense(fmt, x.shape, w)
    exe = compiler.build(mod, target=target)
    for row in (None, 0, 17, 39):
        codes = x.copy()
        if row is not None:
            codes[row, 29] = fmt.encode_exact(value)
        got = exe(codes)
        assert rounded(exe) == (row is not None)
        np.testing.assert_array_equal(got, compiler.evaluate(mod, codes))
        if row is not None:
            assert set(got[row].tolist()) == {fmt.nan_code}


@pytest.mark.thorough
def test_integers_are_multiplied_only_where_int32_holds_the_sums() -> None:
    fmt = get("posit8_es0")
    most = fmt.code(fmt.highest)
    for length, wanted in ((62, True), (64, False)):  # 2**13 * 4096 * 64 is 2**31
        w = np.full((16, length), most, fmt.storage)
        x = np.stack([np.full(length, most), np.full(length, fmt.code(-fmt.highest))])
        x = x.astype(fmt.storage)
        assert multiplies_integers(dense(fmt, x.shape, w), "llvm") == wanted
        check(fmt, x, w)
    odd = np.full((16, 61), most, fmt.storage)
    assert not multiplies_integers(dense(fmt, (1, 61), odd), "llvm")
    assert not multiplies_integers(dense(get("posit16_es1"), (1, 60), odd[:, :60]), "llvm")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["dense", "plain", "grouped", "depthwise", "dilated"])
def test_layers_of_short_values_give_the_bits_of_their_reference(name: str, threads: int) -> None:
    mod, data = layer(name, "posit8_es0", "exact", seed=5)
    exe = compiler.build(mod, threads=threads)
    for value in (1.0, 64.0, np.nan):
        data.flat[3] = value
        np.testing.assert_array_equal(exe(data), compiler.evaluate(mod, data))
