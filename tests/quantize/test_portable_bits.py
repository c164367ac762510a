"""Integer plans whose functions stay in float32 give the interpreter's bits on every instruction
set, at every level, with any number of threads."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_nets import Net, images_of

import compiler
from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, IRModule, tensor_type
from compiler.transform.portability import unportable
from compiler.types.dtypes import Array
from quantize import QConfig, quantize

TARGETS = [
    "llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2",
    "llvm -mcpu=x86-64",
]  # fmt: skip
CONTRACTIONS = ("nn.conv2d", "nn.dense", "nn.matmul", "einsum")
LOOSE = re.compile(r"\b(fast|contract|reassoc|arcp|afn|nnan|ninf|nsz)\b|fmuladd")
"""What would let LLVM fuse, reorder or approximate operations of floats."""
PLAIN = (
    "nn.gelu", "nn.hard_swish", "nn.hard_sigmoid", "nn.leaky_relu", "negative", "abs",
)  # fmt: skip
OTHERS = (
    "divide", "power", "gelu_tanh", "swish", "nn.softmax", "nn.log_softmax", "norm", "mean",
    "sum", "max",
)  # fmt: skip


def function(net: Net, kind: str) -> Atom:
    """A function, or several, of the last value."""
    b, x, r = net.b, net.x, net.rng
    if kind in PLAIN:
        return b.call(kind, x)
    if kind in UNARY:
        low, high = UNARY[kind].domain
        return b.call(kind, b.call("clip", x, a_min=max(low, -4) + 0.1, a_max=min(high, 2) - 0.1))
    if kind in ("divide", "power"):
        above = b.call("add", b.call("abs", x), b.const(np.float32(0.3)))
        if kind == "divide":
            return b.call(kind, x, above)
        return b.call(kind, above, b.const(np.float32(r.choice([2, 3, 0.5, 1.7, -1]))))
    if kind == "gelu_tanh":
        return b.call("nn.gelu", x, approximate="tanh")
    if kind == "swish":
        return b.call("multiply", x, b.call("sigmoid", x))
    if kind in ("mean", "sum", "max"):
        return b.call("subtract", x, b.call(kind, x, axis=(int(r.integers(1, 4)),), keepdims=True))
    if kind == "norm":
        net.norm()
        return net.x
    return b.call(kind, x, axis=int(r.integers(1, 4)))


@st.composite
def plans(draw: st.DrawFn) -> IRModule:
    """A network all of whose functions are results, quantized with these in float32 or not."""
    net = Net(draw(st.integers(0, 2**32 - 1)), draw(st.booleans()))
    results = []
    for kind in draw(st.lists(st.sampled_from((*UNARY, *PLAIN, *OTHERS)), min_size=2, max_size=4)):
        net.step("conv")
        net.x = function(net, kind)
        results.append(net.x)
    mod = IRModule({"main": net.b.finish(*results)})
    config = QConfig(
        functions=draw(st.sampled_from(["float", "float", "auto"])),
        softmax="float",
        layer_norm="float",
        calibrate="minmax",
    )
    return quantize(mod, [images_of(1)], config)


def contracts_floats(mod: IRModule) -> bool:
    """Whether sums of products are formed in float32, which targets with fma contract."""
    return any(
        isinstance(b.value, Call)
        and getattr(b.value.op, "name", "") in CONTRACTIONS
        and tensor_type(b.var).dtype.is_float
        for b in mod.main.bindings
    )


def bits(outputs: Array | list[Array]) -> list[Array]:
    """What must be equal: all bits, but for those of a NaN."""
    many = outputs if isinstance(outputs, list) else [outputs]
    return [np.where(np.isnan(y), -1, y.view(np.int32)) for y in many]


@pytest.mark.parametrize("count", [3, pytest.param(150, marks=pytest.mark.slow)])
def test_the_same_bits_everywhere(count: int) -> None:
    tried: list[bool] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # what failed is compiled for every target: too slow to shrink
    )
    @given(plans(), st.data())
    def check(mod: IRModule, data: st.DataObject) -> None:
        tried.append(not contracts_floats(mod))
        if not tried[-1]:
            return
        x = images_of(2)
        want = bits(compiler.evaluate(mod, x))
        for text in TARGETS if count > 3 else ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"):
            try:
                target = compiler.Target.parse(text)
            except UnsupportedError:
                continue  # this processor lacks it
            level, threads = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 2))
            with compiler.PassContext(opt_level=level):
                exe = compiler.build(mod, target=target, threads=threads)
            assert not LOOSE.search(exe.llvm_text())
            for got, wanted in zip(bits(exe(x)), want, strict=True):
                np.testing.assert_array_equal(got, wanted, f"{text} {level} {threads}")

    check()
    assert np.mean(tried) > 0.8


@pytest.mark.parametrize(("dtype", "free"), [("float64", ("y",)), ("int32", ())])
def test_einsum_may_be_a_matrix_product(dtype: str, free: tuple[str, ...]) -> None:
    """Whose sums of floats have the target's order."""
    b = FunctionBuilder()
    x, w = b.param("x", (3, 3, 4, 1), dtype), b.param("w", (3, 1), dtype)
    y = b.call("einsum", x, w, equation="abcd,bd->ac", name="y")
    assert unportable(IRModule({"main": b.finish(y)})) == free
