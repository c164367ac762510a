"""Convolutions whose weights are computed: these are copied in the order in which they are walked,
and used for several positions and blocks of channels at once, as constants are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.expr import Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default
from compiler.target.registry import Target
from compiler.tensor.expr import loads
from compiler.tensor.stmt import Store, walk_stmts
from compiler.types.dtypes import Array


def convolution(data: tuple[int, ...], weights: tuple[int, ...], **how: object) -> IRModule:
    x, w = compiler.var("x", data), compiler.var("w", weights)
    return IRModule({"main": compiler.function([x, w], compiler.call("nn.conv2d", x, w, **how))})


def operands(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([3, 4, 16, 20, 32]),
    st.sampled_from([3, 8, 16, 24, 48, 64]),
    st.integers(3, 9),
    st.sampled_from([(1, 1), (3, 3), (2, 3), (1, 3), (5, 1)]),
    st.integers(1, 2),
    st.integers(0, 2),
    st.sampled_from(["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"]),
)
def test_computed_weights(
    batch: int, c: int, o: int, size: int, kernel: tuple[int, int], stride: int, pad: int, on: str
) -> None:
    if size + 2 * pad < max(kernel):
        pad = 2
    shapes = (batch, c, size, size), (o, c, *kernel)
    mod = convolution(*shapes, strides=(stride, stride), padding=(pad, pad, pad, pad))
    x, w = operands(*shapes)
    want = compiler.evaluate(mod, x, w)
    got = compiler.build(mod, target=on)(x, w)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert compiler.build(mod, target=on, threads=2)(x, w).tobytes() == got.tobytes()


@pytest.mark.parametrize(("kernel", "pad"), [(3, 1), (1, 0), (5, 2)])
@pytest.mark.parametrize(("cpu", "lanes"), [("cascadelake", 16), ("haswell", 8)])
def test_lanes_read_neighbours_of_two_blocks(kernel: int, pad: int, cpu: str, lanes: int) -> None:
    layout = f"NCHW{lanes}c"
    shapes = (2, 32 // lanes, 8, 8, lanes), (64, 32, kernel, kernel)
    how = {"data_layout": layout, "out_layout": layout, "padding": (pad,) * 4}
    main = compiler.transform.InferType()(convolution(*shapes, **how)).main
    f = legalize(Function(main.params, main.bindings, main.results, {"primitive": True})).func
    schedule_default(f, Target.anywhere(f"llvm -mcpu={cpu}"))
    sums = 0
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, Store) or s.update not in ("Add", "Fma"):
            continue
        sums += 1
        (lane,) = (x.var for x in path if x.kind == "vector")
        weights = [x for x in loads(s.value) if lane in set().union(*(i.vars() for i in x.idx))]
        (weight,) = weights
        assert weight.buffer.flat(weight.idx).terms[lane] == 1
        assert {x.extent.const for x in path if x.kind == "unroll"} >= {2}  # blocks
        assert weight.buffer in f.temps
    assert sums
