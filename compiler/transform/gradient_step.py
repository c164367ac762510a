"""A call that is differentiated, as the rules of operators see it (`compiler.op.gradient`), and the
bindings that their expressions become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import arithmetic
from compiler.errors import UnsupportedError
from compiler.ir.expr import Atom, Binding, Constant, Value, Var, atom_type
from compiler.ir.expression import Expr, Operand, call
from compiler.ir.inference import infer_value
from compiler.symbolic import Dim, product
from compiler.types.dtypes import FLOAT32, INT64, Array, DType
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType, tensor

BACKWARD = "/gradient"
"""What the origins of a value's gradient end with, behind the value's own."""


def constant(values: Any, dtype: DType) -> Constant:
    """A constant whose elements are the nearest of a dtype to some numbers."""
    data = arithmetic(dtype).const(np.asarray(values, np.float64))
    return Constant(np.asarray(data, dtype.storage), dtype)


def type_of(x: Operand) -> TensorType:
    """The type of a tensor.

    Raises:
        TypeInferenceError: it is none.
    """
    return tensor(x.type if isinstance(x, Expr) else atom_type(x))


def full(value: float, t: TensorType) -> Operand:
    """A tensor of type `t` that holds one number."""
    one = constant(value, t.dtype)
    return call("broadcast_to", one, shape=t.shape) if t.shape else one


def differentiable(dtype: DType) -> bool:
    """Whether numbers of a dtype have derivatives: integers and truth values have none."""
    return dtype.is_float or dtype.is_custom


@dataclass(frozen=True)
class CallStep:
    """See `compiler.op.gradient.Step`. `where`: the node and its operator, for messages."""

    where: str
    attrs: Any
    args: Sequence[Operand]
    result: Operand
    cotangents: Sequence[Operand | None]
    wants: Sequence[bool]

    @property
    def cotangent(self) -> Operand:
        """See Step."""
        (flows,) = self.cotangents
        assert flows is not None
        return flows

    @cached_property
    def dtype(self) -> DType:
        """See Step."""
        return next(type_of(c).dtype for c in self.cotangents if c is not None)

    def type(self, x: Operand) -> TensorType:
        """See Step."""
        return type_of(x)

    def call(self, op: str, *args: Operand, **attrs: Any) -> Expr:
        """See Step."""
        return call(op, *args, **attrs)

    def number(self, value: float) -> Constant:
        """See Step."""
        return constant(value, self.dtype)

    def numbers(self, values: Array) -> Constant:
        """See Step."""
        return constant(values, self.dtype)

    def full(self, value: float, shape: Sequence[Dim]) -> Operand:
        """See Step."""
        return full(value, TensorType(tuple(shape), self.dtype))

    def integers(self, value: Any) -> Constant:
        """See Step."""
        return Constant.of(value, INT64)

    def count(self, x: Operand, axes: Sequence[int]) -> Operand:
        """See Step."""
        n = product(type_of(x).shape[k] for k in axes)
        if isinstance(n, int):
            return self.number(n)
        sizes = call("take", call("shape_of", x), self.integers(list(axes)))
        # Custom datatypes take integers by way of float32.
        total = call("cast", call("prod", sizes), dtype="float32")
        return total if self.dtype == FLOAT32 else call("cast", total, dtype=str(self.dtype))

    def refuse(self, why: str) -> UnsupportedError:
        """See Step."""
        return UnsupportedError(f"{self.where} has no gradient: {why}")


class Bindings:
    """The bindings of a function that is made, in order, behind those that it begins with. Each
    expression is bound once.

    Attributes:
        done: the bindings.
        names: what is taken; new ones are added.
    """

    def __init__(self, names: set[str], before: Sequence[Binding] = ()):
        self.done = [*before]
        self.names = names
        self._bound: dict[Expr, Var] = {}

    def fresh(self, stem: str) -> str:
        """A name nobody has yet."""
        return unique(stem, self.names)

    def bind(self, value: Value, name: str, origins: Sequence[str] = ()) -> Var:
        """A variable, called `name` or like it, that holds a value from here on."""
        var = Var(self.fresh(name), infer_value(value))
        self.done.append(Binding(var, value, tuple(origins)))
        return var

    def atom(self, x: Operand, name: str, origins: Sequence[str] = ()) -> Atom:
        """`x`, once what it needs is bound; `name` is that of its variable, and what the others
        begin with."""
        if not isinstance(x, Expr):
            return x
        stack = [x]
        while stack:
            e = stack[-1]
            needs = [n for n in e.needs if isinstance(n, Expr)]
            if missing := [n for n in needs if n not in self._bound]:
                stack += reversed(missing)
                continue
            stack.pop()
            if e not in self._bound:
                atoms = [self._bound[n] if isinstance(n, Expr) else n for n in e.needs]
                stem = name if e is x else f"{name}_part"
                self._bound[e] = self.bind(e.make(atoms, ()), stem, origins)
        return self._bound[x]
