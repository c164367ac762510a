"""What kernels move and what is alive between them, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from random_language import modules

import compiler
import datatypes  # noqa: F401 - its formats are known by name
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, IRModule
from compiler.passes.infer_type import InferType
from compiler.transform.analysis import Kept, ModelCost, cost
from compiler.transform.preparation import prepare
from compiler.types.dtypes import Array


def array(*shape: int) -> Array:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def costs(b: FunctionBuilder, *results: Atom) -> ModelCost:
    return cost(IRModule({"main": b.finish(*results)}))


def test_values_inside_of_a_kernel_move_nowhere() -> None:
    b = FunctionBuilder()
    h = b.call("nn.dense", b.param("x", (1, 100)), b.const(array(50, 100)), b.const(array(50)))
    h = b.call("nn.relu", b.call("add", h, b.const(array(1, 50))))
    mod = IRModule({"main": b.finish(b.call("nn.dense", h, b.const(array(10, 50))))})
    stored = 4 * (5000 + 50 + 50 + 500)
    found = cost(mod)
    assert found.parameter_bytes == stored
    assert found.traffic_bytes == stored + 4 * (100 + 50) + 4 * (50 + 10)
    assert found.activation_bytes == 4 * (100 + 50)
    with compiler.PassContext(opt_level=0):  # as it would be built: a kernel for every operator
        alone = cost(mod)
    assert alone.traffic_bytes == found.traffic_bytes + 4 * (2 * 50 + 2 * 50)
    with compiler.PassContext(disabled_pass=["FuseOps"]):
        assert cost(mod) == alone


def test_views_and_fields_are_the_memory_of_what_they_are_made_of() -> None:
    b = FunctionBuilder()
    x = b.param("x", (8, 6))
    y = b.call("exp", x)
    flat = b.call("reshape", y, newshape=(48,))
    parts = b.call("split", flat, sizes=(16, 32), axis=0)
    z = b.call("nn.softmax", b.get(parts, 1))
    found = costs(b, b.call("reshape", z, newshape=(4, 8)), b.get(parts, 0))
    # exp; split; softmax.
    assert found.traffic_bytes == 4 * ((48 + 48) + (48 + 48) + (32 + 32))
    # While softmax runs: both parts and the result; x and y are gone.
    assert found.activation_bytes == 4 * (48 + 48)


def test_a_part_of_a_value_is_all_that_is_read_of_it() -> None:
    b = FunctionBuilder()
    x = b.param("x", (100,))
    found = costs(b, b.call("strided_slice", x, begin=(10,), end=(14,), axes=(0,)))
    assert found.traffic_bytes == 4 * (4 + 4)


def test_a_value_that_a_kernel_takes_twice_is_read_once() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 7, 7))
    assert costs(b, b.call("nn.matmul", x, x)).traffic_bytes == 4 * (49 + 49)


def test_what_is_made_of_constants_is_not_moved_but_stored_as_they_are() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 64))
    q = b.const(np.arange(-64, 64, dtype=np.int8).reshape(2, 64))
    real = b.call("qnn.dequantize", q, b.const(array(2)), axis=0)
    turned = b.call("reshape", b.call("transpose", real, axes=(1, 0)), newshape=(2, 64))
    f = b.finish(b.call("nn.dense", x, turned))
    stored = 128 + 8
    assert cost(IRModule({"main": f})).traffic_bytes == stored + 4 * (64 + 2)
    assert cost(IRModule({"main": f})).elements == {"nn.dense float32": 2}
    four = cost(IRModule({"main": f}), {q: Kept("int4", 4, more=24), turned: Kept("int4", 4)})
    assert four.parameter_bytes == 64 + 3 + 8
    assert four.traffic_bytes == 64 + 3 + 8 + 4 * (64 + 2)
    assert four.macs_by_dtypes == {"float32 x int4": 128}
    assert four.bit_operations == 128 * 32 * 4


BRANCHES = """
def @main(%c: Tensor[(), bool], %x: Tensor[(10, 10), float32]) -> Tensor[(10, 10), float32] {
  %y = nn.softmax(%x);
  %r = if (%c) {
    %a = nn.matmul(%y, %x);
    %b = nn.softmax(%a);
    %b
  } else {
    %y
  };
  %z = nn.softmax(%r);
  %z
}
"""
LOOP = """
def @main(%x: Tensor[(10, 10), float32], %go: Tensor[(), bool]) -> Tensor[(10, 10), float32] {
  %out = loop (%go, %a: Tensor[(10, 10), float32] = %x) {
    %b = nn.matmul(%a, %x);
    %d = nn.softmax(%b);
    (%go, %d)
  };
  %last = %out.0;
  %last
}
"""


def test_branches_move_what_is_in_them_and_keep_what_they_read() -> None:
    found = cost(InferType()(compiler.parse(BRANCHES)))
    # Softmax; matmul and softmax inside; softmax.
    assert found.traffic_bytes == 400 * (2 + (3 + 2) + 2)
    # Inside: x and y, which the branch reads, its product and result; and the condition, a byte.
    assert found.activation_bytes == 1 + 400 * 4


def test_the_body_of_a_loop_counts_once_and_keeps_its_state() -> None:
    found = cost(InferType()(compiler.parse(LOOP)))
    assert found.traffic_bytes == 400 * (3 + 2)
    # x, which the body reads; in it the state and the product, then this and the softmax.
    assert found.activation_bytes == 1 + 400 * 3


@settings(max_examples=30)
@given(modules())
def test_fusion_adds_to_the_traffic_of_no_program(mod: IRModule) -> None:
    """With branches, loops, closures and calls in it."""
    mod = prepare(mod)
    with compiler.PassContext(opt_level=0):
        alone = cost(mod)
    fused = cost(mod)
    assert fused.parameter_bytes <= fused.traffic_bytes <= alone.traffic_bytes


@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_dwsep", "mnist_resnet8"])
def test_fusion_never_adds(name: str) -> None:
    from experiments import zoo

    mod = compiler.from_onnx(zoo.FOLDER / f"{name}.onnx")
    mod = prepare(mod)
    with compiler.PassContext(opt_level=0):
        alone = cost(mod)
    fused = cost(mod)
    assert fused.traffic_bytes < alone.traffic_bytes
    assert fused.activation_bytes <= alone.activation_bytes
    same = ("macs", "parameters", "parameter_bytes", "operators", "elements", "bit_operations")
    assert all(getattr(fused, key) == getattr(alone, key) for key in same)


@pytest.mark.parametrize(("readers", "written"), [(1, 8 * 64 + 8 * 2), (2, 32 * 64)])
def test_blocks_are_written_where_they_are_made(readers: int, written: int) -> None:
    b = FunctionBuilder()
    h = b.call("exp", b.param("x", (1, 64)))
    blocks = {"dtype": "custom[float8_e4m3fn]8", "low": -448.0, "high": 448.0}
    rounded = b.call("qnn.simulated_blocks", h, axis=1, **blocks)
    y = b.call("nn.dense", rounded, b.const(array(10, 64)))
    results = [y, h][:readers]
    mod = IRModule({"main": b.finish(*results)})
    found = cost(mod, {rounded: Kept("mxfp8_e4m3", 8, more=2 * 8)})
    stored, held = 4 * 640, 64 + 2
    again = 0 if readers == 1 else 4 * 64 + held  # a kernel of its own, as others read h too
    assert found.traffic_bytes == stored + 4 * 64 + written // 8 + again + held + 4 * 10
