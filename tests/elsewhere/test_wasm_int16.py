"""Integer layers in WebAssembly multiply int16 that the layer before has stored, one step of a sum
at a time; results are the interpreter's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines_here import WASM_MACHINES

import compiler
from compiler.build import compile_program
from compiler.target.registry import Target
from compiler.transform import widen_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transform"))

from test_widen_bytes import layers

CASES = [
    ("dense", "uint8", 0, 0),
    ("dense", "int8", 127, 0),
    ("conv", "uint8", 255, 1),
    ("conv", "int8", -128, 1),
]


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("target", WASM_MACHINES)
@pytest.mark.parametrize(("kind", "data", "zero_point", "pad"), CASES)
def test_extreme_bytes(
    target: str, kind: str, data: str, zero_point: int, pad: int, few: bool, monkeypatch: Any
) -> None:
    """Weights are int16 where they are few, else bytes."""
    monkeypatch.setattr(widen_bytes, "FEW_WEIGHTS", 20 * 24 * 9 if few else 0)
    mod, x = layers(kind, data, zero_point, pad, outputs=20, inputs=24)
    exe = compiler.build(mod, target=target)
    assert ("dot2.wasm<" if few else "dot2.bytes.wasm<") in exe.as_text()
    np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))


def test_a_loop_takes_one_step() -> None:
    """LLVM would write several sum by sum, whose operands fill more than all registers."""
    mod, _ = layers("dense", inputs=64)
    program = compile_program(mod, Target.anywhere("wasm32"))
    (kernel, *_) = (k.source for k in program.kernels if "llvm.wasm.dot" in k.source)
    products = [line for line in kernel.splitlines() if "call <4 x i32> @llvm.wasm.dot" in line]
    assert 0 < len(products) <= 2 * 4  # of 2 vectors in 4 rows
