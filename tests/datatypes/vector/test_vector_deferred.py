"""Deferred products and sums: the exact description's result, or NaN."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vector_operations import MEDIUM, SHORT, WIDE, families
from vector_support import (
    OLDER,
    all_pairs,
    binary_kernel,
    some_pairs,
    special_codes,
)

from compiler.types.dtypes import Array
from datatypes import vector
from datatypes.arithmetic import oracle
from datatypes.formats import Format, encode, get
from datatypes.vector import magic
from datatypes.vector.choice import chosen
from datatypes.vector.magic import Magic

FAST = [
    "posit8_es0", "posit16_es1", "posit16_es2", "posit32_es2", "bfloat16", "float16",
    "float8_e4m3fn", "float8_e5m2", "fixed8_4", "fixed16_8", "posit10_es1",
]  # fmt: skip
"""Formats in which sums of ordinary products are sure."""


def check(
    fmt: Format, op: str, a: Array, b: Array, target: str = "llvm", keeps_nan: bool = True
) -> float:
    """That every result is right or NaN; the share of NaN among results that are numbers."""
    x, y = vector.lane_array(fmt, a), vector.lane_array(fmt, b)
    out = binary_kernel(fmt.name, op, True, target, keeps_nan)(x, y)
    want = oracle.apply(fmt, op, a, b)
    unsure = np.isnan(out)
    wrong = (out != vector.lane_array(fmt, want)) & ~unsure
    assert not wrong.any(), [
        (hex(a[i]), hex(b[i]), out[i], hex(want[i])) for i in np.nonzero(wrong)[0][:5]
    ]
    numbers = ~np.isnan(vector.lane_array(fmt, want))
    return float((unsure & numbers).mean())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("name", SHORT)
def test_all_pairs_of_short_formats(name: str, op: str) -> None:
    fmt = get(name)
    assert check(fmt, op, *all_pairs(fmt)) < 0.45


@pytest.mark.sampled(30)
@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("name", [*MEDIUM, *WIDE])
def test_pairs_of_longer_formats(name: str, op: str) -> None:
    check(get(name), op, *some_pairs(get(name), 50_000))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("name", ["posit16_es1", "posit10_es1", "posit32_es2", "bfloat16"])
def test_expressions_that_do_not_ask_for_the_bits_of_nan(name: str, op: str) -> None:
    """As on GPUs. NaN of every sign and payload is NaN to them."""
    fmt = get(name)
    pairs = all_pairs(fmt) if fmt.nbits <= 10 else some_pairs(fmt, 50_000)
    assert check(fmt, op, *pairs, keeps_nan=False) < 0.45
    lanes = vector.lane_array(fmt, pairs[0][:8])
    kinds = {4: (np.uint32, (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000)), 8: (np.uint64, (2**64 - 1,))}
    word, patterns = kinds[lanes.itemsize]
    for bits in patterns:
        nan = np.full_like(lanes, 0)
        nan.view(word)[:] = bits
        for deferred in (True, False):
            kernel = binary_kernel(name, op, deferred, "llvm", False)
            assert np.isnan(kernel(nan, lanes)).all()
            assert np.isnan(kernel(lanes, nan)).all()


@pytest.mark.slow
@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("name", ["posit16_es1", "posit16_es2", "posit8_es2", "posit32_es2"])
def test_many_pairs(name: str, op: str) -> None:
    for seed in range(20):
        check(get(name), op, *some_pairs(get(name), 1_000_000, seed))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FAST)
def test_ordinary_numbers_are_sure(name: str) -> None:
    fmt, rng = get(name), np.random.default_rng(3)
    a = encode(fmt, rng.standard_normal(300_000))
    b = encode(fmt, rng.standard_normal(300_000) * 0.05)
    zeros = rng.random(a.size) < 0.3
    a = np.where(zeros, 0, a).astype(fmt.storage)
    assert check(fmt, "Mul", a, b) < 1e-5
    assert check(fmt, "Add", a, b) < 1e-5


@pytest.mark.parametrize("name", ["posit8_es0", "posit16_es1"])
def test_products_next_to_zero_are_sure(name: str) -> None:
    """They are common enough for a tile to have some."""
    fmt, rng = get(name), np.random.default_rng(4)
    size = np.exp2(rng.uniform(-18, -8, 100_000) * (1 if fmt.nbits == 16 else 0.5))
    a, b = (encode(fmt, size * rng.choice([-1, 1], size.size)) for _ in range(2))
    assert check(fmt, "Mul", a, b) == 0


@pytest.mark.parametrize("name", ["posit16_es1"])
def test_products_of_small_numbers_are_sure(name: str) -> None:
    """All of them, as in gradients that vanish, and NaN stays NaN beside them."""
    fmt, rng = get(name), np.random.default_rng(5)
    least = int(fmt.nearest(Fraction(1, 2**5)))
    codes = rng.integers(0, least, (2, 200_000))
    codes[:, :40_000] = rng.integers(0, 40, (2, 40_000))
    signs = rng.choice([-1, 1], codes.shape)
    a, b = (codes * signs & fmt.mask).astype(fmt.storage)
    for op in ("Add", "Mul"):
        assert check(fmt, op, a, b) == 0


@pytest.mark.parametrize("target", OLDER)
@pytest.mark.parametrize("name", ["posit8_es0", "posit16_es1", "float8_e4m3fn", "posit32_es2"])
def test_older_targets(name: str, target: str) -> None:
    for op in ("Add", "Mul"):
        check(get(name), op, *some_pairs(get(name), 3000), target)


@pytest.mark.parametrize("target", ["llvm", *OLDER])
@pytest.mark.parametrize("name", ["posit16_es1", "posit16_es2", "posit8_es0", "posit10_es1"])
def test_nan_of_either_sign_stays(name: str, target: str) -> None:
    fmt = get(name)
    lane = chosen(fmt).lane.dtype.storage
    nan = np.copysign(np.array([np.nan, np.nan], lane), np.array([1, -1], lane))
    special = np.concatenate([nan, vector.lane_array(fmt, special_codes(fmt))]).astype(lane)
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    for op in ("Add", "Mul"):
        out = binary_kernel(name, op, True, target)(a, b)
        assert np.isnan(out[np.isnan(a) | np.isnan(b)]).all()


@pytest.mark.parametrize("target", ["llvm", *OLDER])
def test_nan_comes_from_the_table_for_products_of_either_sign(target: str) -> None:
    """The largest products of posit16_es1 are not sure, whatever their signs."""
    largest = np.float32(2.0**28)
    a = np.array([largest, -largest, largest, -largest], np.float32)
    b = np.array([largest, largest, -largest, -largest], np.float32)
    assert np.isnan(binary_kernel("posit16_es1", "Mul", True, target)(a, b)).all()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_family(data: Any) -> None:
    fmt = get(data.draw(families()))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    special = special_codes(fmt)
    mixed = rng.integers(0, fmt.mask + 1, (2, 2000)).astype(fmt.storage)
    mixed[0, : special.size] = special
    for op in ("Add", "Mul"):
        check(fmt, op, *mixed)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_sequential_sums_of_products(data: Any) -> None:
    """acc = rnd(acc + rnd(a * b)): what is not NaN at the end was right at every step."""
    name = data.draw(st.sampled_from([*FAST, "posit8_es2"]))
    fmt, rng = get(name), np.random.default_rng(data.draw(st.integers(0, 2**32)))
    if data.draw(st.booleans()):
        a, b = rng.integers(0, fmt.mask + 1, (2, 40, 200)).astype(fmt.storage)
    else:
        a, b = encode(fmt, rng.standard_normal((2, 40, 200)) * 2.0 ** rng.integers(-6, 3))
    multiply, add = (binary_kernel(name, op, True, "llvm") for op in ("Mul", "Add"))
    acc = np.zeros(200, chosen(fmt).lane.dtype.storage)
    exact = np.zeros(200, fmt.storage)
    for x, y in zip(a, b, strict=True):
        product = multiply(vector.lane_array(fmt, x), vector.lane_array(fmt, y))
        acc = add(acc, product)
        exact = oracle.apply(fmt, "Add", exact, oracle.apply(fmt, "Mul", x, y))
    sure = ~np.isnan(acc)
    np.testing.assert_array_equal(acc[sure], vector.lane_array(fmt, exact)[sure])


def test_a_wrong_unit_is_found_out() -> None:
    """The proof of C is not empty: other units, and the other parity, fail it."""
    fmt = get("posit16_es1")
    right = magic.product_magic(fmt, -26)
    assert right == Magic(-26, True)
    edge = fmt.boundary(2)
    assert right.rounds_to(edge) == fmt.value(2)
    assert Magic(-26, False).rounds_to(edge) != fmt.value(2)
    assert magic.product_magic(fmt, 26) is None  # all of it rounds to 2**26


def test_sums_of_wide_formats_are_not_taken_for_safe() -> None:
    assert magic.sums_are_safe(get("posit16_es1"), chosen(get("posit16_es1")).lane)
    assert not magic.sums_are_safe(get("posit24_es1"), chosen(get("posit24_es1")).lane)


def test_exact_products_that_become_minpos_are_scaled() -> None:
    """One C per binade and a factor, instead of taking zero for minpos."""
    fmt = get("posit8_es0")
    for exponent in range(-12, -6):
        found = magic.scaled_magic(fmt, exponent)
        assert found is not None
        for k in range(32):
            x = Fraction(2) ** exponent * (1 + Fraction(k, 32))
            assert found.magic.rounds_to(x) * found.factor == fmt.minpos
