"""Losses of many elements: sums of float32 that are near those of float64."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler import IRModule


@pytest.mark.parametrize("shape", [(1024, 768), (8, 128, 768)])
def test_a_squared_error_of_many_elements(shape: tuple[int, ...]) -> None:
    x = compiler.var("x", shape)
    mod = IRModule({"main": compiler.function([x], compiler.call("exp", x))})
    both = compiler.gradient(compiler.with_loss(mod, "squared_error", "wanted"), ["x"])
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(shape, np.float32) for _ in range(2)]
    away = np.exp(given[0].astype(np.float64)) - given[1]
    for found in (compiler.build(both)(*given), compiler.evaluate(both, *given)):
        assert found[0] == pytest.approx((away**2).mean(), rel=2e-6)
        want = 2 * away * np.exp(given[0]) / away.size
        np.testing.assert_allclose(found[2], want, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (5,), (3, 1), (2, 3, 4)])
def test_a_squared_error_of_any_rank(shape: tuple[int, ...]) -> None:
    x = compiler.var("x", shape)
    mod = IRModule({"main": compiler.function([x], x)})
    both = compiler.gradient(compiler.with_loss(mod, "squared_error", "wanted"), ["x"])
    rng = np.random.default_rng(1)
    given = [np.asarray(rng.standard_normal(shape), np.float32) for _ in range(2)]
    for found in (compiler.build(both)(*given), compiler.evaluate(both, *given)):
        assert found[0] == pytest.approx(((given[0] - given[1]) ** 2).mean(), rel=1e-6)
        np.testing.assert_allclose(found[2], 2 * (given[0] - given[1]) / given[0].size, rtol=1e-6)
