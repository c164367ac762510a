"""Values that are known during import, and those that have been computed before."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Var
from compiler.passes.rewrite import op_name
from compiler.types.dtypes import INT64
from compiler.types.tensor_types import TensorType, Type

_FOLD_ELEMENTS = 4096
"""Calls on constants of at most this many elements are computed during import (shapes, scales)."""
_SIZES = 64
"""Elements of the largest vector of sizes."""


def empty(t: TensorType) -> Constant:
    """The value of a tensor without elements: it is known, so that no kernel meets it."""
    return Constant(np.empty(t.static_shape, t.dtype.storage), t.dtype)


def folded(call: Call, t: Type) -> Constant | None:
    """The value of a small call on constants, or None. Weights are quantized whatever their size:
    the integers are fewer bytes."""
    from compiler.interpret.graph import call_reference

    data = [a.data for a in call.args if isinstance(a, Constant)]
    if not isinstance(t, TensorType) or not isinstance(t.size, int):
        return None
    large = t.size > _FOLD_ELEMENTS or sum(a.size for a in data) > _FOLD_ELEMENTS
    if large and op_name(call) != "qnn.quantize":
        return None
    result = call_reference(call, data, Var("", t), {})
    return Constant(np.asarray(result), t.dtype)


def is_size(t: Type) -> bool:
    """Whether values of this type are what sizes are computed from: a few integers."""
    return (
        isinstance(t, TensorType)
        and t.dtype == INT64
        and t.rank <= 1
        and isinstance(t.size, int)
        and t.size <= _SIZES
    )


def computation(call: Call) -> Any:
    """What two calls have in common that compute the same: exporters compute each size where they
    use it, and equal sizes must be one dimension."""
    args = [
        (str(a.dtype), a.data.shape, a.data.tobytes())
        if isinstance(a, Constant) and a.data.size <= _SIZES
        else a
        for a in call.args
    ]
    return call.op, tuple(args), call.attrs
