"""What every expression is, arithmetic on expressions, and how to walk and rebuild them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.errors import TypeInferenceError
from compiler.types.dtypes import BOOL, FLOAT32, DType

COMPARISONS = ("LT", "LE", "GT", "GE", "EQ", "NE")
SYMBOLS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "EQ": "==", "NE": "!=", "And": "&", "Or": "|", "Xor": "^", "Shl": "<<", "Shr": ">>",
}  # fmt: skip
BINARY = (*SYMBOLS, "Max", "Min")


class Expr:
    """A scalar expression of one dtype."""

    if TYPE_CHECKING:  # a field of some nodes, a property of others; dataclasses take no default

        @property
        def dtype(self) -> DType:
            """dtype of the value."""

    def __add__(self, o: ExprLike) -> Expr:
        return binary("Add", self, o)

    def __radd__(self, o: ExprLike) -> Expr:
        return binary("Add", const(o, self.dtype), self)

    def __sub__(self, o: ExprLike) -> Expr:
        return binary("Sub", self, o)

    def __rsub__(self, o: ExprLike) -> Expr:
        return binary("Sub", const(o, self.dtype), self)

    def __mul__(self, o: ExprLike) -> Expr:
        return binary("Mul", self, o)

    def __rmul__(self, o: ExprLike) -> Expr:
        return binary("Mul", const(o, self.dtype), self)

    def __truediv__(self, o: ExprLike) -> Expr:
        return binary("Div", self, o)

    def __rtruediv__(self, o: ExprLike) -> Expr:
        return binary("Div", const(o, self.dtype), self)

    def __lt__(self, o: ExprLike) -> Expr:
        return binary("LT", self, o)

    def __le__(self, o: ExprLike) -> Expr:
        return binary("LE", self, o)

    def __gt__(self, o: ExprLike) -> Expr:
        return binary("GT", self, o)

    def __ge__(self, o: ExprLike) -> Expr:
        return binary("GE", self, o)

    def __and__(self, o: ExprLike) -> Expr:
        return binary("And", self, o)

    def __or__(self, o: ExprLike) -> Expr:
        return binary("Or", self, o)

    def __xor__(self, o: ExprLike) -> Expr:
        return binary("Xor", self, o)

    def __lshift__(self, o: ExprLike) -> Expr:
        return binary("Shl", self, o)

    def __rshift__(self, o: ExprLike) -> Expr:
        return binary("Shr", self, o)

    def equal(self, o: ExprLike) -> Expr:
        """`self == o` as an expression."""
        return binary("EQ", self, o)

    def astype(self, dtype: DType | str) -> Expr:
        """Value converted to `dtype` (itself if it already is)."""
        return cast(self, DType.parse(dtype))

    def children(self) -> tuple[Expr, ...]:
        """Operand expressions."""
        return ()

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same node over other operands."""
        return self


ExprLike = Expr | float | int


@dataclass(frozen=True, eq=False, repr=False)
class FloatImm(Expr):
    """A floating-point constant, of a float or custom dtype."""

    value: float
    dtype: DType

    def __repr__(self) -> str:
        value = repr(self.value)
        if math.isnan(self.value):  # one of many
            value += struct.pack(">d", self.value).hex()
        return f"{self.dtype}({value})"


@dataclass(frozen=True, eq=False, repr=False)
class IntImm(Expr):
    """An integer (or boolean) constant."""

    value: int
    dtype: DType

    def __repr__(self) -> str:
        return f"{self.dtype}({self.value})"


@dataclass(frozen=True, eq=False, repr=False)
class BinOp(Expr):
    """A binary operation; `op` is one of BINARY."""

    op: str
    a: Expr
    b: Expr
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        """Both operands."""
        return (self.a, self.b)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same operation on other operands."""
        a, b = children
        return BinOp(self.op, a, b, BOOL if self.op in COMPARISONS else a.dtype)

    def __repr__(self) -> str:
        if self.op in SYMBOLS:
            return f"({self.a!r} {SYMBOLS[self.op]} {self.b!r})"
        return f"{self.op.lower()}({self.a!r}, {self.b!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expr):
    """`value` converted to `dtype` (float to integer: toward zero)."""

    value: Expr
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        """The converted value."""
        return (self.value,)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same conversion of another value."""
        return Cast(children[0], self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}({self.value!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Select(Expr):
    """`a` where the boolean `cond` holds, else `b`; both are evaluated."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        """dtype of the alternatives."""
        return self.a.dtype

    def children(self) -> tuple[Expr, ...]:
        """Condition and alternatives."""
        return (self.cond, self.a, self.b)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same choice over other operands."""
        return Select(*children)

    def __repr__(self) -> str:
        return f"select({self.cond!r}, {self.a!r}, {self.b!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Call(Expr):
    """A pure scalar function by name: those of scalar_functions.FUNCTIONS (same dtype in and out),
    `fma`, `abs`, `rint_i32` (float32 -> int32, nearest even), `bits` (reinterpret as `dtype`),
    `limit` (x of a magnitude of at most a positive number; of NaN, NaN or any number)."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        """Arguments."""
        return self.args

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same call with other arguments."""
        return Call(self.fn, tuple(children), self.dtype)

    def __repr__(self) -> str:
        same = bool(self.args) and self.args[0].dtype == self.dtype
        fn = self.fn if same else f"{self.fn}.{self.dtype}"
        return f"{fn}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True, eq=False, repr=False)
class CallExtern(Expr):
    """A C function by symbol, on and returning built-in scalars by value."""

    symbol: str
    args: tuple[Expr, ...]
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        """Arguments."""
        return self.args

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same call with other arguments."""
        return CallExtern(self.symbol, tuple(children), self.dtype)

    def __repr__(self) -> str:
        return f"extern.{self.symbol}.{self.dtype}({', '.join(map(repr, self.args))})"


# ---- constructors --------------------------------------------------------------------------------
def const(value: ExprLike, dtype: DType = FLOAT32) -> Expr:
    """`value` as a constant of `dtype` (expressions pass through)."""
    if isinstance(value, Expr):
        return value
    if dtype.is_integer or dtype.kind == "bool":
        return IntImm(int(value), dtype)
    return FloatImm(float(value), dtype)


def binary(op: str, a: Expr, b: ExprLike) -> Expr:
    """`a op b`; a plain number becomes a constant of a's dtype.

    Raises:
        TypeInferenceError: the dtypes differ.
    """
    b = const(b, a.dtype)
    if a.dtype != b.dtype:
        raise TypeInferenceError(f"{op} of {a.dtype} and {b.dtype}: cast one of them")
    return BinOp(op, a, b, BOOL if op in COMPARISONS else a.dtype)


def cast(value: Expr, dtype: DType) -> Expr:
    """`value` converted to `dtype`."""
    return value if value.dtype == dtype else Cast(value, dtype)


def maximum(a: Expr, b: ExprLike) -> Expr:
    """The larger of two values."""
    return binary("Max", a, b)


def minimum(a: Expr, b: ExprLike) -> Expr:
    """The smaller of two values."""
    return binary("Min", a, b)


def call(fn: str, *args: Expr, dtype: DType | None = None) -> Expr:
    """A pure scalar function; its result has the first argument's dtype unless given."""
    return Call(fn, args, dtype or args[0].dtype)


def select(cond: Expr, a: Expr, b: ExprLike) -> Expr:
    """`a` where `cond` holds, else `b`."""
    return Select(cond, a, const(b, a.dtype))


def lowest(dtype: DType) -> Expr:
    """The least value of `dtype`, minus infinity if it has one (what max-pooling starts from)."""
    if dtype.is_custom:
        return Call("lowest", (), dtype)
    return const(dtype.least, dtype)


# ---- traversal -----------------------------------------------------------------------------------
def rewrite(e: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `e` bottom-up; `f` returns a replacement for a (rebuilt) node, or None to keep it."""
    kids = e.children()
    if kids:
        new = tuple(rewrite(k, f) for k in kids)
        if any(a is not b for a, b in zip(new, kids, strict=True)):
            e = e.rebuilt(new)
    out = f(e)
    return e if out is None else out


def walk(e: Expr) -> Iterator[Expr]:
    """Every node of `e`, operands first."""
    for k in e.children():
        yield from walk(k)
    yield e
