"""Graph-level expressions in A-normal form: every operand is a variable or a constant.

A `Function` is a list of bindings `var = value` and a result. Nodes are immutable and compared by
identity; rewriting makes new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.dtypes import Array, DType
from compiler.ir.types import FuncType, TensorType, TupleType, Type

if TYPE_CHECKING:
    from compiler.op.opdef import OpDef
    from compiler.tensor.stmt import PrimFunc


@dataclass(frozen=True, eq=False)
class Var:
    """A named value. The type is None until it has been inferred."""

    name: str
    type: Type | None = None

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor known at compile time; `data` holds storage integers when the dtype is custom."""

    data: Array
    dtype: DType

    @staticmethod
    def of(value: Any, dtype: DType | str | None = None) -> Constant:
        """Constant from array-like data; without `dtype`, numpy's dtype of the data is kept."""
        d = DType.parse(dtype) if dtype is not None else None
        data = np.asarray(value) if d is None else np.asarray(value, dtype=d.storage)
        return Constant(data, d or DType.parse(data.dtype))

    @property
    def type(self) -> TensorType:
        """Type of the constant."""
        return TensorType(tuple(self.data.shape), self.dtype)


Atom = Var | Constant


@dataclass(frozen=True, eq=False)
class Call:
    """An operator, or a (fused) function, applied to atoms."""

    op: OpDef | Function
    args: tuple[Atom, ...]
    attrs: Any = None


@dataclass(frozen=True, eq=False)
class Tuple:
    """Several values as one."""

    fields: tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class TupleGetItem:
    """Field `index` of a tuple value."""

    value: Atom
    index: int


Value = Call | Tuple | TupleGetItem | Var | Constant


@dataclass(frozen=True, eq=False)
class Binding:
    """`var = value`. `origins`: names of the imported nodes that this value comes from."""

    var: Var
    value: Value
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Function:
    """Parameters, bindings in execution order, and the result values.

    `attrs` marks what passes need to know, e.g. `{"primitive": True}` on a fused group.
    """

    params: tuple[Var, ...]
    bindings: tuple[Binding, ...]
    results: tuple[Atom, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> FuncType:
        """Type of the function; needs inferred types."""
        results = [atom_type(r) for r in self.results]
        result = results[0] if len(results) == 1 else TupleType(tuple(results))
        return FuncType(tuple(atom_type(p) for p in self.params), result)

    def with_body(self, bindings: Iterable[Binding], results: Iterable[Atom]) -> Function:
        """The same function with other bindings and results."""
        return replace(self, bindings=tuple(bindings), results=tuple(results))


@dataclass(frozen=True, eq=False)
class IRModule:
    """Named functions of both levels. `attrs` records facts of the model (`opset`, `producer`
    ...)."""

    functions: Mapping[str, Function | PrimFunc]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Function:
        from compiler.errors import DtypelabError, unknown

        f = self.functions.get(name)
        if not isinstance(f, Function):
            raise DtypelabError(unknown("function", name, self.functions))
        return f

    @property
    def main(self) -> Function:
        """The entry function."""
        return self["main"]

    def with_function(self, name: str, f: Function) -> IRModule:
        """The same module with one function replaced."""
        return replace(self, functions={**self.functions, name: f})

    def astext(self, show_meta_data: bool = False) -> str:
        """Printed program; with `show_meta_data`, constants are written out in full."""
        from compiler.ir.printer import module_text

        return module_text(self, show_meta_data)

    def __str__(self) -> str:
        return self.astext()


def atom_type(a: Atom) -> Type:
    """The inferred type of an atom.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred yet.
    """
    if a.type is None:
        from compiler.errors import TypeInferenceError

        raise TypeInferenceError(f"the type of %{a.name} is not known yet: run InferType first")
    return a.type


def tensor_type(a: Atom) -> TensorType:
    """The inferred tensor type of an atom.

    Raises:
        compiler.errors.TypeInferenceError: not inferred yet, or not a tensor.
    """
    t = atom_type(a)
    if isinstance(t, TensorType):
        return t
    from compiler.errors import TypeInferenceError

    raise TypeInferenceError(f"{a!r} must be a tensor, not {t}")


def operands(value: Value) -> tuple[Atom, ...]:
    """The atoms that `value` reads."""
    if isinstance(value, Call):
        return value.args
    if isinstance(value, Tuple):
        return value.fields
    if isinstance(value, TupleGetItem):
        return (value.value,)
    return (value,)


def with_operands(value: Value, atoms: Iterable[Atom]) -> Value:
    """`value` reading `atoms` instead."""
    new = tuple(atoms)
    if new == operands(value):
        return value
    if isinstance(value, Call):
        return replace(value, args=new)
    if isinstance(value, Tuple):
        return Tuple(new)
    if isinstance(value, TupleGetItem):
        return TupleGetItem(new[0], value.index)
    return new[0]


def substitute(value: Value, mapping: Mapping[Var, Atom]) -> Value:
    """`value` with variables replaced."""
    return with_operands(
        value, (mapping.get(a, a) if isinstance(a, Var) else a for a in operands(value))
    )


def uses(f: Function) -> dict[Var, list[Binding | None]]:
    """Variable -> the bindings that read it, once per operand; None stands for the function's
    result."""
    out: dict[Var, list[Binding | None]] = {}
    for b in f.bindings:
        for a in operands(b.value):
            if isinstance(a, Var):
                out.setdefault(a, []).append(b)
    for r in f.results:
        if isinstance(r, Var):
            out.setdefault(r, []).append(None)
    return out


def calls(f: Function, op: str | None = None) -> Iterator[tuple[Binding, Call]]:
    """The bindings of `f` that call an operator (named `op`, if given), with their calls."""
    for b in f.bindings:
        if isinstance(b.value, Call) and (op is None or getattr(b.value.op, "name", None) == op):
            yield b, b.value
