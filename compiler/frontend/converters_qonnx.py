"""Converters of QONNX's operators: Quant (IntQuant), BipolarQuant and FloatQuant.

QONNX (Pappalardo et al., "QONNX: Representing Arbitrary-Precision Quantized Neural Networks", 2022)
keeps values in float32 and puts them on a grid, (round(clip(x / s + z, low, high)) - z) * s.
Integers of a byte become `qnn.quantize` and `qnn.dequantize`, which rounds x / s alone: halves next
to an odd zero point go to the other side. Everything else is written out in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.errors import DtypelabError
from compiler.frontend.converters_microsoft import INPUTS, OUTPUTS
from compiler.frontend.node import Converter, Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, Call, Var, tensor_type
from compiler.op.elementwise import CLIP
from compiler.types.dtypes import FLOAT32, Array, DType, custom

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas")
"""The domain, and what files of before it say."""
_STEPS = {"ROUND": "round", "HALF_EVEN": "round", "CEIL": "ceil", "FLOOR": "floor"}
"""Rounding mode -> operator."""
_BYTE = 255
"""The largest integer of eight bits."""
_STYLES = ("fn", "", "fnuz")
"""What names of minifloats end in, by which of their codes are no numbers."""


def qonnx(op: str, inputs: int) -> Callable[[Converter], Converter]:
    """Decorator: the function converts an operator of this domain with so many inputs."""
    INPUTS[op], OUTPUTS[op] = (inputs, inputs), 1

    def register(f: Converter) -> Converter:
        for domain in DOMAINS:
            converts(f"{domain}.{op}")(f)
        return f

    return register


def _known(n: Node, i: int, what: str) -> Array:
    data = n.constant(i)
    if data is None or not data.size:
        raise n.unsupported(f"a {what} that is computed; export it as an initializer")
    return np.asarray(data, np.float64)


def _one(n: Node, i: int, what: str) -> float:
    data = _known(n, i, what)
    if (data != data.reshape(-1)[0]).any():
        raise n.unsupported(f"a {what} that differs from element to element")
    return float(data.reshape(-1)[0])


@qonnx("Quant", 4)
@qonnx("IntQuant", 4)
def quant(n: Node) -> Imported:
    """Integers of any width with a scale and a zero point; the result is float32."""
    bits, zero = _one(n, 3, "bit width"), _one(n, 2, "zero point")
    signed, narrow = bool(n.attr("signed", 1)), bool(n.attr("narrow", 0))
    mode = str(n.attr("rounding_mode", "ROUND")).upper()
    if bits != int(bits) or not 1 <= bits <= 32 or zero != int(zero):
        raise n.unsupported(f"{bits:g} bits and a zero point of {zero:g}; both must be integers")
    if mode not in _STEPS:
        raise n.unsupported(f"rounding_mode {mode}; supported: {', '.join(_STEPS)}")
    if bits == 1 and signed:
        return _bipolar(n, _shifted(n, zero), zero)
    half = 1 << (int(bits) - 1)
    low, high = (-half + narrow, half - 1) if signed else (0, 2 * half - 1 - narrow)
    if _STEPS[mode] == "round":
        found = _in_bytes(n, int(zero), low, high)
        if found is not None:
            return found
    x = n.step("clip", _shifted(n, zero), a_min=float(low), a_max=float(high))
    return _scaled(n, n.step(_STEPS[mode], x), zero)


def _in_bytes(n: Node, zero: int, low: int, high: int) -> Imported | None:
    """The grid as that of bytes, if it is one; of a clip that leaves a byte's worth of integers of
    a wider range, that of these."""
    data, x = n.type(0), n.atom(0)
    axis = _axis(_known(n, 1, "scale"), data.rank)
    if data.dtype != FLOAT32 or axis is None:
        return None
    if zero == 0 and high - low > _BYTE:
        made = n.graph.maker(x) if isinstance(x, Var) else None
        scale = _known(n, 1, "scale")
        if not isinstance(made, Call) or made.op is not CLIP or scale.size != 1:
            return None
        ends = np.asarray([made.attrs.a_min, made.attrs.a_max]) / scale.reshape(-1)[0]
        if not np.isfinite(ends).all():
            return None
        low, high = max(low, int(np.rint(ends[0]))), min(high, int(np.rint(ends[1])))
        if high - low > _BYTE or not low <= 0 <= high:
            return None
        zero, x = -low, made.args[0]
        low, high = 0, high + zero
    signed = low < 0
    if not (low >= -_BYTE // 2 and high <= _BYTE // 2 if signed else high <= _BYTE):
        return None
    if not low <= zero <= high:
        return None
    scale_atom = n.step("reshape", n.atom(1), newshape=() if n.type(1).size == 1 else (-1,))
    q = n.step(
        "qnn.quantize", x, scale_atom, zero_point=zero, axis=axis,
        out_dtype="int8" if signed else "uint8", qmin=low, qmax=high,
    )  # fmt: skip
    return n.call("qnn.dequantize", q, scale_atom, zero_point=zero, axis=axis)


def _axis(scale: Array, rank: int) -> int | None:
    """The axis along which a scale differs, 0 of one number; None if there are several."""
    if scale.size == 1:
        return 0
    axes = [k for k, size in enumerate(scale.shape, rank - scale.ndim) if size > 1]
    return axes[0] if len(axes) == 1 else None


def _shifted(n: Node, zero: float) -> Atom:
    """x / s + z."""
    x = n.step("divide", n.atom(0), n.atom(1))
    return n.step("add", x, scalar(zero, tensor_type(x))) if zero else x


def _scaled(n: Node, q: Atom, zero: float) -> Imported:
    """(q - z) * s."""
    q = n.step("subtract", q, scalar(zero, tensor_type(q))) if zero else q
    return n.call("multiply", q, n.atom(1))


def _bipolar(n: Node, x: Atom, zero: float) -> Imported:
    """1 of what is not negative, else -1; of one bit."""
    t = tensor_type(x)
    above = n.step("greater_equal", x, scalar(0, t))
    return _scaled(n, n.step("where", above, scalar(1, t), scalar(-1, t)), zero)


@qonnx("BipolarQuant", 2)
def bipolar_quant(n: Node) -> Imported:
    """The scale, or its negative."""
    return _bipolar(n, n.atom(0), 0.0)


@qonnx("FloatQuant", 6)
def float_quant(n: Node) -> Imported:
    """Numbers of a binary floating point format, times a scale; beyond its range they saturate."""
    whats = ("exponent width", "mantissa width", "exponent bias", "largest value")
    exponent, mantissa, bias, most = (_one(n, k, what) for k, what in enumerate(whats, 2))
    mode = str(n.attr("rounding_mode", "ROUND")).upper()
    if mode not in ("ROUND", "HALF_EVEN") or not n.attr("saturation", 1):
        raise n.unsupported(f"rounding_mode {mode}, or no saturation; supported: ROUND, saturating")
    scale = _known(n, 1, "scale")
    axis = _axis(scale, n.type(0).rank)
    if axis is None:
        raise n.unsupported(f"scales {scale.shape} that differ along several axes")
    name = _minifloat(n, int(exponent), int(mantissa), bias, most)
    unit = n.step("reshape", n.atom(1), newshape=() if scale.size == 1 else (-1,))
    return n.call(
        "qnn.simulated_cast", n.atom(0), unit, dtype=str(DType.parse(name)), low=-most, high=most,
        axis=axis,
    )  # fmt: skip


def _minifloat(n: Node, exponent: int, mantissa: int, bias: float, most: float) -> str:
    """The name of the registered format of these widths whose finite numbers reach from the least
    subnormal to `most`."""
    stem = f"float{1 + exponent + mantissa}_e{exponent}m{mantissa}"
    least = 2.0 ** (1 - bias - mantissa)
    for name in (stem + style for style in _STYLES):
        try:
            dtype = DType.parse(name)
        except DtypelabError:
            continue
        if not dtype.is_custom or dtype.bits > 16:
            continue
        codes = np.arange(1 << dtype.bits).astype(dtype.storage)
        with np.errstate(all="ignore"):
            values = np.asarray(custom(dtype.name).decode(codes, dtype), np.float64)
        positive = values[np.isfinite(values) & (values > 0)]
        if (positive.min(), positive.max()) == (least, most):
            return name
    raise n.unsupported(
        f"{exponent} bits of exponent with bias {bias:g}, {mantissa} of mantissa, up to {most:g}, "
        f"which is no registered format; the nearest are {', '.join(stem + s for s in _STYLES)} "
        "(formats are registered by `import datatypes`)"
    )
