"""What calls of tensor programs and of registered functions mean: the interpreter's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.errors import VerifyError, unknown
from compiler.interpret import loop_nests as interp
from compiler.ir.expr import Call, Function, IRModule, tensor_type
from compiler.op.function_calls import CALL_TIR, Callee
from compiler.runtime.external import call_func
from compiler.symbolic import Index, Var
from compiler.tensor.copying import instantiated
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TupleType


def tensor_program(mod: IRModule, name: str) -> PrimFunc:
    """The tensor program of a module called `name`.

    Raises:
        VerifyError: there is none.
    """
    f = mod.functions.get(name)
    if f is None or isinstance(f, Function):
        programs = [n for n, g in mod.functions.items() if not isinstance(g, Function)]
        raise VerifyError(unknown("tensor program", name, programs))
    return f


def callee(mod: IRModule, call: Call) -> PrimFunc:
    """A copy of the tensor program that `call_tir` calls, for the types of its operands.

    Raises:
        VerifyError: there is no such program.
        TypeInferenceError: operands or results do not fit its parameters.
    """
    attrs: Callee = call.attrs
    f = tensor_program(mod, attrs.func)
    return instantiated(f, [*map(tensor_type, call.args), *attrs.outputs])


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
        interp.run(callee(mod, call), [*args, *outs], dims)
    else:
        call_func(attrs.func, [*args, *outs])
    return tuple(outs) if isinstance(attrs.out, TupleType) else outs[0]


def _known(d: Any, dims: Mapping[Var, int]) -> int:
    return int(d.value(dims)) if isinstance(d, Index) else int(d)
