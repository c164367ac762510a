"""Scalar expressions of loop nests.

Node names follow TVM's TIR where a datatype's lowering functions see them: `BinOp.op` is `Add`,
`Sub`, `Mul`, ...; `Cast` has `value` and `dtype`; `FloatImm` is a floating constant; `Call` names a
pure scalar function; `CallExtern` names a C symbol. Nodes are immutable and compared by identity.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.dtypes import BOOL, FLOAT32, INT64, UINT8, DType
from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, IntLike, Var

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compiler.tensor.stmt import Buffer

COMPARISONS = ("LT", "LE", "GT", "GE", "EQ", "NE")
SYMBOLS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "EQ": "==", "NE": "!=", "And": "&", "Or": "|", "Xor": "^", "Shl": "<<", "Shr": ">>",
}  # fmt: skip
BINARY = (*SYMBOLS, "Max", "Min")


class Expr:
    """A scalar expression of one dtype."""

    dtype: DType

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
class Load(Expr):
    """Element of a buffer at symbolic indices."""

    buffer: Buffer
    idx: tuple[Index, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The buffer's dtype."""
        return self.buffer.dtype

    def __repr__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(repr, self.idx))}]"


@dataclass(frozen=True, eq=False, repr=False)
class Gather(Expr):
    """Element of a buffer, read as one flat array, at an int64 position computed at run time."""

    buffer: Buffer
    at: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The buffer's dtype."""
        return self.buffer.dtype

    @property
    def byte(self) -> Expr | None:
        """The uint8 number that is the position, in a table of an entry for each such number; None
        of other tables and positions."""
        at = self.at.value if isinstance(self.at, Cast) else self.at
        return at if at.dtype == UINT8 and self.buffer.size == 256 else None

    def children(self) -> tuple[Expr, ...]:
        """The position."""
        return (self.at,)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same load at another position."""
        return Gather(self.buffer, children[0])

    def __repr__(self) -> str:
        return f"{self.buffer.name}.flat[{self.at!r}]"


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
class IndexValue(Expr):
    """A symbolic index (loop variables, dimensions) as an int64 value."""

    index: Index

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """int64."""
        return INT64

    def __repr__(self) -> str:
        return f"int64({self.index!r})"


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
    def dtype(self) -> DType:  # type: ignore[override]
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


@dataclass(frozen=True, eq=False, repr=False)
class At(Expr):
    """`value`, whose last operation rounds stochastically at a place (`compiler.dtypes.Place`):
    binding `node`, position `index`, step `step`. Around the value of a Store with an update, the
    place is that of the update."""

    value: Expr
    node: int
    index: Expr
    step: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """dtype of the value."""
        return self.value.dtype

    def children(self) -> tuple[Expr, ...]:
        """The value, the position and the step."""
        return (self.value, self.index, self.step)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """Another value at another place of the same binding."""
        value, index, step = children
        return At(value, self.node, index, step)

    def __repr__(self) -> str:
        return f"at({self.value!r}, {self.node}, {self.index!r}, {self.step!r})"


@dataclass(frozen=True, eq=False, repr=False)
class LetVar(Expr):
    """A name bound by `Let`."""

    name: str
    dtype: DType

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, repr=False)
class Let(Expr):
    """`body`, in which `var` stands for `value`, evaluated once (so that walks and text stay
    short)."""

    var: LetVar
    value: Expr
    body: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """dtype of the body."""
        return self.body.dtype

    def children(self) -> tuple[Expr, ...]:
        """The value and the body."""
        return (self.value, self.body)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same binding of another value in another body."""
        return Let(self.var, *children)

    def __repr__(self) -> str:
        return f"(let {self.var!r} = {self.value!r} in {self.body!r})"


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


def let(value: Expr, body: Callable[[Expr], Expr], name: str = "t") -> Expr:
    """`body(value)` with `value` evaluated once, however often the body uses it."""
    var = LetVar(name, value.dtype)
    return Let(var, value, body(var))


def index_value(index: IntLike) -> Expr:
    """A symbolic index as an int64 value."""
    return IndexValue(Index.of(index))


def lowest(dtype: DType) -> Expr:
    """The smallest finite value of `dtype` (what max-pooling starts from)."""
    if dtype.is_custom:
        return Call("lowest", (), dtype)
    from compiler.op.arithmetic import arithmetic

    return const(arithmetic(dtype).lowest().item(), dtype)


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


def loads(e: Expr) -> list[Load]:
    """The symbolic loads in `e`."""
    return [n for n in walk(e) if isinstance(n, Load)]


def subst(e: Expr, m: Mapping[Var, IntLike]) -> Expr:
    """`e` with index variables replaced."""

    def put(n: Expr) -> Expr | None:
        if isinstance(n, Load):
            return Load(n.buffer, tuple(i.subst(m) for i in n.idx))
        if isinstance(n, IndexValue):
            return IndexValue(n.index.subst(m))
        if isinstance(n, Select) and (i := index_condition(n)) is not None and not i.terms:
            return n.a if i.const else n.b
        return None

    return rewrite(e, put)


def index_condition(e: Select) -> Index | None:
    """The index that `e` selects by where that is not 0; None: another condition."""
    c = e.cond
    if not isinstance(c, BinOp) or c.op != "NE" or not isinstance(c.a, IndexValue):
        return None
    return c.a.index if isinstance(c.b, IntImm) and c.b.value == 0 else None


def index_vars(e: Expr) -> set[Var]:
    """The index variables that `e` depends on."""
    out: set[Var] = set()
    for n in walk(e):
        for i in n.idx if isinstance(n, Load) else (n.index,) if isinstance(n, IndexValue) else ():
            out |= i.vars()
    return out


__all__ = [
    "At", "BinOp", "Call", "CallExtern", "Cast", "Expr", "FloatImm", "Gather", "IndexValue",
    "IntImm", "Let", "LetVar", "Load", "Select", "binary", "call", "cast", "const",
    "index_condition", "index_value", "index_vars", "let", "loads", "lowest", "maximum",
    "minimum", "rewrite", "select", "subst", "walk",
]  # fmt: skip
