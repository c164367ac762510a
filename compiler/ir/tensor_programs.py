"""The tensor programs of a module, and those that its calls run."""

from __future__ import annotations

from compiler.errors import VerifyError, unknown
from compiler.ir.expr import Call, Function, IRModule, tensor_type
from compiler.ir.function_calls import Callee
from compiler.tensor.copying import instantiated
from compiler.tensor.stmt import PrimFunc


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
