"""Shortened integer expressions have the same values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_support import interpret

from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Cast, Expr, cast, const, maximum, minimum
from compiler.tensor.simplify import simplify
from compiler.tensor.stmt import PrimFunc, stores
from compiler.types.dtypes import INT32, DType


def clipped(x: Expr, a: int, low: int, high: int) -> Expr:
    return minimum(maximum(x + a, low), high)


@pytest.mark.thorough
@given(
    st.integers(-300, 300), st.integers(-300, 300), st.integers(-300, 300), st.integers(-300, 300),
    st.sampled_from(["uint8", "int8"]),
)  # fmt: skip
def test_clip_shift_and_narrow(a: int, b: int, low: int, high: int, narrow: str) -> None:
    x = np.arange(-400, 400, 7, dtype=np.int32)

    def function(short: bool) -> PrimFunc:
        builder = PrimBuilder("f")
        buffer = builder.input("x", x.shape, INT32)

        def value(i: object) -> Expr:
            narrowed = Cast(clipped(buffer[i], a, low, high), DType.parse(narrow))
            again = clipped(cast(narrowed, INT32) + b, -a, low, high)
            e = again * const(3, INT32) + b
            return simplify(e) if short else e

        return builder.finish([builder.compute("y", x.shape, INT32, value)])

    one = interpret(function(False), [x, np.zeros_like(x)])
    two = interpret(function(True), [x, np.zeros_like(x)])
    assert (one == two).all()


def test_what_fused_operators_leave_behind_goes_away() -> None:
    builder = PrimBuilder("f")
    x = builder.input("x", (4,), INT32)
    u8 = DType.parse("uint8")

    def value(i: object) -> Expr:
        return cast(cast(clipped(x[i], 7, 0, 255), u8), INT32) + -7

    f = builder.finish([builder.compute("y", (4,), INT32, value)])
    (store,) = stores(f.body)
    assert repr(simplify(store.value)) == "min(max(x[y_s.i0], int32(-7)), int32(248))"
