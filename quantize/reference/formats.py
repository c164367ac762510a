"""What nodes in number formats compute, in numpy, from the plan alone.

Rounding is that of the operators' references; products of integers, scales and sums are written
here a second time, in the order of operations that realized networks have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.interpret.graph import call_reference
from compiler.ir.expr import Atom, Call, Constant, Var
from compiler.ir.inference import infer_value
from compiler.types.dtypes import FLOAT32, Array, DType, custom
from compiler.types.tensor_types import TensorType
from quantize.formats.blocks import FLOAT
from quantize.formats.chosen import weight_array
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import (
    OperandFormat,
    rounded_array,
    row_scales_call,
    zeros_call,
)
from quantize.plan.call_facts import contraction, contraction_of, is_lookup
from quantize.plan.integer_sums import on_integers
from quantize.plan.plan import Plan


def computed(
    name: str, call: Call, args: Sequence[Array], plan: Plan, out: Var, dims: Mapping[Any, int]
) -> Any:
    """The float32 result of a node for float32 operands `args`.

    Raises:
        UnsupportedError: the node's products and sums are formed in its format.
    """
    formats = plan.formats[name]
    if contraction_of(call) is None:
        (f,) = formats
        if is_lookup(call):
            return call_reference(call, [weight_array(args[0], f), *args[1:]], out, dims)
        return _in_format(call, args, f, out)
    if plan.config.compute == "native":
        raise UnsupportedError(
            f"%{name} forms products and sums in {formats[0].format} (compute='native'), which "
            "has no rule in quantize.reference: use compute='storage'"
        )
    given = list(args[2:])
    if (shift := plan.shifts.get(name)) is not None:
        given = [np.asarray(sum(given, np.asarray(shift, np.float32)))]
    if not on_integers(call, formats):
        factors = [
            _rounded(x, f, isinstance(a, Constant))
            for x, f, a in zip(args[:2], formats, call.args[:2], strict=True)
        ]
        more = tuple(Constant(b, FLOAT32) for b in given)
        value = replace(call, args=(*call.args[:2], *more))
        return call_reference(value, [*factors, *given], out, dims)
    y = _of_integers(call, args[0], args[1], formats)
    for bias in given:
        y = y + bias.reshape([-1 if k == contraction(call).channels % y.ndim else 1
                              for k in range(y.ndim)])  # fmt: skip
    return y


# ---- products of integers ------------------------------------------------------------------------
def _of_integers(call: Call, x: Array, w: Array, formats: Sequence[OperandFormat]) -> Array:
    """Scaled sums of products of integers, in float32."""
    first, second = formats
    qx, sx = _integers(x, first)
    if not contraction(call).by_rows:
        qw, sw = _integers(w, second)
        sums = np.matmul(qx, qw)
        return np.asarray(sums.astype(np.float32) * sw * sx)
    scales = np.asarray(second.scales, np.float32)
    numbers = weight_array(w, second)
    if not second.group:
        each = scales[:, None] if len(scales) > 1 else scales[0]
        sums = np.matmul(qx, np.rint(numbers / each).astype(np.int64).T)
        real = sums.astype(np.float32) * (scales if len(scales) > 1 else scales[0])
        return np.asarray(real * sx)
    by_group = scales.reshape(len(w), -1)
    y = np.zeros((*x.shape[:-1], len(w)), np.float32)
    for g in range(by_group.shape[1]):
        part = slice(g * second.group, (g + 1) * second.group)
        codes = np.rint(numbers[:, part] / by_group[:, g, None]).astype(np.int64)
        sums = np.matmul(qx[..., part], codes.T)
        y = y + sums.astype(np.float32) * by_group[:, g]
    return y * sx


def _integers(x: Array, f: OperandFormat) -> tuple[Array, Array]:
    """Integers of a value above their zero points, in int64, and their float32 scales."""
    bits = unsigned_bits(f.format)
    if f.token:
        scales = _scales_of_tokens(x, f)
    else:
        scales = f.scale_array(x.shape)
        if scales.ndim == 1:
            scales = scales.reshape([-1 if k == f.along else 1 for k in range(x.ndim)])
    if f.token and bits:
        zeros = _applied(zeros_call, f, x, scales).astype(np.int64)
        low, high = -zeros, (1 << bits) - 1 - zeros
    else:
        most = (1 << bits) - 1 if bits else int(element(f.format).high)
        low, high = (np.asarray(n - f.zero_point) for n in (0 if bits else -most, most))
    with np.errstate(over="ignore"):
        ratio = np.nan_to_num((x / scales).astype(np.float64), nan=-np.inf)
    return np.clip(np.rint(ratio), low, high).astype(np.int64), scales


# ---- numbers of formats --------------------------------------------------------------------------
def _rounded(x: Array, f: OperandFormat, weight: bool) -> Array:
    """Float32 numbers nearest to a factor's in its format."""
    if f.format == FLOAT:
        return x
    if weight:
        return weight_array(x, f)
    if not f.token:
        return rounded_array(x, f)
    if unsigned_bits(f.format):
        q, scales = _integers(x, f)
        return q.astype(np.float32) * scales
    e = element(f.format)
    kind, scales = custom(e.dtype.name), _scales_of_tokens(x, f)
    with np.errstate(over="ignore"):  # what is too large is cut off
        ratio = x / scales
    clipped = np.minimum(np.maximum(ratio, np.float32(e.low)), np.float32(e.high))
    real = kind.decode(kind.encode(clipped, e.dtype), e.dtype)
    return np.asarray(real, np.float32) * scales


def _in_format(call: Call, args: Sequence[Array], f: OperandFormat, out: Var) -> Array:
    """An operator on numbers of a format, operation by operation."""
    dtype: DType = element(f.format).dtype
    kind = custom(dtype.name)
    codes = [np.asarray(kind.encode(a, dtype)) for a in args]
    held = tuple(Var(f"x{k}", TensorType(a.shape, dtype)) for k, a in enumerate(codes))
    value = replace(call, args=held)
    result = call_reference(value, codes, Var(out.name, infer_value(value)), {})
    return np.asarray(kind.decode(np.asarray(result), dtype), np.float32)


def _scales_of_tokens(x: Array, f: OperandFormat) -> Array:
    return _applied(row_scales_call, f, x)


def _applied(make: Any, f: OperandFormat, *arrays: Array) -> Array:
    """What the operator that `make` calls gives for arrays."""
    kinds = [TensorType(a.shape, FLOAT32) for a in arrays]
    held: list[Atom] = [Var(f"x{k}", t) for k, t in enumerate(kinds)]
    value = make(*held, f)
    return np.asarray(call_reference(value, list(arrays), Var("y", infer_value(value)), {}))
