"""Values that are known during import."""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Call, Constant, Var
from compiler.ir.types import TensorType, Type
from compiler.transform.rewrite import op_name

_FOLD_ELEMENTS = 4096
"""Calls on constants of at most this many elements are computed during import (shapes, scales)."""


def empty(t: TensorType) -> Constant:
    """The value of a tensor without elements: it is known, so that no kernel meets it."""
    return Constant(np.empty(t.static_shape, t.dtype.storage), t.dtype)


def folded(call: Call, t: Type) -> Constant | None:
    """The value of a small call on constants, or None. Weights are quantized whatever their size:
    the integers are fewer bytes."""
    from compiler.interpret import call_reference

    data = [a.data for a in call.args if isinstance(a, Constant)]
    if not isinstance(t, TensorType) or not isinstance(t.size, int):
        return None
    large = t.size > _FOLD_ELEMENTS or sum(a.size for a in data) > _FOLD_ELEMENTS
    if large and op_name(call) != "qnn.quantize":
        return None
    result = call_reference(call, data, Var("", t), {})
    return Constant(np.asarray(result), t.dtype)
