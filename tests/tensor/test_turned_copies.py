"""Transposes in squares, or several rows at a time: the elements are numpy's, and what is fetched
is used up at once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import compiler.transform
from compiler.ir.expr import Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default
from compiler.target.registry import Target
from compiler.tensor.expr import loads
from compiler.tensor.stmt import For, Store, walk_stmts


def turned(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32") -> IRModule:
    x = compiler.var("x", shape, dtype)
    return IRModule({"main": compiler.function([x], compiler.call("transpose", x, axes=axes))})


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 9, 15, 16, 17, 33]), min_size=2, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(["float32", "int8", "float64"]),
    st.integers(1, 2),
)
def test_any_order_of_axes(shape: list[int], random: Random, dtype: str, threads: int) -> None:
    axes = [*range(len(shape))]
    random.shuffle(axes)
    x = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    run = compiler.build(turned(tuple(shape), tuple(axes), dtype), threads=threads)
    np.testing.assert_array_equal(run(x), x.transpose(axes))


@pytest.mark.parametrize(
    ("shape", "axes", "lines"),
    [
        ((3, 3, 40, 64), (3, 2, 0, 1), 9),  # gradients of weights, taps first
        ((7, 5, 64), (2, 1, 0), 7),
        ((9, 70, 70), (1, 2, 0), 9),
        ((300, 70), (1, 0), 16),  # squares
        ((4, 300, 70), (0, 2, 1), 16),
    ],
)
def test_a_line_is_used_up_before_the_next(
    shape: tuple[int, ...], axes: tuple[int, ...], lines: int
) -> None:
    """The loops inside that over places in a line read no more than a few lines, and those around
    it go along the data."""
    main = compiler.transform.InferType()(turned(shape, axes)).main
    f = legalize(Function(main.params, main.bindings, main.results, {"primitive": True})).func
    schedule_default(f, Target.anywhere("llvm -mcpu=cascadelake"))
    whole = 0
    for s, path, _ in walk_stmts(f.body):
        if not isinstance(s, Store):
            continue
        (load,) = loads(s.value)
        steps = load.buffer.flat(load.idx).terms
        near = next(k for k, x in enumerate(path) if steps.get(x.var) == 1)
        inside = [x for x in path[near + 1 :] if steps.get(x.var)]
        assert np.prod([x.extent.const for x in inside]) <= lines
        whole += path[near].extent == 16
        if steps.get(path[near - 1].var) == 16:  # the next line of the same row
            assert isinstance(path[near - 1], For)
            whole += 1
    assert whole >= 2


@pytest.mark.parametrize(("width", "dtype"), [(56, "float32"), (20, "float32"), (9, "int8")])
def test_blocks_of_channels_are_turned_in_squares(width: int, dtype: str) -> None:
    x = compiler.var("x", (1, 2, 3, width, 16), dtype)
    attrs = {"src_layout": "NCHW16c", "dst_layout": "NCHW", "channels": 32}
    y = compiler.function([x], compiler.call("layout_transform", x, **attrs))
    mod = compiler.transform.InferType()(IRModule({"main": y}))
    f = legalize(
        Function(mod.main.params, mod.main.bindings, mod.main.results, {"primitive": True})
    ).func
    schedule_default(f, Target.anywhere("llvm -mcpu=cascadelake"))
    alone = [
        s
        for s, path, _ in walk_stmts(f.body)
        if isinstance(s, Store) and not any(p.kind == "vector" for p in path)
    ]
    assert not alone  # rows shorter than a square become one line
    value = np.random.default_rng(0).integers(-99, 99, (1, 2, 3, width, 16)).astype(dtype)
    want = value.transpose(0, 1, 4, 2, 3).reshape(1, 32, 3, width)
    np.testing.assert_array_equal(compiler.build(mod)(value), want)
