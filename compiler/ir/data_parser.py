"""Reads definitions of algebraic data types, and patterns of their values."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.errors import unknown
from compiler.ir.attribute_parser import AttributeParser
from compiler.ir.expr import Var
from compiler.types.data import Anything, Constructor, Form, Named, Pattern, Several, TypeDef
from compiler.types.tensor_types import TypeVar


class DataParser(AttributeParser):
    """A cursor that knows the algebraic data types of a text.

    Attributes:
        definitions: of the text, and those that it may use without writing them.
        constructors: name -> the definition that it belongs to.
    """

    def read_definitions(self, given: Mapping[str, TypeDef]) -> dict[str, TypeDef]:
        """The definitions in the text; those `given` are known too."""
        self.definitions: dict[str, TypeDef] = dict(given)
        places = [k for k in range(len(self.tokens)) if self._defines(k)]
        self.defined = [*given, *(self.tokens[k + 1].text for k in places)]
        own: dict[str, TypeDef] = {}
        for k in places:
            self.k = k
            d = self.type_definition()
            if d.name in own:
                self.k = k + 1
                raise self.error(f"{d.name} is defined twice")
            own[d.name] = d
        self.definitions |= own
        self.arities = {name: len(d.params) for name, d in self.definitions.items()}
        self.constructors = {c.name: d for d in self.definitions.values() for c in d.constructors}
        self.k = 0
        return own

    def _defines(self, k: int) -> bool:
        """Whether a definition begins at token `k`."""
        return (
            self.tokens[k].text == "type"
            and k + 2 < len(self.tokens)
            and self.tokens[k + 1].kind == "name"
            and self.tokens[k + 2].text in ("[", "{")
        )

    def type_definition(self) -> TypeDef:
        """`type Name[A, ...] { Constructor(types), ... }`."""
        self.take("type")
        name = self.take(kind="name").text
        params = self.type_params()
        self.take("{")
        constructors = self.listed(self._constructor, "}")
        self.variables = ()
        return TypeDef(name, params, tuple(constructors))

    def _constructor(self) -> Constructor:
        name = self.take(kind="name").text
        fields = self.listed(self.type, ")") if self.accept("(") else []
        return Constructor(name, tuple(fields))

    def type_params(self) -> tuple[TypeVar, ...]:
        """Names of type variables in brackets, if there are any; types may have them from here
        on."""
        found = self.listed(lambda: self.take(kind="name").text, "]") if self.accept("[") else []
        self.variables = tuple(found)
        return tuple(map(TypeVar, found))

    def definition_of(self) -> tuple[TypeDef, str]:
        """A constructor, and the definition that it belongs to."""
        t = self.take(kind="name")
        if t.text not in self.constructors:
            self.k -= 1
            raise self.error(unknown("constructor", t.text, self.constructors))
        return self.constructors[t.text], t.text

    def case_pattern(self, variables: dict[str, Var]) -> Pattern:
        """`_`, a variable, `Constructor(patterns)`, or patterns in parentheses; adds its variables
        to `variables`."""
        if self.accept("_"):
            return Anything()
        if self.now.kind == "var":
            name = self.take().text[1:]
            if name in variables:
                self.k -= 1
                raise self.error(f"{variables[name]} stands in this pattern twice")
            variables[name] = Var(name)
            return Named()
        if self.accept("("):
            return Several(tuple(self.listed(lambda: self.case_pattern(variables), ")")))
        definition, name = self.definition_of()
        inner = self.listed(lambda: self.case_pattern(variables), ")") if self.accept("(") else []
        return Form(definition, name, tuple(inner))
