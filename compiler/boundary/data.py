"""Values of algebraic data types, as they go into programs, through them and out of them.

They may be deep (a list is as deep as it is long): nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.boundary.inputs import bind_inputs, named_inputs
from compiler.errors import InputError, TypeInferenceError
from compiler.symbolic import Var
from compiler.types.data import Anything, Form, Named, Pattern, TypeDef
from compiler.types.dtypes import Array
from compiler.types.tensor_types import DataType, TensorType, TupleType, Type

_SHOWN = 12
"""Constructors that the text of a value has, before it is cut off."""


@dataclass(frozen=True, eq=False, repr=False)
class Datum:
    """A value of an algebraic data type: what a constructor made of its fields, which are arrays,
    tuples, closures and other such values."""

    constructor: str
    fields: tuple[Any, ...] = ()

    @staticmethod
    def listed(items: Iterable[Any]) -> Datum:
        """The prelude's `List` of these items."""
        out = Datum("Nil")
        for x in reversed(list(items)):
            out = Datum("Cons", (x, out))
        return out

    def items(self) -> list[Any]:
        """The items of such a list.

        Raises:
            InputError: it is none.
        """
        out, rest = [], self
        while rest.constructor == "Cons":
            item, rest = rest.fields
            out.append(item)
        if rest.constructor != "Nil":
            raise InputError(f"{rest!r} is no list of Cons and Nil")
        return out

    def __repr__(self) -> str:
        return _text(self, [_SHOWN])


def _text(value: Any, left: list[int]) -> str:
    if isinstance(value, Datum):
        left[0] -= 1
        if left[0] < 0:
            return "..."
        inner = ", ".join(_text(x, left) for x in value.fields)
        return f"{value.constructor}({inner})" if value.fields else value.constructor
    if isinstance(value, tuple):
        return f"({', '.join(_text(x, left) for x in value)})"
    return repr(value)


def fits(pattern: Pattern, value: Any) -> list[Any] | None:
    """The values of a pattern's variables, if `value` has this pattern."""
    if isinstance(pattern, Anything):
        return []
    if isinstance(pattern, Named):
        return [value]
    if isinstance(pattern, Form) and value.constructor != pattern.constructor:
        return None
    fields = value.fields if isinstance(pattern, Form) else value
    out: list[Any] = []
    for p, x in zip(pattern.fields, fields, strict=True):
        found = fits(p, x)
        if found is None:
            return None
        out += found
    return out


def holds_data(t: Type | None) -> bool:
    """Whether values of this type are, or hold, those of algebraic data types."""
    if isinstance(t, TupleType):
        return any(map(holds_data, t.fields))
    return isinstance(t, DataType)


def tensor_params(params: Sequence[tuple[str, Type]]) -> list[tuple[str, TensorType]]:
    """Those parameters that are tensors."""
    return [(name, t) for name, t in params if isinstance(t, TensorType)]


def bind_values(
    params: Sequence[tuple[str, Type]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    types: Mapping[str, TypeDef],
) -> tuple[list[Any], dict[Var, int]]:
    """Values in parameter order, and those of the symbolic dimensions of tensors; see bind_inputs.
    What data hold may be given as everything that tensors may be given as, and floats as Python's.

    Raises:
        InputError: as `bind_inputs`; a value is of another type than its parameter; or a parameter
            is a function.
    """
    tensors = tensor_params(params)
    if len(tensors) == len(params):
        return bind_inputs(tensors, args, kwargs)
    given = named_inputs([name for name, _ in params], args, kwargs)
    arrays, dims = bind_inputs(tensors, [], {name: given[name] for name, _ in tensors})
    found = dict(zip((name for name, _ in tensors), arrays, strict=True))
    values = [
        found[name] if name in found else _checked(name, t, given[name], types)
        for name, t in params
    ]
    return values, dims


def _checked(name: str, t: Type, value: Any, types: Mapping[str, TypeDef]) -> Any:
    """A value of type `t` for the input `name`, of arrays as programs have them."""
    wanted: dict[tuple[str, int], tuple[Type, ...]] = {}
    one: dict[Type, Type] = {t: t}  # types that are equal are one object

    def inside(x: Any, t: Type) -> list[tuple[Any, Type]] | None:
        if isinstance(t, TensorType):
            return None
        if isinstance(t, TupleType):
            if not isinstance(x, tuple | list) or len(x) != len(t.fields):
                raise InputError(f"input {name!r}: {t} is a tuple of {len(t.fields)} values")
            return list(zip(x, t.fields, strict=True))
        if not isinstance(t, DataType):
            raise InputError(f"input {name!r}: {t} cannot be given from outside")
        if not isinstance(x, Datum):
            raise InputError(f"input {name!r} must hold a compiler.Datum of {t}, not {_kind(x)}")
        key = x.constructor, id(t)
        if key not in wanted:
            try:
                fields = types[t.name].fields(x.constructor, t.args)
            except TypeInferenceError as e:
                raise InputError(f"input {name!r}: {e}") from None
            wanted[key] = tuple(one.setdefault(f, f) for f in fields)
        if len(x.fields) != len(wanted[key]):
            raise InputError(
                f"input {name!r}: {x.constructor} of {t} has {len(wanted[key])} fields, not "
                f"{len(x.fields)}"
            )
        return list(zip(x.fields, wanted[key], strict=True))

    def leaf(x: Any, t: Type) -> Any:
        assert isinstance(t, TensorType)
        if type(x) is float and t.dtype.is_float:  # a number of Python has no width
            x = np.asarray(x, t.dtype.storage)
        ((array,), _) = bind_inputs([(name, t)], [x], {})
        return array

    return rebuilt(value, t, inside, leaf)


def _kind(x: Any) -> str:
    return f"{type(x).__name__} {x!r:.60}"


def rebuilt(
    value: Any,
    context: Any,
    inside: Callable[[Any, Any], Sequence[tuple[Any, Any]] | None],
    leaf: Callable[[Any, Any], Any],
) -> Any:
    """A value of the same form, with other leaves. Data and tuples that occur in it several times
    are made once, and occur in the result as often.

    Args:
        value, context: the value, and what is known of it (its type).
        inside: the same of what a value holds; None: it is a leaf.
        leaf: what takes the place of a leaf.
    """
    held = inside(value, context)
    if held is None:
        return leaf(value, context)
    known: dict[tuple[int, int], Any] = {}  # by identity: contexts are few objects
    stack = [_Under(value, (id(value), id(context)), held)]
    while stack:
        top = stack[-1]
        for x, c in top.held[len(top.made) :]:
            key = id(x), id(c)
            inner = None if key in known else inside(x, c)
            if inner is not None:
                stack.append(_Under(x, key, inner))
                break
            top.made.append(known[key] if key in known else leaf(x, c))
        else:
            known[top.key] = stack.pop().whole()
    return known[id(value), id(context)]


@dataclass(slots=True, eq=False)
class _Under:
    """A value under way: what it holds, and what has been made of that."""

    value: Any
    key: tuple[int, int]
    held: Sequence[tuple[Any, Any]]
    made: list[Any] = field(default_factory=list)

    def whole(self) -> Any:
        fields = tuple(self.made)
        return Datum(self.value.constructor, fields) if isinstance(self.value, Datum) else fields


def held_by(value: Any, _: None) -> list[tuple[Any, None]] | None:
    """`inside` of `rebuilt`, where nothing needs to be known: fields of data and tuples."""
    if isinstance(value, Datum | tuple):
        return [(x, None) for x in (value.fields if isinstance(value, Datum) else value)]
    return None


def arrays_in(value: Any) -> Iterator[Array]:
    """The arrays that a value holds."""
    found: list[Array] = []
    rebuilt(value, None, held_by, lambda x, _: found.append(x))
    yield from found
