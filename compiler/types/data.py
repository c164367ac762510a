"""Algebraic data types: their definitions, and patterns of their values.

A definition has parameters, any types, and constructors, each with the types of its fields:
`type List[A] { Cons(A, List[A]), Nil }`. Definitions and patterns are data, compared by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import TypeInferenceError, unknown
from compiler.types.tensor_types import DataType, FuncType, TensorType, TupleType, Type, TypeVar

RESERVED = ("Tensor", "True", "False")
"""Names that mean something else in programs."""


@dataclass(frozen=True)
class Constructor:
    """One form that values of a type have: a name, and the types of what such a value holds."""

    name: str
    fields: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.fields))})" if self.fields else self.name


@dataclass(frozen=True)
class TypeDef:
    """An algebraic data type: what its values look like, for any types in place of `params`."""

    name: str
    params: tuple[TypeVar, ...]
    constructors: tuple[Constructor, ...]

    @property
    def type(self) -> DataType:
        """The type with its own parameters as arguments."""
        return DataType(self.name, self.params)

    def constructor(self, name: str) -> Constructor:
        """The constructor of that name.

        Raises:
            TypeInferenceError: there is none; names the nearest.
        """
        for c in self.constructors:
            if c.name == name:
                return c
        names = [c.name for c in self.constructors]
        raise TypeInferenceError(
            f"{self.type} has no such form: {unknown('constructor', name, names)}"
        )

    def fields(self, name: str, args: Sequence[Type]) -> tuple[Type, ...]:
        """Types of the fields of a constructor, for these arguments of the type."""
        mapping = dict(zip(self.params, args, strict=True))
        return tuple(with_types(t, mapping) for t in self.constructor(name).fields)

    def __str__(self) -> str:
        return f"type {self.type} {{ {', '.join(map(str, self.constructors))} }}"


# ---- patterns ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Anything:
    """`_`: any value."""


@dataclass(frozen=True)
class Named:
    """A variable: any value, which gets a name. The variables of a pattern are, from left to right,
    the parameters of the function that computes with them."""


@dataclass(frozen=True)
class Several:
    """A tuple whose fields have these patterns."""

    fields: tuple[Pattern, ...]


@dataclass(frozen=True)
class Form:
    """A value that a constructor made, of fields with these patterns."""

    definition: TypeDef
    constructor: str
    fields: tuple[Pattern, ...] = ()


Pattern = Anything | Named | Several | Form


def pattern_text(pattern: Pattern, names: Iterator[str]) -> str:
    """A pattern as it is printed; `names`: of its variables, as they are printed."""
    if isinstance(pattern, Anything):
        return "_"
    if isinstance(pattern, Named):
        return next(names)
    inner = ", ".join(pattern_text(p, names) for p in pattern.fields)
    if isinstance(pattern, Form):
        return f"{pattern.constructor}({inner})" if pattern.fields else pattern.constructor
    return f"({inner}{',' if len(pattern.fields) == 1 else ''})"


def pattern_types(pattern: Pattern, t: Type) -> list[Type]:
    """Types of the variables of a pattern of values of type `t`, from left to right.

    Raises:
        TypeInferenceError: no value of this type looks so.
    """
    if isinstance(pattern, Anything):
        return []
    if isinstance(pattern, Named):
        return [t]
    if isinstance(pattern, Several):
        fields: Sequence[Type] = t.fields if isinstance(t, TupleType) else ()
        if not isinstance(t, TupleType) or len(fields) != len(pattern.fields):
            raise TypeInferenceError(
                f"a pattern of {len(pattern.fields)} fields, but a value of {t}"
            )
    else:
        d = pattern.definition
        if not isinstance(t, DataType) or t.name != d.name or len(t.args) != len(d.params):
            raise TypeInferenceError(f"{pattern.constructor} is a form of {d.type}, not of {t}")
        fields = d.fields(pattern.constructor, t.args)
        require_fields(d, pattern.constructor, len(pattern.fields))
    both = zip(pattern.fields, fields, strict=True)
    return [found for p, field in both for found in pattern_types(p, field)]


def require_fields(d: TypeDef, name: str, given: int) -> None:
    """Check how many fields are given to a constructor.

    Raises:
        TypeInferenceError: others than it has, or the type has no such constructor.
    """
    c = d.constructor(name)
    if given != len(c.fields):
        fields = "1 field" if len(c.fields) == 1 else f"{len(c.fields)} fields"
        raise TypeInferenceError(f"{c} of {d.type} has {fields}, not {given}")


def definitions_in(pattern: Pattern) -> Iterator[TypeDef]:
    """The definitions whose constructors a pattern names."""
    if isinstance(pattern, Form):
        yield pattern.definition
    if isinstance(pattern, Form | Several):
        for p in pattern.fields:
            yield from definitions_in(p)


# ---- types ---------------------------------------------------------------------------------------
def with_types(t: Type, mapping: Mapping[TypeVar, Type]) -> Type:
    """`t` with types in place of variables, all at once."""
    if isinstance(t, TypeVar):
        return mapping.get(t, t)
    if isinstance(t, TensorType) or not mapping:
        return t
    if isinstance(t, FuncType):
        params = tuple(with_types(p, mapping) for p in t.params)
        return FuncType(params, with_types(t.result, mapping))
    if isinstance(t, TupleType):
        return TupleType(tuple(with_types(x, mapping) for x in t.fields))
    return DataType(t.name, tuple(with_types(x, mapping) for x in t.args))


def parts(t: Type) -> tuple[Type, ...]:
    """The types that stand in `t` itself."""
    if isinstance(t, FuncType):
        return (*t.params, t.result)
    if isinstance(t, TupleType):
        return t.fields
    return t.args if isinstance(t, DataType) else ()


def type_variables(*types: Type) -> dict[TypeVar, None]:
    """The variables in types, in order of their first use."""
    out: dict[TypeVar, None] = {}
    for t in types:
        out |= {t: None} if isinstance(t, TypeVar) else type_variables(*parts(t))
    return out


# ---- what a definition must be -------------------------------------------------------------------
def check_definitions(types: Mapping[str, TypeDef]) -> None:
    """Check the definitions of a module: names, what fields are made of, and that every type has
    values that end.

    Raises:
        TypeInferenceError: names the definition and what is wrong with it.
    """
    made_by: dict[str, str] = {}
    for name, d in types.items():
        if d.name != name:
            raise TypeInferenceError(f"the module calls {d.type} {name}")
        for c in d.constructors:
            if c.name in made_by:
                raise TypeInferenceError(
                    f"{c.name} is a constructor of {made_by[c.name]} and of {name}"
                )
            made_by[c.name] = name
        for word in (name, *(c.name for c in d.constructors)):
            if not (word.isidentifier() and word[0].isupper()) or word in RESERVED:
                raise TypeInferenceError(
                    f"{d}: {word!r} cannot be the name of a type or constructor, which begins "
                    f"with a capital letter and is none of {', '.join(RESERVED)}"
                )
        if len({*d.params}) < len(d.params):
            raise TypeInferenceError(f"{d} has two parameters of one name")
        for c in d.constructors:
            for t in c.fields:
                check_type(t, types, d.params, f"{d}: {c}")
                if open_size := _open_size(t):
                    raise TypeInferenceError(
                        f"{d}: the size {open_size} would be that of no program: give the type a "
                        "parameter for what has it"
                    )
    _check_finite(types)


def check_type(
    t: Type, types: Mapping[str, TypeDef], variables: Iterable[TypeVar], where: str
) -> None:
    """Check that a type is made of what is defined.

    Raises:
        TypeInferenceError: it is not.
    """
    known = {*variables}
    if isinstance(t, TypeVar) and t not in known:
        raise TypeInferenceError(f"{where}: {t} is no parameter")
    if isinstance(t, DataType):
        if t.name not in types:
            raise TypeInferenceError(f"{where}: {unknown('type', t.name, types)}")
        wanted = types[t.name]
        if len(t.args) != len(wanted.params):
            raise TypeInferenceError(
                f"{where}: {wanted.type} takes {len(wanted.params)} types, not {len(t.args)}"
            )
    for x in parts(t):
        check_type(x, types, known, where)


def _open_size(t: Type) -> str:
    """A dimension in a type that is not known; empty if there is none."""
    if isinstance(t, TensorType):
        return next((str(d) for d in t.shape if not isinstance(d, int)), "")
    return next((found for x in parts(t) if (found := _open_size(x))), "")


def _check_finite(types: Mapping[str, TypeDef]) -> None:
    """Values of a type end if a constructor has only fields whose values do. Found upwards, from
    nothing: for each type, and which of its arguments have values that end."""
    ends: dict[tuple[str, tuple[bool, ...]], bool] = {
        (name, (True,) * len(d.params)): False for name, d in types.items()
    }

    def end(t: Type, given: Mapping[TypeVar, bool]) -> bool:
        if isinstance(t, TypeVar):
            return given[t]
        if isinstance(t, DataType):
            return ends.setdefault((t.name, tuple(end(a, given) for a in t.args)), False)
        return all(end(x, given) for x in t.fields) if isinstance(t, TupleType) else True

    before: dict[tuple[str, tuple[bool, ...]], bool] = {}
    while before != ends:
        before = dict(ends)
        for name, flags in before:
            given = dict(zip(types[name].params, flags, strict=True))
            forms = types[name].constructors
            ends[name, flags] = any(all(end(t, given) for t in c.fields) for c in forms)
    for name, d in types.items():
        if not ends[name, (True,) * len(d.params)]:
            raise TypeInferenceError(
                f"{d} is an infinite type: each value of it holds another one, without end"
            )
