"""GroupQueries: shared heads are multiplied as they are; the same numbers, and no copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, calls
from compiler.symbolic import Var as Size
from compiler.transform import GroupQueries
from compiler.types.dtypes import Array


def product(
    heads: int, times: int, rows: Any, turned: bool, shared_last: bool = False, outer: int = 2
) -> IRModule:
    b, positions = FunctionBuilder(), Size("positions")
    width = 4 if turned else positions
    x = b.param("x", (outer, heads * times, rows, width))
    once = b.param("once", (outer, heads, positions, 4))
    axes, shape = ((1,), (outer, times, heads)) if shared_last else ((2,), (outer, heads, times))
    v = b.call("expand_dims", once, axes=axes)
    v = b.call("broadcast_to", v, shape=(*shape, positions, 4))
    v = b.call("reshape", v, newshape=(outer, heads * times, positions, 4))
    if turned:
        v = b.call("transpose", v, axes=(0, 1, 3, 2))
    return IRModule({"main": b.finish(b.call("nn.matmul", x, v))})


def inputs(mod: IRModule, rows: int, positions: int) -> list[Array]:
    rng = np.random.default_rng(rows)
    sizes = {"rows": rows, "positions": positions}
    return [
        rng.standard_normal([sizes.get(str(d), d) for d in p.type.shape]).astype(np.float32)
        for p in mod.main.params
    ]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.booleans())
def test_the_numbers_stay(heads: int, times: int, rows: int, positions: int, turned: bool) -> None:
    mod = product(heads, times, Size("rows"), turned)
    grouped = GroupQueries()(mod)
    assert not list(calls(grouped.main, "broadcast_to"))
    args = inputs(mod, rows, positions)
    np.testing.assert_array_equal(compiler.evaluate(grouped, *args), compiler.evaluate(mod, *args))


@pytest.mark.parametrize("turned", [False, True])
def test_compiled_products_are_grouped(turned: bool) -> None:
    mod = datatypes.change_dtype(product(2, 3, Size("rows"), turned), "float32", "posit8_es2")
    args = inputs(mod, 2, 5)
    exe = compiler.build(mod)
    assert "broadcast" not in exe.as_text()
    np.testing.assert_array_equal(exe(*args), compiler.evaluate(mod, *args))


def test_what_is_repeated_otherwise_stays() -> None:
    """Heads that take turns; many rows."""
    for mod in (product(2, 3, 4, True, shared_last=True), product(2, 3, 33, False)):
        assert GroupQueries()(mod) is mod
    assert not list(calls(GroupQueries()(product(2, 3, 32, False)).main, "broadcast_to"))
