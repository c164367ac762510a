"""Rows shorter than vectors: those that lie one behind the other in memory are one row for lanes,
and results are numpy's."""

from __future__ import annotations

import math

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
from compiler.tensor.stmt import For, PrimFunc, walk_stmts

ROWS = st.lists(st.sampled_from([1, 2, 3, 5, 7, 14, 16, 17, 33]), min_size=1, max_size=4)


def elementwise(shape: tuple[int, ...], kept: tuple[int, ...]) -> IRModule:
    """tanh(x * b + x), where b has the kept axes of x, and 1 for others."""
    x = compiler.var("x", shape, "float32")
    b = compiler.var("b", tuple(n if k in kept else 1 for k, n in enumerate(shape)), "float32")
    product = compiler.call("multiply", x, b)
    y = compiler.call("tanh", compiler.call("add", product, x))
    return IRModule({"main": compiler.function([x, b], y)})


def reduction(shape: tuple[int, ...], axes: tuple[int, ...], op: str, dtype: str) -> IRModule:
    x = compiler.var("x", shape, dtype)
    y = compiler.call(op, x, axis=axes, keepdims=False)
    return IRModule({"main": compiler.function([x], y)})


def scheduled(mod: IRModule) -> PrimFunc:
    main = compiler.transform.InferType()(mod).main
    f = legalize(Function(main.params, main.bindings, main.results, {"primitive": True})).func
    schedule_default(f, Target.anywhere("llvm -mcpu=cascadelake"))
    return f


def lanes(f: PrimFunc) -> list[int]:
    """The lanes of every vector, of which several may be computed at once."""
    every = [x for x, _, _ in walk_stmts(f.body) if isinstance(x, For) and x.kind == "vector"]
    return [x.extent.const for x in every if not any(y in every for y in x.body)]


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(ROWS, st.data(), st.integers(1, 2))
def test_elements_of_any_shape(shape: list[int], data: st.DataObject, threads: int) -> None:
    kept = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    mod = elementwise(tuple(shape), tuple(kept))
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("float32")
    b = rng.standard_normal([n if k in kept else 1 for k, n in enumerate(shape)]).astype("float32")
    got = compiler.build(mod, threads=threads)(x, b)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, x, b))


@settings(max_examples=6, deadline=None)
@given(
    ROWS, st.data(), st.sampled_from(["max", "min"]), st.sampled_from(["float32", "int8", "int64"])
)
def test_reductions_over_any_axes(
    shape: list[int], data: st.DataObject, op: str, dtype: str
) -> None:
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    x = np.random.default_rng(1).integers(-99, 99, shape).astype(dtype)
    if dtype == "float32" and x.size > 3:
        x.flat[x.size // 2] = np.nan
    want = (np.max if op == "max" else np.min)(x, axis=axes)
    got = compiler.build(reduction(tuple(shape), axes, op, dtype))(x)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("shape", "kept", "vectors"),
    [
        ((1, 16, 18, 14), (0, 1, 2, 3), {16, 12}),  # 18 x 14 are rows enough
        ((1, 16, 18, 14), (1,), {16, 12}),  # a factor a channel
        ((1, 16, 18, 14), (2,), {14}),  # a factor a row: no other row lies in its line
        ((8, 3, 5), (), {16, 8}),  # 120 elements, no whole vectors
        ((4, 100, 17), (), {16, 4}),
        ((6, 4, 12), (), {16}),  # three rows of four
        ((4, 2, 48), (1,), {16}),  # whole vectors
    ],
)
def test_rows_fill_vectors(
    shape: tuple[int, ...], kept: tuple[int, ...], vectors: set[int]
) -> None:
    assert {*lanes(scheduled(elementwise(shape, kept)))} == vectors


def test_rows_of_run_time_batches_fill_vectors() -> None:
    x = compiler.var("x", ("N", 18, 14), "float32")
    f = scheduled(IRModule({"main": compiler.function([x], compiler.call("tanh", x))}))
    assert {n % 16 for n in lanes(f)} <= {0, 12}
    assert max(lanes(f)) >= 16


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 10, 18, 14), (2, 3)), ((2, 3, 5, 33), (1, 2, 3)), ((4, 64), (1,))]
)
def test_several_axes_are_reduced_as_one_row(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    f = scheduled(reduction(shape, axes, "max", "float32"))
    steps = [x for x, _, _ in walk_stmts(f.body) if isinstance(x, For) and "step" in x.var.name]
    row = math.prod(shape[k] for k in axes)
    assert sum(x.extent.const for x in steps) >= row // 16 // 16
    assert any(n % 16 == 0 for n in lanes(f))


def test_sums_of_floats_keep_their_order() -> None:
    """Rows of a sum are no one row: the order of its terms is part of its meaning."""
    mod = reduction((3, 18, 14), (1, 2), "sum", "float32")
    x = np.random.default_rng(2).standard_normal((3, 18, 14)).astype("float32")
    np.testing.assert_array_equal(compiler.build(mod)(x), compiler.evaluate(mod, x))


@pytest.mark.parametrize(
    "shapes", [((200, 300), (300, 1)), ((1, 5), (5, 37)), ((3, 17, 4), (4, 2))]
)
def test_results_of_tiles_with_few_columns(shapes: tuple[tuple[int, ...], ...]) -> None:
    """A stage that copies what a tile has added up keeps its loops where no square fits."""
    a, b = (compiler.var(n, s, "float32") for n, s in zip("ab", shapes, strict=True))
    y = compiler.call("nn.matmul", a, b)
    mod = IRModule({"main": compiler.function([a, b], y)})
    rng = np.random.default_rng(3)
    x = [rng.standard_normal(s).astype("float32") for s in shapes]
    np.testing.assert_allclose(compiler.build(mod)(*x), x[0] @ x[1], rtol=1e-4, atol=1e-4)
