"""A constant that several kernels read alike is one array, however often it is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule
from compiler.types.dtypes import FLOAT32

RNG = np.random.default_rng(0)


def chain(weights: list[Constant], rows: int = 1) -> IRModule:
    """Dense layers, one behind the other."""
    b = FunctionBuilder()
    y = b.param("x", (rows, weights[0].data.shape[1]))
    for w in weights:
        y = b.call("tanh", b.call("nn.dense", y, w))
    return IRModule({"main": b.finish(y)})


@pytest.mark.parametrize("steps", [2, 40])
def test_weights_that_many_steps_read_are_there_once(steps: int) -> None:
    w = Constant(RNG.normal(0, 0.1, (64, 64)).astype(np.float32), FLOAT32)
    mod, x = chain([w] * steps), RNG.normal(0, 1, (1, 64)).astype(np.float32)
    exe = compiler.build(mod)
    assert len([c for c in exe.program.constants if c.nbytes >= w.data.nbytes]) == 1
    np.testing.assert_allclose(exe(x), evaluate(mod, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [2, 3])
def test_names_of_their_own_are_no_copies(steps: int) -> None:
    """One array under several names, as files have them that share a tensor."""
    data = RNG.normal(0, 0.2, (48, 48)).astype(np.float32)
    mod = chain([Constant(data, FLOAT32, f"w{k}") for k in range(steps)])
    large = [c for c in compiler.build(mod).program.constants if c.nbytes >= data.nbytes]
    assert len(large) == 1


VIEWS = {
    "rows": lambda a: a[:24],
    "later rows": lambda a: a[8:],
    "columns": lambda a: a[:, :24],
    "every other": lambda a: a[::2, ::2],
    "turned": lambda a: a.T,
    "backward": lambda a: a[::-1],
    "all": lambda a: a,
    "a row again and again": lambda a: np.broadcast_to(a[:1], a.shape),
}


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(VIEWS)), min_size=2, max_size=5), st.integers(1, 3))
def test_views_of_one_array_are_told_apart(names: list[str], rows: int) -> None:
    """They begin at one address, and differ in shape, strides or sign."""
    base = RNG.normal(0, 0.3, (32, 32)).astype(np.float32)
    b = FunctionBuilder()
    x = b.param("x", (rows, 32))
    outs = []
    for name in names:
        w = Constant(VIEWS[name](base), FLOAT32)
        inputs = b.call("strided_slice", x, begin=(0,), end=(w.data.shape[1],), axes=(1,))
        outs.append(b.call("nn.dense", inputs, w))
    mod = IRModule({"main": b.finish(b.call("concatenate", *outs, axis=1))})
    data = RNG.normal(0, 1, (rows, 32)).astype(np.float32)
    np.testing.assert_allclose(compiler.build(mod)(data), evaluate(mod, data), rtol=1e-4, atol=1e-5)


def test_the_same_weights_in_two_orders() -> None:
    """As layers of few and of many rows lay them out: each has its own, and both are right."""
    w = Constant(RNG.normal(0, 0.2, (64, 64)).astype(np.float32), FLOAT32)
    b = FunctionBuilder()
    x, y = b.param("x", (1, 64)), b.param("y", (50, 64))
    both = b.call("add", b.call("nn.dense", y, w), b.call("nn.dense", x, w))
    mod = IRModule({"main": b.finish(b.call("nn.matmul", both, w))})
    data = [RNG.normal(0, 1, s).astype(np.float32) for s in ((1, 64), (50, 64))]
    np.testing.assert_allclose(
        compiler.build(mod)(*data), evaluate(mod, *data), rtol=1e-4, atol=1e-5
    )
