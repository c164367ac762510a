"""Small random graphs of what oneDNN is handed, and what comes of them there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.transform import AnnotateTarget, InferType
from compiler.types.dtypes import Array

Rng = np.random.Generator


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def drawn(rng: Rng, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "float32":
        return rng.normal(size=shape).astype(np.float32)
    info = np.iinfo(dtype)
    return rng.integers(info.min, int(info.max) + 1, shape).astype(dtype)


def handed(mod: IRModule, threads: int = 1) -> compiler.Executable:
    """The program all of which oneDNN computes."""
    exe = compiler.build(mod, engines=["onednn"], threads=threads)
    assert [r.engine for r in exe.regions] == ["onednn"], explained(mod)
    main = compiler.partition(mod, ["onednn"]).main
    assert len(main.bindings) == 1, str(main)
    return exe


def explained(mod: IRModule) -> str:
    """Why oneDNN is not handed what it is not."""
    refusals = AnnotateTarget(["onednn"]).explain(InferType()(mod))
    return "; ".join(map(str, refusals))


def convolution(rng: Rng, dtype: str) -> tuple[IRModule, Array]:
    """A convolution, float32 or of bytes, with what may follow it."""
    groups = pick(rng, 1, 1, 2, 4)
    depthwise = rng.random() < 0.2
    each = 1 if depthwise else int(rng.integers(1, 9))
    groups = 8 if depthwise else groups
    channels, units = groups * each, groups * int(rng.integers(1, 9))
    kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    dilation = (pick(rng, 1, 1, 2), pick(rng, 1, 1, 2))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(int(rng.integers(0, spans[k % 2])) for k in range(4))
    attrs = {
        "strides": (pick(rng, 1, 2, 3), pick(rng, 1, 2)),
        "dilation": dilation, "padding": padding, "groups": groups,
    }  # fmt: skip
    size = tuple(s + int(rng.integers(0, 7)) for s in spans)
    shape = (pick(rng, 1, 2), channels, *size)
    b = FunctionBuilder()
    x = b.param("x", shape, dtype)
    weights = drawn(rng, (units, each, *kernel), "float32" if dtype == "float32" else "int8")
    if dtype != "float32":
        attrs |= {"out_dtype": "int32", "input_zero_point": _zero(rng, dtype)}
        bias = rng.integers(-2000, 2000, units).astype(np.int32)
    else:
        bias = drawn(rng, (units,), dtype)
    given = [b.const(weights), b.const(bias)][: pick(rng, 1, 2, 2)]
    y = b.call("nn.conv2d", x, *given, **attrs)
    y = followed(rng, b, y, dtype)
    return IRModule({"main": b.finish(y)}), drawn(rng, shape, dtype)


def dense(rng: Rng, dtype: str) -> tuple[IRModule, Array]:
    """A dense layer, of data with one to three axes."""
    inner, units = int(rng.integers(1, 70)), int(rng.integers(1, 70))
    lead = pick(rng, (1,), (5,), (2, 3), (1, 17))
    b = FunctionBuilder()
    x = b.param("x", (*lead, inner), dtype)
    weights = drawn(rng, (units, inner), "float32" if dtype == "float32" else "int8")
    attrs: dict[str, Any] = {}
    bias = drawn(rng, (units,), "float32")
    if dtype != "float32":
        attrs = {"out_dtype": "int32", "input_zero_point": _zero(rng, dtype)}
        bias = rng.integers(-2000, 2000, units).astype(np.int32)
    given = [b.const(weights), b.const(bias)][: pick(rng, 1, 2, 2)]
    y = b.call("nn.dense", x, *given, **attrs)
    y = followed(rng, b, y, dtype)
    return IRModule({"main": b.finish(y)}), drawn(rng, (*lead, inner), dtype)


def product(rng: Rng, dtype: str) -> tuple[IRModule, Array]:
    """The product of data with its own transpose, as in attention, batch by batch."""
    shape = (pick(rng, 1, 2), pick(rng, 1, 3), int(rng.integers(1, 20)), int(rng.integers(1, 40)))
    b = FunctionBuilder()
    x = b.param("x", shape, dtype)
    turned = b.call("transpose", x, axes=(0, 1, 3, 2))
    attrs: dict[str, Any] = {}
    if dtype != "float32":
        zeros = _zero(rng, dtype), _zero(rng, dtype)
        attrs = {
            "out_dtype": "int32", "input_zero_point": zeros[0], "weight_zero_point": zeros[1],
        }  # fmt: skip
    y = b.call("nn.matmul", x, turned, **attrs)
    if dtype != "float32":
        y = b.call("qnn.dequantize", y, b.const(np.float32(rng.uniform(1e-4, 1e-2))), axis=0)
    else:
        y = b.call("multiply", y, b.const(np.float32(0.125)))
    mask = drawn(rng, (1, 1, 1, shape[2]), "float32")
    y = b.call("add", y, b.const(mask))
    return IRModule({"main": b.finish(b.call("nn.softmax", y))}), drawn(rng, shape, dtype)


def pooling(rng: Rng, dtype: str) -> tuple[IRModule, Array]:
    """Pooling, with windows that may reach beyond the data."""
    size = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    shape = (
        pick(rng, 1, 2),
        pick(rng, 1, 5, 16),
        int(rng.integers(4, 12)),
        int(rng.integers(4, 9)),
    )
    attrs: dict[str, Any] = {
        "pool_size": size, "strides": (pick(rng, 1, 2), pick(rng, 1, 2, 3)),
        "padding": tuple(int(rng.integers(0, size[k % 2])) for k in range(4)),
    }  # fmt: skip
    b = FunctionBuilder()
    x = b.param("x", shape, dtype)
    if rng.random() < 0.5:
        y = b.call("nn.max_pool2d", x, ceil_mode=bool(rng.integers(2)), **attrs)
    elif dtype == "float32":
        y = b.call("nn.avg_pool2d", x, count_include_pad=bool(rng.integers(2)), **attrs)
    else:
        zeros = {"input_zero_point": 7, "output_zero_point": 3, "out_dtype": dtype}
        info = np.iinfo(dtype)
        y = b.call("qnn.avg_pool2d", x, ratio=1.37, qmin=info.min, qmax=info.max, **attrs, **zeros)
    return IRModule({"main": b.finish(y)}), drawn(rng, shape, dtype)


def mapped(rng: Rng, dtype: str) -> tuple[IRModule, Array]:
    """Functions of elements, with operands that broadcast, quantized before and after."""
    shape = tuple(int(n) for n in rng.choice([1, 1, 2, 3, 5, 16], int(rng.integers(1, 5))))
    b = FunctionBuilder()
    y = x = b.param("x", shape, dtype)
    scale = b.const(np.float32(0.037))
    if dtype != "float32":
        y = b.call("qnn.dequantize", x, scale, zero_point=_zero(rng, dtype))
    y = elementwise(rng, b, elementwise(rng, b, y))
    if dtype != "float32":
        y = b.call("qnn.quantize", y, scale, **_quantized(rng))
    return IRModule({"main": b.finish(y)}), drawn(rng, shape, dtype)


def _quantized(rng: Rng) -> dict[str, Any]:
    attrs = _grid(rng)
    return {"zero_point": attrs.pop("output_zero_point"), **attrs}


def followed(rng: Rng, b: FunctionBuilder, y: Any, dtype: str) -> Any:
    """What is done with the result of a layer: rescaled, if it is of integers, and so on."""
    if dtype == "float32":
        return elementwise(rng, b, y)
    axis = 1 if len(y.type.shape) == 4 else len(y.type.shape) - 1
    units = y.type.shape[axis]
    scale = rng.uniform(1e-4, 1e-2, units if rng.random() < 0.7 else ()).astype(np.float32)
    if rng.random() < 0.3:
        y = b.call("qnn.dequantize", y, b.const(scale), axis=axis)
        return elementwise(rng, b, y)
    y = b.call("qnn.requantize", y, b.const(scale), axis=axis, **_grid(rng))
    if rng.random() < 0.5:
        other = b.param("other", tuple(y.type.shape), str(y.type.dtype))
        zeros = {"a_zero_point": 4, "b_zero_point": 9, "a_scale": 1.25, "b_scale": 0.75}
        pair = (y, other) if rng.random() < 0.5 else (other, y)
        y = b.call("qnn.add", *pair, **zeros, **_grid(rng, str(y.type.dtype)))
    return y


def elementwise(rng: Rng, b: FunctionBuilder, y: Any) -> Any:
    """Up to four functions of float32 values."""
    shape = tuple(y.type.shape)
    for _ in range(int(rng.integers(0, 5))):
        kind = int(rng.integers(12))
        if kind < 6:
            y = b.call(
                ("nn.relu", "tanh", "sigmoid", "abs", "nn.leaky_relu", "nn.hard_swish")[kind], y
            )
        elif kind == 6:
            y = b.call("clip", y, a_min=pick(rng, -1.0, -np.inf), a_max=2.0)
        elif kind == 7:
            y = b.call("nn.gelu", y)
        else:
            along = tuple(
                n if k == int(rng.integers(len(shape))) else 1 for k, n in enumerate(shape)
            )
            other = b.const(drawn(rng, pick(rng, shape, (), along, along[1:]), "float32"))
            op = ("add", "subtract", "multiply", "maximum")[kind - 8]
            y = b.call(op, *((y, other) if rng.random() < 0.5 else (other, y)))
    return y


def _zero(rng: Rng, dtype: str) -> int:
    info = np.iinfo(dtype)
    return pick(rng, 0, 0, int(rng.integers(info.min, int(info.max) + 1)))


def _grid(rng: Rng, dtype: str = "") -> dict[str, Any]:
    dtype = dtype or pick(rng, "uint8", "int8")
    info = np.iinfo(dtype)
    low = pick(rng, info.min, info.min + 3)
    return {
        "out_dtype": dtype, "qmin": int(low), "qmax": int(info.max),
        "output_zero_point": int(rng.integers(low, info.max)),
    }  # fmt: skip


DRAWN: dict[str, Callable[[Rng, str], tuple[IRModule, Array]]] = {
    f.__name__: f for f in (convolution, dense, product, pooling, mapped)
}


def feeds(rng: Rng, mod: IRModule, x: Array) -> dict[str, Array]:
    """Inputs: `x`, and the others at random."""
    given = {"x": x}
    for p in mod.main.params[1:]:
        given[p.name] = drawn(rng, tuple(p.type.shape), str(p.type.dtype))  # type: ignore[union-attr]
    return given
