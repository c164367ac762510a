"""Sums that go on from one another, running ones and scattered ones, in accumulators that are more
than a format; the meaning of their terms is in `test_accumulator_formats`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from accumulator_oracle import codes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_oracle import dtype_of
from test_accumulator_formats import STAGED, has_sums

import compiler
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from datatypes.formats import get

STEPS = [pair for pair in STAGED if has_sums("cumsum", pair[1])]


def check_compiled(mod: IRModule, *args: Array) -> None:
    """Compiled code gives the bits of the reference."""
    got = np.asarray(compiler.build(mod)(*args))
    np.testing.assert_array_equal(got, np.asarray(compiler.evaluate(mod, *args)))


@settings(max_examples=3)
@given(st.data())
def test_running_sums_of_any_shape(data: st.DataObject) -> None:
    name, mode = data.draw(st.sampled_from(STEPS))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    attrs: dict[str, Any] = {k: data.draw(st.booleans()) for k in ("reverse", "exclusive")}
    attrs["axis"] = data.draw(st.integers(-len(shape), len(shape) - 1))
    b = FunctionBuilder()
    y = b.call("cumsum", b.param("x", shape, dtype_of(get(name))), accumulate=mode, **attrs)
    x = codes_of(get(name), 1, len(shape), int(np.prod(shape)))
    check_compiled(IRModule({"main": b.finish(y)}), x.reshape(shape))


@settings(max_examples=6)
@given(st.data())
def test_scattered_sums_of_any_shape(data: st.DataObject) -> None:
    """Elements have sums of as many terms as data say, none included."""
    name, mode = data.draw(st.sampled_from(STEPS))
    rows, columns, count = (data.draw(st.integers(1, n)) for n in (4, 5, 17))
    op = data.draw(st.sampled_from(["scatter_elements", "scatter_nd"]))
    shape = (count, columns if op == "scatter_elements" else 1)
    at = np.random.default_rng(count).integers(-rows - 1, rows + 1, shape)
    b = FunctionBuilder()
    x = b.param("x", (rows, columns), dtype_of(get(name)))
    u = b.param("u", (count, columns), x.type.dtype)
    y = b.call(op, x, b.param("at", shape, "int64"), u, reduction="add", accumulate=mode)
    codes = (codes_of(get(name), n, 1, columns) for n in (rows, count))
    first, added = codes
    check_compiled(IRModule({"main": b.finish(y)}), first, added, at)


@pytest.mark.parametrize(
    "mode",
    [
        "h100_fp8",
        '{format = "float16", order = "tree4"}',
        '{format = "float16", order = "pairwise"}',
    ],
)
def test_running_sums_have_their_terms_in_sequence(mode: str) -> None:
    b = FunctionBuilder()
    with pytest.raises(TypeInferenceError, match=r"cumsum has no sums in .* add up in sequence"):
        b.call("cumsum", b.param("x", (2, 9)), axis=1, accumulate=mode)
