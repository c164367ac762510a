"""WebAssembly, in wasmtime and in Node: operators and networks give the interpreter's results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines_here import WASM_MACHINES
from op_runs import RUNS, Case, check_on, label

import compiler
import datatypes
from compiler.build import compile_program
from compiler.codegen import linking
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.machines.image import image_of
from compiler.target.registry import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from test_c_networks import FORMATS, dense, images, network

NETWORKS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")


@pytest.mark.sampled(80)  # of which none needs a C library, which zig builds once, in a minute
@pytest.mark.parametrize("run", RUNS, ids=label)
@pytest.mark.parametrize("target", WASM_MACHINES)
def test_operators(target: str, run: tuple[Case, Any]) -> None:
    check_on(target, run)


@pytest.mark.parametrize("target", WASM_MACHINES)
@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(n, f, marks=() if (n, f) == ("mnist_mlp", "int8") else pytest.mark.thorough)
        for n in NETWORKS
        for f in FORMATS
    ],
)
def test_networks(target: str, name: str, fmt: str) -> None:
    mod, x = network(name, fmt), images(100, 3)
    got, want = compiler.build(mod, target=target)(x), compiler.evaluate(mod, x)
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", WASM_MACHINES)
def test_products_of_bytes(target: str) -> None:
    """Of the largest there are, by the instruction; and of columns that fill no vector."""
    rng = np.random.default_rng(0)
    for columns in (32, 7):
        w = rng.choice(np.array([-128, -127, 127, 3], np.int8), (columns, 52))
        w[0], w[1] = -128, 127
        x = rng.choice(np.array([255, 254, 128, 0], np.uint8), (9, 52))
        x[3] = 255
        b = FunctionBuilder()
        y = b.call("nn.dense", b.param("x", x.shape, "uint8"), b.const(w), out_dtype="int32")
        exe = compiler.build(IRModule({"main": b.finish(y)}), target=target)
        assert "dot4.wasm<" in exe.as_text()
        np.testing.assert_array_equal(exe(x), x.astype(np.int32) @ w.T.astype(np.int32))


def test_modules_import_nothing_and_contract_nothing() -> None:
    """Functions of the C library are taken along, those of fused multiply-adds too."""
    target = Target.anywhere("wasm32 -mattr=+relaxed-simd")
    if why := linking.missing(target):
        pytest.skip(why)
    mod = datatypes.change_dtype(dense(), "float32", "float8_e5m2", accumulate="fma")
    for m in (dense(), mod):
        image = image_of(compile_program(m, target))
        text = "\n".join(k.source for k in image.program.kernels)
        assert "fmuladd" not in text
        assert "contract" not in text
        module = linking.wasm_module(image.objects(), ["net_run"])
        assert imports(module) == 0


def imports(module: bytes) -> int:
    """How many things a WebAssembly module imports: the first number of section 2."""
    at = 8
    while at < len(module):
        kind, (size, begin) = module[at], leb(module, at + 1)
        if kind == 2:
            return leb(module, begin)[0]
        at = begin + size
    return 0


def leb(module: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number, and where it ends."""
    value, shift = 0, 0
    while True:
        value |= (module[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if module[at - 1] < 128:
            return value, at
