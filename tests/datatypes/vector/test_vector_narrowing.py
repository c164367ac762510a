"""Floats become posit16 by way of float32 rounded to odd: as if rounded once."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from datatypes.arithmetic import oracle
from datatypes.formats import as_float, get
from datatypes.vector.rounding import products_in_single, rounds_in_single

NAMES = ["posit16_es1", "posit16_es2"]
N = Var("n")
TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 2.0**62, -(2.0**62), 2.0**-62, -(2.0**-62),
    2.0**63, 2.0**-63, 5e-324, -5e-324, 1e-310, 2.0**128, 2.0**-150, 2.0**-126, 2.0**1023,
]  # fmt: skip


@cache
def conversion(name: str, source: str, target: str) -> Executable:
    """From a float to codes."""
    b = FunctionBuilder()
    y = b.call("cast", b.param("x", (N,), source), dtype=f"custom[{name}]16")
    mod = IRModule({"main": b.finish(y)})
    return compiler.build(mod, target=target, dtype_lowering="vector")


def check(name: str, values: Array, target: str) -> None:
    """Against the codec of arrays."""
    got = conversion(name, str(values.dtype), target)(values)
    np.testing.assert_array_equal(got, datatypes.encode(name, values))


def test_which_formats_are_rounded_in_float32() -> None:
    assert all(rounds_in_single(get(name)) for name in NAMES)
    assert not rounds_in_single(get("posit8_es0"))  # it is anyway
    assert not rounds_in_single(get("posit32_es2"))
    assert all(products_in_single(get(name)) for name in NAMES)
    assert not products_in_single(get("posit16_es3"))  # 2**-224 is below float32's range


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_next_to_every_value_and_every_tie(name: str, source: str, target: str) -> None:
    fmt = get(name)
    orders = range(fmt.highest)
    points = [float(fmt.value(k)) for k in orders] + [as_float(fmt.boundary(k)) for k in orders]
    with np.errstate(over="ignore", under="ignore"):
        x = np.array([*points, *SPECIAL]).astype(source)
        far = np.array(np.inf, source)
        every = np.concatenate(
            [x, -x, *(np.nextafter(s * x, e) for s in (1, -1) for e in (far, -far))]
        )
    check(name, every, target)


@given(
    st.lists(st.floats(), min_size=1, max_size=40), st.sampled_from(TARGETS), st.sampled_from(NAMES)
)
def test_any_float64(values: list[float], target: str, name: str) -> None:
    check(name, np.array(values), target)


@pytest.mark.parametrize("name", NAMES)
def test_the_codec_agrees_with_exact_rationals(name: str) -> None:
    fmt = get(name)
    x = np.array([0.3, 1e-9, 3e8, 1.0 + 2.0**-40, 2.0**27 * 1.5, 2.0**-62, 1e300, -7.1])
    want = [fmt.encode_exact(float(v)) for v in x]
    assert conversion(name, "float64", TARGETS[0])(x).tolist() == want


@cache
def operation(name: str, op: str, target: str) -> Executable:
    """Of two arrays of codes."""
    b = FunctionBuilder()
    dtype = f"custom[{name}]16"
    x, y = (b.param(p, (N,), dtype) for p in "xy")
    mod = IRModule({"main": b.finish(b.call(op, x, y))})
    return compiler.build(mod, target=target, dtype_lowering="vector")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "subtract", "multiply"])
@pytest.mark.parametrize("name", NAMES)
def test_sums_and_products_are_rounded_once(name: str, op: str, target: str) -> None:
    """The ends of the range, where values are sparse, against codes of all sizes, and random
    pairs, as the oracle of arrays rounds them."""
    fmt, rng = get(name), np.random.default_rng(1)
    ends = np.array([1, 2, 3, 0x3FFF, 0x4000, 0x4001, 0x7FFD, 0x7FFE, 0x7FFF, 0x8000, 0, 0xC000])
    every = np.arange(0, 1 << 16, 37)
    x, y = (a.ravel() for a in np.meshgrid(ends, every))
    x = np.concatenate([x, rng.integers(0, 1 << 16, 20_000)]).astype(np.uint16)
    y = np.concatenate([y, rng.integers(0, 1 << 16, 20_000)]).astype(np.uint16)
    got = operation(name, op, target)(x, y)
    named = {"add": "Add", "subtract": "Sub", "multiply": "Mul"}[op]
    np.testing.assert_array_equal(got, oracle.apply(fmt, named, x, y))
