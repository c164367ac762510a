"""What graph functions are written with, besides the operators of `compiler.call`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import TypeInferenceError
from compiler.ir import function_calls
from compiler.ir.expr import Atom, Call
from compiler.ir.expression import Expr, expression, operand
from compiler.op.opdef import OpDef
from compiler.symbolic import IntLike, Var
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType, TupleType, Type

Shape = Sequence[IntLike | str]


@dataclass(frozen=True)
class Tensor:
    """A parameter of a graph function: `x: Tensor(("n", 784), "float32")`; names in the shape are
    symbolic dimensions."""

    shape: Shape
    dtype: str | DType = "float32"

    @property
    def type(self) -> TensorType:
        """The type that it stands for."""
        shape = [Var(d) if isinstance(d, str) else d for d in self.shape]
        return TensorType.of(shape, self.dtype)


@dataclass(frozen=True)
class ProgramName:
    """A tensor program of the module that is being written."""

    name: str
    program: PrimFunc


@dataclass(frozen=True)
class Dataflow:
    """A part of a graph function in which nothing has effects."""


def dataflow() -> Dataflow:
    """`with dataflow():` calls in it have no effects, and names in it stay in it, but for those
    that `output(...)` gives out."""
    return Dataflow()


@dataclass(frozen=True)
class Output:
    """Values that a dataflow block gives out."""

    values: tuple[Any, ...]


def output(*values: Any) -> Output:
    """Give values out of the dataflow block."""
    return Output(values)


def call_tir(
    func: Any, args: Sequence[Any], out: Any, dtype: str | DType | None = "float32"
) -> Expr:
    """A call in destination-passing style: `func(*args, result)` fills the result.

    Args:
        func: a tensor program of the module, or the name of a registered function.
        args: the operands, in parentheses.
        out: the shape of the result; or a Tensor, or a list of them for several results.
        dtype: of the result, if `out` is a shape.

    Raises:
        TypeInferenceError: `func` is neither.
    """
    if isinstance(func, str):
        return _call(function_calls.CALL_DPS_PACKED, func, args, _type(out, dtype))
    if isinstance(func, ProgramName):
        return _call(function_calls.CALL_TIR, func.name, args, _type(out, dtype))
    raise TypeInferenceError(f"{func!r} is neither a tensor program here nor a function's name")


def call_packed(
    func: str, *args: Any, out: Any = (), dtype: str | DType | None = "float32"
) -> Expr:
    """A call of a registered function that has effects: it is made once for each run, in order.
    Without `out` it fills nothing; see `call_tir`."""
    if isinstance(out, list | tuple) and not out:
        return _call(function_calls.CALL_PACKED, func, args, TupleType(()))
    return _call(function_calls.CALL_PACKED, func, args, _type(out, dtype))


def _type(out: Any, dtype: str | DType | None) -> Type:
    if isinstance(out, Tensor):
        return out.type
    if isinstance(out, list | tuple) and out and all(isinstance(t, Tensor) for t in out):
        return TupleType(tuple(t.type for t in out))
    return Tensor(tuple(out), dtype or "float32").type


def _call(op: OpDef, func: str, args: Sequence[Any], out: Type) -> Expr:
    if not isinstance(args, list | tuple):
        raise TypeInferenceError(f"the operands of {func} stand in parentheses: (x,)")

    def make(atoms: Sequence[Atom], _: object) -> Call:
        return Call(op, tuple(atoms), function_calls.Callee(func, out))

    return expression(make, tuple(map(operand, args)))
