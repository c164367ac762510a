"""What calls of tensor programs and of registered functions mean: the interpreter's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.boundary.external import call_func
from compiler.interpret import loop_nests
from compiler.ir.expr import Call, IRModule
from compiler.ir.function_calls import CALL_TIR, Callee
from compiler.ir.tensor_programs import callee
from compiler.symbolic import Index, Var
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TupleType


def evaluate_call(
    mod: IRModule, call: Call, args: Sequence[Array], dims: Mapping[Var, int]
) -> Array | tuple[Array, ...]:
    """Result of a call on storage arrays: tensor programs are walked in numpy, registered functions
    called."""
    attrs: Callee = call.attrs
    shapes = [tuple(_known(d, dims) for d in t.shape) for t in attrs.outputs]
    outs = [
        np.zeros(shape, t.dtype.storage) for shape, t in zip(shapes, attrs.outputs, strict=True)
    ]
    if call.op is CALL_TIR:
        loop_nests.run(callee(mod, call), [*args, *outs], dims)
    else:
        call_func(attrs.func, [*args, *outs])
    return tuple(outs) if isinstance(attrs.out, TupleType) else outs[0]


def _known(d: Any, dims: Mapping[Var, int]) -> int:
    return int(d.value(dims)) if isinstance(d, Index) else int(d)
