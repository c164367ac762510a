"""WidenBytes stores data of integer layers as int16, where that is worth it;
results stay what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.build import compile_program
from compiler.codegen.llvm.jit import commented_assembly
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.op.opdef import OpDef
from compiler.stages import Job
from compiler.target.registry import Target
from compiler.transform import FoldZeroPoint, WidenBytes, widen_bytes

BYTES = {"uint8": (0, 255), "int8": (-128, 127)}


def layers(
    kind: str = "conv",
    data: str = "uint8",
    zero_point: int = 0,
    pad: int = 0,
    outputs: int = 16,
    inputs: int = 8,
    groups: int = 1,
    given: bool = False,
    seed: int = 0,
) -> tuple[IRModule, Any]:
    """Two layers that read the same quantized data (or an input, if it is `given`), and data."""
    rng, b = np.random.default_rng(seed), FunctionBuilder()
    low, high = BYTES[data]
    shape = (3, inputs) if kind == "dense" else (2, inputs, 5, 4)
    x = b.param("x", shape, data if given else "float32")
    q = x
    if not given:
        how = {"zero_point": zero_point, "qmin": low, "qmax": high, "out_dtype": data}
        q = b.call("qnn.quantize", x, b.const(np.float32(1)), **how)
    attrs: dict[str, Any] = {"out_dtype": "int32", "input_zero_point": zero_point}
    kernel: tuple[int, ...] = ()
    if kind == "conv":
        kernel, attrs = (3, 3), attrs | {"padding": (pad,) * 4, "groups": groups}
    total = None
    for _ in range(2):
        ends = np.array([-128, 127, -1, 3], np.int8)
        w = b.const(rng.choice(ends, (outputs, inputs // groups, *kernel)))
        bias = b.const(rng.integers(-1000, 1000, outputs).astype(np.int32))
        y = b.call("nn.dense" if kind == "dense" else "nn.conv2d", q, w, bias, **attrs)
        total = y if total is None else b.call("add", total, y)
    values = rng.choice(np.array([low, high, zero_point, 5]), shape)
    x0 = values.astype(data) if given else (values - zero_point).astype(np.float32)
    return IRModule({"main": b.finish(total)}), x0


def operators(mod: IRModule) -> list[str]:
    """Names of what is called, with the data's dtype of layers."""
    found = []
    for b in mod.main.bindings:
        assert isinstance(b.value, Call)
        assert isinstance(b.value.op, OpDef)
        of = b.value.op.contraction
        found.append(b.value.op.name + (f" {b.value.args[0].type.dtype}" if of else ""))
    return found


@pytest.mark.thorough
@given(
    st.sampled_from(["dense", "conv"]),
    st.sampled_from(["uint8", "int8"]),
    st.integers(-128, 255),
    st.integers(0, 1),
    st.integers(0, 99),
)
def test_results_are_the_same(kind: str, data: str, zero_point: int, pad: int, seed: int) -> None:
    zero_point = min(max(zero_point, BYTES[data][0]), BYTES[data][1])
    mod, x = layers(kind, data, zero_point, pad, seed=seed)
    wide = FoldZeroPoint()(WidenBytes()(mod))
    assert operators(wide).count("cast") == 1  # shared
    assert sum(name.endswith("int16") for name in operators(wide)) == 2
    np.testing.assert_array_equal(compiler.evaluate(wide, x), compiler.evaluate(mod, x))


@pytest.mark.parametrize(
    "how",
    [
        {"given": True},
        {"outputs": 8},
        {"inputs": 6},
        {"groups": 2},
    ],
)
def test_others_stay(how: dict[str, Any]) -> None:
    mod, _ = layers(**how)
    assert "cast" not in operators(WidenBytes()(mod))


def test_it_is_for_targets_that_multiply_pairs() -> None:
    """Those whose only product of bytes is one of int16; not for those that multiply bytes, or
    nothing."""
    found = {t: Job(Target.anywhere(t), ()).widens for t in TARGETS}
    assert found == TARGETS


@pytest.mark.sampled(4)
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("cpu", ["haswell", "x86-64-v2"])
@given(
    st.sampled_from(["dense", "conv"]),
    st.sampled_from(["uint8", "int8"]),
    st.integers(-128, 255),
    st.integers(0, 1),
    st.integers(4, 11),
    st.integers(4, 13),
    st.integers(0, 99),
)
@settings(max_examples=3)
def test_x86_multiplies_pairs(
    cpu: str,
    few: bool,
    kind: str,
    data: str,
    zero: int,
    pad: int,
    outputs: int,
    inputs: int,
    seed: int,
) -> None:
    """Extreme bytes; weights are int16 where they are few, else bytes. The bits of the
    interpreter."""
    try:
        target = Target.parse(f"llvm -mcpu={cpu}")
    except UnsupportedError as error:
        pytest.skip(str(error))
    zero = min(max(zero, BYTES[data][0]), BYTES[data][1])
    mod, x = layers(kind, data, zero, pad, 4 * outputs, 4 * inputs, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(widen_bytes, "FEW_WEIGHTS", 1 << 20 if few else 0)
        exe = compiler.build(mod, target)
    assert ("pairs.1" in exe.as_text() or "pairs.2" in exe.as_text()) == few
    assert ("pairs.bytes." in exe.as_text()) != few
    np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))


@pytest.mark.parametrize("few", [True, False])
def test_sums_stay_in_registers(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM does not add up products before it adds them to the sums: there are no registers for
    that."""
    monkeypatch.setattr(widen_bytes, "FEW_WEIGHTS", 1 << 20 if few else 0)
    target = Target.anywhere("llvm -mcpu=haswell")
    mod, _ = layers("conv", outputs=64, inputs=64)
    program = compile_program(mod, target)
    texts = [k.source for k in program.kernels if "llvm.x86.avx2.pmadd.wd" in k.source]
    assert texts
    for text in texts:
        assembly = commented_assembly(text, target)
        assert assembly.count("vpmaddwd") > 8
        assert "32-byte Spill" not in assembly


TARGETS = {
    "wasm32": True,
    "wasm32 -mattr=-simd128": False,
    "llvm -mtriple=aarch64-linux": False,
    "llvm -mcpu=cascadelake": False,
    "llvm -mcpu=skylake-avx512": True,
    "llvm -mcpu=haswell": True,
    "llvm -mcpu=x86-64-v2": True,
    "c -mcpu=haswell": False,
    "llvm -mtriple=thumbv7em": False,
}
