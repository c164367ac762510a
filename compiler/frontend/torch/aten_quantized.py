"""Converters of quantization: what torch.ao writes, as ONNX's QuantizeLinear and DequantizeLinear
are imported.

torch multiplies by the reciprocal of the scale, this divides by the scale: where scales are powers
of two the integers are the same, else a tie may go to the other neighbour.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.element_types import dtype_of
from compiler.frontend.torch.node import Ref, TorchNode, aten
from compiler.frontend.values import numbers
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import FLOAT32, DType

_ROOM = "quantized_decomposed."
_BYTES = {(-128, 127): "int8", (0, 255): "uint8"}


def _known(n: TorchNode, name: str) -> Any:
    """A number, or the numbers of a tensor that is known.

    Raises:
        UnsupportedError: the program computes them.
    """
    given = n.arg(name)
    if not isinstance(given, Ref):
        return np.asarray(given)
    v = n.graph.known(n.graph.value(given.name))
    if v is None:
        raise n.unsupported(f"a {name} computed at run time")
    return numbers(v)


def _scales(n: TorchNode) -> tuple[Constant, Any]:
    """Scales as a constant, and zero points."""
    name = "scales" if "scales" in n.args else "scale"
    points = "zero_points" if "zero_points" in n.args else "zero_point"
    scale = np.asarray(_known(n, name), np.float32)
    zeros = np.zeros_like(scale) if n.arg(points) is None else _known(n, points)
    return Constant.of(scale.reshape(-1) if scale.size > 1 else scale.reshape(())), zeros


def _integer(n: TorchNode, low: int, high: int) -> DType:
    """The dtype that holds the integers from `low` to `high`.

    Raises:
        UnsupportedError: they have more than 8 bits.
    """
    for (least, most), name in _BYTES.items():
        if least <= low <= high <= most:
            return DType.parse(name)
    raise n.unsupported(f"integers from {low} to {high}; supported: those within 8 bits")


def _quantized(n: TorchNode, emit: Emit, dtype: DType) -> Atom:
    """The argument in integers from quant_min to quant_max."""
    scale, zeros = _scales(n)
    axis = int(n.number("axis")) if "axis" in n.args else 0
    x = n.in_dtype("self" if "self" in n.args else "input", FLOAT32)
    low, high = int(n.number("quant_min")), int(n.number("quant_max"))
    return emit(
        "qnn.quantize", x, scale, zero_point=_one(n, zeros), axis=axis, out_dtype=str(dtype),
        qmin=low, qmax=high,
    )  # fmt: skip


def _one(n: TorchNode, zeros: Any) -> int:
    """The zero point that all channels have.

    Raises:
        UnsupportedError: they have several.
    """
    each = np.unique(zeros)
    if each.size != 1:
        raise n.unsupported("zero points that differ between channels")
    return int(each[0])


@aten(_ROOM + "quantize_per_tensor", _ROOM + "quantize_per_channel")
def quantize(n: TorchNode) -> Results:
    """Floats as integers."""
    dtype = dtype_of(n.arg("dtype"))
    return _quantized(n, n.call, dtype)


@aten(_ROOM + "dequantize_per_tensor", _ROOM + "dequantize_per_channel")
def dequantize(n: TorchNode) -> Results:
    """Integers as floats."""
    scale, zeros = _scales(n)
    axis = int(n.number("axis")) if "axis" in n.args else 0
    x, held = n.x("input"), n.graph.known(n.tensor("input"))
    if held is not None and np.unique(zeros).size > 1:  # of a constant, each is taken off before
        q = numbers(held)
        q = q - np.asarray(zeros, np.int64).reshape([-1 if k == axis else 1 for k in range(q.ndim)])
        narrow = q.min(initial=0) >= -128 and q.max(initial=0) <= 127
        x, zeros = Constant.of(q.astype(np.int8 if narrow else np.int16)), 0
    return n.call("qnn.dequantize", x, scale, zero_point=_one(n, zeros), axis=axis)


@aten("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine",
      "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
      "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")  # fmt: skip
def fake_quantize(n: TorchNode) -> Results:
    """What quantization leaves of floats."""
    enabled = n.args.get("fake_quant_enabled")
    if enabled is not None and not np.all(_known(n, "fake_quant_enabled")):
        return [n.x()]
    if n.wants(1):
        raise n.unsupported("its mask in use")
    dtype = _integer(n, int(n.number("quant_min")), int(n.number("quant_max")))
    q = _quantized(n, n.step, dtype)
    scale, zeros = _scales(n)
    axis = int(n.number("axis")) if "axis" in n.args else 0
    y = n.step("qnn.dequantize", q, scale, zero_point=_one(n, zeros), axis=axis)
    return [n.converted(y, n.dtype) if tensor_type(y).dtype != n.dtype else y]
