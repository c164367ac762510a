"""Scalar values of scripts: constants and conversions, functions, and what Python's operators mean
on indices (loops, dimensions) and on elements of buffers."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Mapping
from typing import Any

from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import TypeInferenceError
from compiler.ir.expression import call
from compiler.ir.overloads import Overloads
from compiler.symbolic import Index
from compiler.tensor import expr
from compiler.tensor.expr import Buffer, Expr
from compiler.types.dtypes import BOOL, DType


class Converter:
    """A dtype as a function: `float32(0)` is a constant, `float32(X[i])` a conversion."""

    def __init__(self, dtype: str):
        self.dtype = DType.parse(dtype)

    def __call__(self, value: Any) -> Expr:
        """`value` in this dtype."""
        return cast(value, self.dtype)

    def __repr__(self) -> str:
        return str(self.dtype)


float16, float32, float64 = map(Converter, ("float16", "float32", "float64"))
int8, int16, int32, int64 = map(Converter, ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(Converter, ("uint8", "uint16", "uint32", "uint64"))
boolean = Converter("bool")


def scalar(value: Any, like: DType | None = None) -> Expr:
    """`value` as a scalar expression; an index is int64, a number is of the dtype `like`.

    Raises:
        TypeInferenceError: it is none of these.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, Index):
        return expr.index_value(value)
    if isinstance(value, bool | int | float) and like is not None:
        if isinstance(value, float) and not (like.is_float or like.is_custom):
            raise TypeInferenceError(f"{value} is no {like}")
        return expr.const(value, like)
    raise TypeInferenceError(f"{value!r} is no scalar here: give its dtype, as in float32(...)")


def cast(value: Any, dtype: DType | str) -> Expr:
    """`value` converted to `dtype`."""
    wanted = DType.parse(dtype)
    if isinstance(value, bool | int | float):
        return expr.const(value, wanted)
    return expr.cast(scalar(value), wanted)


def _pair(a: Any, b: Any) -> tuple[Expr, Expr]:
    """Two operands of which at least one is an expression or index."""
    like = next((scalar(x).dtype for x in (a, b) if _is_symbolic(x)), None)
    return scalar(a, like), scalar(b, like)


def _is_symbolic(*values: Any) -> bool:
    return any(isinstance(v, Expr | Index) for v in values)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two values."""
    return expr.maximum(*_pair(a, b)) if _is_symbolic(a, b) else max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two values."""
    return expr.minimum(*_pair(a, b)) if _is_symbolic(a, b) else min(a, b)


def select(condition: Any, a: Any, b: Any) -> Expr:
    """`a` where `condition` holds, else `b`; both are computed.

    Raises:
        TypeInferenceError: the condition is no bool, or the dtypes differ.
    """
    test = scalar(condition, BOOL)
    if test.dtype != BOOL:
        raise TypeInferenceError(f"a condition must be bool, not {test.dtype}")
    x, y = _pair(a, b)
    if x.dtype != y.dtype:
        raise TypeInferenceError(f"select of {x.dtype} and {y.dtype}: cast one of them")
    return expr.select(test, x, y)


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c, rounded once."""
    return expr.call("fma", scalar(a), scalar(b), scalar(c))


def _function(name: str) -> Callable[[Any], Expr]:
    def apply(x: Any) -> Expr:
        value = scalar(x)
        if not (value.dtype.is_float or value.dtype.is_custom):
            raise TypeInferenceError(f"{name} of {value.dtype}: cast it to a float")
        return expr.call(name, value)

    apply.__doc__ = f"{name} of a float."
    return apply


def beside_builtin(name: str) -> Callable[..., Any]:
    """The function of Python called `name`, of scalars of programs ours: `round`."""
    ours, pythons = _function(name), getattr(builtins, name)

    def apply(x: Any, *more: Any) -> Any:
        return pythons(x, *more) if more or not _is_symbolic(x) else ours(x)

    return apply


def __getattr__(name: str) -> Callable[[Any], Expr]:
    """Every scalar function of one operand, by its name."""
    if name not in UNARY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function(name)


# ---- what operators mean -------------------------------------------------------------------------
_COMPARE = {"Lt": "LT", "LtE": "LE", "Gt": "GT", "GtE": "GE", "Eq": "EQ", "NotEq": "NE"}
_PYTHON: Mapping[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "Eq": operator.eq, "NotEq": operator.ne, "Is": operator.is_, "IsNot": operator.is_not,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow,
    "MatMult": operator.matmul, "BitAnd": operator.and_, "BitOr": operator.or_,
    "BitXor": operator.xor, "LShift": operator.lshift, "RShift": operator.rshift,
}  # fmt: skip


def compared(op: str, a: Any, b: Any) -> Any:
    """`a op b`: a bool expression if one of them is symbolic."""
    if op in _COMPARE and _is_symbolic(a, b):
        return expr.binary(_COMPARE[op], *_pair(a, b))
    if op in ("Eq", "NotEq") and (isinstance(a, Overloads) or isinstance(b, Overloads)):
        return call("equal" if op == "Eq" else "not_equal", a, b)
    return _PYTHON[op](a, b)


def combined(op: str, *values: Any) -> Any:
    """`and` or `or` of conditions, which are all computed."""
    if not _is_symbolic(*values):
        return all(values) if op == "And" else any(values)
    out = scalar(values[0], BOOL)
    for v in values[1:]:
        out = expr.binary(op, out, scalar(v, BOOL))
    return out


def negated(a: Any) -> Any:
    """`not a`."""
    return expr.binary("EQ", scalar(a), expr.const(0, BOOL)) if _is_symbolic(a) else not a


def computed(op: str, a: Any, b: Any) -> Any:
    """`a op b`; an index beside an expression becomes an int64 value."""
    if isinstance(a, Expr) != isinstance(b, Expr) and _is_symbolic(a) and _is_symbolic(b):
        a, b = _pair(a, b)
    return _PYTHON[op](a, b)


def chosen(condition: Any, a: Any, b: Any) -> Any:
    """`a if condition else b`."""
    if isinstance(condition, Overloads):
        raise TypeInferenceError("this is known only when the program runs: use compiler.if_else")
    return select(condition, a, b) if _is_symbolic(condition) else (a if condition else b)


def element(value: Any, index: Any) -> Any:
    """`value[index]`; the indices of a buffer may be values computed at run time, which nobody
    checks: they must be inside."""
    at = index if isinstance(index, tuple) else (index,)
    if not isinstance(value, Buffer) or not any(isinstance(i, Expr) for i in at):
        return value[index]
    if len(at) != len(value.shape):
        raise TypeInferenceError(f"{value.name} has {len(value.shape)} dimensions, not {len(at)}")
    position = cast(0, "int64")
    for i, n in zip(at, value.shape, strict=True):
        position = position * expr.index_value(n) + cast(i, "int64")
    return expr.Gather(value, position)
