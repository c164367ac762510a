"""append: a tensor with another one behind it, which may take the first one's memory."""

from __future__ import annotations

from compiler.op.concatenate import CONCATENATE, ConcatenateAttrs
from compiler.op.opdef import Fusion, OpDef, register_op

CACHES = "caches"
"""Attribute of functions: (name, axis, capacity) of each parameter that is the front of memory with
room for more along an axis, which calls of `append` fill (see `compiler.decoding`)."""

APPEND = register_op(
    OpDef(
        "append",
        CONCATENATE.infer,
        CONCATENATE.reference,
        CONCATENATE.lower,
        ConcatenateAttrs,
        (2, 2),
        Fusion.OPAQUE,
        appends=True,
        gradient=CONCATENATE.gradient,
        doc="concatenate of two, whose result is the first operand's memory where that has room",
    )
)
