"""Products in number formats by tiles: the interpreter's bits, whatever the shape, the format, the
way sums are formed, and the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_grid_tiles import dense

import compiler
import datatypes
from compiler.ir.expr import IRModule

SIMT, PTX = (f"cuda -arch=sm_80 -runner={name}" for name in ("simt", "ptx"))
RNG = np.random.default_rng(0)
SPECIAL = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e30, 448.0, 2.0**-9])
SUMS = ("sequential", "fma", "float32", "exact", "float22_e8m13", "posit16_es1")


def numbers(shape: tuple[int, ...], special: float = 0.0) -> np.ndarray:
    """Ordinary numbers, and a share of others."""
    x = RNG.normal(size=shape).astype(np.float32)
    return np.where(RNG.random(shape) < special, RNG.choice(SPECIAL, shape), x).astype(np.float32)


def check(
    mod: IRModule,
    name: str,
    *args: np.ndarray,
    sums: str = "sequential",
    target: str = SIMT,
    lowering: str | None = None,
) -> Any:
    """A module in a format has the interpreter's bits; returns what was built."""
    mod = datatypes.change_dtype(mod, "float32", name, accumulate=sums)
    exe = compiler.build(mod, target=target, dtype_lowering=lowering)
    with np.errstate(all="ignore"):
        want = compiler.evaluate(mod, *args)
    got = exe(*args)
    np.testing.assert_array_equal(got, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))
    return exe


@pytest.mark.parametrize("runner", [SIMT, PTX])
def test_products_that_no_lane_is_sure_of_are_done_again(runner: str) -> None:
    """Deferred expressions leave NaN, whose sign GPUs do not keep."""
    shapes = (9, 9), (10, 9)
    signs, sizes = ([f(s) for s in shapes] for f in (numbers, lambda s: RNG.uniform(-26, 26, s)))
    x, w = (np.copysign(2.0**e, s).astype(np.float32) for e, s in zip(sizes, signs, strict=True))
    check(dense("float32", 9, 10, 9), "posit16_es1", x, w, target=runner)
