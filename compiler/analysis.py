"""Figures of a module for reports: multiply-accumulates, parameters, their size, operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.ir.expr import (
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    nested,
    operands,
    tensor_type,
)
from compiler.op.opdef import OpDef
from compiler.symbolic import Index


@dataclass(frozen=True)
class ModelCost:
    """What a module takes.

    Attributes:
        macs: multiply-accumulates of one run, symbolic dimensions (the batch size) taken as 1;
            branches and bodies of loops count once.
        parameters: elements of the constants that operators read, each constant counted once.
        parameter_bytes: their size; a custom dtype of b bits takes b / 8 bytes per element.
        operators: operator name -> number of calls.
    """

    macs: int
    parameters: int
    parameter_bytes: int
    operators: Mapping[str, int]


def cost(mod: IRModule) -> ModelCost:
    """The cost of `main`; needs inferred types.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred.
    """
    macs = 0
    operators: Counter[str] = Counter()
    constants: dict[Constant, None] = {}
    for b in _bindings(mod.main):
        constants.update((a, None) for a in operands(b.value) if isinstance(a, Constant))
        if isinstance(b.value, Call) and isinstance(b.value.op, OpDef):
            operators[b.value.op.name] += 1
            macs += _macs(b, b.value)
    constants.update((r, None) for r in mod.main.results if isinstance(r, Constant))
    bits = sum(c.data.size * c.dtype.bits for c in constants)
    return ModelCost(
        macs, sum(c.data.size for c in constants), -(-bits // 8), dict(sorted(operators.items()))
    )


def _bindings(f: Function) -> Iterator[Binding]:
    """Bindings of a function and of the functions in it."""
    for b in f.bindings:
        yield b
        for g in nested(b.value):
            yield from _bindings(g)
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            yield from _bindings(b.value.op)


def _macs(b: Binding, call: Call) -> int:
    assert isinstance(call.op, OpDef)
    if call.op.macs is None:
        return 0
    n = Index.of(call.op.macs(call.attrs, [tensor_type(a) for a in call.args], tensor_type(b.var)))
    return int(n.value(dict.fromkeys(n.vars(), 1)))
