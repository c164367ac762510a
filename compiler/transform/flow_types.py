"""The types of what flows back into values that hold tensors: of algebraic data types, and of
tuples in them.

A value of such a type may hold any number of tensors, into some of which nothing flows. So for each
definition there is another one, whose values hold what flows back into those fields that are of
floats, or nothing at all: of `List[A]`

    type ListFlow[A] { ConsFlow(A, ListFlow[A]), NoListFlow }

and for tensors in data `Flow[A] { Flow(A), NoFlow }`. Zeros are made only where an operator needs
them, or at the end: what nothing flows into costs nothing, and need not have a size that is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.errors import UnsupportedError
from compiler.transform.gradient_step import differentiable
from compiler.types.data import Constructor, TypeDef
from compiler.types.names import unique
from compiler.types.tensor_types import (
    DataType,
    FuncType,
    TensorType,
    TupleType,
    Type,
    TypeVar,
)

Flags = tuple[bool, ...]
"""Of the arguments of a type: whether anything flows back into their values."""


def is_tensor(t: Type) -> bool:
    """Whether values of a type are tensors into which anything may flow back."""
    return isinstance(t, TensorType) and differentiable(t.dtype)


class FlowTypes:
    """The types of what flows back into values of a module with some definitions.

    Attributes:
        types: the definitions that were made.
    """

    def __init__(self, types: Mapping[str, TypeDef]):
        self.definitions = types
        self.types: dict[str, TypeDef] = {}
        self._words = {
            w for d in types.values() for w in (d.name, *(c.name for c in d.constructors))
        }
        self._of: dict[tuple[str, Flags], TypeDef] = {}
        self._forms: dict[tuple[str, str], str] = {}
        self._flowing: dict[tuple[str, Flags], bool] = {}
        self._leaf: TypeDef | None = None

    # ---- types -----------------------------------------------------------------------------------
    def any(self, t: Type) -> bool:
        """Whether anything may flow back into values of a type; also said of functions."""
        return self._any(t, {})

    def _any(self, t: Type, flags: Mapping[TypeVar, bool]) -> bool:
        if isinstance(t, TypeVar):
            return flags[t]
        if isinstance(t, DataType):
            return self._data_flows(t.name, tuple(self._any(x, flags) for x in t.args))
        if isinstance(t, TupleType):
            return any(self._any(x, flags) for x in t.fields)
        return isinstance(t, FuncType) or is_tensor(t)

    def _data_flows(self, name: str, flags: Flags) -> bool:
        """Whether data of a definition have fields into which anything may flow, if arguments do
        that have a flag. Found upwards, from nothing, as types hold themselves."""
        if (name, flags) not in self._flowing:
            found = {(name, flags): False}

            def flows(t: Type, given: Mapping[TypeVar, bool]) -> bool:
                if isinstance(t, TypeVar):
                    return given[t]
                if isinstance(t, DataType):
                    inner = t.name, tuple(flows(x, given) for x in t.args)
                    return found.setdefault(inner, False)
                if isinstance(t, TupleType):
                    return any(flows(x, given) for x in t.fields)
                return isinstance(t, FuncType) or is_tensor(t)

            before: dict[tuple[str, Flags], bool] = {}
            while before != found:
                before = dict(found)
                for n, given in before:
                    d = self.definitions[n]
                    told = dict(zip(d.params, given, strict=True))
                    fields = [x for c in d.constructors for x in c.fields]
                    found[n, given] = any(flows(x, told) for x in fields)
            self._flowing |= found
        return self._flowing[name, flags]

    def held(self, t: Type) -> Type:
        """The type of what flows back into something of type `t` inside of data or of a tuple.

        Raises:
            UnsupportedError: there are functions in it.
        """
        return self._held(t, {})

    def _held(self, t: Type, flags: Mapping[TypeVar, bool]) -> Type:
        if isinstance(t, TypeVar):
            return t
        if isinstance(t, TensorType):
            return DataType(self.leaf.name, (t,))
        if isinstance(t, TupleType):
            inner = [self._held(x, flags) for x in t.fields if self._any(x, flags)]
            return inner[0] if len(inner) == 1 else TupleType(tuple(inner))
        if isinstance(t, FuncType):
            raise UnsupportedError(
                f"functions inside of data have no gradient ({t}): give them to functions that "
                "take them"
            )
        told = tuple(self._any(x, flags) for x in t.args)
        args = (self._held(x, flags) for x, flowing in zip(t.args, told, strict=True) if flowing)
        return DataType(self._definition(t.name, told).name, tuple(args))

    def whole(self, t: Type) -> Type:
        """The type of what flows back into a value of type `t`: into a tensor, one like it."""
        return t if isinstance(t, TensorType) else self.held(t)

    @property
    def leaf(self) -> TypeDef:
        """The definition of what flows back into tensors."""
        if self._leaf is None:
            name, none = self._word("Flow"), self._word("NoFlow")
            a = TypeVar("A")
            forms = (Constructor(name, (a,)), Constructor(none))
            self._leaf = self.types[name] = TypeDef(name, (a,), forms)
        return self._leaf

    def _word(self, stem: str) -> str:
        return unique(stem, self._words)

    def _definition(self, name: str, flags: Flags) -> TypeDef:
        """That of what flows back into data of a definition, into whose arguments something flows
        that have a flag."""
        if (name, flags) in self._of:
            return self._of[name, flags]
        d = self.definitions[name]
        new = self._word(f"{name}Flow")
        told = dict(zip(d.params, flags, strict=True))
        params = tuple(p for p in d.params if told[p])
        self._of[name, flags] = TypeDef(new, params, ())  # for fields of this type
        forms = []
        for c in d.constructors:
            if any(self._any(x, told) for x in c.fields):
                word = self._forms[new, c.name] = self._word(f"{c.name}Flow")
                fields = tuple(self._held(x, told) for x in c.fields if self._any(x, told))
                forms.append(Constructor(word, fields))
        made = TypeDef(new, params, (*forms, Constructor(self._word(f"No{name}Flow"))))
        self._of[name, flags] = self.types[new] = made
        return made

    def made_for(self, t: DataType) -> TypeDef:
        """The definition of what flows back into data of a type."""
        return self._definition(t.name, tuple(map(self.any, t.args)))

    def form(self, t: Type) -> TypeDef:
        """The definition of what flows back into a tensor in data, or into data."""
        return self.made_for(t) if isinstance(t, DataType) else self.leaf

    def constructor(self, t: DataType, name: str) -> str:
        """The constructor of what flows back into data that the one called `name` made."""
        return self._forms[self.made_for(t).name, name]

    def flowing_fields(self, t: DataType, constructor: str) -> dict[int, Type]:
        """Those fields of a constructor into which anything may flow back, by number."""
        fields = enumerate(self.definitions[t.name].fields(constructor, t.args))
        return {k: x for k, x in fields if self.any(x)}

    def kinds(self, t: Type, word: str) -> list[Type]:
        """What the fields of a constructor of flows are flows of; `t`: what they flow into."""
        if not isinstance(t, DataType):
            return [t]
        name = self.made_for(t).name
        (constructor,) = (c for (d, c), w in self._forms.items() if d == name and w == word)
        return list(self.flowing_fields(t, constructor).values())
