"""Reads symbolic integers (dimensions of types, indices of loop nests) and types as they are
printed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from compiler.errors import DtypelabError, unknown
from compiler.symbolic import Index, imax, imin
from compiler.symbolic import Var as Dim
from compiler.types.tensor_types import DataType, FuncType, TensorType, TupleType, Type, TypeVar
from compiler.types.tokens import Cursor, Token


class DimensionParser(Cursor):
    """Reads sums of products of numbers, names, `//`, `%`, `min` and `max`."""

    def dimension(self) -> Index:
        """A sum."""
        out = self.factor()
        while not self.done:
            if self.accept("-"):
                out = out - self.factor()
            elif self.accept("+") or (self.now.kind == "number" and self.now.text[0] == "-"):
                out = out + self.factor()
            else:
                break
        return out

    def factor(self) -> Index:
        """One product; a sign before it belongs to its first part, which `//` may round then."""
        out = -self.unit() if self.accept("-") else self.unit()
        while True:
            if self.accept("*"):
                out = out * self.unit()
            elif self.sees("//") or self.sees("%"):
                out = self._divided(out)
            else:
                return out

    def _divided(self, out: Index) -> Index:
        at = self.now.at
        quotient = self.take().text == "//"
        by = self.unit()
        try:
            return out // by if quotient else out % by
        except ZeroDivisionError as e:
            raise self.error_at(at, str(e)) from None

    def unit(self) -> Index:
        """A number, a name, `min(a, b)`, `max(a, b)`, or an expression in parentheses."""
        if self.accept("("):
            out = self.dimension()
            self.take(")")
            return out
        t = self.now
        if t.kind == "number" and re.fullmatch(r"-?\d+", t.text):
            return Index.of(int(self.take().text))
        if t.kind != "name":
            raise self.error(f"expected a dimension, found {t.text!r}")
        self.take()
        if t.text in ("min", "max") and self.accept("("):
            a = self.dimension()
            self.take(",")
            b = self.dimension()
            self.take(")")
            return imin(a, b) if t.text == "min" else imax(a, b)
        return self.named(t)

    def named(self, t: Token) -> Index:
        """What a name stands for: a dimension of that name."""
        return Dim(t.text)


class TypeParser(DimensionParser):
    """Reads types as they are printed.

    Attributes:
        defined: algebraic data types that there are, by name.
        variables: type variables that there are here.
        arities: how many arguments they take, of those where that is known already.
    """

    defined: Collection[str] = ()
    variables: Collection[str] = ()
    arities: Mapping[str, int] = MappingProxyType({})

    def type(self) -> Type:
        """`Tensor[(dims), dtype]`, a tuple of types, `fn(types) -> type`, `Name[types]`, or a type
        variable."""
        if self.accept("fn"):
            self.take("(")
            params = self.listed(self.type, ")")
            self.take("->")
            return FuncType(tuple(params), self.type())
        if self.sees("("):
            return self.tuple_type()
        name = self.now.text
        if self.now.kind != "name" or name == "Tensor" or not (self.defined or self.variables):
            return self.tensor_type()
        if name not in self.defined and name not in self.variables:
            raise self.error(unknown("type", name, [*self.defined, *self.variables, "Tensor"]))
        at = self.k
        self.take()
        if name in self.variables:
            return TypeVar(name)
        out = DataType(name, self.types_listed())
        if (wanted := self.arities.get(name)) is not None and len(out.args) != wanted:
            self.k = at
            raise self.error(f"{name} takes {wanted} types, not {len(out.args)}")
        return out

    def types_listed(self) -> tuple[Type, ...]:
        """Types in brackets, if there are any."""
        return tuple(self.listed(self.type, "]")) if self.accept("[") else ()

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
