"""FunctionBuilder: makes a Function binding by binding, inferring types on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    Tuple,
    TupleGetItem,
    Value,
    Var,
)
from compiler.ir.inference import infer_value
from compiler.symbolic import IntLike
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType, TupleType, Type


class FunctionBuilder:
    """Appends typed bindings; names are made unique.

    >>> b = FunctionBuilder()
    >>> x = b.param("x", (Var("n"), 4), "float32")          # doctest: +SKIP
    >>> f = b.finish(b.call("nn.relu", x))                   # doctest: +SKIP
    """

    def __init__(self) -> None:
        self.params: list[Var] = []
        self.bindings: list[Binding] = []
        self._names: set[str] = set()

    def fresh(self, stem: str) -> str:
        """A name nobody has yet, from `stem`."""
        return unique(stem, self._names)

    def param(self, name: str, shape: Sequence[IntLike], dtype: Any = "float32") -> Var:
        """Add a tensor parameter."""
        return self.add_param(Var(name, TensorType.of(shape, dtype)))

    def add_param(self, var: Var) -> Var:
        """Add a parameter that exists already (its name is kept)."""
        self._names.add(var.name)
        self.params.append(var)
        return var

    def call(
        self, op: str, *args: Atom, name: str = "", origins: Sequence[str] = (), **attrs: Any
    ) -> Var:
        """Bind `op(args)` with attributes given by keyword.

        Raises:
            compiler.errors.TypeInferenceError: the operands do not fit the operator.
        """
        from compiler.op.library import get_op

        definition = get_op(op)
        return self.bind(Call(definition, args, definition.make_attrs(**attrs)), name, origins)

    def bind(self, value: Value, name: str = "", origins: Sequence[str] = ()) -> Var:
        """Bind any value to a fresh variable of its inferred type."""
        var = Var(self.fresh(name or str(len(self.bindings))), infer_value(value))
        self.bindings.append(Binding(var, value, tuple(origins)))
        return var

    def emit(self, binding: Binding) -> Var:
        """Append a binding that exists already, keeping its variable."""
        self._names.add(binding.var.name)
        self.bindings.append(binding)
        return binding.var

    def get(self, value: Var, index: int) -> Var:
        """Bind field `index` of a tuple value."""
        return self.bind(TupleGetItem(value, index))

    def tuple(self, *fields: Atom) -> Var:
        """Bind a tuple."""
        return self.bind(Tuple(fields))

    def const(self, value: Any, dtype: Any = None) -> Constant:
        """A constant from array-like data."""
        return Constant.of(value, dtype)

    def finish(self, *results: Atom, attrs: Mapping[str, Any] | None = None) -> Function:
        """The function that returns `results`."""
        return Function(tuple(self.params), tuple(self.bindings), results, dict(attrs or {}))


__all__ = ["FunctionBuilder", "TupleType", "Type"]
