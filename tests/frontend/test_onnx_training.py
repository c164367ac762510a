"""Nodes in training mode, as exported by mistake or on purpose, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Case, Const

from compiler.build import build
from compiler.errors import DtypelabError
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate

TRUE = Const(np.asarray(True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_batch_normalization_mixes_the_batch_into_its_statistics(
    shape: tuple[int, ...], symbolic: bool
) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(2, 3, shape).astype(np.float32)
    gamma, beta, mean, var = (rng.uniform(0.5, 2, 3).astype(np.float32) for _ in range(4))
    attrs = {"training_mode": 1, "momentum": 0.75, "epsilon": 1e-3}
    case = Case("BatchNormalization", (x, gamma, beta, mean, var), attrs, 15, 3)
    mod = from_onnx(case.model(symbolic))
    axes = tuple(k for k in range(len(shape)) if k != 1)
    column = (-1, *(1 for _ in axes[1:]))
    own_mean, own_var = x.mean(axes), x.var(axes)
    away = (x - own_mean.reshape(column)) / np.sqrt(own_var + 1e-3).reshape(column)
    wanted = [
        away * gamma.reshape(column) + beta.reshape(column),
        0.75 * mean + 0.25 * own_mean,
        0.75 * var + 0.25 * own_var,
    ]
    for got in (evaluate(mod, *case.arrays.values()), build(mod)(*case.arrays.values())):
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ratio", [0.5, 0.125])
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_dropout_draws_the_mask_of_its_seed(ratio: float, seed: int) -> None:
    x = np.linspace(-3, 3, 40, dtype=np.float32).reshape(5, 8)
    case = Case("Dropout", (x, Const(np.float32(ratio)), TRUE), {"seed": seed}, 13, 2)
    mod = from_onnx(case.model(False))
    kept = np.random.RandomState(seed).uniform(size=(5, 8)) >= ratio
    assert 0 < kept.sum() < 40
    for y, mask in (evaluate(mod, x), build(mod)(x)):
        np.testing.assert_array_equal(mask, kept)
        np.testing.assert_allclose(y, np.where(kept, x / (1 - ratio), 0), rtol=1e-6)


def test_dropout_of_a_size_that_is_not_known_has_no_mask_yet() -> None:
    case = Case("Dropout", (np.ones((5, 8), np.float32), None, TRUE), {"seed": 1}, 13)
    with pytest.raises(DtypelabError, match="shapes="):
        from_onnx(case.model(True))
