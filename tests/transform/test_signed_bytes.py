"""Bytes that CPUs multiply as signed numbers: FoldZeroPoint makes activations signed for them, and
integer results stay what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.stages import Job
from compiler.target.registry import Target
from compiler.transform import FoldZeroPoint
from compiler.types.dtypes import INT8, UINT8, DType


def layer(kind: str, data: str, zero_point: int, pad: int, seed: int = 0) -> tuple[IRModule, Any]:
    """A convolution or dense layer of bytes, and data for it."""
    rng, b = np.random.default_rng(seed), FunctionBuilder()
    info = np.iinfo(data)
    ends = np.array([info.min, info.max, zero_point, 5])
    bias = b.const(rng.integers(-1000, 1000, 6).astype(np.int32))
    attrs: dict[str, Any] = {"out_dtype": "int32", "input_zero_point": zero_point}
    if kind == "dense":
        shape: tuple[int, ...] = (3, 8)
        w = rng.choice(np.array([-128, 127, -1, 3], np.int8), (6, 8))
        y = b.call("nn.dense", b.param("x", shape, data), b.const(w), bias, **attrs)
    else:
        shape, groups = (2, 6, 5, 4), 6 if kind == "depthwise" else 1
        w = rng.choice(np.array([-128, 127, -1, 3], np.int8), (6, 6 // groups, 3, 3))
        attrs |= {"padding": (pad, pad, pad, pad), "groups": groups}
        y = b.call("nn.conv2d", b.param("x", shape, data), b.const(w), bias, **attrs)
    return IRModule({"main": b.finish(y)}), rng.choice(ends, shape).astype(data)


@given(
    st.sampled_from(["dense", "conv", "depthwise"]),
    st.sampled_from(["uint8", "int8"]),
    st.sampled_from([UINT8, INT8]),
    st.integers(-128, 255),
    st.integers(0, 1),
    st.integers(0, 99),
)
def test_results_are_the_same(
    kind: str, data: str, wanted: DType, zero_point: int, pad: int, seed: int
) -> None:
    info = np.iinfo(data)
    zero_point = min(max(zero_point, int(info.min)), int(info.max))
    mod, x = layer(kind, data, zero_point, pad, seed)
    folded = FoldZeroPoint(wanted)(mod)
    np.testing.assert_array_equal(compiler.evaluate(folded, x), compiler.evaluate(mod, x))
    (call,) = (b.value for b in folded.main.bindings if b.value.op.name.startswith("nn."))
    assert call.attrs.input_zero_point == 0
    assert call.args[0].type.dtype == wanted


@pytest.mark.parametrize(
    ("target", "data"),
    [
        ("llvm -mcpu=cortex-a53", INT8),
        ("llvm -mcpu=cortex-a76", INT8),
        ("llvm -mcpu=neoverse-v1", UINT8),
        ("llvm -mcpu=cortex-m55", INT8),
        ("llvm -mcpu=cortex-m4", UINT8),
        ("llvm -mcpu=cascadelake", UINT8),
        ("llvm -mcpu=x86-64", UINT8),
        ("riscv64-linux", UINT8),
        ("c -mcpu=generic", UINT8),
    ],
)
def test_what_targets_multiply(target: str, data: DType) -> None:
    assert Job(Target.anywhere(target), ()).bytes == data


@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a76", "neoverse-v1"])
def test_the_instruction_is_found_for_unsigned_data(cpu: str) -> None:
    """Whichever bytes a network has."""
    from compiler.build import compile_program

    name = {"cortex-a53": "smull.sadalp<", "cortex-a76": "sdot<", "neoverse-v1": "usdot<"}[cpu]
    for data in ("uint8", "int8"):
        mod, _ = layer("dense", data, 7, 0)
        program = compile_program(mod, Target.anywhere(f"llvm -mcpu={cpu}"))
        assert any(name in k.as_text() for k in program.kernels), data
