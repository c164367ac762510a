"""What expressions read: buffers, their elements, and symbolic indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import TypeInferenceError
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr.node import BinOp, Cast, Expr, IntImm, Select, rewrite, walk
from compiler.types.dtypes import INT64, UINT8, Array, DType


@dataclass(eq=False, repr=False)
class Buffer:
    """A tensor in memory, row-major.

    `scope`: `global` (a pointer parameter), `register` (values that stay in registers; every index
    must become a constant), `local` (memory of the kernel's own, or of each thread), `shared`
    (memory of the threads of one block) or `constant` (a table, in `data`). `finite`: whether it
    holds neither NaN nor infinities; None where that is not known.
    """

    name: str
    shape: tuple[Index, ...]
    dtype: DType
    scope: str = "global"
    align: int = 0
    data: Array | None = None
    finite: bool | None = None

    def __post_init__(self) -> None:
        self.shape = tuple(Index.of(d) for d in self.shape)

    def __getitem__(self, idx: IntLike | tuple[IntLike, ...]) -> Load:
        at = idx if isinstance(idx, tuple) else (idx,)
        if len(at) != len(self.shape):
            raise TypeInferenceError(f"{self.name} has {len(self.shape)} dimensions, not {len(at)}")
        return Load(self, tuple(Index.of(i) for i in at))

    def flat(self, idx: tuple[Index, ...]) -> Index:
        """Row-major position of `idx`, in elements."""
        out, stride = Index(), Index.of(1)
        for i, n in zip(reversed(idx), reversed(self.shape), strict=True):
            out, stride = out + i * stride, stride * n
        return out.joined()

    @property
    def size(self) -> Index:
        """Number of elements."""
        out = Index.of(1)
        for n in self.shape:
            out = out * n
        return out

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False, repr=False)
class Load(Expr):
    """Element of a buffer at symbolic indices."""

    buffer: Buffer
    idx: tuple[Index, ...]

    @property
    def dtype(self) -> DType:
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
    def dtype(self) -> DType:
        """The buffer's dtype."""
        return self.buffer.dtype

    @property
    def byte(self) -> Expr | None:
        """The uint8 number that is the position, in a table of an entry for each such number; None
        of other tables and positions."""
        at = self.at.value if isinstance(self.at, Cast) else self.at
        return at if at.dtype == UINT8 and self.buffer.size == 256 else None

    def row(self, v: Var) -> tuple[Index, Expr] | None:
        """(place, start), of which the position is the sum, where neighbours along `v` are
        neighbours in memory: the place moves by one, and the start stays. None elsewhere."""
        if not (isinstance(self.at, BinOp) and self.at.op == "Add"):
            return None
        place, start = self.at.a, self.at.b
        if not isinstance(place, IndexValue) or v in index_vars(start):
            return None
        index = place.index
        hidden = any(v in a.leaves() for a in index.terms if not isinstance(a, Var))
        return None if hidden or index.terms.get(v) != 1 else (index, start)

    def children(self) -> tuple[Expr, ...]:
        """The position."""
        return (self.at,)

    def rebuilt(self, children: Sequence[Expr]) -> Expr:
        """The same load at another position."""
        return Gather(self.buffer, children[0])

    def __repr__(self) -> str:
        return f"{self.buffer.name}.flat[{self.at!r}]"


@dataclass(frozen=True, eq=False, repr=False)
class IndexValue(Expr):
    """A symbolic index (loop variables, dimensions) as an int64 value."""

    index: Index

    @property
    def dtype(self) -> DType:
        """int64."""
        return INT64

    def __repr__(self) -> str:
        return f"int64({self.index!r})"


def index_value(index: IntLike) -> Expr:
    """A symbolic index as an int64 value."""
    return IndexValue(Index.of(index))


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
