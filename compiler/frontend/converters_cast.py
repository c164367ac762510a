"""Converters between element types: Cast, CastLike, BitCast."""

from __future__ import annotations

import numpy as np

from compiler.frontend.element_types import NARROW, Narrow, bounds, element_dtype
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, scalar
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import BOOL, DType

_FLOAT8 = range(17, 21)
_E8M0 = 24


@converts("Cast")
def cast(n: Node) -> Imported:
    """Conversion to another element type."""
    return converted(n, n.atom(0), n.need("to"), n.call)


@converts("CastLike")
def cast_like(n: Node) -> Imported:
    """Conversion to the element type of the second operand."""
    return converted(n, n.atom(0), n.element(1), n.call)


@converts("BitCast")
def bit_cast(n: Node) -> Imported:
    """The same bits as another element type."""
    to = element_dtype(n.need("to"), n.where)
    if BOOL in (to, n.type(0).dtype):  # both are bytes, of which bool uses 0 and 1
        return n.call("cast", n.atom(0), dtype=str(to))
    return n.call("bitcast", n.atom(0), dtype=str(to))


def converted(n: Node, x: Atom, code: int, emit: Emit) -> Imported:
    """`x` in the element type of an ONNX code; `emit` makes the last call."""
    dtype = element_dtype(code, n.where)
    if code in NARROW:
        n.mark(0, code)
        return wrapped(n, x, NARROW[code], emit)
    if code in _FLOAT8 and n.attr("saturate", 1):
        x = _limited(n, x, dtype)
    if code == _E8M0:
        x = _power_of_two(n, x)
    return emit("cast", x, dtype=str(dtype))


def wrapped(n: Node, x: Atom, to: Narrow, emit: Emit) -> Atom:
    """The lowest bits of a number (a float goes toward zero first), as the narrow type."""
    wide = n.step("cast", x, dtype="int32")
    t = tensor_type(wide)
    low = n.step("bitwise_and", wide, scalar((1 << to.bits) - 1, t))
    if to.bounds[0] < 0:
        sign = scalar(1 << (to.bits - 1), t)
        low = n.step("subtract", n.step("bitwise_xor", low, sign), sign)
    return emit("cast", low, dtype=str(to.dtype))


def _limited(n: Node, x: Atom, dtype: DType) -> Atom:
    """A float within the finite values of `dtype`; NaN stays."""
    t = tensor_type(x)
    if not t.dtype.is_float:
        return x
    low, high = bounds(dtype)
    return n.step("clip", x, a_min=low, a_max=high)


def _power_of_two(n: Node, x: Atom) -> Atom:
    """A float as a power of two from 2**-127 on: its significand rounded up or down to one."""
    mode = n.expect("round_mode", "up", "up", "down")
    x = n.step("cast", x, dtype="float32")
    bits = n.step("bitcast", x, dtype="uint32")
    if mode == "up":
        up = n.step("add", bits, Constant.of(np.uint32(0x7FFFFF), "uint32"))
        # what is not a finite positive number stays
        ordinary = n.step("less", bits, Constant.of(np.uint32(0x7F800000), "uint32"))
        bits = n.step("where", ordinary, up, bits)
    power = n.step("bitwise_and", bits, Constant.of(np.uint32(0xFF800000), "uint32"))
    whole = n.step("bitcast", power, dtype="float32")
    least = scalar(2.0**-127, tensor_type(x))
    within = n.step("where", n.step("greater", x, least), whole, least)
    return n.step("where", n.step("isnan", x), x, within)
