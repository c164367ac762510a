"""Floats become posit16 by way of float32 rounded to odd: as if rounded once."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.dtypes import Array
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable
from compiler.symbolic import Var
from datatypes.formats import as_float, get
from datatypes.vector.rounding import rounds_in_single

NAME = "posit16_es1"
N = Var("n")
TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 2.0**62, -(2.0**62), 2.0**-62, -(2.0**-62),
    2.0**63, 2.0**-63, 5e-324, -5e-324, 1e-310, 2.0**128, 2.0**-150, 2.0**-126, 2.0**1023,
]  # fmt: skip


@cache
def conversion(source: str, target: str) -> Executable:
    """From a float to codes."""
    b = FunctionBuilder()
    y = b.call("cast", b.param("x", (N,), source), dtype=f"custom[{NAME}]16")
    mod = IRModule({"main": b.finish(y)})
    return compiler.build(mod, target=target, dtype_lowering="vector")


def check(values: Array, target: str = TARGETS[0]) -> None:
    """Against the codec of arrays."""
    got = conversion(str(values.dtype), target)(values)
    np.testing.assert_array_equal(got, datatypes.encode(NAME, values))


def test_posit16_is_rounded_in_float32() -> None:
    assert rounds_in_single(get(NAME))
    assert not rounds_in_single(get("posit8_es0"))  # it is anyway
    assert not rounds_in_single(get("posit32_es2"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_next_to_every_value_and_every_tie(source: str, target: str) -> None:
    fmt = get(NAME)
    orders = range(fmt.highest)
    points = [float(fmt.value(k)) for k in orders] + [as_float(fmt.boundary(k)) for k in orders]
    with np.errstate(over="ignore", under="ignore"):
        x = np.array([*points, *SPECIAL]).astype(source)
        far = np.array(np.inf, source)
        every = np.concatenate(
            [x, -x, *(np.nextafter(s * x, e) for s in (1, -1) for e in (far, -far))]
        )
    check(every, target)


@given(st.lists(st.floats(), min_size=1, max_size=40), st.sampled_from(TARGETS))
def test_any_float64(values: list[float], target: str) -> None:
    check(np.array(values), target)


def test_the_codec_agrees_with_exact_rationals() -> None:
    fmt = get(NAME)
    x = np.array([0.3, 1e-9, 3e8, 1.0 + 2.0**-40, 2.0**27 * 1.5, 2.0**-62, 1e300, -7.1])
    want = [fmt.encode_exact(float(v)) for v in x]
    assert conversion("float64", TARGETS[0])(x).tolist() == want
