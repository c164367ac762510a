"""Calls of tensor programs and of registered functions, in destination-passing style.

The callee takes its operands and then the tensors that it shall fill, which are allocated outside.
It must leave its operands as they are. These operators are in no registry: what they do is known
from the module, or from `compiler.boundary.external`, and not from a definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from compiler.errors import LoweringError, TypeInferenceError
from compiler.ir.expr import Atom, Call
from compiler.op.opdef import OpDef
from compiler.types.tensor_types import TensorType, TupleType, Type


@dataclass(frozen=True)
class Callee:
    """Name of what is called, and the type of what it fills: a tensor, or a tuple of tensors."""

    func: str
    out: Type

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """Types of the tensors that it fills."""
        fields = self.out.fields if isinstance(self.out, TupleType) else (self.out,)
        return tuple(t for t in fields if isinstance(t, TensorType))


def _infer(attrs: Callee, types: Sequence[TensorType]) -> Type:
    fields = attrs.out.fields if isinstance(attrs.out, TupleType) else (attrs.out,)
    if not all(isinstance(t, TensorType) for t in fields):
        raise TypeInferenceError(f"{attrs.func} fills tensors, and cannot return {attrs.out}")
    return attrs.out


def _no_lowering(_builder: object, attrs: Callee, *_: object) -> Any:
    raise LoweringError(f"the call of {attrs.func} cannot be part of another kernel")


def _registered(_arithmetic: object, attrs: Callee, *arrays: object) -> Any:
    raise LoweringError(f"{attrs.func} has no reference of its own: call compiler.evaluate")


def _operator(name: str, doc: str, effect: bool = False) -> OpDef:
    return OpDef(
        name,
        _infer,
        _registered,
        _no_lowering,
        attrs=Callee,
        arity=(0, None),
        callee=True,
        effect=effect,
        doc=doc,
    )


CALL_TIR = _operator("call_tir", "A tensor program of the same module.")
CALL_DPS_PACKED = _operator(
    "call_dps_packed", "A registered function whose results depend on its operands alone."
)
CALL_PACKED = _operator("call_packed", "A registered function that has effects.", effect=True)
CALLS = {op.name: op for op in (CALL_TIR, CALL_DPS_PACKED, CALL_PACKED)}

NOTHING = TupleType(())
"""The type of a call that fills no tensor."""


def call_tir(func: str, args: Sequence[Atom], out: Type) -> Call:
    """Call of the tensor program `func` of the module; its value is of type `out`."""
    return Call(CALL_TIR, tuple(args), Callee(func, out))


def call_dps_packed(func: str, args: Sequence[Atom], out: Type) -> Call:
    """Call of the function registered as `func`, which does nothing but fill its outputs: it may be
    dropped when they are not needed, and merged with one like it."""
    return Call(CALL_DPS_PACKED, tuple(args), Callee(func, out))


def call_packed(func: str, args: Sequence[Atom], out: Type = NOTHING) -> Call:
    """Call of the function registered as `func`, which may do anything (but change its operands):
    it is called once each time the program runs, in program order."""
    return Call(CALL_PACKED, tuple(args), Callee(func, out))


def is_callee(value: object) -> TypeGuard[Call]:
    """Whether `value` is one of these calls."""
    return isinstance(value, Call) and isinstance(value.op, OpDef) and value.op.callee
