"""What expressions read: elements of buffers, and symbolic indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr.node import BinOp, Cast, Expr, IntImm, Select, rewrite, walk
from compiler.types.dtypes import INT64, UINT8, DType

if TYPE_CHECKING:
    from compiler.tensor.stmt import Buffer


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
