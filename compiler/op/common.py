"""What operator definitions share: checks of types, axes, broadcasting reads, reductions in order,
and the arithmetic of tensor-level expressions, which lets one scalar definition serve twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.errors import TypeInferenceError
from compiler.symbolic import Dim, Index, IntLike, Var, dim
from compiler.tensor import expr
from compiler.tensor.expr import Buffer, Expr
from compiler.types.dtypes import FLOAT32, INT64, Array, DType
from compiler.types.tensor_types import TensorType, broadcast, shape_text


class ExprArithmetic:
    """The operations of `Arithmetic` on tensor-level expressions instead of arrays.

    A scalar definition written over an arithmetic is the numpy reference when it is given an
    `Arithmetic`, and the loop nest's expression when it is given this.
    """

    def __init__(self, dtype: DType):
        self.dtype = dtype

    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b."""
        return a + b

    def sub(self, a: Expr, b: Expr) -> Expr:
        """a - b."""
        return a - b

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b."""
        return a * b

    def div(self, a: Expr, b: Expr) -> Expr:
        """a / b."""
        return a / b

    def maximum(self, a: Expr, b: Expr) -> Expr:
        """The larger value."""
        return expr.maximum(a, b)

    def minimum(self, a: Expr, b: Expr) -> Expr:
        """The smaller value."""
        return expr.minimum(a, b)

    def compare(self, op: str, a: Expr, b: Expr) -> Expr:
        """Boolean `a op b`."""
        return expr.binary(op, a, b)

    def call(self, fn: str, a: Expr) -> Expr:
        """A unary function of scalar_functions.FUNCTIONS."""
        return expr.call(fn, a)

    def remainder(self, a: Expr, b: Expr) -> Expr:
        """C's fmod of floats."""
        return expr.call("fmod", a, b)

    def bitwise(self, op: str, a: Expr, b: Expr) -> Expr:
        """And, Or, Xor, Shl or Shr."""
        return expr.binary(op, a, b)

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """`a` where `condition` holds, else `b`."""
        return expr.select(condition, a, b)

    def const(self, value: float) -> Expr:
        """`value` as a constant."""
        return expr.const(value, self.dtype)

    def of(self, dtype: DType) -> ExprArithmetic:
        """The operations of another dtype."""
        return ExprArithmetic(dtype)

    def cast(self, a: Expr, source: DType) -> Expr:
        """A value of dtype `source` converted to this dtype."""
        return expr.cast(a, self.dtype)


# ---- types ---------------------------------------------------------------------------------------
def type_of(b: Buffer) -> TensorType:
    """The tensor type of a buffer."""
    return TensorType.of(b.shape, b.dtype)


def require(condition: bool, message: str) -> None:
    """Raise TypeInferenceError(message) unless `condition` holds."""
    if not condition:
        raise TypeInferenceError(message)


def require_rank(op: str, what: str, t: TensorType, *ranks: int) -> None:
    """Raise TypeInferenceError unless `t` has one of `ranks`."""
    wanted = " or ".join(map(str, ranks))
    require(
        t.rank in ranks, f"{op}: {what} must have rank {wanted}, not shape {shape_text(t.shape)}"
    )


def one_dtype(op: str, types: Sequence[TensorType]) -> DType:
    """The dtype that all operands share.

    Raises:
        TypeInferenceError: they differ.
    """
    for t in types[1:]:
        require(
            t.dtype == types[0].dtype,
            f"{op}: operands have dtypes {types[0].dtype} and {t.dtype}; cast one of them",
        )
    return types[0].dtype


def broadcast_all(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    """numpy's broadcast of any number of shapes."""
    out: tuple[Dim, ...] = ()
    for s in shapes:
        out = broadcast(out, s)
    return out


def axis_of(op: str, axis: int, rank: int) -> int:
    """`axis` counted from the front.

    Raises:
        TypeInferenceError: there is no such axis.
    """
    require(-rank <= axis < rank, f"{op}: axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(op: str, axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Distinct `axes` counted from the front, ascending.

    Raises:
        TypeInferenceError: an axis does not exist, or is named twice.
    """
    given = [axes] if isinstance(axes, int) else list(axes)
    out = sorted(axis_of(op, a, rank) for a in given)
    require(len(set(out)) == len(out), f"{op}: axes {tuple(given)} name an axis twice")
    return tuple(out)


def need_constant(op: str, what: str, d: Dim) -> int:
    """A dimension that must be known at compile time.

    Raises:
        TypeInferenceError: it is symbolic.
    """
    if not isinstance(d, int):
        raise TypeInferenceError(
            f"{op}: {what} must be known, not {d}; give the model fixed shapes"
        )
    return d


def known_shape(shape: Sequence[Dim]) -> tuple[int, ...]:
    """A shape in a reference, where every dimension has a number.

    Raises:
        TypeInferenceError: a dimension is symbolic.
    """
    return TensorType(tuple(shape), INT64).static_shape


# ---- reading buffers -----------------------------------------------------------------------------
def read(b: Buffer, idx: Sequence[IntLike]) -> Expr:
    """The element of `b` that broadcasts, as numpy does, to position `idx` of a larger shape."""
    tail = idx[len(idx) - len(b.shape) :]
    return b[tuple(0 if d == 1 and not _unit(i) else i for d, i in zip(b.shape, tail, strict=True))]


def _unit(i: IntLike) -> bool:
    """Whether `i` is a loop of one iteration: reading at it keeps the axes of both sides
    matched."""
    return isinstance(i, Var) and i.extent == 1


def channelwise(a: Array, rank: int, axis: int) -> Array:
    """A vector reshaped so that it broadcasts along `axis` of arrays of `rank`."""
    return a.reshape([-1 if k == axis else 1 for k in range(rank)])


def index_expr(i: IntLike, dtype: DType) -> Expr:
    """An index (a count of elements) as a value of `dtype`; custom dtypes are reached via float32.

    `count_array` is its numpy counterpart.
    """
    known = dim(i)
    if isinstance(known, int):
        return expr.const(known, dtype)
    value = expr.index_value(known)
    return expr.cast(expr.cast(value, FLOAT32) if dtype.is_custom else value, dtype)


def count_array(ar: Arithmetic, counts: Array) -> Array:
    """Integer counts as values of ar's dtype."""
    if ar.dtype.is_custom:
        return ar.const(counts.astype(np.float32))
    return ar.cast(counts.astype(np.int64), INT64)


def shared(ar: Arithmetic, total: Array, counts: int | Array) -> Array:
    """total / counts, numbers of elements; of integers exact, toward zero, also where the counts
    are none of their dtype's numbers (128 is no int8). `shared_expr` is its counterpart."""
    if _is_narrow(ar.dtype):
        wide = ar.of(INT64)
        return ar.cast(wide.div(wide.cast(total, ar.dtype), np.asarray(counts, np.int64)), INT64)
    count = ar.const(counts) if isinstance(counts, int) else count_array(ar, counts)
    return ar.div(total, count)


def shared_expr(total: Expr, counts: IntLike, dtype: DType) -> Expr:
    """total / counts, for a total of `dtype`; see `shared`."""
    if _is_narrow(dtype):
        return expr.cast(expr.cast(total, INT64) / index_expr(counts, INT64), dtype)
    return total / index_expr(counts, dtype)


def _is_narrow(dtype: DType) -> bool:
    return dtype.kind in ("int", "uint") and dtype.bits < 64


def unflatten(flat: Index, shape: Sequence[IntLike]) -> tuple[Index, ...]:
    """Indices of row-major position `flat` in `shape`."""
    out: list[Index] = []
    for d in list(shape)[:0:-1]:
        out.append(flat % d)
        flat = flat // d
    return (*([flat] if shape else []), *reversed(out))


# ---- reductions ----------------------------------------------------------------------------------
def fold(step: Callable[..., Any], start: Array, x: Array, axes: Sequence[int], *w: Array) -> Array:
    """`acc = step(acc, x[...])` over `axes`, row-major; the axes stay, with length 1. `w`: of x's
    shape, a further operand of every step."""
    rest = [k for k in range(x.ndim) if k not in axes]
    front, *others = (v.transpose([*axes, *rest]) for v in (x, *w))
    acc = np.broadcast_to(start, front.shape[len(axes) :]).astype(start.dtype)
    for idx in np.ndindex(*front.shape[: len(axes)]):
        acc = step(acc, front[idx], *(v[idx] for v in others))
    return np.asarray(acc).reshape([1 if k in axes else n for k, n in enumerate(x.shape)])
