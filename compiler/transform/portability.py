"""Which values of a module have the same bits on every instruction set."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.expr import Binding, Call, Function, IRModule, nested, tensor_type
from compiler.ir.function_calls import is_callee
from compiler.op.einsum import EINSUM
from compiler.op.opdef import OpDef


def unportable(mod: IRModule) -> tuple[str, ...]:
    """Names of the values of `mod` whose bits may differ from one instruction set to another.

    They are those of contractions of float32 and other built-in floats, whose sums are formed in an
    order that suits the target, and of functions from outside, of which nothing is known. All other
    operators give the same bits everywhere: integers, custom datatypes with any accumulation, and
    float operations in the one order that their definition states.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred.
    """
    functions = (f for f in mod.functions.values() if isinstance(f, Function))
    found = (b for f in functions for b in _bindings(f))
    return tuple(b.var.name for b in found if is_callee(b.value) or _sums_floats(b))


def _bindings(f: Function) -> Iterator[Binding]:
    """Bindings of a function and of the functions in it."""
    for b in f.bindings:
        yield b
        inner = list(nested(b.value))
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            inner.append(b.value.op)
        for g in inner:
            yield from _bindings(g)


def _sums_floats(b: Binding) -> bool:
    call = b.value
    if not isinstance(call, Call) or not isinstance(call.op, OpDef):
        return False
    # einsum of several operands is written as a matrix product wherever it is one
    if call.op.macs is None and (call.op is not EINSUM or len(call.args) < 2):
        return False
    return any(tensor_type(a).dtype.is_float for a in call.args[:2])
