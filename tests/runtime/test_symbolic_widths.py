"""One build serves every batch size and every image width, in every number system."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symbolic_nets import Net, nets

import compiler
import datatypes
import quantize

SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(2, 45)), min_size=2, max_size=3)


def assert_alike(got: Any, want: Any, tolerance: float) -> None:
    """Equal in shape and dtype, and to `tolerance` of the largest element."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    scale = float(np.abs(want).max(initial=0))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale + 1e-30)


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(nets(), SIZES, st.integers(1, 2))
def test_float_networks_of_unknown_size(net: Net, sizes: list[Any], threads: int) -> None:
    exe = compiler.build(net.mod, threads=threads)
    for n, w in sizes:
        x = net.inputs(n, w)
        assert_alike(exe(x), compiler.evaluate(net.mod, x), 2e-5)


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(nets(), SIZES, st.integers(1, 2))
def test_int8_networks_of_unknown_size(net: Net, sizes: list[Any], threads: int) -> None:
    """Calibrated at some sizes, run at others."""
    mod = quantize.quantize(net.mod, [net.inputs(2, 9, 1), net.inputs(1, 24, 2)])
    exe = compiler.build(mod, threads=threads)
    for n, w in sizes:
        x = net.inputs(n, w)
        assert_alike(exe(x), compiler.evaluate(mod, x), 1e-6)


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(nets(), SIZES, st.integers(1, 2))
def test_custom_networks_of_unknown_size(net: Net, sizes: list[Any], threads: int) -> None:
    mod = datatypes.change_dtype(net.mod, "float32", "posit16_es1")
    exe = compiler.build(mod, threads=threads)
    for n, w in sizes:
        x = net.inputs(n, w)
        np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))
