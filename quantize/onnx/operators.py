"""How each operator is written as ONNX nodes: one entry per operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir.expr import Call, Constant, Var, atom_type, tensor_type
from compiler.symbolic import Index
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TupleType
from quantize.onnx.export import Writer
from quantize.onnx.sizes import shape, size

Operator = Callable[[Writer, Call, Var], None]


def _args(w: Writer, call: Call) -> list[str]:
    return [w.name(a) for a in call.args]


def _integers(w: Writer, values: Sequence[Any]) -> str:
    return w.constant([int(v) for v in values], np.int64)


# ---- one node each -------------------------------------------------------------------------------
def _plain(op: str, *names: str, **renamed: str) -> Operator:
    """A node with the same operands; attributes `names`, and `renamed` ones as ONNX=ours."""

    def write(w: Writer, call: Call, out: Var) -> None:
        attrs = {n: _attr(getattr(call.attrs, n)) for n in names}
        attrs |= {n: _attr(getattr(call.attrs, ours)) for n, ours in renamed.items()}
        if attrs.get("dilations") == [1, 1]:
            del attrs["dilations"]  # the default, which some runtimes' integer pooling rejects
        w.node(op, _args(w, call), w.out(out), **attrs)

    return write


def _attr(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return list(value) if isinstance(value, tuple) else value


def _pool(op: str, *names: str) -> Operator:
    window = {"kernel_shape": "pool_size", "pads": "padding", "dilations": "dilation"}
    return _plain(op, "strides", "ceil_mode", *names, **window)


# ---- quantization --------------------------------------------------------------------------------
def _simulated_quantize(w: Writer, call: Call, out: Var) -> None:
    # QuantizeLinear rounds halves to even, whatever `a.halves` says.
    x, scale = _args(w, call)
    a = call.attrs
    grid = call.args[1]
    if not isinstance(grid, Constant) or grid.data.ndim:
        raise UnsupportedError("only one constant scale can be written")
    info = np.iinfo(a.out_dtype)
    if (a.qmin, a.qmax) != (info.min, info.max):
        # QuantizeLinear saturates at the dtype's range only.
        ends = [np.float32((q - a.zero_point) * grid.data) for q in (a.qmin, a.qmax)]
        x = w.step("Clip", [x, *(w.constant(e) for e in ends)], f"{out.name}_clip")
    zero = w.constant(a.zero_point, a.out_dtype)
    q = w.step("QuantizeLinear", [x, scale, zero], f"{out.name}_q")
    w.node("DequantizeLinear", [q, scale, zero], w.out(out))


def _dequantize(w: Writer, call: Call, out: Var) -> None:
    q, unit = call.args
    if isinstance(q, Constant) and isinstance(unit, Constant) and str(q.dtype) == "int64":
        # Biases of products of 16 bits: DequantizeLinear takes 32.
        w.alias(out, w.constant(q.data.astype(np.float32) * unit.data))
        return
    x, scale = _args(w, call)
    t = tensor_type(call.args[0])
    inputs, rank = [x, scale], tensor_type(call.args[1]).rank
    if str(t.dtype) != "int32":
        shape = tensor_type(call.args[1]).static_shape
        inputs.append(w.constant(np.full(shape, call.attrs.zero_point), t.dtype.storage))
    axis = {"axis": call.attrs.axis % t.rank} if rank else {}
    w.node("DequantizeLinear", inputs, w.out(out), **axis)


# ---- weighted operators --------------------------------------------------------------------------
def _dense(w: Writer, call: Call, out: Var) -> None:
    x, weight, *bias = _args(w, call)
    if tensor_type(call.args[0]).rank == 2:
        w.node("Gemm", [x, weight, *bias], w.out(out), transB=1)
        return
    turned = w.step("Transpose", [weight], f"{out.name}_weight_t", perm=[1, 0])
    if not bias:
        w.node("MatMul", [x, turned], w.out(out))
        return
    product = w.step("MatMul", [x, turned], f"{out.name}_product")
    w.node("Add", [product, *bias], w.out(out))


def _conv2d(w: Writer, call: Call, out: Var) -> None:
    kernel = list(tensor_type(call.args[1]).static_shape[2:])
    a = call.attrs
    w.node(
        "Conv", _args(w, call), w.out(out), kernel_shape=kernel, strides=list(a.strides),
        pads=list(a.padding), dilations=list(a.dilation), group=a.groups,
    )  # fmt: skip


# ---- elementwise ---------------------------------------------------------------------------------
def _clip(w: Writer, call: Call, out: Var) -> None:
    low, high = call.attrs.a_min, call.attrs.a_max
    (x,) = _args(w, call)
    if (low, high) == (0, math.inf):
        w.node("Relu", [x], w.out(out))
        return
    dtype = tensor_type(call.args[0]).dtype.storage
    ends = ["" if math.isinf(v) else w.constant(v, dtype) for v in (low, high)]
    w.node("Clip", [x, *ends], w.out(out))


def _hard_swish(w: Writer, call: Call, out: Var) -> None:
    (x,) = _args(w, call)
    a = call.attrs
    gate = w.step("HardSigmoid", [x], f"{out.name}_gate", alpha=a.alpha, beta=a.beta)
    w.node("Mul", [x, gate], w.out(out))


def _gelu(w: Writer, call: Call, out: Var) -> None:
    (x,) = _args(w, call)
    half, one, root, cubic = (w.constant(np.float32(v)) for v in (0.5, 1.0, math.sqrt(2), 0.044715))
    if call.attrs.approximate == "tanh":
        square = w.step("Mul", [x, x], f"{out.name}_square")
        cube = w.step("Mul", [square, x], f"{out.name}_cube")
        inner = w.step("Add", [x, w.step("Mul", [cubic, cube], f"{out.name}_c")], f"{out.name}_sum")
        slope = w.constant(np.float32(math.sqrt(2 / math.pi)))
        bend = w.step("Tanh", [w.step("Mul", [slope, inner], f"{out.name}_t")], f"{out.name}_tanh")
    else:
        bend = w.step("Erf", [w.step("Div", [x, root], f"{out.name}_d")], f"{out.name}_erf")
    scaled = w.step("Mul", [half, x], f"{out.name}_half")
    w.node("Mul", [scaled, w.step("Add", [one, bend], f"{out.name}_bend")], w.out(out))


def _bias_add(w: Writer, call: Call, out: Var) -> None:
    x, bias = _args(w, call)
    rank = tensor_type(call.args[0]).rank
    to = _integers(w, [-1 if k == call.attrs.axis % rank else 1 for k in range(rank)])
    w.node("Add", [x, w.step("Reshape", [bias, to], f"{out.name}_bias")], w.out(out))


def _cast(w: Writer, call: Call, out: Var) -> None:
    from onnx import helper

    to = DType.parse(call.attrs.dtype)
    if to.is_custom:
        raise UnsupportedError(f"ONNX has no {to}")
    code = helper.np_dtype_to_tensor_dtype(to.storage)
    w.node("Cast", _args(w, call), w.out(out), to=code)


# ---- shapes --------------------------------------------------------------------------------------
def _reshape(w: Writer, call: Call, out: Var) -> None:
    """By the result's shape: a symbolic dimension is copied (0) where it stays, else inferred; of
    several, all are computed."""
    old, new = tensor_type(call.args[0]).shape, tensor_type(out).shape
    dims = [
        0
        if isinstance(d, Index) and k < len(old) and old[k] == d
        else -1
        if isinstance(d, Index)
        else d
        for k, d in enumerate(new)
    ]
    whole = dims.count(-1) > 1 or (-1 in dims and any(d == 0 for d in new))
    to = shape(w, new) if whole else _integers(w, dims)
    w.node("Reshape", [w.name(call.args[0]), to], w.out(out))


def _transpose(w: Writer, call: Call, out: Var) -> None:
    rank = tensor_type(out).rank
    axes = [k % rank for k in call.attrs.axes] or list(reversed(range(rank)))
    w.node("Transpose", _args(w, call), w.out(out), perm=axes)


def _broadcast_to(w: Writer, call: Call, out: Var) -> None:
    """Sizes that stay are 1, which stretches nothing."""
    old, new = tensor_type(call.args[0]).shape, tensor_type(out).shape
    stay = [None] * (len(new) - len(old)) + [d if isinstance(d, Index) else None for d in old]
    dims = [1 if d == s else d for d, s in zip(new, stay, strict=True)]
    w.node("Expand", [w.name(call.args[0]), shape(w, dims)], w.out(out))


def _split(w: Writer, call: Call, out: Var) -> None:
    t = atom_type(out)
    assert isinstance(t, TupleType)
    axis = call.attrs.axis
    sizes = []
    for field in t.fields:
        d = field.shape[axis]  # type: ignore[union-attr]
        sizes.append(d)
    inputs = [w.name(call.args[0]), shape(w, sizes)]
    w.node("Split", inputs, w.fields(out, len(sizes)), axis=axis)


def _slice(w: Writer, call: Call, out: Var) -> None:
    a = call.attrs
    n = len(a.begin)
    parts = (a.begin, a.end, a.axes or range(n), a.strides or [1] * n)
    w.node("Slice", [w.name(call.args[0]), *(shape(w, p) for p in parts)], w.out(out))


def _pad(w: Writer, call: Call, out: Var) -> None:
    a = call.attrs
    widths = _integers(w, [p[0] for p in a.pad_width] + [p[1] for p in a.pad_width])
    inputs = [w.name(call.args[0]), widths]
    if a.mode == "constant":
        inputs.append(w.constant(a.value, tensor_type(out).dtype.storage))
    w.node("Pad", inputs, w.out(out), mode=a.mode)


def _resize(w: Writer, call: Call, out: Var) -> None:
    a = call.attrs
    x = w.name(call.args[0])
    if a.scales:
        inputs = [x, "", w.constant(a.scales, np.float32)]
    else:
        inputs = [x, "", "", shape(w, a.size)]
    w.node(
        "Resize", inputs, w.out(out), axes=[2, 3], mode="nearest", nearest_mode=a.nearest_mode,
        coordinate_transformation_mode=a.coordinate_transformation_mode,
    )  # fmt: skip


def _arange(w: Writer, call: Call, out: Var) -> None:
    zero, one = w.constant(0, np.int64), w.constant(1, np.int64)
    end = w.step("Squeeze", [size(w, call.attrs.size)], f"{out.name}_end")
    w.node("Range", [zero, end, one], w.out(out))


# ---- reductions and normalization ----------------------------------------------------------------
def _reduction(op: str) -> Operator:
    def write(w: Writer, call: Call, out: Var) -> None:
        a = call.attrs
        axes = (a.axis,) if isinstance(a.axis, int) else a.axis
        inputs = [w.name(call.args[0]), *([_integers(w, axes)] if axes else [])]
        w.node(op, inputs, w.out(out), keepdims=int(a.keepdims))

    return write


def _batch_norm(w: Writer, call: Call, out: Var) -> None:
    if call.attrs.axis != 1:
        raise UnsupportedError(f"ONNX normalizes axis 1, not {call.attrs.axis}")
    w.node("BatchNormalization", _args(w, call), w.out(out), epsilon=call.attrs.epsilon)


OPERATORS: dict[str, Operator] = {
    **{
        ours: _plain(theirs)
        for ours, theirs in {
            "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "maximum": "Max",
            "minimum": "Min", "less": "Less", "greater": "Greater", "equal": "Equal",
            "power": "Pow",
            "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh", "sigmoid": "Sigmoid",
            "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "round": "Round", "negative": "Neg",
            "abs": "Abs", "nn.relu": "Relu", "where": "Where", "nn.dropout": "Identity",
            "assume": "Identity", "nn.matmul": "MatMul",
            "nn.global_avg_pool2d": "GlobalAveragePool", "shape_of": "Shape",
        }.items()
    },
    "clip": _clip,
    "cast": _cast,
    "nn.leaky_relu": _plain("LeakyRelu", "alpha"),
    "nn.hard_sigmoid": _plain("HardSigmoid", "alpha", "beta"),
    "nn.hard_swish": _hard_swish,
    "nn.gelu": _gelu,
    "nn.bias_add": _bias_add,
    "nn.conv2d": _conv2d,
    "nn.dense": _dense,
    "nn.max_pool2d": _pool("MaxPool"),
    "nn.avg_pool2d": _pool("AveragePool", "count_include_pad"),
    "nn.batch_norm": _batch_norm,
    "nn.layer_norm": _plain("LayerNormalization", "axis", "epsilon"),
    "nn.softmax": _plain("Softmax", "axis"),
    "nn.log_softmax": _plain("LogSoftmax", "axis"),
    **dict.fromkeys(
        ("reshape", "nn.batch_flatten", "flatten", "squeeze", "expand_dims"), _reshape
    ),
    "transpose": _transpose,
    "arange": _arange,
    "broadcast_to": _broadcast_to,
    "concatenate": _plain("Concat", "axis"),
    "split": _split,
    "strided_slice": _slice,
    "take": _plain("Gather", "axis"),
    "nn.pad": _pad,
    "image.resize2d": _resize,
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "max": _reduction("ReduceMax"),
    "min": _reduction("ReduceMin"),
    "qnn.simulated_quantize": _simulated_quantize,
    "qnn.dequantize": _dequantize,
}  # fmt: skip
"""Operator name -> what writes a call of it."""
