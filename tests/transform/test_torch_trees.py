"""Gradients of networks over trees and lists beside PyTorch's, where it is installed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tree_lstm import SIZES, TREE_LSTM, leaves, random_tree, weights

import compiler
from compiler.boundary.data import Datum
from compiler.types.dtypes import Array

torch = pytest.importorskip("torch", reason="torch is not installed")


def theirs(t: Datum, w: dict[str, Any], kept: list[Any]) -> tuple[Any, Any]:
    """The same network, recursively in Python."""
    x, children = t.fields
    below = [theirs(c, w, kept) for c in children.items()]
    kept.append(x := torch.from_numpy(x).requires_grad_())
    h = sum((h for h, _ in below), torch.zeros(1, SIZES[1], dtype=x.dtype))
    both = torch.cat([x, h], 1)
    i, o, u = (torch.nn.functional.linear(both, w[n]) for n in ("wi", "wo", "wu"))
    c = torch.sigmoid(i) * torch.tanh(u)
    for hk, ck in below:
        gate = torch.sigmoid(torch.nn.functional.linear(torch.cat([x, hk], 1), w["wf"]))
        c = c + gate * ck
    return torch.sigmoid(o) * torch.tanh(c), c


@pytest.mark.parametrize(("seed", "dtype"), [(3, "float32"), (7, "float64")])
def test_tree_lstm(seed: int, dtype: str) -> None:
    text = TREE_LSTM.replace("float32", dtype)
    mod = compiler.parse(text, using=compiler.prelude())
    made = compiler.gradient(mod, [*weights(dtype), "t"])
    t, given = random_tree(random.Random(seed), 3, dtype), weights(dtype)
    w = {n: torch.from_numpy(v.copy()).requires_grad_() for n, v in given.items()}
    kept: list[Any] = []
    h, _ = theirs(t, w, kept)
    loss = (h * h).sum()
    loss.backward()
    value, *got = compiler.build(made)(t, *given.values())
    tolerance = 1e-4 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(value, loss.detach().numpy(), rtol=tolerance)
    *ours, trees = got
    want: list[Array] = [w[n].grad.numpy() for n in given]
    for a, b in zip(ours, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    flowed = [x.grad.numpy() for x in kept]
    for a, b in zip(leaves(trees), flowed, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
