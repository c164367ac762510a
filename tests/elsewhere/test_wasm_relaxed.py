"""Products of bytes by the relaxed dot product of WebAssembly, whose second factor has 7 bits: the
bits of the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines_here import RELAXED_MACHINES as MACHINES
from op_runs import RUNS, Case, check_on, label

import compiler
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transform"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from test_c_networks import images, network
from test_known_bits import KINDS, quantized


@pytest.mark.thorough
@pytest.mark.parametrize("run", RUNS, ids=label)
@pytest.mark.parametrize("target", MACHINES)
def test_operators(target: str, run: tuple[Case, Any]) -> None:
    """LLVM takes no instruction whose results machines may choose."""
    check_on(target, run)


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "zero_point",
    [
        pytest.param(z, marks=() if z in (0, 127) else pytest.mark.thorough)
        for z in (0, 1, 63, 64, 126, 127)
    ],
)
def test_zero_points(target: str, kind: str, zero_point: int, pad: int) -> None:
    mod, x = quantized(kind, 127, zero_point, pad)
    exe = compiler.build(mod, target=target)
    # Nothing may be read beyond the last row of data that nobody copied: not by a dot product.
    assert kind == "depthwise" or "dot7.wasm<" in exe.as_text()
    np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))


@pytest.mark.parametrize("target", MACHINES)
def test_every_pair_of_factors(target: str) -> None:
    """All bytes of data, of which 7 bits are multiplied, by all bytes of weights; and sums of four
    products that saturate a sum of two where factors are too wide."""
    x = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 8, axis=1)
    w = np.repeat(np.arange(-128, 128).astype(np.int8)[:, None], 8, axis=1)
    b = FunctionBuilder()
    attrs = {"out_dtype": "int32", "input_bits": 7}
    y = b.call("nn.dense", b.param("x", x.shape, "uint8"), b.const(w), **attrs)
    exe = compiler.build(IRModule({"main": b.finish(y)}), target=target)
    assert "dot7.wasm<" in exe.as_text()
    want = (x & 127).astype(np.int32) @ w.T.astype(np.int32)
    np.testing.assert_array_equal(exe(x), want)


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize(
    "name", ["mnist_mlp", pytest.param("mnist_dwsep", marks=pytest.mark.thorough)]
)
def test_networks_of_seven_bits(target: str, name: str) -> None:
    """They take it wherever data come from a quantization, and 8 bits take it nowhere."""
    plain, x = network(name, "float32"), images(100, 3)
    for bits in (7, 8):
        config = quantize.QConfig(activation_bits=bits)
        mod = quantize.realize(plain, quantize.calibrate(plain, [images(0, 20)], config))
        exe = compiler.build(mod, target=target)
        assert ("dot7.wasm<" in exe.as_text()) == (bits == 7)
        np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))
