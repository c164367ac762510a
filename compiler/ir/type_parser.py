"""Reads types and symbolic dimensions."""

from __future__ import annotations

import re

from compiler.errors import DtypelabError
from compiler.ir.tokens import Cursor
from compiler.ir.types import FuncType, TensorType, TupleType, Type
from compiler.symbolic import Index, imin
from compiler.symbolic import Var as Dim


class TypeParser(Cursor):
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

    def dimension(self) -> Index:
        """A sum of products of numbers, names, `//`, `%` and `min`."""
        out = -self.factor() if self.accept("-") else self.factor()
        while (
            self.sees("+")
            or self.sees("-")
            or (not self.done and self.now.kind == "number" and self.now.text.startswith("-"))
        ):
            if self.accept("+"):
                out = out + self.factor()
            elif self.accept("-"):
                out = out - self.factor()
            else:
                out = out + self.factor()
        return out

    def factor(self) -> Index:
        """One product."""
        out = self.unit()
        while True:
            if self.accept("*"):
                out = out * self.unit()
            elif self.accept("//"):
                out = out // self.unit()
            elif self.accept("%"):
                out = out % self.unit()
            else:
                return out

    def unit(self) -> Index:
        """A number, a name, `min(a, b)`, or an expression in parentheses."""
        if self.accept("("):
            out = self.dimension()
            self.take(")")
            return out
        t = self.take()
        if t.kind == "number" and re.fullmatch(r"-?\d+", t.text):
            return Index.of(int(t.text))
        if t.kind != "name":
            self.k -= 1
            raise self.error(f"expected a dimension, found {t.text!r}")
        if t.text == "min" and self.accept("("):
            a = self.dimension()
            self.take(",")
            b = self.dimension()
            self.take(")")
            return imin(a, b)
        return Dim(t.text)
