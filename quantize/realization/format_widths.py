"""Certificates of products of numbers in formats whose scales are factors of the sums.

A plan with stored formats multiplies float32 numbers; what hardware would add up exactly are the
numbers of the formats without their scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.transform.certificates import Certificate, certificate
from compiler.transform.exact_widths import Made, exact_bounds, not_negative
from compiler.types.dtypes import custom
from quantize.formats.blocks import FLOAT
from quantize.formats.chosen import weight_array
from quantize.formats.element import element, unsigned_bits
from quantize.formats.operand_format import OperandFormat
from quantize.plan.call_facts import operands


def format_certificate(
    name: str, call: Call, formats: Sequence[OperandFormat], made: Made
) -> Certificate:
    """What the sums of a node need that multiplies numbers of two formats; biases, which are
    float32, are not counted.

    Args:
        made: variable of the float32 module -> what makes it.
    """
    factors, op = tuple(f.format for f in formats), str(call.op)
    try:
        both = [_numbers(a, f) for a, f in zip(operands(call), formats, strict=True)]
        real = dict(zip(both, operands(call), strict=True))
        product = replace(call, args=tuple(both))
        signs = partial(_positive, real=real, made=made)
        sums, unit = exact_bounds(product, signs)
    except UnsupportedError as e:
        return Certificate(name, op, factors, reason=str(e))
    return certificate(name, op, factors, sums, unit)


def _positive(a: Atom, real: dict[Atom, Atom], made: Made) -> bool:
    return not_negative(real[a], made)


def _numbers(a: Atom, f: OperandFormat) -> Atom:
    """An operand as numbers of its format.

    Raises:
        UnsupportedError: its scales are no factors of the sums.
    """
    if f.format == FLOAT:
        raise UnsupportedError("one of its factors is float32")
    if f.blocks is not None or f.group:
        raise UnsupportedError("its sums go over blocks or groups with scales of their own")
    if unsigned_bits(f.format):
        raise UnsupportedError(f"{f.format} has a zero point, and the other factor is no integer")
    e = element(f.format)
    if not isinstance(a, Constant):
        return Var("numbers", tensor_type(a).with_dtype(e.dtype))
    scale = f.scale_array(a.data.shape)
    if scale.ndim == 1:
        scale = scale.reshape([-1 if k == f.along else 1 for k in range(a.data.ndim)])
    values = weight_array(a.data, f).astype(np.float64) / scale
    codes = custom(e.dtype.name).encode(np.clip(values, e.low, e.high), e.dtype)
    return Constant(np.asarray(codes, e.dtype.storage), e.dtype)
