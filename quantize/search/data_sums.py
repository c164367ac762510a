"""What the averages of a network add up, of given data."""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Binding, Call, Var
from compiler.op.nn.pool import outputs
from compiler.op.opdef import OpDef
from compiler.op.window import windows
from compiler.types.dtypes import Array


def averaged(b: Binding) -> Var | None:
    """The operand of an average of integers; None of what is none."""
    call = b.value
    if not isinstance(call, Call) or not isinstance(call.op, OpDef):
        return None
    if call.op.average is None or call.op.integer_sums is None:
        return None
    (x,) = call.args
    return x if isinstance(x, Var) else None


def sums_of(b: Binding, data: Array) -> Array:
    """The whole sums that an average divides, of its operand's integers; or of float64."""
    assert isinstance(b.value, Call)
    op, a = b.value.op, b.value.attrs
    assert isinstance(op, OpDef)
    assert op.average is not None
    x = data if data.dtype == np.float64 else data.astype(np.int64) - a.input_zero_point
    if op.average.axes is not None:
        axes, _ = op.average.axes(a, x.ndim)
        return np.asarray(x.sum(axis=tuple(axes) or None))
    across = windows(op.name, a.pool_size, a.strides, a.padding, a.dilation)
    edges = [(0, 0), (0, 0)]
    for w, size, count in zip(across, x.shape[2:], outputs(a, across, x.shape[2:]), strict=True):
        assert isinstance(count, int)
        reached = (count - 1) * w.stride + w.span
        edges.append((w.before, max(0, reached - size - w.before)))
    down, along = across
    views = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, edges), (down.span, along.span), axis=(2, 3)
    )
    seen = views[:, :, :: down.stride, :: along.stride, :: down.dilation, :: along.dilation]
    return np.asarray(seen.sum(axis=(4, 5)))
