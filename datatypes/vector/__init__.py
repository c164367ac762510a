"""The vector lowering of described formats: values in float lanes, operations as expressions.

A lane is a float32 or float64 number that equals a value of the format; NaN stands for NaN and NaR.
Every operation here computes on lanes and rounds its result to the format, in additions,
multiplications, bit operations and small tables, which the compiler's schedules vectorize like any
other expression. All of it is derived from the format's description:

- `choice`: which float the lanes are, with the proof that it suffices;
- `rounding`: rounding to the format;
- `operations`, `codes`: arithmetic, functions and conversions.

Every one gives the bits of `datatypes.arithmetic.oracle`.
"""

from __future__ import annotations

from compiler.lowering.custom_dtypes import Lane
from compiler.tensor.expr import BinOp, Call, Cast, Expr, FloatImm
from datatypes.builtin.mixed import is_mixed
from datatypes.formats import Format
from datatypes.vector.choice import Lanes, lanes
from datatypes.vector.mixed import add_into
from datatypes.vector.operations import (
    constant,
    from_bits,
    from_number,
    function,
    lane_array,
    multiply_add,
    operate,
    to_bits,
    to_number,
)


def lower(fmt: Format, node: Expr, deferred: bool = False, keeps_nan: bool = True) -> Expr | None:
    """One operation (BinOp, Cast, Call or FloatImm) whose custom operands are `Lane`, as an
    expression of lanes; None if the format has no such operation.

    Args:
        fmt: a format that has lanes.
        node: the operation.
        deferred: Add and Mul may give NaN where they are not sure of the result, and a zero of
            either sign.
        keeps_nan: see VectorDType.
    """
    if isinstance(node, FloatImm):
        return constant(fmt, node.value)
    if isinstance(node, Cast):
        if node.dtype.is_custom and node.dtype.name == fmt.name:
            return from_number(fmt, _lane(node.value))
        return to_number(fmt, _lane(node.value), node.dtype)
    if isinstance(node, Call) and (node.fn == "sum" or (node.fn == "fma" and is_mixed(node.args))):
        return add_into(fmt, *node.args)
    if isinstance(node, Call) and node.fn == "fma":
        return multiply_add(fmt, *map(_lane, node.args))
    if isinstance(node, Call) and len(node.args) == 1:
        return function(fmt, node.fn, _lane(node.args[0]))
    if isinstance(node, BinOp):
        return operate(fmt, node.op, _lane(node.a), _lane(node.b), deferred, keeps_nan)
    return None


def _lane(operand: Expr) -> Expr:
    """The float of an operand; operands of built-in dtypes as they are."""
    return operand.value if isinstance(operand, Lane) else operand


__all__ = ["Lanes", "from_bits", "lane_array", "lanes", "lower", "to_bits"]
