"""Types of graph-level values: tensors with symbolic dimensions, tuples, functions, data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from compiler.errors import TypeInferenceError, UnequalSizes
from compiler.symbolic import Dim, IntLike, dim, product
from compiler.types.dtypes import DType


@dataclass(frozen=True)
class TensorType:
    """Shape (known or symbolic dimensions) and dtype of a tensor."""

    shape: tuple[Dim, ...]
    dtype: DType

    @staticmethod
    def of(shape: Sequence[IntLike], dtype: DType | str) -> TensorType:
        """TensorType from any sequence of dimensions and a dtype or its name."""
        return TensorType(tuple(dim(d) for d in shape), DType.parse(dtype))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints.

        Raises:
            TypeInferenceError: a dimension is symbolic.
        """
        out = []
        for d in self.shape:
            if not isinstance(d, int):
                raise TypeInferenceError(f"shape {shape_text(self.shape)} must be known here")
            out.append(d)
        return tuple(out)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape in another dtype."""
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"Tensor[{shape_text(self.shape)}, {self.dtype}]"


@dataclass(frozen=True)
class TupleType:
    """Types of a tuple's fields."""

    fields: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))}{',' if len(self.fields) == 1 else ''})"


@dataclass(frozen=True)
class FuncType:
    """Parameter types and result type of a function."""

    params: tuple[Type, ...]
    result: Type

    def __str__(self) -> str:
        return f"fn({', '.join(map(str, self.params))}) -> {self.result}"


@dataclass(frozen=True)
class DataType:
    """The algebraic data type that the module defines as `name` (see `compiler.types.data`), with
    an argument for each of its parameters."""

    name: str
    args: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.args))}]" if self.args else self.name


@dataclass(frozen=True)
class TypeVar:
    """Any type, the same wherever it has this name: in a definition, or in a generic function."""

    name: str

    def __str__(self) -> str:
        return self.name


Type = TensorType | TupleType | FuncType | DataType | TypeVar


def shape_text(shape: Sequence[IntLike]) -> str:
    """`(1, 3, n)`, written as Python writes tuples."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def tensor(t: Type | None, what: str = "argument") -> TensorType:
    """`t` itself if it is a tensor type.

    Raises:
        TypeInferenceError: it is not.
    """
    if not isinstance(t, TensorType):
        raise TypeInferenceError(f"{what} must be a tensor, not {t}")
    return t


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """numpy's broadcast of two shapes; symbolic dimensions must be equal or meet a 1.

    Raises:
        TypeInferenceError: the shapes do not broadcast.
    """
    both = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    differ = [(x, y) for x, y in both if x != y and x != 1 and y != 1]
    require_equal(differ, f"shapes {shape_text(a)} and {shape_text(b)} do not broadcast")
    return tuple(reversed([y if x == 1 else x for x, y in both]))


def require_equal(pairs: Iterable[tuple[IntLike, IntLike]], message: str) -> None:
    """Check that dimensions are equal.

    Raises:
        UnequalSizes: some are not known to be.
        TypeInferenceError: some are known not to be.
    """
    differ = [(a, b) for a, b in pairs if a != b]
    if any(isinstance(a, int) and isinstance(b, int) for a, b in differ):
        raise TypeInferenceError(message)
    if differ:
        raise UnequalSizes(message, differ)
