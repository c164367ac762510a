"""Operators of torch, each as torch computes it. Skipped where torch is not installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import compiler

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.thorough

from torch.nn import functional as F  # noqa: E402, N812
from torch_modules import CASES, Wrapped, floats  # noqa: E402  (it needs torch)


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


def agrees(f: Callable[..., Any], *xs: Any) -> None:
    """Interpreted and compiled, a function gives what torch gives."""
    want = results(f(*xs))
    mod = compiler.from_torch(Wrapped(f), xs)
    for run in (lambda *a: compiler.evaluate(mod, *a), compiler.build(mod)):
        got = run(*(x.numpy() for x in xs))
        for g, w in zip(got if isinstance(got, list | tuple) else [got], want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_windows_of_any_size_are_those_of_torch(data: st.DataObject) -> None:
    def small(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    kernel, stride, dilation = (small(1, 3), small(1, 3)), (small(1, 3), small(1, 3)), small(1, 2)
    pads, groups = (small(0, 1), small(0, 1)), small(1, 2)
    x = floats(small(1, 2), 2 * groups, small(6, 9), small(6, 9))
    w = floats(2 * groups, 2, *kernel)
    halves = tuple(min(p, k // 2) for p, k in zip(pads, kernel, strict=True))
    ceil, inside = data.draw(st.booleans()), data.draw(st.booleans())

    def windows(x: Any, w: Any) -> list[Any]:
        return [
            F.conv2d(x, w, None, stride, pads, dilation, groups),
            F.avg_pool2d(x, kernel, stride, halves, ceil, inside),
            F.max_pool2d(x, kernel, stride, halves, 1, ceil),
            F.adaptive_avg_pool2d(x, kernel),
        ]

    agrees(windows, x, w)


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_operands_of_any_shapes_broadcast_and_reduce_as_in_torch(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = [data.draw(st.integers(1, 4)) for _ in range(rank)]
    other = [data.draw(st.sampled_from([1, d])) for d in shape][data.draw(st.integers(0, rank)) :]
    axis = st.integers(-rank, rank - 1)
    axes = data.draw(st.lists(axis, max_size=2, unique_by=lambda a: a % rank))
    keep = data.draw(st.booleans())

    def reduced(x: Any, y: Any) -> list[Any]:
        shares = (x / y - y).softmax(axes[0] if axes else -1)
        largest = torch.where(x > y, x, y).amax(axes, keepdim=keep)
        return [shares.sum(axes, keepdim=keep), largest]

    agrees(reduced, floats(*shape), floats(*other, low=0.5))
