"""Pooling of bytes on the accelerator's core: its ALU finds the greatest numbers of windows, or
adds them up and scales the sums as those of convolutions are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.codegen.accel.convolution import Finish
from compiler.ir.expr import Call
from compiler.pattern.patterns import Pattern, is_op, wildcard
from compiler.pattern.search import Found
from compiler.runtime.accel.layer import Weights
from compiler.scheduling.accelerator_tiles import Tile, room
from compiler.target.accelerator import Design
from compiler.types.dtypes import INT8, UINT8, DType
from compiler.types.tensor_types import TensorType

GREATEST = is_op("nn.max_pool2d")(wildcard("x")).bind("pool")
MEAN = is_op("qnn.mean")(wildcard("x")).bind("pool")
AVERAGE = is_op("qnn.avg_pool2d")(wildcard("x")).bind("pool")


def greatest_refused(found: Found, design: Design) -> str | None:
    """Why the core does not find the greatest numbers of windows."""
    x, a = _of(found)
    if not design.integer or x.dtype not in (UINT8, INT8):
        return f"the ALU compares bytes, not {x.dtype}"
    if design.accumulator_bits <= x.dtype.bits:
        return f"accumulators of {design.accumulator_bits} bits do not hold all bytes to compare"
    return _windows_refused(x, a) or too_large(greatest(x, a, ""), design, "one window")


def mean_refused(found: Found, design: Design) -> str | None:
    """Why the core does not compute a mean over axes."""
    x, a = _of(found)
    if x.rank != 4 or sorted(k % 4 for k in a.axis) != [2, 3]:
        return "the core makes means of whole planes"
    if not all(isinstance(n, int) and n > 0 for n in x.shape[1:]):
        return "the planes' sizes are open"
    return _sums_refused(x, a, design) or too_large(mean(x, a, ""), design, "one window")


def average_refused(found: Found, design: Design) -> str | None:
    """Why the core does not compute means of windows."""
    x, a = _of(found)
    if any(a.padding) and not a.count_include_pad:
        return "windows over the border are means of fewer numbers"
    if any(a.padding) and not fills(x.dtype, a.input_zero_point):
        return f"zero point {a.input_zero_point} is no {x.dtype} to pad with"
    refused = _windows_refused(x, a) or _sums_refused(x, a, design)
    return refused or too_large(average(x, a, ""), design, "one window")


def fills(dtype: DType, zero_point: int) -> bool:
    """Whether a border can be filled with a zero point: of integers, if it is one of them."""
    if not dtype.is_integer:
        return zero_point == 0
    held = np.iinfo(dtype.storage)
    return bool(held.min <= zero_point <= held.max)


def _of(found: Found) -> tuple[TensorType, Any]:
    v = found.called("pool").value
    assert isinstance(v, Call)
    return _data(v), v.attrs


def _data(v: Call) -> TensorType:
    x = v.args[0].type
    assert isinstance(x, TensorType)
    return x


def _windows_refused(x: TensorType, a: Any) -> str | None:
    if a.ceil_mode or a.partial:
        return "the core computes whole windows"
    if x.rank != 4 or not isinstance(x.shape[1], int):
        return "the number of channels is open"
    return None


def _sums_refused(x: TensorType, a: Any, design: Design) -> str | None:
    if not design.integer or x.dtype not in (UINT8, INT8) or a.out_dtype != str(x.dtype):
        return f"means of bytes are bytes of that kind, not {a.out_dtype} of {x.dtype}"
    if design.accumulator != "int32":
        return f"sums are int32, the core's {design.accumulator}"
    if a.rounding != "float32":
        return f"the core scales by a float32 product, not by {a.rounding}"
    return None


def too_large(w: Weights, design: Design, what: str) -> str | None:
    """Why the buffers of a core do not hold the least that a layer needs, which is `what`."""
    tall, wide = ((k - 1) * d + 1 for k, d in zip(w.weights.shape[2:], w.dilation, strict=True))
    alone = replace(w, padding=(0, 0, 0, 0)).shape(tall, wide, design.block)
    fits = room(alone, Tile(1, 1, 1, 1, 1)).fits(design, 1)
    return None if fits else f"a buffer of the core does not hold {what}"


def greatest(x: TensorType, a: Any, name: str) -> Weights:
    """The layer of the greatest numbers of windows."""
    units, low = x.shape[1], -128 if x.dtype == INT8 else 0
    assert isinstance(units, int)
    parameters = np.full(units, low, np.int32), np.zeros(units, np.float32)
    return Weights(
        name, np.zeros((units, 1, *a.pool_size), np.int8), parameters,
        Finish(low=low, signed=x.dtype == INT8, filling=low & 0xFF), tuple(a.strides),
        tuple(a.padding), tuple(a.dilation), apart=True, pooled="max",
    )  # fmt: skip


def mean(x: TensorType, a: Any, name: str) -> Weights:
    """The layer of means of whole planes."""
    return replace(_sums(x, a, name, x.shape[2:]), flat=not a.keepdims)


def average(x: TensorType, a: Any, name: str) -> Weights:
    """The layer of means of windows."""
    return replace(
        _sums(x, a, name, a.pool_size), strides=tuple(a.strides), padding=tuple(a.padding),
        dilation=tuple(a.dilation),
    )  # fmt: skip


def _sums(x: TensorType, a: Any, name: str, window: Sequence[Any]) -> Weights:
    units = x.shape[1]
    assert isinstance(units, int)
    windows = np.zeros((units, 1, *window), np.int8)
    count = windows[0].size
    begin = np.full(units, -a.input_zero_point * count, np.int32)
    scale = np.full(units, np.float32(a.ratio) / np.float32(count), np.float32)
    signed = x.dtype == INT8
    finish = Finish(a.output_zero_point, a.qmin, a.qmax, signed, a.input_zero_point & 0xFF)
    return Weights(name, windows, (begin, scale), finish, apart=True, pooled="add")


Kind = tuple[Pattern, Callable[[Found, Design], str | None], Callable[[Call, str], Weights]]
"""Of what the ALU computes alone: its pattern, why the core does not compute it, its layer of a
name."""


def _of_call(make: Callable[[TensorType, Any, str], Weights]) -> Callable[[Call, str], Weights]:
    return lambda v, name: make(_data(v), v.attrs, name)


KINDS: dict[str, Kind] = {
    "greatest": (GREATEST, greatest_refused, _of_call(greatest)),
    "mean": (MEAN, mean_refused, _of_call(mean)),
    "average": (AVERAGE, average_refused, _of_call(average)),
}
"""Name of a composite -> what it is."""
