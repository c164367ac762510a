"""Layers in posits: every output bit equal to a plain Python loop over the softposit package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import softposit

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

POSITS: dict[str, Any] = {
    "posit8_es0": softposit.posit8,
    "posit16_es1": softposit.posit16,
    "posit32_es2": softposit.posit32,
}


def numbers(posit: Any, values: Array) -> Any:
    """float array -> object array of the package's posits."""
    out = np.empty(values.shape, object)
    for index in np.ndindex(*values.shape):
        out[index] = posit(float(values[index]))
    return out


def bits(posits: Any) -> list[int]:
    """Codes of an object array of posits."""
    return [int(p.v.v) for p in posits.flat]


def dense_loop(posit: Any, x: Any, w: Any, bias: Any) -> Any:
    out = np.empty((len(x), len(w)), object)
    for i, j in np.ndindex(*out.shape):
        acc = posit(0.0)
        for k in range(x.shape[1]):
            acc = acc + x[i, k] * w[j, k]
        out[i, j] = acc + bias[j]
    return out


@dataclass(frozen=True)
class Conv:
    """A convolution: data shape, weight shape, attributes."""

    data: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def attrs(self) -> dict[str, Any]:
        names = ("strides", "padding", "dilation", "groups")
        return {name: getattr(self, name) for name in names}


CONVS = {
    "plain": Conv((2, 3, 5, 6), (4, 3, 3, 2)),
    "padded": Conv((1, 2, 4, 4), (3, 2, 3, 3), padding=(1, 2, 0, 1)),
    "strided": Conv((1, 2, 7, 6), (2, 2, 3, 3), strides=(2, 3), padding=(1, 1, 1, 1)),
    "dilated": Conv((1, 2, 7, 7), (2, 2, 3, 2), dilation=(2, 3), padding=(2, 0, 2, 3)),
    "grouped": Conv((1, 4, 5, 5), (6, 2, 3, 3), groups=2, padding=(1, 1, 1, 1)),
    "depthwise": Conv((2, 3, 5, 5), (3, 1, 3, 3), groups=3, strides=(2, 2), padding=(1, 1, 1, 1)),
    "all": Conv((1, 4, 9, 8), (4, 2, 3, 2), (2, 1), (3, 1, 2, 2), (2, 3), 2),
}


def conv_loop(posit: Any, c: Conv, x: Any, w: Any, bias: Any) -> Any:
    n, _, height, width = c.data
    outputs, inner, kernel_height, kernel_width = c.weight
    top, left, bottom, right = c.padding
    rows = (height + top + bottom - (kernel_height - 1) * c.dilation[0] - 1) // c.strides[0] + 1
    columns = (width + left + right - (kernel_width - 1) * c.dilation[1] - 1) // c.strides[1] + 1
    out = np.empty((n, outputs, rows, columns), object)
    for b, oc, y, z in np.ndindex(*out.shape):
        first = oc // (outputs // c.groups) * inner
        acc = posit(0.0)
        for ic, kh, kw in np.ndindex(inner, kernel_height, kernel_width):
            row = y * c.strides[0] + kh * c.dilation[0] - top
            column = z * c.strides[1] + kw * c.dilation[1] - left
            if 0 <= row < height and 0 <= column < width:
                acc = acc + x[b, first + ic, row, column] * w[oc, ic, kh, kw]
        out[b, oc, y, z] = acc + bias[oc]
    return out


def layer(op: str, x: Array, w: Array, bias: Array, **attrs: Any) -> IRModule:
    b = FunctionBuilder()
    data = b.param("x", x.shape)
    return IRModule({"main": b.finish(b.call(op, data, b.const(w), b.const(bias), **attrs))})


def wide_range(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """float32 numbers from far below to far above 1, so that sums round at every step."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 6, shape)).astype(np.float32)


def check(name: str, mod: IRModule, x: Array, want: Any) -> None:
    """Compiled and interpreted, with casts at the boundary and without."""
    inner = datatypes.change_dtype(mod, "float32", name, boundary=False)
    compiler.verify(inner)
    codes = datatypes.encode(name, x)
    got = compiler.build(inner, dtype_lowering="library")(codes)
    assert got.ravel().tolist() == bits(want)
    np.testing.assert_array_equal(compiler.evaluate(inner, codes), got)
    outer = datatypes.change_dtype(mod, "float32", name)
    values = datatypes.decode(name, got).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(outer)(x), values)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", POSITS)
def test_dense(name: str) -> None:
    rng, posit = np.random.default_rng(1), POSITS[name]
    x, w, bias = (wide_range(rng, s) for s in ((3, 40), (7, 40), (7,)))
    want = dense_loop(posit, *(numbers(posit, v) for v in (x, w, bias)))
    check(name, layer("nn.dense", x, w, bias), x, want)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("which", CONVS)
@pytest.mark.parametrize("name", POSITS)
def test_conv2d(name: str, which: str) -> None:
    conv, rng, posit = CONVS[which], np.random.default_rng(2), POSITS[name]
    shapes = conv.data, conv.weight, conv.weight[:1]
    x, w, bias = (wide_range(rng, s) for s in shapes)
    want = conv_loop(posit, conv, *(numbers(posit, v) for v in (x, w, bias)))
    check(name, layer("nn.conv2d", x, w, bias, **conv.attrs()), x, want)


def test_nar_spreads_like_in_softposit() -> None:
    rng, posit = np.random.default_rng(3), softposit.posit16
    x, w, bias = (wide_range(rng, s) for s in ((2, 5), (3, 5), (3,)))
    x[0, 2] = np.nan
    want = dense_loop(posit, *(numbers(posit, v) for v in (x, w, bias)))
    assert bits(want)[:3] == [0x8000] * 3
    check("posit16_es1", layer("nn.dense", x, w, bias), x, want)


def test_posit_brought_by_hand() -> None:
    """`custom[posit]16` as in TVM's tutorial: SoftPosit's functions, registered one by one."""
    from compiler.tensor.expr import Expr, cast
    from compiler.types.dtypes import FLOAT32
    from datatypes import call_pure_extern, create_lower_func, register_op

    datatypes.load_library(softposit)
    datatypes.register("posit", 150)
    for op in ("Add", "Sub", "Mul", "Div"):
        register_op(create_lower_func({16: f"p16_{op.lower()}"}), op, "llvm", "posit")
    register_op(create_lower_func({16: "p16_lt"}), "LT", "llvm", "posit")
    register_op(
        create_lower_func({(32, 16): "convertFloatToP16"}), "Cast", "llvm", "float", "posit"
    )

    def to_float(node: Any) -> Expr:
        return cast(call_pure_extern("float64", "convertP16ToDouble", node.value), FLOAT32)

    register_op(to_float, "Cast", "llvm", "posit", "float")
    conv, rng = CONVS["all"], np.random.default_rng(4)
    x, w, bias = (wide_range(rng, s) for s in (conv.data, conv.weight, conv.weight[:1]))
    mod = layer("nn.conv2d", x, w, bias, **conv.attrs())
    changed = datatypes.change_dtype(mod, "float32", "custom[posit]16")
    got = compiler.build(changed)(x)
    want = conv_loop(
        softposit.posit16, conv, *(numbers(softposit.posit16, v) for v in (x, w, bias))
    )
    assert datatypes.encode("posit16_es1", got).ravel().tolist() == bits(want)
    np.testing.assert_array_equal(compiler.evaluate(changed, x), got)
