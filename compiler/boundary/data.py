"""Values of algebraic data types, as they go into programs, through them and out of them.

They may be deep (a list is as deep as it is long): nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from compiler.boundary.inputs import bind_inputs, named_inputs
from compiler.errors import InputError, TypeInferenceError
from compiler.symbolic import Var
from compiler.types.data import Anything, Form, Named, Pattern, TypeDef
from compiler.types.dtypes import Array
from compiler.types.tensor_types import DataType, TensorType, TupleType, Type

_Key = tuple[int, int]
"""A value and what is known of it, by identity: types that are equal are one object."""
_Held = Sequence[tuple[Any, Any]]
"""What a value holds, each with what is known of it."""
_Under = tuple[Any, _Key, _Held, list[Any] | None, list[tuple[int, _Key]]]
"""A value under way, what it holds, and once it is begun: what has been made of that, and which
parts are still to be made."""
_SHOWN = 12
"""Constructors that the text of a value has, before it is cut off."""


@dataclass(eq=False, repr=False, slots=True)
class Datum:
    """A value of an algebraic data type: what a constructor made of its fields, which are arrays,
    tuples, closures and other such values. It is never changed (but not frozen: the machine makes
    one a step, and checks of every field would take longer than all else of that)."""

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
    storage = cache(lambda t: t.dtype.storage)

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
        quick = np.asarray(x)
        if quick.shape == t.shape and quick.dtype == storage(t) and quick.flags.c_contiguous:
            return quick
        ((array,), _) = bind_inputs([(name, t)], [x], {})
        return array

    def same(x: Any, t: Type) -> bool:
        """Whether a value is as programs have it: `rebuilt` would make the same."""
        seen: set[_Key] = set()
        values, types_of = [x], [t]
        while values:
            x, t = values.pop(), types_of.pop()
            if isinstance(x, np.ndarray):
                fits = isinstance(t, TensorType) and x.shape == t.shape and x.dtype == storage(t)
                if not fits or not x.flags.c_contiguous:
                    return False
                continue
            fields = wanted.get((x.constructor, id(t))) if isinstance(x, Datum) else None
            if fields is None or len(fields) != len(x.fields):
                if not isinstance(x, Datum) or inside(x, t) is None:
                    return False
                fields = wanted[x.constructor, id(t)]
            key = id(x), id(t)
            if key not in seen:
                seen.add(key)
                values += x.fields
                types_of += fields
        return True

    return value if same(value, t) else rebuilt(value, t, inside, leaf)


def _kind(x: Any) -> str:
    return f"{type(x).__name__} {x!r:.60}"


def rebuilt(
    value: Any,
    context: Any,
    inside: Callable[[Any, Any], _Held | None],
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
    known: dict[_Key, Any] = {}
    top: _Key = id(value), id(context)
    stack: list[_Under] = [(value, top, held, None, [])]
    while stack:
        x, key, held, made, left = stack.pop()
        if key in known:
            continue
        if made is None:
            made = []
            ahead: list[_Under] = []
            for k, (y, c) in enumerate(held):
                inner = inside(y, c)
                if inner is None:
                    made.append(leaf(y, c))
                    continue
                made.append(None)
                ahead.append((y, (id(y), id(c)), inner, None, []))
                left.append((k, ahead[-1][1]))
            if ahead:
                stack.append((x, key, held, made, left))
                stack += reversed(ahead)
                continue
        for k, other in left:
            made[k] = known[other]
        fields = tuple(made)
        known[key] = Datum(x.constructor, fields) if isinstance(x, Datum) else fields
    return known[top]


def held_by(value: Any, _: None) -> list[tuple[Any, None]] | None:
    """`inside` of `rebuilt`, where nothing needs to be known: fields of data and tuples."""
    if isinstance(value, Datum | tuple):
        return [(x, None) for x in (value.fields if isinstance(value, Datum) else value)]
    return None


def arrays_in(value: Any) -> Iterator[Array]:
    """The arrays that a value holds."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        x = stack.pop()
        if not isinstance(x, Datum | tuple):
            yield x
        elif id(x) not in seen:
            seen.add(id(x))
            stack += reversed(x.fields if isinstance(x, Datum) else x)
