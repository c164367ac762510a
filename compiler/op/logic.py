"""Elementwise operators on truth values and on the bits of integers, and tests of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compiler.op.elementwise import elementwise
from compiler.op.facts import onnx_node
from compiler.op.gradient import flat
from compiler.op.gradients import elementwise as rules
from compiler.op.opdef import NoAttrs
from compiler.types.dtypes import BOOL, FLOAT32, FLOAT64, DType


def _boolean(d: DType) -> bool:
    return d == BOOL


def _integer(d: DType) -> bool:
    return d.is_integer


def _float(d: DType) -> bool:
    return d.is_float


for _name, _op in (("and", "And"), ("or", "Or"), ("xor", "Xor")):

    def _bitwise(ar: Any, _: NoAttrs, a: Any, b: Any, op: str = _op) -> Any:
        return ar.bitwise(op, a, b)

    _doc = f"a {_name} b"
    elementwise(
        f"logical_{_name}",
        _bitwise,
        2,
        f"{_doc}, of truth values",
        accepts=_boolean,
        commutes=True,
        onnx=onnx_node(_op),
        gradient=flat,
    )
    elementwise(
        f"bitwise_{_name}", _bitwise, 2, f"{_doc}, bit by bit", accepts=_integer, commutes=True,
        gradient=flat,
    )  # fmt: skip


def _logical_not(ar: Any, _: NoAttrs, x: Any) -> Any:
    return ar.bitwise("Xor", x, ar.const(1))


def _bitwise_not(ar: Any, _: NoAttrs, x: Any) -> Any:
    ones = 2**ar.dtype.bits - 1 if ar.dtype.kind == "uint" else -1
    return ar.bitwise("Xor", x, ar.const(ones))


elementwise(
    "logical_not",
    _logical_not,
    1,
    "true where x is false",
    accepts=_boolean,
    onnx=onnx_node("Not"),
    gradient=flat,
)
elementwise("bitwise_not", _bitwise_not, 1, "every bit inverted", accepts=_integer, gradient=flat)

for _name, _op in (("left_shift", "Shl"), ("right_shift", "Shr")):

    def _shift(ar: Any, _: NoAttrs, a: Any, b: Any, op: str = _op) -> Any:
        most = ar.const(ar.dtype.bits - 1)
        signed = ar.dtype.kind == "int"
        far = ar.compare("GT", b, most)
        if signed:  # a negative count is out of range too
            far = ar.bitwise("Or", far, ar.compare("LT", b, ar.const(0)))
        count = ar.select(far, most, b)
        shifted = ar.bitwise(op, a, count)
        if signed and op == "Shr":  # by the last place, which leaves the sign
            return shifted
        return ar.select(far, ar.const(0), shifted)

    elementwise(
        _name,
        _shift,
        2,
        f"{_name.replace('_', ' ')} of integers; out of range, 0 or (right, signed) the sign",
        accepts=_integer,
        gradient=flat,
    )


@dataclass(frozen=True)
class IsInfAttrs:
    """Which infinities count."""

    detect_negative: bool = True
    detect_positive: bool = True


def _real(d: DType) -> bool:
    return d.is_float or d.is_custom


def _as_float(ar: Any, x: Any, dtype: DType) -> tuple[Any, Any]:
    """Numbers of a format as floats, with their arithmetic: formats compare NaN, where they have
    it, in ways of their own, and not all have infinities."""
    if not ar.dtype.is_custom:
        return ar, x
    wide = ar.of(dtype)
    return wide, wide.cast(x, ar.dtype)


def _is_nan(ar: Any, _: NoAttrs, x: Any) -> Any:
    ar, x = _as_float(ar, x, FLOAT32)
    return ar.compare("NE", x, x)


def _is_inf(ar: Any, a: IsInfAttrs, x: Any) -> Any:
    ar, x = _as_float(ar, x, FLOAT64)  # float32 has not the range of every format
    above = ar.compare("EQ", x, ar.const(math.inf))
    below = ar.compare("EQ", x, ar.const(-math.inf))
    if not a.detect_negative:
        below = ar.bitwise("And", below, above)
    if not a.detect_positive:
        above = ar.bitwise("And", below, above)
    return ar.bitwise("Or", below, above)


elementwise(
    "isnan",
    _is_nan,
    1,
    "true where x is not a number",
    accepts=_real,
    result=BOOL,
    onnx=onnx_node("IsNaN"),
    gradient=flat,
)
elementwise(
    "isinf",
    _is_inf,
    1,
    "true at infinities",
    IsInfAttrs,
    accepts=_real,
    result=BOOL,
    onnx=onnx_node("IsInf", "detect_negative", "detect_positive"),
    gradient=flat,
)


def _sign(ar: Any, _: NoAttrs, x: Any) -> Any:
    zero, one = ar.const(0), ar.const(1)
    up = ar.select(ar.compare("GT", x, zero), one, x)
    return ar.select(ar.compare("LT", x, zero), ar.sub(zero, one), up)


def _mod(ar: Any, _: NoAttrs, a: Any, b: Any) -> Any:
    if ar.dtype.is_float:
        rest = ar.remainder(a, b)
    else:
        rest = ar.sub(a, ar.mul(ar.div(a, b), b))
    if ar.dtype.kind == "uint":
        return rest
    zero = ar.const(0)
    other_sign = ar.bitwise("Xor", ar.compare("LT", rest, zero), ar.compare("LT", b, zero))
    differs = ar.bitwise("And", ar.compare("NE", rest, zero), other_sign)
    return ar.select(differs, ar.add(rest, b), rest)


def _fmod(ar: Any, _: NoAttrs, a: Any, b: Any) -> Any:
    if ar.dtype.is_float:
        return ar.remainder(a, b)
    return ar.sub(a, ar.mul(ar.div(a, b), b))


elementwise("sign", _sign, 1, "-1, 0 or 1; zeros and NaN as they are", gradient=flat)
_doc = "remainder of a / b with the sign of "
elementwise(
    "mod", _mod, 2, f"{_doc}b", accepts=lambda d: d.is_integer or d.is_float, gradient=rules.fmod
)
elementwise(
    "fmod", _fmod, 2, f"{_doc}a", accepts=lambda d: d.is_integer or d.is_float, gradient=rules.fmod
)
