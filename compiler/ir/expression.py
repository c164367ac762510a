"""Constructors of programs: expressions of variables, which `function` puts into A-normal form.

>>> import compiler
>>> x = compiler.var("x", (10, 1))
>>> print(x + x)
free_var %x: Tensor[(10, 1), float32]
add(%x, %x)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.errors import DtypelabWarning, TypeInferenceError
from compiler.ir.data import settled
from compiler.ir.data_parser import DataParser
from compiler.ir.expr import (
    Atom,
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    If,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
)
from compiler.ir.inference import infer_value
from compiler.ir.overloads import Overloads
from compiler.symbolic import IntLike
from compiler.symbolic import Var as Dim
from compiler.types.data import TypeDef, pattern_types
from compiler.types.dtypes import DType
from compiler.types.exhaustive import CASES_BEFORE, unreached
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type

Make = Callable[[Sequence[Atom], Sequence[Function]], Value]
"""A value from the atoms of what it needs, and from the functions of its bodies."""


@dataclass(frozen=True, eq=False)
class Body:
    """A branch, or the body of a loop: parameters and results, not yet a function."""

    params: tuple[Var, ...]
    results: tuple[Operand, ...]


@dataclass(frozen=True, eq=False)
class Expr(Overloads):
    """A value that no variable has been bound to yet. Used twice, it is computed once.

    Attributes:
        make: see Make.
        needs: what it reads.
        bodies: functions in it, which may read everything that is in scope.
        type: its type, which is inferred when it is made.
        hint: what its variable shall be called; empty: a number.
    """

    make: Make
    needs: tuple[Operand, ...]
    bodies: tuple[Body, ...]
    type: Type
    hint: str = ""

    def named(self, name: str) -> Expr:
        """The same value, whose variable is called `name`."""
        return replace(self, hint=name)

    def __bool__(self) -> bool:
        raise TypeError("a value is known only when the program runs: use compiler.if_else")

    def __str__(self) -> str:
        from compiler.ir.construct import expression_text

        return expression_text(self)


Operand = Expr | Var | Constant
"""What expressions are made of."""


def var(name: str, shape: Sequence[IntLike | str] = (), dtype: DType | str = "float32") -> Var:
    """A variable that holds a tensor: a parameter of a function to be. A dimension that is a text
    is symbolic: any size, the same wherever it has that name."""
    dims = [Dim(d) if isinstance(d, str) else d for d in shape]
    return Var(name, TensorType.of(dims, dtype))


def const(value: Any, dtype: DType | str | None = None) -> Constant:
    """A constant from a number or an array; Python's numbers are float32, int64 and bool, unless
    `dtype` says otherwise."""
    if dtype is None and isinstance(value, float):
        dtype = "float32"
    return Constant.of(value, dtype)


def call(op: str, *args: Any, **attrs: Any) -> Expr:
    """The operator called `op`, applied to expressions, arrays and numbers.

    Raises:
        TypeInferenceError: the operands do not fit.
        DtypelabError: there is no such operator or attribute.
    """
    from compiler.op.library import get_op

    definition = get_op(op)
    given = definition.make_attrs(**attrs)
    like = next((a for a in args if isinstance(a, Expr | Var | Constant)), None)
    needs = tuple(operand(a, like) for a in args)
    return expression(lambda atoms, _: Call(definition, tuple(atoms), given), needs)


def apply(f: Any, *args: Any) -> Expr:
    """A call of a function of the module, a closure, or a `Function` that is inlined as a closure.

    Raises:
        TypeInferenceError: the operands do not fit.
    """
    if isinstance(f, GlobalVar):
        needs = tuple(map(operand, args))
        return expression(lambda atoms, _: Call(f, tuple(atoms)), needs)
    callee = operand(f)

    def make(atoms: Sequence[Atom], _: Sequence[Function]) -> Call:
        first, *rest = atoms
        if not isinstance(first, Var):
            raise TypeInferenceError("a constant cannot be called")
        return Call(first, tuple(rest))

    return expression(make, (callee, *map(operand, args)))


def make_tuple(*fields: Any) -> Expr:
    """Several values as one."""
    return expression(lambda atoms, _: Tuple(tuple(atoms)), tuple(map(operand, fields)))


def field(value: Any, index: int) -> Expr:
    """Field `index` of a tuple.

    Raises:
        IndexError: there is none, which also ends `a, b = value`.
        TypeInferenceError: the value is no tuple.
    """
    of = operand(value)
    t = _type(of)
    if not isinstance(t, TupleType):
        raise TypeInferenceError(f"{t} has no fields")
    if not 0 <= index < len(t.fields):
        raise IndexError(f"{t} has no field {index}")
    return expression(lambda atoms, _: TupleGetItem(atoms[0], index), (of,))


def match(value: Any, shape: Sequence[IntLike]) -> Expr:
    """`value`, whose shape is known to be `shape` from here on: checked at run time, and names of
    dimensions that are new get the sizes that are found.

    Raises:
        TypeInferenceError: it cannot have this shape.
    """
    of = operand(value)
    t = _type(of)
    if not isinstance(t, TensorType):
        raise TypeInferenceError(f"{t} has no shape")
    wanted = TensorType.of(shape, t.dtype)
    return expression(lambda atoms, _: Match(atoms[0], wanted), (of,))


def if_else(condition: Any, then: Any, otherwise: Any) -> Expr:
    """`then` or `otherwise`, whichever `condition`, a bool, chooses; the other is not computed,
    unless it is needed elsewhere.

    Raises:
        TypeInferenceError: the condition is no bool, or the branches differ in type.
    """
    bodies = tuple(Body((), to_operands(branch)) for branch in (then, otherwise))
    return expression(lambda atoms, f: If(atoms[0], *f), (operand(condition),), bodies)


def construct(
    types: Mapping[str, TypeDef], constructor: str, *fields: Any, of: Sequence[Type] = ()
) -> Expr:
    """A value of an algebraic data type: what `constructor` makes of `fields`.

    Args:
        types: the definitions that there are (`mod.types`).
        constructor: one of theirs.
        fields: what it holds.
        of: arguments of the type; needed where the fields do not tell them.

    Raises:
        TypeInferenceError: the fields do not fit.
        ParseError: there is no such constructor.
    """
    definition, _ = _reader(types, constructor).definition_of()
    given = tuple(of) or None
    return expression(
        lambda atoms, _: settled(Construct(definition, constructor, tuple(atoms), given)),
        tuple(map(operand, fields)),
    )


def cases(
    value: Any, types: Mapping[str, TypeDef], bodies: Mapping[str, Callable[..., Any]]
) -> Expr:
    """What is done with `value` by cases, the first of which that fits is chosen:
    `{"Cons(%head, _)": lambda head: ..., "Nil": lambda: ...}`.

    Args:
        value: of an algebraic data type, or a tuple of such.
        types: the definitions that there are (`mod.types`).
        bodies: patterns, and functions of their variables that give one expression.

    Raises:
        TypeInferenceError: a pattern does not fit, a case is missing, or cases differ in type.
        ParseError: something is no pattern.
    """
    of = operand(value)
    patterns, made = [], []
    for text, body in bodies.items():
        variables: dict[str, Var] = {}
        reader = _reader(types, text)
        patterns.append(reader.case_pattern(variables))
        if not reader.done:
            raise reader.error(f"{text!r} is more than a pattern")
        found = pattern_types(patterns[-1], _type(of))
        params = tuple(Var(name, t) for name, t in zip(variables, found, strict=True))
        made.append(Body(params, (operand(body(*params)),)))
    for k in unreached(tuple(patterns)):
        message = f"no value reaches the case {list(bodies)[k]!r}: {CASES_BEFORE}"
        warnings.warn(message, DtypelabWarning, stacklevel=2)
    return expression(lambda atoms, f: Cases(atoms[0], tuple(patterns), tuple(f)), (of,), made)


def _reader(types: Mapping[str, TypeDef], text: str) -> DataParser:
    reader = DataParser(text)
    reader.read_definitions(types)
    return reader


def while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], init: Sequence[Any]
) -> Expr:
    """The last state, as a tuple: from `init` on, `body(*state)` returns the next state as long as
    `condition(*state)` is true.

    The state's variables have the types of `init`.

    Raises:
        TypeInferenceError: `body` does not return a state of these types.
    """
    first = to_operands(init)
    params = tuple(Var(f"state{k}", _type(a)) for k, a in enumerate(first))
    state = to_operands(body(*params))
    going = (operand(condition(*state)), *state)

    def make(atoms: Sequence[Atom], functions: Sequence[Function]) -> Loop:
        go, *values = atoms
        return Loop(go, tuple(values), functions[0])

    return expression(make, (operand(condition(*first)), *first), (Body(params, going),))


def expression(make: Make, needs: Sequence[Operand], bodies: Sequence[Body] = ()) -> Expr:
    """An expression, with its type.

    Raises:
        TypeInferenceError: what it needs does not fit.
    """
    functions = [Function(b.params, (), tuple(map(_stand_in, b.results))) for b in bodies]
    value = make([_stand_in(x) for x in needs], functions)
    return Expr(make, tuple(needs), tuple(bodies), infer_value(value))


def _stand_in(x: Operand) -> Atom:
    return Var("", x.type) if isinstance(x, Expr) else x


def _type(x: Operand) -> Type:
    return x.type if isinstance(x, Expr) else atom_type(x)


def to_operands(given: Any) -> tuple[Operand, ...]:
    """An expression, or several in a list or tuple, as expressions."""
    many = given if isinstance(given, list | tuple) else [given]
    return tuple(map(operand, many))


def operand(given: Any, like: Any = None) -> Operand:
    """`given` as an expression; a Python number gets the dtype of `like`, if that is a tensor.

    Raises:
        TypeInferenceError: it is nothing that a program can hold.
    """
    if isinstance(given, Expr | Var | Constant):
        return given
    if isinstance(given, Function):
        return expression(lambda atoms, _: given, ())
    if isinstance(given, GlobalVar):
        return expression(lambda atoms, _: given, ())
    t = None if like is None else _type(like)
    if isinstance(given, bool | int | float) and isinstance(t, TensorType):
        if t.dtype.is_custom:
            raise TypeInferenceError(f"a number of {t.dtype} must be given as a constant")
        return Constant.of(given, t.dtype)
    try:
        if isinstance(given, float | int | np.ndarray | np.generic):
            return const(given)
    except ValueError as e:
        raise TypeInferenceError(str(e)) from None
    raise TypeInferenceError(f"{type(given).__name__} {given!r} is no value of a program")


def global_var(name: str, params: Sequence[Type], result: Type) -> GlobalVar:
    """The function of the module called `name`, which may be called before it is defined."""
    return GlobalVar(name, FuncType(tuple(params), result))
