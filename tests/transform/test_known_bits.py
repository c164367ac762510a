"""KnownBits says how many bits the data of a layer have, where their maker says it; such a layer
multiplies no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.stages import Job
from compiler.target.registry import Target
from compiler.transform import FoldZeroPoint, KnownBits

KINDS = ("dense", "conv", "grouped", "depthwise")


def quantized(
    kind: str, high: int, zero_point: int, pad: int = 0, seed: int = 0
) -> tuple[IRModule, Any]:
    """A layer of data quantized to 0 .. `high`, and data that reach the ends."""
    rng, b = np.random.default_rng(seed), FunctionBuilder()
    shape = (3, 8) if kind == "dense" else (2, 8, 5, 4)
    how = {"zero_point": zero_point, "qmax": high}
    x = b.call("qnn.quantize", b.param("x", shape, "float32"), b.const(np.float32(1)), **how)
    attrs: dict[str, Any] = {"out_dtype": "int32", "input_zero_point": zero_point}
    kernel: tuple[int, ...] = ()
    groups = {"grouped": 2, "depthwise": 8}.get(kind, 1)
    if kind != "dense":
        kernel, attrs = (3, 3), attrs | {"padding": (pad,) * 4, "groups": groups}
    outputs = 8 if kind == "depthwise" else 16
    w = rng.choice(np.array([-128, 127, -1, 3], np.int8), (outputs, 8 // groups, *kernel))
    y = b.call("nn.dense" if kind == "dense" else "nn.conv2d", x, b.const(w), **attrs)
    values = rng.choice(np.array([-1, 0, high, high + 1, zero_point]), shape) - zero_point
    return IRModule({"main": b.finish(y)}), values.astype(np.float32)


def bits(mod: IRModule) -> int:
    """What the layer is told."""
    found = mod.main.bindings[-1].value
    assert isinstance(found, Call)
    return int(found.attrs.input_bits)


@given(
    st.sampled_from(KINDS),
    st.integers(1, 255),
    st.data(),
    st.integers(0, 1),
    st.integers(0, 99),
)
def test_only_those_that_have_no_more(
    kind: str, high: int, data: st.DataObject, pad: int, seed: int
) -> None:
    mod, x = quantized(kind, high, data.draw(st.integers(0, high)), pad, seed=seed)
    told = KnownBits(7)(mod)
    assert bits(told) == (7 if high < 128 else 0)
    np.testing.assert_array_equal(compiler.evaluate(told, x), compiler.evaluate(mod, x))
    folded = FoldZeroPoint()(told)
    np.testing.assert_array_equal(compiler.evaluate(folded, x), compiler.evaluate(mod, x))


def test_what_is_told_cuts_other_bits_off() -> None:
    x = np.arange(256, dtype=np.uint8).reshape(32, 8)
    w = np.random.default_rng(0).integers(-128, 128, (16, 8)).astype(np.int8)
    for zero_point in (0, 15):
        b = FunctionBuilder()
        attrs = {"out_dtype": "int32", "input_bits": 4, "input_zero_point": zero_point}
        y = b.call("nn.dense", b.param("x", x.shape, "uint8"), b.const(w), **attrs)
        mod = IRModule({"main": b.finish(y)})
        want = ((x & 15).astype(np.int32) - zero_point) @ w.T.astype(np.int32)
        np.testing.assert_array_equal(compiler.evaluate(mod, x), want)
        np.testing.assert_array_equal(compiler.build(mod)(x), want)


@pytest.mark.parametrize(
    ("dtype", "attrs", "text"),
    [
        ("int8", {"input_bits": 7}, "1 to 8 for uint8 data, not 7 for int8"),
        ("uint8", {"input_bits": 9}, "1 to 8 for uint8 data, not 9 for uint8"),
        ("uint8", {"input_bits": -1}, "1 to 8 for uint8 data, not -1"),
        ("uint8", {"input_bits": 3, "input_zero_point": 8}, "8, which stands for zero, has more"),
    ],
)
def test_attributes_that_do_not_fit(dtype: str, attrs: dict[str, int], text: str) -> None:
    b = FunctionBuilder()
    w = b.const(np.zeros((2, 4), np.int8))
    with pytest.raises(TypeInferenceError, match=text):
        b.call("nn.dense", b.param("x", (1, 4), dtype), w, out_dtype="int32", **attrs)


def test_it_is_for_targets_that_multiply_few_bits() -> None:
    found = {t: Job(Target.anywhere(t), ()).data_bits for t in TARGETS}
    assert found == TARGETS


TARGETS = {"wasm32": 0, "wasm32 -mattr=+relaxed-simd": 7, "llvm -mtriple=aarch64-linux": 0}
