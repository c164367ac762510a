"""Sums of rows of integers go in lanes: the same sums, also where they wrap around."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import untiled
from compiler.target.registry import Target

CPU = Target.anywhere("llvm -mcpu=cascadelake")


def sums(rows: int, columns: int, dtype: str) -> IRModule:
    b = FunctionBuilder()
    y = b.call("sum", b.param("x", (rows, columns), dtype), axis=(1,))
    return IRModule({"main": b.finish(y)})


def stages(mod: IRModule) -> list[str]:
    bound = [b.value for b in compiler.optimize(mod, CPU).main.bindings]
    found = [v.op for v in bound if isinstance(v, Call) and isinstance(v.op, Function)]
    return [x for f in found for x in untiled(legalize(f).func, CPU).stages()]


@settings(max_examples=4)
@given(
    st.integers(1, 20),
    st.sampled_from([31, 32, 48, 64, 100, 128]),
    st.sampled_from(["int32", "int64", "uint8", "int8"]),
)
def test_sums_are_those_of_numpy(rows: int, columns: int, dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(columns).integers(info.min, info.max, (rows, columns), dtype)
    want = x.sum(axis=1, dtype=dtype)
    np.testing.assert_array_equal(compiler.build(sums(rows, columns, dtype))(x), want)


@pytest.mark.parametrize(
    ("columns", "dtype", "lanes"),
    [(64, "int32", True), (65, "int32", False), (16, "int32", False), (64, "float32", False)],
)
def test_whole_vectors_of_integers_are_lanes(columns: int, dtype: str, lanes: bool) -> None:
    assert any(s.endswith(".lanes") for s in stages(sums(5, columns, dtype))) == lanes


def test_products_are_left_to_dot_products() -> None:
    b = FunctionBuilder()
    x, y = (b.param(n, (5, 64), "int32") for n in "xy")
    mod = IRModule({"main": b.finish(b.call("sum", b.call("multiply", x, y), axis=(1,)))})
    values = [np.random.default_rng(k).integers(-99, 99, (5, 64), np.int32) for k in (0, 1)]
    np.testing.assert_array_equal(compiler.build(mod)(*values), (values[0] * values[1]).sum(1))
