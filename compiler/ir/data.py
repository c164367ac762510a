"""Types of values of algebraic data types, and of what is done with them by cases."""

from __future__ import annotations

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Cases, Construct, atom_type
from compiler.ir.signature import solve_types
from compiler.types.data import (
    pattern_text,
    pattern_types,
    require_fields,
)
from compiler.types.exhaustive import missing
from compiler.types.tensor_types import DataType, TupleType, Type, TypeVar


def constructed_type(value: Construct) -> DataType:
    """Type of what a constructor makes, whose fields have types.

    Raises:
        TypeInferenceError: the fields do not fit, or do not tell the arguments of the type.
    """
    d = value.definition
    require_fields(d, value.constructor, len(value.fields))
    given = [atom_type(a) for a in value.fields]
    types = value.types
    if types is None:
        found: dict[TypeVar, Type] = {}
        for wanted, t in zip(d.constructor(value.constructor).fields, given, strict=True):
            solve_types(wanted, t, found)
        unknown = [p for p in d.params if p not in found]
        if unknown:
            raise TypeInferenceError(
                f"nothing tells what {unknown[0]} of {d.type} is here: write "
                f"{value.constructor}[{', '.join(map(str, d.params))}] with types in their place"
            )
        types = tuple(found[p] for p in d.params)
    if len(types) != len(d.params):
        raise TypeInferenceError(f"{d.type} takes {len(d.params)} types, not {len(types)}")
    for k, (wanted, t) in enumerate(zip(d.fields(value.constructor, types), given, strict=True)):
        if wanted != t:
            where = f"field {k} of {value.constructor}"
            raise TypeInferenceError(f"{where} must be {wanted}, not {t}")
    return DataType(d.name, types)


def cases_type(value: Cases) -> Type:
    """Type of what is done by cases, whose bodies have types.

    Raises:
        TypeInferenceError: a pattern does not fit the value, bodies differ in type, or some values
            have no pattern; names one.
    """
    if not value.patterns:
        raise TypeInferenceError("there is no case")
    t = atom_type(value.value)
    for pattern, body in zip(value.patterns, value.bodies, strict=True):
        wanted, given = pattern_types(pattern, t), [atom_type(p) for p in body.params]
        if wanted != given:
            here = pattern_text(pattern, (str(p) for p in body.params))
            shown = f"{TupleType(tuple(wanted))}, not {TupleType(tuple(given))}"
            raise TypeInferenceError(f"the variables of {here} have types {shown}")
    first, *others = [body.type.result for body in value.bodies]
    for k, other in enumerate(others, 1):
        if other != first:
            raise TypeInferenceError(f"case 0 gives {first}, case {k} gives {other}")
    left = missing(value.patterns)
    if left is not None:
        raise TypeInferenceError(f"no case is for {pattern_text(left, iter(()))}")
    return first


def settled(value: Construct) -> Construct:
    """`value` with the arguments of its type.

    Raises:
        TypeInferenceError: as `constructed_type`.
    """
    if value.types is not None:
        return value
    types = constructed_type(value).args
    return Construct(value.definition, value.constructor, value.fields, types)
