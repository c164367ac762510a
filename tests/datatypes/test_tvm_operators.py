"""The operators that TVM's custom datatypes were tested with: bits of the oracle in every lowering.

Three posits, bfloat16 and two 8-bit floats. The oracle is `compiler.evaluate`: numpy over the exact
descriptions of the formats, in the order of operations that every operator's definition pins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule
from compiler.lowering.choose import LOWERINGS
from compiler.types.dtypes import Array, DType
from datatypes.formats import Format, get
from datatypes.proof import peers, samples
from experiments import zoo
from experiments.data import datasets

FORMATS = [
    "posit8_es0", "posit16_es1", "posit32_es2", "bfloat16", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip
NETWORKS = ["mnist_mlp", "mnist_dwsep", "mnist_resnet8"]


def lowerings(fmt: Format) -> list[str]:
    """Those a format must have: tables are for 8 bits."""
    return [name for name in LOWERINGS if name != "table" or fmt.nbits <= 8]


RUNS = [(name, lowering) for name in FORMATS for lowering in lowerings(get(name))]


@dataclass(frozen=True)
class Use:
    """A call of an operator: shape of its data, attributes, shapes of its constant operands."""

    op: str
    data: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    constants: tuple[tuple[int, ...], ...] = ()
    positive: bool = False


IMAGE = (2, 17, 9, 10)
USES = {
    "softmax": Use("nn.softmax", (7, 33)),
    "log": Use("log", (5, 67), positive=True),
    "exp": Use("exp", (5, 67)),
    "sqrt": Use("sqrt", (5, 67), positive=True),
    "rsqrt": Use("rsqrt", (5, 67), positive=True),
    "sigmoid": Use("sigmoid", (5, 67)),
    "tanh": Use("tanh", (5, 67)),
    "relu": Use("nn.relu", (5, 67)),
    "batch_flatten": Use("nn.batch_flatten", IMAGE),
    "max_pool": Use(
        "nn.max_pool2d", IMAGE, {"pool_size": (3, 2), "strides": (2, 2), "padding": (1, 0, 1, 1)}
    ),
    "avg_pool": Use(
        "nn.avg_pool2d", IMAGE, {"pool_size": (2, 3), "strides": (2, 1), "padding": (1, 1, 0, 1)}
    ),
    "global_avg_pool": Use("nn.global_avg_pool2d", IMAGE),
    "add": Use("add", (5, 67), constants=((67,),)),
    "subtract": Use("subtract", (5, 67), constants=((5, 1),)),
    "multiply": Use("multiply", (5, 67), constants=((5, 67),)),
    "divide": Use("divide", (5, 67), constants=((5, 67),)),
    "conv2d": Use("nn.conv2d", IMAGE, {"padding": (1, 1, 1, 1)}, ((33, 17, 3, 3), (33,))),
    "conv2d_strided": Use("nn.conv2d", IMAGE, {"strides": (2, 3)}, ((16, 17, 3, 2),)),
    "conv2d_pointwise": Use("nn.conv2d", IMAGE, {}, ((32, 17, 1, 1),)),
    "conv2d_grouped": Use(
        "nn.conv2d", (1, 32, 7, 7), {"groups": 2, "padding": (1, 1, 1, 1)}, ((32, 16, 3, 3), (32,))
    ),
    "conv2d_depthwise": Use(
        "nn.conv2d", IMAGE, {"groups": 17, "padding": (1, 1, 1, 1)}, ((17, 1, 3, 3),)
    ),
    "conv2d_dilated": Use(
        "nn.conv2d", IMAGE, {"dilation": (2, 3), "padding": (2, 0, 2, 3)}, ((16, 17, 3, 2),)
    ),
    "batch_norm": Use("nn.batch_norm", IMAGE, {}, ((17,),) * 4),
    "dense": Use("nn.dense", (6, 97), {}, ((41, 97), (41,))),
}


def numbers(fmt: Format, rng: np.random.Generator, shape: tuple[int, ...], positive: bool) -> Array:
    """Codes of ordinary numbers; one of fifty is an extreme, NaN (NaR) among them. Of NaN there is
    one code: where data only moves, some lowerings keep others, and some do not."""
    size = int(np.prod(shape))
    values = rng.standard_normal(size) * 2.0 ** rng.integers(-3, 3, size)
    codes = datatypes.encode(fmt, np.abs(values) if positive else values)
    odd = rng.random(size) < 0.02
    mixed = np.where(odd, rng.choice(samples.extremes(fmt), size), codes)
    return peers.one_nan(fmt, mixed).reshape(shape)


def module(fmt: Format, use: Use, rng: np.random.Generator) -> IRModule:
    dtype, b = DType.parse(f"custom[{fmt.name}]{fmt.nbits}"), FunctionBuilder()
    operands: list[Any] = [b.param("x", use.data, dtype)]
    for k, shape in enumerate(use.constants):
        variance = use.op == "nn.batch_norm" and k == 3
        codes = numbers(fmt, rng, shape, variance).astype(fmt.storage)
        operands.append(Constant(codes, dtype))
    return IRModule({"main": b.finish(b.call(use.op, *operands, **use.attrs))})


def cases() -> list[Any]:
    """All; those that compile for seconds are slow."""
    big = {"conv2d", "conv2d_dilated", "conv2d_depthwise", "conv2d_strided", "conv2d_pointwise"}
    wide = {"posit16_es1", "posit32_es2"}
    slow = {(n, "vector", which) for n in wide for which in big}
    every = [(*run, which) for run in RUNS for which in USES]
    return [pytest.param(*c, marks=[pytest.mark.slow] * (c in slow)) for c in every]


@pytest.mark.sampled(297)
@pytest.mark.parametrize(("name", "lowering", "which"), cases())
def test_operator(name: str, lowering: str, which: str) -> None:
    fmt, use, rng = get(name), USES[which], np.random.default_rng(len(which))
    mod = module(fmt, use, rng)
    x = numbers(fmt, rng, use.data, use.positive).astype(fmt.storage)
    exe = compiler.build(mod, dtype_lowering=lowering)
    assert exe.dtype_lowering == lowering
    np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize("which", USES)
@pytest.mark.parametrize(("name", "lowering"), RUNS)
def test_operator_on_older_machines(name: str, lowering: str, which: str, target: str) -> None:
    fmt, use, rng = get(name), USES[which], np.random.default_rng(len(which))
    mod = module(fmt, use, rng)
    x = numbers(fmt, rng, use.data, use.positive).astype(fmt.storage)
    got = compiler.build(mod, target, dtype_lowering=lowering)(x)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, x))


def networks() -> list[Any]:
    """All; the larger ones in formats like another one are slow."""
    slow = {(n, "mnist_resnet8") for n in FORMATS}
    slow |= {(n, "mnist_dwsep") for n in ("float8_e5m2", "posit16_es1")}
    every = [(n, which) for n in FORMATS for which in NETWORKS]
    return [pytest.param(*c, marks=[pytest.mark.slow] * (c in slow)) for c in every]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "network"), networks())
def test_networks_give_the_same_bits_in_every_lowering(name: str, network: str) -> None:
    mod = compiler.from_onnx(zoo.FOLDER / f"{network}.onnx", shapes={"input": (2, 1, 28, 28)})
    inner = datatypes.change_dtype(mod, "float32", name, boundary=False)
    x = datatypes.encode(name, datasets.load("mnist1k").x[:2])
    want = compiler.evaluate(inner, x)
    for lowering in lowerings(get(name)):
        np.testing.assert_array_equal(compiler.build(inner, dtype_lowering=lowering)(x), want)
