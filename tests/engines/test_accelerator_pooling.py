"""Pooling on the simulated accelerator: the same bits as here, cycles that are counted, and what
stays here, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.codegen.accel.instructions import ACC, ADD, GREATEST, INPUT, Alu, Gemm, Load, decoded
from compiler.engines.accelerator import cost, designed
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.target.accelerator import Design
from compiler.transform import AnnotateTarget, InferType

DESIGNS = (
    "accel", "accel -block=4 -input=512 -weight=2K -acc=2K", "accel -block=5 -bandwidth=1 -fill=0",
    "accel -block=32 -latency=0",
)  # fmt: skip
MAX, MEAN, AVERAGE = "nn.max_pool2d", "qnn.mean", "qnn.avg_pool2d"
BYTES = {"uint8": (0, 255), "int8": (-128, 127)}


def network(op: str, shape: tuple[Any, ...], dtype: str = "uint8", **attrs: Any) -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.finish(b.call(op, b.param("x", shape, dtype), **attrs))})


def scaling(dtype: str, zero: int, ratio: float) -> dict[str, Any]:
    low, high = BYTES[dtype]
    return {
        "ratio": ratio, "input_zero_point": zero, "output_zero_point": zero + 1, "out_dtype": dtype,
        "qmin": low, "qmax": high,
    }  # fmt: skip


def data(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    low, high = BYTES[dtype]
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(dtype)


def check(mod: IRModule, x: np.ndarray, design: str) -> compiler.Executable:
    exe = compiler.build(mod, target=design)
    got, want = exe(x), compiler.evaluate(mod, x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    return exe


@st.composite
def cases(draw: st.DrawFn) -> tuple[IRModule, np.ndarray, str]:
    dtype, op = draw(st.sampled_from(list(BYTES))), draw(st.sampled_from([MAX, MEAN, AVERAGE]))
    channels, tall, wide = (draw(st.integers(1, most)) for most in (19, 11, 11))
    attrs: dict[str, Any] = {}
    if op != MAX:
        zero = draw(st.integers(0, 9))
        attrs |= scaling(dtype, zero, draw(st.floats(0.1, 3)))
    if op == MEAN:
        attrs |= {"axis": (2, 3), "keepdims": draw(st.booleans())}
    else:
        k = draw(st.integers(1, min(3, tall))), draw(st.integers(1, min(3, wide)))
        attrs["pool_size"] = k
        attrs["strides"] = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        attrs["padding"] = tuple(draw(st.integers(0, k[i % 2] - 1)) for i in range(4))
        if op == AVERAGE:
            attrs["count_include_pad"] = True
    batch = draw(st.sampled_from([2, Var("N")]))
    mod = network(op, (batch, channels, tall, wide), dtype, **attrs)
    x = data((2, channels, tall, wide), dtype, draw(st.integers(0, 99)))
    return mod, x, draw(st.sampled_from(DESIGNS))


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(cases())
def test_bits_are_those_of_the_interpreter(case: tuple[IRModule, np.ndarray, str]) -> None:
    mod, x, design = case
    with designed(Design.parse(design)):
        reasons = [str(r) for r in AnnotateTarget(["accel"]).explain(InferType()(mod))]
    if any("does not hold one window" in r for r in reasons):
        assert "512" in design
    else:
        check(mod, x, design)


def test_the_greatest_numbers_are_found_by_the_alu() -> None:
    """A window of 9 pixels takes 9 cycles a vector of results, and the rest what it took: setting
    accumulators, and taking a byte of each."""
    attrs: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    mod = network(MAX, (1, 20, 13, 13), "int8", **attrs)
    found = cost(check(mod, data((1, 20, 13, 13), "int8"), "accel"))
    assert found is not None
    (layer,) = found.layers
    vectors = 2 * 7 * 7
    assert (layer.macs, layer.report.gemm, layer.report.alu) == (0, 0, vectors * (9 + 2))
    assert layer.report.stored == vectors * 16
    stream = decoded(layer.stream)
    assert not any(isinstance(i, Gemm) for i in stream)
    assert {i.buffer for i in stream if isinstance(i, Load)} == {INPUT, ACC}  # no weights
    assert sum(i.steps for i in stream if isinstance(i, Alu) and i.what == GREATEST) == 9 * vectors
    assert found.cycles > vectors * 11


def test_means_are_sums_that_the_alu_adds_up() -> None:
    attrs = {"axis": (2, 3), **scaling("uint8", 3, 0.7)}
    mod = network(MEAN, (2, 20, 7, 7), **attrs)
    found = cost(check(mod, data((2, 20, 7, 7), "uint8"), "accel"))
    assert found is not None
    (layer,) = found.layers
    assert (layer.macs, layer.report.gemm, layer.report.alu) == (0, 0, 2 * (49 + 2))
    sums = [i for i in decoded(layer.stream) if isinstance(i, Alu) and i.what == ADD]
    assert sum(i.steps for i in sums) == 2 * 49


WINDOW: dict[str, Any] = {"pool_size": (2, 2)}
REFUSED: dict[str, tuple[IRModule, str, str]] = {
    "formats": (network(MAX, (1, 3, 4, 4), "float32", **WINDOW), "accel", "bytes, not float32"),
    "ceiling": (network(MAX, (1, 3, 5, 5), **WINDOW, ceil_mode=True), "accel", "whole windows"),
    "channels": (network(MAX, (1, Var("C"), 4, 4), **WINDOW), "accel", "channels is open"),
    "accumulators": (
        network(MAX, (1, 3, 4, 4), **WINDOW), "accel -accumulator=int8_wrap", "of 8 bits do not",
    ),
    "sizes": (
        network(MEAN, (1, 3, Var("H"), 4), axis=(2, 3), **scaling("uint8", 0, 1.0)), "accel",
        "sizes are open",
    ),
    "axes": (network(MEAN, (1, 3, 4, 4), axis=(3,), **scaling("uint8", 0, 1.0)), "accel", "planes"),
    "wrapping": (
        network(MEAN, (1, 3, 4, 4), axis=(2, 3), **scaling("uint8", 0, 1.0)),
        "accel -accumulator=int24_wrap", "the core's int24_wrap",
    ),
    "border": (
        network(AVERAGE, (1, 3, 4, 4), **WINDOW, padding=(1, 0, 0, 0), **scaling("uint8", 0, 1.0)),
        "accel", "means of fewer numbers",
    ),
    "small": (
        network(MEAN, (1, 3, 9, 9), axis=(2, 3), **scaling("uint8", 0, 1.0)),
        "accel -input=1K", "does not hold one window",
    ),
}  # fmt: skip


OTHER_CORES = ("wrapping", "accumulators")
"""Whose simulators are compiled."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.thorough] * (n in OTHER_CORES)) for n in REFUSED],
)
def test_what_stays_here_has_a_reason(name: str) -> None:
    mod, design, said = REFUSED[name]
    with designed(Design.parse(design)):
        reasons = [str(r) for r in AnnotateTarget(["accel"]).explain(InferType()(mod))]
    assert any(said in r for r in reasons), reasons
    with pytest.raises(compiler.UnsupportedError, match="the core computes nothing of this"):
        compiler.build(mod, target=design)


def test_borders_of_zero_points_that_are_no_bytes_are_refused() -> None:
    """A vector of the border is filled with one byte."""
    b = FunctionBuilder()
    x = b.param("x", (1, 3, 5, 5), "uint8")
    w = np.ones((2, 3, 3, 3), np.int8)
    attrs: dict[str, Any] = {"padding": (1, 1, 1, 1), "out_dtype": "int32", "input_zero_point": -3}
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", x, b.const(w), **attrs))})
    reasons = [str(r) for r in AnnotateTarget(["accel"]).explain(InferType()(mod))]
    assert any("zero point -3 is no uint8 to pad with" in r for r in reasons)
