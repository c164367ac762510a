"""Elements of a byte or two, one by one: vectors are full of them, and short rows that lie one
behind the other are one line."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.build import compile_program
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.target.registry import Target

AVX2, AVX512 = "llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512"


def binary(op: str, shape: tuple[int, ...], dtype: str) -> IRModule:
    b = FunctionBuilder()
    attrs = {"axis": 0} if op == "concatenate" else {}
    return IRModule(
        {
            "main": b.finish(
                b.call(op, b.param("x", shape, dtype), b.param("y", shape, dtype), **attrs)
            )
        }
    )


@pytest.mark.parametrize(
    ("op", "dtype", "target", "vector"),
    [
        # Four of them at once.
        ("maximum", "uint8", AVX2, "<128 x i8>"),
        ("logical_and", "bool", AVX2, "<128 x i8>"),
        ("concatenate", "uint8", AVX2, "<128 x i8>"),
        ("maximum", "int16", AVX2, "<64 x i16>"),
        ("maximum", "float32", AVX2, "<32 x float>"),
        ("maximum", "int64", AVX2, "<32 x i64>"),
        ("maximum", "int8", AVX512, "<256 x i8>"),
        ("maximum", "int16", AVX512, "<128 x i16>"),
        ("maximum", "float32", AVX512, "<64 x float>"),
        # One: its registers are few.
        ("maximum", "float32", "llvm -mtriple=riscv64-linux -mattr=+v", "<16 x float>"),
        ("maximum", "uint8", "llvm -mtriple=aarch64-linux", "<16 x i8>"),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 512), (2, 256, 8), (3, 32, 544)])
def test_vectors_are_full(
    op: str, dtype: str, target: str, vector: str, shape: tuple[int, ...]
) -> None:
    program = compile_program(binary(op, shape, dtype), Target.anywhere(target))
    (kernel,) = program.kernels
    assert f"load {vector}" in kernel.source
    assert "phi i64" in kernel.source  # a loop, not everything in one body


def test_machines_without_vectors_have_no_wider_ones() -> None:
    """Two numbers at a time, of any width: LLVM takes them apart again."""
    program = compile_program(
        binary("maximum", (2, 64, 8), "uint8"), Target.anywhere("llvm -mtriple=thumbv7em")
    )
    assert set(re.findall(r"<\d+ x i8>", program.kernels[0].source)) <= {"<2 x i8>"}


def looked_up(rows: int, wanted: int, width: int) -> IRModule:
    b = FunctionBuilder()
    table, at = b.param("t", (rows, width), "float32"), b.param("i", (wanted,), "int64")
    return IRModule({"main": b.finish(b.call("nn.relu", b.call("take", table, at, axis=0)))})


@pytest.mark.parametrize("target", [AVX2, AVX512])
def test_rows_that_are_looked_up_are_read_as_rows(target: str) -> None:
    """Not lane by lane, however many vectors stand in a body."""
    kernels = compile_program(looked_up(50, 9, 768), Target.anywhere(target)).kernels
    (source,) = (k.source for k in kernels if "take" in k.source)
    assert re.search(r"load <(8|16) x float>", source)
    assert not re.search(r"load float\b", source)


@pytest.mark.sampled(4)
@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 300))
def test_rows_of_any_width_are_looked_up(rows: int, wanted: int, width: int) -> None:
    rng = np.random.default_rng(rows * wanted + width)
    table = rng.standard_normal((rows, width)).astype("float32")
    at = rng.integers(0, rows, wanted)
    got = compiler.build(looked_up(rows, wanted, width))(table, at)
    np.testing.assert_array_equal(got, np.maximum(table[at], 0))


@pytest.mark.sampled(4)
@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
    st.data(),
    st.sampled_from(["float32", "float64", "int32"]),
)
def test_wider_elements_of_any_shape(shape: list[int], data: st.DataObject, dtype: str) -> None:
    """x * b + x, where b is repeated along some axes, every second column of it, and turned."""
    rng = np.random.default_rng(sum(shape))
    kept = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    repeated = tuple(n if k in kept else 1 for k, n in enumerate(shape))
    x, y = (rng.integers(-9, 9, s).astype(dtype) for s in (tuple(shape), repeated))
    b = FunctionBuilder()
    p, q = b.param("x", tuple(shape), dtype), b.param("y", repeated, dtype)
    z = b.call("add", b.call("multiply", p, q), p)
    begin, end = [0] * len(shape), shape
    half = b.call("strided_slice", z, begin=begin, end=end, strides=[1] * (len(shape) - 1) + [2])
    turned = b.call("transpose", half, axes=[*range(len(shape))][::-1])
    mod = IRModule({"main": b.finish(turned)})
    want = (x * y + x)[..., ::2].T
    np.testing.assert_array_equal(compiler.build(mod)(x, y), want)


@pytest.mark.sampled(4)
@settings(max_examples=40)
@given(
    st.sampled_from(["maximum", "add", "concatenate", "less", "where"]),
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
    st.sampled_from(["uint8", "int8", "bool", "int16", "uint16"]),
)
def test_whatever_is_left_over(op: str, shape: list[int], dtype: str) -> None:
    """Of any shape: what numpy computes."""
    rng = np.random.default_rng(len(shape) + sum(shape))
    x, y = (rng.integers(0, 2 if dtype == "bool" else 60, shape).astype(dtype) for _ in "xy")
    if op == "where":
        b = FunctionBuilder()
        given_ = b.param("c", tuple(shape), "bool"), b.param("x", tuple(shape), dtype)
        mod = IRModule(
            {"main": b.finish(b.call("where", *given_, b.param("y", tuple(shape), dtype)))}
        )
        c = rng.integers(0, 2, shape).astype(bool)
        np.testing.assert_array_equal(compiler.build(mod)(c, x, y), np.where(c, x, y))
        return
    if op in ("add", "maximum") and dtype == "bool":
        op = "logical_or"
    mod = binary(op, tuple(shape), dtype)
    want = np.concatenate([x, y]) if op == "concatenate" else getattr(np, op)(x, y)
    np.testing.assert_array_equal(compiler.build(mod)(x, y), want)
