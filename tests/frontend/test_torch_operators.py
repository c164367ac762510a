"""Operators of torch, each as torch computes it. Skipped where torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.thorough

from torch_modules import CASES, Wrapped  # noqa: E402  (it needs torch)


def results(x: Any) -> list[np.ndarray]:
    """What a module returned, as arrays in order."""
    if isinstance(x, torch.Tensor):
        return [x.detach().numpy()]
    return [a for part in x for a in results(part)]


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_that_of_torch(name: str) -> None:
    f, xs = CASES[name]
    module = f if isinstance(f, torch.nn.Module) else Wrapped(f)
    with torch.no_grad():
        want = results(module(*xs))
    mod = compiler.from_torch(module.eval(), tuple(xs))
    got = compiler.evaluate(mod, *(x.numpy() for x in xs))
    got = got if isinstance(got, list | tuple) else [got]
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
