"""Reads types and symbolic dimensions."""

from __future__ import annotations

from compiler.errors import DtypelabError
from compiler.types.dimension_parser import DimensionParser
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type


class TypeParser(DimensionParser):
    """Reads types as they are printed."""

    def type(self) -> Type:
        """`Tensor[(dims), dtype]`, a tuple of types, or `fn(types) -> type`."""
        if self.accept("fn"):
            self.take("(")
            params = self.listed(self.type, ")")
            self.take("->")
            return FuncType(tuple(params), self.type())
        return self.tuple_type() if self.sees("(") else self.tensor_type()

    def tuple_type(self) -> TupleType:
        """Types in parentheses."""
        self.take("(")
        return TupleType(tuple(self.listed(self.type, ")")))

    def tensor_type(self) -> TensorType:
        """`Tensor[(dims), dtype]`."""
        self.take("Tensor")
        self.take("[")
        self.take("(")
        shape = self.listed(self.dimension, ")")
        self.take(",")
        at = self.k
        name = self.take(kind="name").text
        try:
            t = TensorType.of(shape, name)
        except DtypelabError as e:
            self.k = at
            raise self.error(str(e)) from None
        self.take("]")
        return t
