"""What operators beside multiply-accumulates do, in operations that tables of hardware price."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from compiler.ir.expr import Call, tensor_type
from compiler.op.facts import IntegerForm
from compiler.op.opdef import OpDef, Quantized
from compiler.symbolic import IntLike, product
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType

ADD = "add"
MULTIPLY = "multiply"
MAXIMUM = "maximum"
_BY_FORM = {
    IntegerForm.SUM: ADD,
    IntegerForm.DIFFERENCE: ADD,
    IntegerForm.PRODUCT: MULTIPLY,
}
SUMS = "int32"
"""What integers are added up in."""


def operations(
    call: Call, op: OpDef, result: TensorType, known: Callable[[IntLike], int], number: str
) -> dict[str, int] | None:
    """Operations of a call, as "add float32" -> how many; none where it only moves values or does
    nothing but multiply-accumulates, which are counted apart; None where they are not known.

    An average counts its additions, and no division: that of a constant number, which its scale or
    a shift takes in hardware. Taps in the padding of a window count as if they were data.

    Args:
        result: the type of what it gives.
        known: a number that may depend on open sizes -> the one that is counted.
        number: name of the numbers that the result is made of.
    """
    elements = known(product(result.shape))
    if op.clips is not None:
        bounds = sum(map(isfinite, op.clips(call.attrs)))
        return {f"{MAXIMUM} {number}": bounds * elements}
    moved = op.moves is not None or op.view or op.quantized == Quantized.SAME
    if moved or op.macs is not None:
        return {}
    if op.integer_form in _BY_FORM:
        return {f"{_BY_FORM[op.integer_form]} {number}": elements}
    if (terms := _terms(call, op, elements, known)) is not None:
        return {f"{ADD} {_sums(tensor_type(call.args[0]).dtype, number)}": terms}
    return None


def _terms(call: Call, op: OpDef, results: int, known: Callable[[IntLike], int]) -> int | None:
    """How many numbers an operator adds up in all; None if that is not what it does."""
    summation = op.summation
    if op.average is not None and op.average.axes is None:
        return results * known(product(call.attrs.pool_size))
    adds = summation is not None and not summation.products and summation.operands == (0,)
    if op.average is not None or (adds and summation is not None and summation.holds(call.attrs)):
        return known(product(tensor_type(call.args[0]).shape))
    return None


def _sums(dtype: DType, number: str) -> str:
    return SUMS if dtype.is_integer else number
