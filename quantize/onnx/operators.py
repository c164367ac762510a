"""How each operator is written as ONNX nodes: by its facts, or by a function here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir.expr import Call, Constant, Var, atom_type, tensor_type
from compiler.op.facts import Contraction, Moves, OnnxNode
from compiler.op.library import get_op
from compiler.op.nn.hadamard import walsh_matrix
from compiler.op.opdef import OpDef
from compiler.symbolic import Index
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType, TupleType
from quantize.onnx.export import Writer
from quantize.onnx.sizes import shape, size
from quantize.plan.call_facts import clips

Operator = Callable[[Writer, Call, Var], None]
OPERATORS: dict[OpDef, Operator] = {}
"""What writes calls of operators that are no plain node (`OpDef.onnx`), and of which no other fact
says how."""


def writes(name: str) -> Callable[[Operator], Operator]:
    """Decorator: the function writes calls of the operator called `name`.

    Raises:
        DtypelabError: there is none.
    """

    def register(f: Operator) -> Operator:
        OPERATORS[get_op(name)] = f
        return f

    return register


def writer(op: OpDef) -> Operator | None:
    """What writes calls of an operator; None if nothing does."""
    if op in OPERATORS:
        return OPERATORS[op]
    if op.contraction is not None:
        return partial(_contraction, axes=op.contraction)
    if op.onnx is not None:
        return partial(_plain, node=op.onnx)
    if op.moves == Moves.VIEW:
        return _reshape
    return _clip if op.clips is not None else None


def _args(w: Writer, call: Call) -> list[str]:
    return [w.name(a) for a in call.args]


def _integers(w: Writer, values: Sequence[Any]) -> str:
    return w.constant([int(v) for v in values], np.int64)


# ---- one node each -------------------------------------------------------------------------------
def _plain(w: Writer, call: Call, out: Var, node: OnnxNode) -> None:
    """One node with the same operands, as the operator says."""
    attrs = {theirs: _attr(getattr(call.attrs, ours)) for theirs, ours in node.attributes.items()}
    if set(attrs.get("dilations", ())) == {1}:
        del attrs["dilations"]  # the default, which some runtimes' integer pooling rejects
    args = _args(w, call)
    if node.axes:
        axes = (call.attrs.axis,) if isinstance(call.attrs.axis, int) else call.attrs.axis
        args += [_integers(w, axes)] if axes else []
    w.node(node.name, args, w.out(out), **attrs)


def _attr(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return list(value) if isinstance(value, tuple) else value


# ---- quantization --------------------------------------------------------------------------------
@writes("qnn.simulated_quantize")
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


@writes("qnn.dequantize")
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
def _contraction(w: Writer, call: Call, out: Var, axes: Contraction) -> None:
    if axes.kernel:
        _convolution(w, call, out)
    elif axes.by_rows:
        _dense(w, call, out)
    else:
        w.node("MatMul", _args(w, call), w.out(out))


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


def _convolution(w: Writer, call: Call, out: Var) -> None:
    kernel = list(tensor_type(call.args[1]).static_shape[2:])
    a = call.attrs
    w.node(
        "Conv", _args(w, call), w.out(out), kernel_shape=kernel, strides=list(a.strides),
        pads=list(a.padding), dilations=list(a.dilation), group=a.groups,
    )  # fmt: skip


# ---- elementwise ---------------------------------------------------------------------------------
def _clip(w: Writer, call: Call, out: Var) -> None:
    low, high = clips(call) or (-math.inf, math.inf)
    (x,) = _args(w, call)
    if (low, high) == (0, math.inf):
        w.node("Relu", [x], w.out(out))
        return
    dtype = tensor_type(call.args[0]).dtype.storage
    ends = ["" if math.isinf(v) else w.constant(v, dtype) for v in (low, high)]
    w.node("Clip", [x, *ends], w.out(out))


@writes("nn.hard_swish")
def _hard_swish(w: Writer, call: Call, out: Var) -> None:
    (x,) = _args(w, call)
    a = call.attrs
    gate = w.step("HardSigmoid", [x], f"{out.name}_gate", alpha=a.alpha, beta=a.beta)
    w.node("Mul", [x, gate], w.out(out))


@writes("nn.gelu")
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


@writes("nn.bias_add")
def _bias_add(w: Writer, call: Call, out: Var) -> None:
    x, bias = _args(w, call)
    rank = tensor_type(call.args[0]).rank
    to = _integers(w, [-1 if k == call.attrs.axis % rank else 1 for k in range(rank)])
    w.node("Add", [x, w.step("Reshape", [bias, to], f"{out.name}_bias")], w.out(out))


@writes("cast")
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


@writes("transpose")
def _transpose(w: Writer, call: Call, out: Var) -> None:
    rank = tensor_type(out).rank
    axes = [k % rank for k in call.attrs.axes] or list(reversed(range(rank)))
    w.node("Transpose", _args(w, call), w.out(out), perm=axes)


@writes("broadcast_to")
def _broadcast_to(w: Writer, call: Call, out: Var) -> None:
    """Sizes that stay are 1, which stretches nothing."""
    old, new = tensor_type(call.args[0]).shape, tensor_type(out).shape
    stay = [None] * (len(new) - len(old)) + [d if isinstance(d, Index) else None for d in old]
    dims = [1 if d == s else d for d, s in zip(new, stay, strict=True)]
    w.node("Expand", [w.name(call.args[0]), shape(w, dims)], w.out(out))


@writes("split")
def _split(w: Writer, call: Call, out: Var) -> None:
    t = atom_type(out)
    assert isinstance(t, TupleType)
    axis = call.attrs.axis
    sizes = []
    for field in t.fields:
        assert isinstance(field, TensorType)
        sizes.append(field.shape[axis])
    inputs = [w.name(call.args[0]), shape(w, sizes)]
    w.node("Split", inputs, w.fields(out, len(sizes)), axis=axis)


@writes("strided_slice")
def _slice(w: Writer, call: Call, out: Var) -> None:
    a = call.attrs
    n = len(a.begin)
    parts = (a.begin, a.end, a.axes or range(n), a.strides or [1] * n)
    w.node("Slice", [w.name(call.args[0]), *(shape(w, p) for p in parts)], w.out(out))


@writes("nn.pad")
def _pad(w: Writer, call: Call, out: Var) -> None:
    a = call.attrs
    widths = _integers(w, [p[0] for p in a.pad_width] + [p[1] for p in a.pad_width])
    inputs = [w.name(call.args[0]), widths]
    if a.mode == "constant":
        inputs.append(w.constant(a.value, tensor_type(out).dtype.storage))
    w.node("Pad", inputs, w.out(out), mode=a.mode)


@writes("image.resize2d")
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


@writes("arange")
def _arange(w: Writer, call: Call, out: Var) -> None:
    zero, one = w.constant(0, np.int64), w.constant(1, np.int64)
    end = w.step("Squeeze", [size(w, call.attrs.size)], f"{out.name}_end")
    w.node("Range", [zero, end, one], w.out(out))


# ---- normalization -------------------------------------------------------------------------------
@writes("nn.batch_norm")
def _batch_norm(w: Writer, call: Call, out: Var) -> None:
    if call.attrs.axis != 1:
        raise UnsupportedError(f"ONNX normalizes axis 1, not {call.attrs.axis}")
    w.node("BatchNormalization", _args(w, call), w.out(out), epsilon=call.attrs.epsilon)


@writes("nn.rms_norm")
def _rms_norm(w: Writer, call: Call, out: Var) -> None:
    """As its operations: RMSNormalization is of a later opset than what is written."""
    data, gain = call.args
    t = tensor_type(data)
    axes = list(range(call.attrs.axis % t.rank, t.rank))
    x, dtype = w.name(data), t.dtype.storage
    squares = w.step("Mul", [x, x], f"{out.name}_squares")
    mean = w.step("ReduceMean", [squares, w.constant(axes, np.int64)], f"{out.name}_mean")
    shifted = w.step("Add", [mean, w.constant(call.attrs.epsilon, dtype)], f"{out.name}_shifted")
    root = w.step("Sqrt", [shifted], f"{out.name}_root")
    scaled = w.step("Div", [x, root], f"{out.name}_scaled")
    w.node("Mul", [scaled, w.name(gain)], w.out(out))


@writes("nn.hadamard")
def _hadamard(w: Writer, call: Call, out: Var) -> None:
    """As a product with the matrix: ONNX has no such transform."""
    t = tensor_type(call.args[0])
    matrix = walsh_matrix(int(str(t.shape[-1])))
    w.node("MatMul", [w.name(call.args[0]), w.constant(matrix, t.dtype.storage)], w.out(out))


@writes("nn.rotary")
def _rotary(w: Writer, call: Call, out: Var) -> None:
    x, cos, sin = _args(w, call)
    t = tensor_type(call.args[0])
    size, axis = t.shape[-1], _integers(w, [t.rank - 1])
    assert isinstance(size, int)
    half = size // 2
    bounds = ((half, 2 * half), (0, half))
    second, first = (
        w.step("Slice", [x, _integers(w, [low]), _integers(w, [high]), axis], f"{out.name}_{low}")
        for low, high in bounds
    )
    below = w.step("Neg", [second], f"{out.name}_below")
    turned = w.step("Concat", [below, first], f"{out.name}_turned", axis=-1)
    straight = w.step("Mul", [x, cos], f"{out.name}_cos")
    across = w.step("Mul", [turned, sin], f"{out.name}_sin")
    w.node("Add", [straight, across], w.out(out))
