"""Layer norm in integers: when a call has that form, and its constants."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from compiler.ir.expr import Call, Constant, tensor_type
from compiler.op.qnn.layer_norm import GAIN_BITS, LARGEST_EPSILON, MOST, OFFSET_BITS, root_bits
from compiler.types.dtypes import Array
from quantize.plan.params import ValueParams


@dataclass(frozen=True, eq=False)
class LayerNormConstants:
    """What `compiler.op.qnn.layer_norm` takes besides data: int64 gain and offset, in units of the
    result; epsilon, in those of the sum of squares under the root."""

    gain: Array
    offset: Array
    epsilon: int


def row_size(call: Call) -> int | None:
    """Over how many elements an nn.layer_norm takes its mean; None if that is known only when it
    runs."""
    t = tensor_type(call.args[0])
    inner = t.shape[call.attrs.axis % t.rank :]
    known = [n for n in inner if isinstance(n, int)]
    return math.prod(known) if len(known) == len(inner) else None


def layer_norm_reason(call: Call) -> str:
    """Why an nn.layer_norm has no integer form; empty if it has one."""
    constants = [a for a in call.args[1:] if isinstance(a, Constant)]
    if len(constants) < len(call.args) - 1:
        return "its gain or offset is not constant"
    if not all(np.isfinite(c.data).all() for c in constants):
        return "its gain or offset holds NaN or infinity"
    n = row_size(call)
    if n is None:
        return "how many elements it normalizes is known only when it runs"
    return "" if n <= MOST else f"it normalizes {n} elements, more than {MOST}"


def layer_norm_reach(call: Call) -> float:
    """What bounds an nn.layer_norm's result so that its integer form has room: normalized values
    count as 2^10, four times what rows of 2^16 elements can have."""
    gain, *offset = (np.abs(c.data).max() for c in call.args[1:] if isinstance(c, Constant))
    return float(gain) * 2.0**10 + float(sum(offset))


def least_data_scale(call: Call) -> float:
    """The smallest scale of an nn.layer_norm's data at which its epsilon fits the integer form: the
    2^-7th part of the root of epsilon, or a little more where rows are no power of two long."""
    n = row_size(call)
    assert n is not None, "layer_norm_reason refuses others"
    unit = math.sqrt(call.attrs.epsilon / LARGEST_EPSILON)
    return unit * n * 2.0 ** root_bits(n) * (1 + 2.0**-20)


def layer_norm_constants(call: Call, data: ValueParams, out: ValueParams) -> LayerNormConstants:
    """The constants of an nn.layer_norm of data and results on these grids."""
    n = row_size(call)
    assert n is not None, "layer_norm_reason refuses others"
    gain, *offset = (
        np.asarray(c.data, np.float64) / out.scale for c in call.args[1:] if isinstance(c, Constant)
    )
    unit = data.scale / (n * 2.0 ** root_bits(n))
    least = np.rint(call.attrs.epsilon / unit / unit)
    return LayerNormConstants(
        np.rint(gain * 2.0**GAIN_BITS).astype(np.int64),
        np.rint((offset[0] if offset else np.zeros(1)) * 2.0**OFFSET_BITS).astype(np.int64),
        int(min(max(least, 1.0), float(LARGEST_EPSILON))),
    )
