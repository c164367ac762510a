"""Random draws: the parameter of a function that all its stochastic roundings depend on.

The random bits of a rounding are a hash of its place (`compiler.arithmetic.stochastic`): the same
in every run. A function with the attribute DRAW, the name of a parameter, an int64 without
dimensions, adds that number to the count of roundings in every place, so that each number given
is another draw of all bits; 0 gives those of a function without.
"""

from __future__ import annotations

from compiler.arithmetic.stochastic import random_dtype
from compiler.errors import InputError
from compiler.ir.expr import Binding, Function, Var, atom_type, operands
from compiler.types.dtypes import INT64
from compiler.types.tensor_types import TensorType, TupleType, Type

DRAW = "draw"
"""Attribute of functions: the name of a parameter."""


def drawn(f: Function) -> Var | None:
    """The parameter of draws that a function has.

    Raises:
        InputError: it names none, or one that is no int64 without dimensions.
    """
    if DRAW not in f.attrs:
        return None
    name = f.attrs[DRAW]
    found = next((p for p in f.params if p.name == name), None)
    if found is None or found.type != TensorType((), INT64):
        raise InputError(f"{DRAW}={name!r} must name a parameter that is an int64[] of draws")
    return found


def random_type(t: Type) -> bool:
    """Whether values of this type are rounded stochastically."""
    fields = t.fields if isinstance(t, TupleType) else (t,)
    return any(isinstance(x, TensorType) and random_dtype(x.dtype) is not None for x in fields)


def may_round(b: Binding) -> bool:
    """Whether a binding may round stochastically: its value or an operand is of such a format."""
    return any(random_type(atom_type(a)) for a in (b.var, *operands(b.value)))
