"""What tensor programs are written with: buffers, loops, blocks and their axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor import stmt
from compiler.types.dtypes import DType

Shape = Sequence[IntLike | str]


@dataclass(frozen=True)
class Buffer:
    """A parameter of a tensor program: `X: Buffer((1, "n"), "float32")`; names in the shape are
    symbolic dimensions."""

    shape: Shape
    dtype: str | DType = "float32"

    def __call__(self, name: str, scope: str = "global") -> stmt.Buffer:
        """The buffer under a name."""
        shape = tuple(Index.of(Var(d) if isinstance(d, str) else d) for d in self.shape)
        return stmt.Buffer(name, shape, DType.parse(self.dtype), scope)


@dataclass(frozen=True)
class Allocated:
    """A buffer of the program's own, which gets the name it is assigned to."""

    like: Buffer


def alloc_buffer(shape: Shape, dtype: str | DType = "float32") -> Allocated:
    """`Y = alloc_buffer((1, 128), "float32")`: a tensor that lives as long as the call."""
    return Allocated(Buffer(shape, dtype))


@dataclass(frozen=True)
class Grid:
    """Nested loops: `for i, j in grid(1, 128)`."""

    extents: tuple[IntLike, ...]
    kind: str = "serial"


def grid(*extents: IntLike) -> Grid:
    """Loops from 0 to each of `extents`, the last one innermost."""
    return Grid(extents)


def serial(extent: IntLike) -> Grid:
    """One loop."""
    return Grid((extent,))


def unroll(extent: IntLike) -> Grid:
    """A loop whose body is repeated."""
    return Grid((extent,), "unroll")


def vectorized(extent: IntLike) -> Grid:
    """A loop whose iterations are the lanes of a vector."""
    return Grid((extent,), "vector")


def parallel(extent: IntLike) -> Grid:
    """A loop whose iterations may run in several threads."""
    return Grid((extent,), "parallel")


def counted(*bounds: IntLike) -> Grid | range:
    """`range` in a tensor program: it may go to a symbolic dimension."""
    known = [b for b in bounds if isinstance(b, int)]
    if len(known) == len(bounds):
        return range(*known)
    if len(bounds) > 1:
        raise TypeInferenceError("a loop starts at 0: add the first value in its body")
    return Grid(bounds)


@dataclass(frozen=True)
class Block:
    """One computation: `with block("Y")`. Its axes say how it goes through the loops around it."""

    name: str


def block(name: str = "") -> Block:
    """A computation called `name`, which schedules know it by."""
    return Block(name)


@dataclass(frozen=True)
class Init:
    """What a reduction starts from: `with init(): Y[i] = float32(0)`."""


def init() -> Init:
    """The start of the block's reduction."""
    return Init()


@dataclass(frozen=True)
class Axis:
    """An axis of a block: where it is in each iteration, and whether it is summed over."""

    at: Index
    reduces: bool


class _Axes:
    """`axis.remap("SR", [i, k])`, or `axis.spatial(extent, i)` and `axis.reduce(extent, k)`."""

    @staticmethod
    def spatial(extent: IntLike, at: IntLike) -> Axis:
        """An axis along which the block computes elements of their own."""
        return Axis(_within(extent, at), False)

    @staticmethod
    def reduce(extent: IntLike, at: IntLike) -> Axis:
        """An axis over which the block accumulates."""
        return Axis(_within(extent, at), True)

    @staticmethod
    def remap(kinds: str, loops: Sequence[Index]) -> list[Axis]:
        """The loops as axes: S spatial, R reduction."""
        if len(kinds) != len(loops) or set(kinds) - set("SR"):
            raise TypeInferenceError(
                f"{kinds!r} must have an S or R for each of {len(loops)} loops"
            )
        return [Axis(Index.of(i), k == "R") for k, i in zip(kinds, loops, strict=True)]


def _within(extent: IntLike, at: IntLike) -> Index:
    i, n = Index.of(at), Index.of(extent)
    low, high = i.range()
    size = n.constant()
    if (low is not None and low < 0) or (size is not None and high is not None and high >= size):
        raise TypeInferenceError(f"{i} reaches from {low} to {high}, outside 0 to {n - 1}")
    return i


axis = _Axes()
