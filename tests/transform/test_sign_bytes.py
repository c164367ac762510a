"""Bytes between integer operators become signed: what operators say of their zero points holds of
their references, and no result of a network changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import quantize
from compiler.arithmetic.arrays import arithmetic
from compiler.build import compile_program
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, atom_type, calls
from compiler.op.library import all_ops, get_op
from compiler.transform import FoldZeroPoint, SignBytes
from compiler.types.dtypes import INT8, UINT8
from compiler.types.tensor_types import TensorType
from experiments import zoo

RNG = np.random.default_rng(0)
SCALE = np.float32([0.01, 0.03])
TABLE = np.arange(256, 0, -1, dtype=np.int32)
GAIN = np.int64([[[70000, -90000, 30000]]])
Q = {"out_dtype": "uint8", "qmin": 3, "qmax": 250}
BYTES = RNG.integers(0, 256, (3, 2, 4, 3)).astype(np.uint8)
WEIGHTS = RNG.integers(-128, 128, (5, 2, 2, 2)).astype(np.int8)
EXAMPLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "nn.conv2d": (
        (BYTES, WEIGHTS),
        {"input_zero_point": 9, "out_dtype": "int32", "padding": (1, 0, 1, 1)},
    ),
    "nn.dense": (
        (BYTES[0, 0], RNG.integers(-128, 128, (5, 3)).astype(np.int8)),
        {"input_zero_point": 9, "out_dtype": "int32"},
    ),
    "nn.matmul": (
        (BYTES[0, 0], BYTES[1, 0].T.copy()),
        {"input_zero_point": 9, "weight_zero_point": 200, "out_dtype": "int32"},
    ),
    "qnn.quantize": ((RNG.normal(0, 1, (3, 2)).astype(np.float32), SCALE), {"zero_point": 9, **Q}),
    "qnn.dequantize": ((BYTES, SCALE), {"zero_point": 9}),
    "qnn.requantize": (
        (BYTES, SCALE * 40),
        {"input_zero_point": 9, "output_zero_point": 100, **Q},
    ),
    "qnn.add": (
        (BYTES, BYTES[::-1]),
        {"a_scale": 0.3, "b_scale": -0.7, "a_zero_point": 9, "b_zero_point": 5, **Q},
    ),
    "qnn.multiply": ((BYTES, BYTES[::-1]), {"a_zero_point": 9, "b_zero_point": 5}),
    "qnn.mean": ((BYTES,), {"axis": (2, 3), "input_zero_point": 9, "output_zero_point": 5, **Q}),
    "qnn.avg_pool2d": (
        (BYTES,),
        {"pool_size": (2, 2), "padding": (1, 1, 0, 0), "input_zero_point": 9, **Q},
    ),
    "qnn.softmax": ((BYTES, TABLE), {"output_zero_point": 7, **Q}),
    "qnn.layer_norm": (
        (BYTES, GAIN, GAIN << 20),
        {"input_zero_point": 9, "output_zero_point": 100, "centred": False, "epsilon": 5, **Q},
    ),
}  # operands and attributes


def signed(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (a.astype(np.int64) - 128).astype(np.int8)


def test_every_operator_with_zero_points_has_an_example() -> None:
    assert {n for n, op in all_ops().items() if op.zeros is not None} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_zero_points_shift_with_the_bytes(name: str) -> None:
    op, (args, given_attrs) = get_op(name), EXAMPLES[name]
    assert op.zeros is not None
    attrs = op.make_attrs(**given_attrs)
    want = op.reference(arithmetic(UINT8), attrs, *args)
    for k, zero in enumerate(op.zeros.operands):
        mine = list(args)
        mine[k] = signed(args[k])
        moved = replace(attrs, **{zero: getattr(attrs, zero) - 128}) if zero else attrs
        np.testing.assert_array_equal(op.reference(arithmetic(INT8), moved, *mine), want)
        if zero:  # without it, the result is another
            assert (op.reference(arithmetic(INT8), attrs, *mine) != want).any()
    if op.zeros.result:
        names = (op.zeros.result, "qmin", "qmax")
        moved = replace(attrs, out_dtype="int8", **{n: getattr(attrs, n) - 128 for n in names})
        got = op.reference(arithmetic(UINT8), moved, *args)
        assert got.dtype == np.int8
        np.testing.assert_array_equal(got, signed(want))


def network(seed: int, pooled: bool, shared: bool) -> tuple[IRModule, Any]:
    """Two convolutions, a sum with what the first one read, and views."""
    rng, b = np.random.default_rng(seed), FunctionBuilder()
    x = b.param("x", (2, 6, 5, 5))
    q: Any = b.call("qnn.quantize", x, b.const(np.float32(0.02)), zero_point=77)
    if pooled:
        q = b.call("nn.max_pool2d", q, pool_size=(2, 2), padding=(1, 1, 0, 0), strides=(1, 1))
    first = q
    for zero in (77, 0):
        w = b.const(rng.integers(-128, 128, (6, 6, 3, 3)).astype(np.int8))
        y = b.call(
            "nn.conv2d", q, w, padding=(1, 1, 1, 1), out_dtype="int32", input_zero_point=zero
        )
        q = b.call("qnn.requantize", y, b.const(np.float32(1e-3)), output_zero_point=0, qmin=2)
    if shared:
        q = b.call("qnn.add", first, q, a_zero_point=77, a_scale=0.5, output_zero_point=9)
    q = b.call("reshape", b.call("concatenate", q, first, axis=1), newshape=(2, -1))
    y = b.call("qnn.dequantize", q, b.const(np.float32(0.5)), zero_point=9)
    return IRModule({"main": b.finish(y)}), rng.normal(0, 2, (2, 6, 5, 5)).astype(np.float32)


def dtypes(mod: IRModule) -> list[Any]:
    types = [atom_type(b.var) for b in mod.main.bindings]
    return [t.dtype for t in types if isinstance(t, TensorType)]


@given(st.integers(0, 99), st.booleans(), st.booleans())
def test_results_are_the_same(seed: int, pooled: bool, shared: bool) -> None:
    """There, and back."""
    mod, x = network(seed, pooled, shared)
    there = SignBytes(INT8)(mod)
    assert UINT8 not in dtypes(there)
    back = SignBytes(UINT8)(there)
    assert INT8 not in dtypes(back)
    want = compiler.evaluate(mod, x)
    np.testing.assert_array_equal(compiler.evaluate(there, x), want)
    np.testing.assert_array_equal(compiler.evaluate(back, x), want)


def test_layers_of_few_bits_stay() -> None:
    """They multiply the low bits of unsigned data."""
    b = FunctionBuilder()
    y = b.call("qnn.requantize", b.param("x", (4, 4), "uint8"), b.const(np.float32(1)), qmax=127)
    w = b.const(np.ones((3, 4), np.int8))
    mod = IRModule({"main": b.finish(b.call("nn.dense", y, w, out_dtype="int32", input_bits=7))})
    assert SignBytes(INT8)(mod).main is mod.main


def test_what_leaves_and_what_nobody_multiplies_stays() -> None:
    b = FunctionBuilder()
    x, one = b.param("x", (4, 4), "uint8"), b.const(np.float32(1))
    y = b.call("qnn.requantize", x, one)
    z = b.call("qnn.requantize", y, one)
    w = b.const(np.ones((3, 4), np.int8))
    leaves = IRModule({"main": b.finish(z, b.call("nn.dense", z, w, out_dtype="int32"))})
    assert dtypes(SignBytes(INT8)(leaves)) == dtypes(leaves)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["mnist_dwsep", pytest.param("mnist_resnet8", marks=pytest.mark.thorough)]
)
def test_no_bytes_are_copied_to_change_their_sign(name: str) -> None:
    mod = compiler.from_onnx(zoo.FOLDER / f"{name}.onnx", shapes={"input": (1, 1, 28, 28)})
    x = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
    integers = quantize.quantize(mod, [x])
    changed = FoldZeroPoint(INT8)(SignBytes(INT8)(integers))
    assert not list(calls(changed.main, "qnn.to_signed"))
    np.testing.assert_array_equal(compiler.evaluate(changed, x), compiler.evaluate(integers, x))
    program = compile_program(integers, "llvm -mtriple=thumbv8.1m", compiled=False)
    assert not any("to_signed" in s.stage.symbol for s in program.steps if s.stage)
