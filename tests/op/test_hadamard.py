"""nn.hadamard is the product with the Walsh-Hadamard matrix, compiled as interpreted."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
import quantize
from compiler.errors import DtypelabError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.nn.hadamard import walsh_matrix
from compiler.types.dtypes import Array


def module(shape: tuple[object, ...]) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.finish(b.call("nn.hadamard", b.param("x", shape), name="y"))})


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), max_size=3), st.integers(0, 9), st.integers(0, 1000))
def test_it_is_the_product_with_the_matrix_and_its_own_inverse(
    lead: list[int], power: int, seed: int
) -> None:
    n = 1 << power
    x = np.random.default_rng(seed).normal(size=(*lead, n)).astype(np.float32)
    mod = module((*lead, n))
    y = compiler.build(mod)(x)
    np.testing.assert_array_equal(y, compiler.evaluate(mod, x))
    np.testing.assert_allclose(y, x @ walsh_matrix(n), atol=1e-4)
    np.testing.assert_allclose(compiler.evaluate(mod, y), x, atol=1e-4)


def test_the_matrix_is_that_of_the_textbook() -> None:
    np.testing.assert_allclose(walsh_matrix(64), hadamard_by_sylvester(64) / 8)


def hadamard_by_sylvester(n: int) -> Array:
    """(-1) ** (the number of ones in i & j)."""
    i = np.arange(n)
    return (-1.0) ** np.bitwise_count(i[:, None] & i)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["posit8_es1", "bfloat16", "float8_e4m3fn"])
def test_formats_round_every_sum(name: str) -> None:
    mod = datatypes.change_dtype(module((3, 8)), "float32", name)
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    found = compiler.build(mod)(x)
    np.testing.assert_array_equal(found, compiler.evaluate(mod, x))

    def rounded(a: Array) -> Array:
        return np.asarray(datatypes.decode(name, datatypes.encode(name, a)), np.float64)

    y = rounded(x)
    for h in (1, 2, 4):
        for k in range(0, 8, 2 * h):
            for j in range(k, k + h):
                a, b = y[:, j].copy(), y[:, j + h].copy()
                y[:, j], y[:, j + h] = rounded(a + b), rounded(a - b)
    np.testing.assert_array_equal(found, rounded(y * rounded(np.array(8**-0.5))))


@pytest.mark.parametrize("size", [0, 3, 12, 100])
def test_other_lengths_are_refused(size: int) -> None:
    with pytest.raises(DtypelabError, match=f"a power of two as the length .*, not {size}"):
        module((2, size))


def test_it_is_exported_as_a_product(tmp_path: object) -> None:
    mod = module((3, 16))
    x = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    plan = quantize.calibrate(mod, [x])
    quantize.export_onnx(mod, plan, f"{tmp_path}/y.onnx")
    (y,) = onnxruntime.InferenceSession(f"{tmp_path}/y.onnx").run(None, {"x": x})
    np.testing.assert_allclose(y, compiler.evaluate(mod, x), atol=1e-5)
