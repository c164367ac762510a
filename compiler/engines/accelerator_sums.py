"""Sums of two tensors on the accelerator's core: its ALU scales the bytes of both to float32, adds
these and rounds, in the order of `qnn.add`; numbers of a format it adds exactly, and rounds once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.codegen.accel import kernels
from compiler.codegen.accel.convolution import Finish
from compiler.engines.accelerator_pooling import Kind, too_large
from compiler.errors import LoweringError
from compiler.ir.expr import Call, Constant, atom_type
from compiler.op.accumulate import sums
from compiler.pattern.patterns import is_op, wildcard
from compiler.pattern.search import Found
from compiler.runtime.accel.layer import Weights
from compiler.target.accelerator import Design
from compiler.types.dtypes import INT8, UINT8, Array
from compiler.types.tensor_types import TensorType

BYTES = is_op("qnn.add")(wildcard("a"), wildcard("b")).bind("sum")
NUMBERS = is_op("add")(wildcard("a"), wildcard("b")).bind("sum")
_KINDS = (UINT8, INT8)
_IMMEDIATE = range(-(1 << 15), 1 << 15)
"""What an instruction holds as a zero point, or a bound."""


def bytes_refused(found: Found, design: Design) -> str | None:
    """Why the core does not add two tensors of bytes."""
    v, a, b = _of(found)
    how: Any = v.attrs
    if not design.integer or a.dtype not in _KINDS or b.dtype not in _KINDS:
        return f"the ALU adds {_data(design)}, not {a.dtype} and {b.dtype}"
    if how.rounding != "float32" or how.out_dtype not in map(str, _KINDS):
        return f"the core adds in float32 and makes bytes, not {how.out_dtype} by {how.rounding}"
    given = (how.a_zero_point, how.b_zero_point, how.output_zero_point, how.qmin, how.qmax)
    if any(n not in _IMMEDIATE for n in given):
        return "a zero point or bound has more than 16 bits"
    return _shapes_refused(v, a, b) or too_large(_of_bytes(v, ""), design, "a vector of each")


def numbers_refused(found: Found, design: Design) -> str | None:
    """Why the core does not add two tensors of a format."""
    v, a, b = _of(found)
    if design.integer or a.dtype != kernels.data_dtype(design, False) or b.dtype != a.dtype:
        return f"the ALU adds {_data(design)}, not {a.dtype} and {b.dtype}"
    if not design.adds_tensors:
        return f"sums of two numbers are exact, those of the core {design.accumulator}"
    try:
        sums("exact", a.dtype, 2)
    except LoweringError as e:
        return str(e)
    return _shapes_refused(v, a, b) or too_large(_of_numbers(v, ""), design, "a vector of each")


def _data(design: Design) -> str:
    return "bytes" if design.integer else design.format


def _shapes_refused(v: Call, a: TensorType, b: TensorType) -> str | None:
    if any(isinstance(x, Constant) for x in v.args):
        return "one of both is a constant"
    if a.shape != b.shape:
        return "the tensors are of different shapes"
    if a.rank < 2:
        return "a vector has no channels"
    return None if isinstance(a.shape[_channels(a)], int) else "the number of channels is open"


def _of_bytes(v: Call, name: str) -> Weights:
    how: Any = v.attrs
    a, b = _types(v)

    def scales(scale: float) -> Array:
        return np.full(_units(a), scale, np.float32)

    addends = ((how.a_zero_point, a.dtype == INT8), (how.b_zero_point, b.dtype == INT8))
    finish = Finish(how.output_zero_point, how.qmin, how.qmax, addends=addends)
    return _layer(name, a, (scales(how.a_scale), scales(how.b_scale)), finish)


def _of_numbers(v: Call, name: str) -> Weights:
    a, _ = _types(v)
    none = np.zeros(_units(a), np.float64)
    return _layer(name, a, (none, none), Finish())


def _layer(name: str, t: TensorType, parameters: tuple[Array, Array], finish: Finish) -> Weights:
    shape = np.zeros((_units(t), 1, 1, 1), np.int8)
    rows = t.rank != 4
    return Weights(name, shape, parameters, finish, apart=True, rows=rows, pooled="sum")


def _channels(t: TensorType) -> int:
    return 1 if t.rank == 4 else t.rank - 1


def _units(t: TensorType) -> int:
    units = t.shape[_channels(t)]
    assert isinstance(units, int)
    return units


def _of(found: Found) -> tuple[Call, TensorType, TensorType]:
    v = found.called("sum").value
    assert isinstance(v, Call)
    return v, *_types(v)


def _types(v: Call) -> tuple[TensorType, TensorType]:
    a, b = map(atom_type, v.args)
    assert isinstance(a, TensorType)
    assert isinstance(b, TensorType)
    return a, b


KINDS: dict[str, Kind] = {
    "sum": (BYTES, bytes_refused, _of_bytes),
    "sum_of_numbers": (NUMBERS, numbers_refused, _of_numbers),
}
"""Name of a composite -> what it is."""
