"""Rules of differentiation where it is easy to be wrong: products with zeros, updates that meet or
lie outside the data, diagonals; against central differences, and against PyTorch's definition where
elements are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gradient_rules import differences

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, tensor_type
from compiler.types.dtypes import Array

FEW = settings(max_examples=8, deadline=None)
small = st.integers(0, 2)


def program(op: str, args: list[Array], **attrs: Any) -> tuple[IRModule, list[int]]:
    """The operator in a module, and which of its operands are floats."""
    b = FunctionBuilder()
    y = b.call(op, *(b.param(f"p{k}", a.shape, str(a.dtype)) for k, a in enumerate(args)), **attrs)
    return IRModule({"main": b.finish(y)}), [k for k, a in enumerate(args) if a.dtype.kind == "f"]


def check(op: str, args: list[Array], **attrs: Any) -> None:
    """Against differences; of polynomials of low degree they are nearly exact."""
    mod, floats = program(op, args, **attrs)
    both = compiler.gradient(mod, [f"p{k}" for k in floats], "flows")
    back = np.random.default_rng(0).uniform(0.5, 1.5, tensor_type(mod.main.results[0]).static_shape)
    _, *got = compiler.evaluate(both, *args, back)
    for k, mine in zip(floats, got, strict=True):
        want = differences(mod, args, k, [back])
        np.testing.assert_allclose(mine, want, rtol=1e-6, atol=1e-7, err_msg=f"operand {k}")


def with_zeros(draw: Any, shape: tuple[int, ...]) -> Array:
    """Small integers, many of them 0, as float64."""
    count = int(np.prod(shape))
    return np.array(draw(st.lists(small, min_size=count, max_size=count)), float).reshape(shape)


@FEW
@given(st.data(), st.sampled_from([(), (0,), (0, 2), (-1,), (1, 2)]))
def test_products_of_zeros(data: st.DataObject, axis: tuple[int, ...]) -> None:
    check("prod", [with_zeros(data.draw, (2, 3, 2))], axis=axis)


@FEW
@given(st.data(), st.integers(-2, 1), st.booleans(), st.booleans())
def test_running_products_of_zeros(
    data: st.DataObject, axis: int, exclusive: bool, reverse: bool
) -> None:
    x = with_zeros(data.draw, (4, 3))
    check("cumprod", [x], axis=axis, exclusive=exclusive, reverse=reverse)


@FEW
@given(st.data(), st.sampled_from(["none", "add", "mul"]), st.integers(0, 1))
def test_updates_that_meet_or_lie_outside(data: st.DataObject, how: str, axis: int) -> None:
    at = np.array(data.draw(st.lists(st.integers(-5, 4), min_size=6, max_size=6))).reshape(3, 2)
    x, updates = with_zeros(data.draw, (3, 3)), with_zeros(data.draw, (3, 2))
    check("scatter_elements", [x, at, updates], axis=axis, reduction=how)
    check("scatter_nd", [x, at, updates[:, 0]], reduction=how)
    rows = with_zeros(data.draw, (3, 3))
    check("scatter_nd", [x, at[:, :1], rows], reduction=how)


@pytest.mark.parametrize("how", ["max", "min"])
def test_equal_updates_share(how: str) -> None:
    x, at, updates = np.zeros(3), np.array([0, 0, 2, 7]), np.array([0.0, 0.0, 1.0, 0.0])
    mod, _ = program("scatter_elements", [x, at, updates], reduction=how)
    both = compiler.gradient(mod, ["p0", "p2"], "flows")
    y, data, back = compiler.evaluate(both, x, at, updates, np.array([3.0, 5.0, 7.0]))
    assert list(y) == [0, 0, how == "max"]
    assert list(data) == [1, 5, 0 if how == "max" else 7]
    assert list(back) == [1, 1, 7 if how == "max" else 0, 0]


EQUATIONS = [
    ("ii", [(3, 3)]),
    ("iij,j->i", [(2, 2, 3), (3,)]),
    ("ijij->j", [(2, 3, 2, 3)]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]),
    ("i...,i...->...i", [(2, 1, 3), (2, 3)]),
    ("b...,b...,a->ba", [(2, 3), (2, 1), (2,)]),
    ("ba,ab", [(2, 3), (3, 2)]),
    ("ba", [(2, 3)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    check("einsum", [rng.standard_normal(s) for s in shapes], equation=equation)


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_slices_of_shared_axes(shared: int) -> None:
    rng = np.random.default_rng(0)
    x, at = rng.standard_normal((2, 3, 3)), rng.integers(-4, 4, (2, 3, 4, 1))
    check("gather_nd", [x, at], batch_dims=shared)


OPEN: list[tuple[str, dict[str, Any], list[Any], list[tuple[int, ...]]]] = [
    ("take", {"axis": 0}, [("n", 3), "m"], [(4, 3), (5,)]),
    ("gather_elements", {"axis": 0}, [("n", 2), ("m", 2)], [(4, 2), (3, 2)]),
    ("gather_nd", {"batch_dims": 1}, [("n", "m"), ("n", 3, 1)], [(2, 4), (2, 3, 1)]),
    ("cumprod", {}, [("n", 2)], [(4, 2)]),
    ("prod", {"axis": (0, 1)}, [("n", 2)], [(3, 2)]),
    ("einsum", {"equation": "ii->i"}, [("n", "n")], [(3, 3)]),
    ("scatter_elements", {"reduction": "mul"}, ["n", "m", "m"], [(3,), (4,), (4,)]),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("op", "attrs", "shapes", "sizes"), OPEN, ids=[c[0] for c in OPEN])
def test_axes_that_are_open(
    op: str, attrs: dict[str, Any], shapes: list[Any], sizes: list[tuple[int, ...]]
) -> None:
    """The gradient of open axes is that of fixed ones, interpreted and compiled."""
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s) for s in sizes]
    if len(args) > 1:
        args[1] = rng.integers(-2, 2, sizes[1])
    fixed, floats = program(op, args, **attrs)
    names = [f"p{k}" for k in floats]
    back = rng.standard_normal(tensor_type(fixed.main.results[0]).static_shape)
    want = compiler.evaluate(compiler.gradient(fixed, names, "flows"), *args, back)
    variables = [
        compiler.var(f"p{k}", s if isinstance(s, tuple) else (s,), str(a.dtype))
        for k, (s, a) in enumerate(zip(shapes, args, strict=True))
    ]
    whole = compiler.function(variables, compiler.call(op, *variables, **attrs))
    both = compiler.gradient(IRModule({"main": whole}), names, "flows")
    for got in (compiler.evaluate(both, *args, back), compiler.build(both)(*args, back)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
