"""Operations of narrow datatypes as look-ups, filled from whatever their operations are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.errors import LoweringError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.tensor.expr import Expr, cast, const, minimum
from compiler.types.dtypes import Array
from datatypes.lowering import stored

FORMATS = ("posit8_es0", "float8_e5m2", "fixed8_4", "posit6_es1")


def agree(mod: IRModule, fmt: str, *xs: Array) -> compiler.Executable:
    """Table and library lowering agree on every bit."""
    retyped = datatypes.change_dtype(mod, "float32", fmt)
    one, two = (compiler.build(retyped, dtype_lowering=how) for how in ("table", "library"))
    assert one.dtype_lowering == "table"
    assert one(*xs).tobytes() == two(*xs).tobytes()
    return one


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_convolutional_net_gives_the_bits_of_the_library_lowering(fmt: str) -> None:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    y: Any = b.param("x", (1, 3, 9, 9))

    def weights(*shape: int) -> Any:
        return b.const(rng.normal(size=shape).astype(np.float32) / 2)

    y = b.call("nn.conv2d", y, weights(8, 3, 3, 3), weights(8), padding=(1, 1, 1, 1))
    y = b.call("nn.relu", y)
    y = b.call("nn.conv2d", y, weights(8, 1, 3, 3), groups=8, padding=(1, 0, 0, 1))
    y = b.call("nn.conv2d", y, weights(12, 8, 1, 1), strides=(2, 2))
    y = b.call("nn.max_pool2d", b.call("exp", y), pool_size=(2, 2))
    y = b.call("nn.global_avg_pool2d", y)
    y = b.call("nn.dense", b.call("reshape", y, newshape=(0, 12)), weights(5, 12))
    mod = IRModule({"main": b.finish(b.call("nn.softmax", y))})
    agree(mod, fmt, rng.normal(size=(1, 3, 9, 9)).astype(np.float32))


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 19), st.sampled_from(FORMATS))
def test_dense_layers_of_any_shape(m: int, k: int, n: int, fmt: str) -> None:
    rng = np.random.default_rng(m * 100 + n)
    b = FunctionBuilder()
    w = b.const(rng.normal(size=(n, k)).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (m, k)), w))})
    agree(mod, fmt, rng.normal(size=(m, k)).astype(np.float32))


def test_products_of_computed_operands() -> None:
    rng = np.random.default_rng(2)
    b = FunctionBuilder()
    mod = IRModule(
        {"main": b.finish(b.call("nn.matmul", b.param("x", (5, 7)), b.param("y", (7, 6))))}
    )
    xs = [rng.normal(size=s).astype(np.float32) for s in ((5, 7), (7, 6))]
    agree(mod, "posit8_es0", *xs)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("extent", [1, 3, 8, 21])
def test_reductions_to_one_axis(op: str, extent: int) -> None:
    """The only output axis is also the one whose elements go side by side."""
    b = FunctionBuilder()
    x = b.param("x", (2, extent, 4))
    y = b.call("tanh", b.call(op, x, axis=(0, 2), keepdims=False))
    data = np.random.default_rng(extent).normal(size=(2, extent, 4)).astype(np.float32)
    for fmt in (*FORMATS, "lns8_3"):
        agree(IRModule({"main": b.finish(y)}), fmt, data)


def saturating(node: Any) -> Expr:
    """An 8-bit counter whose sums stop at 255."""
    a, b = (cast(stored(x), compiler.types.dtypes.INT32) for x in node.children())
    return cast(minimum(a + b, 255), node.dtype.storage_dtype)


def test_a_datatype_of_functions_is_looked_up_and_follows_its_registrations() -> None:
    datatypes.register("counter8")
    for name, f in (("Add", saturating),):
        datatypes.register_op(f, name, "llvm", "counter8")
    b = FunctionBuilder()
    x = b.param("x", (4,), "custom[counter8]8")
    mod = IRModule({"main": b.finish(b.call("add", x, x))})
    exe = compiler.build(mod)
    assert [str(c) for c in exe.lowerings] == [
        "custom[counter8]8: table, because its operations are functions that were registered, "
        "and it has 8 bits"
    ]
    xs = np.array([1, 100, 127, 200], np.uint8)
    np.testing.assert_array_equal(exe(xs), [2, 200, 254, 255])

    def nothing(node: Any) -> Expr:
        return const(0, node.dtype.storage_dtype)

    datatypes.register_op(nothing, "Add", "llvm", "counter8")
    np.testing.assert_array_equal(compiler.build(mod)(xs), [0, 0, 0, 0])


def test_wide_datatypes_have_no_tables() -> None:
    b = FunctionBuilder()
    x = b.param("x", (4,), "custom[posit16_es1]16")
    mod = IRModule({"main": b.finish(b.call("add", x, x))})
    with pytest.raises(LoweringError, match="has more than 8 bits"):
        compiler.build(mod, dtype_lowering="table")
