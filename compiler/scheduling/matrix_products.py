"""Sums of products as products of matrices: what a target's instructions for these need to know of
one, and what is done so that they fit.

Rows follow the data only, columns the weights only, and the last of these. Two axes of an output
are walked as one where the data they read lie evenly: those of images, too, whose rows are longer
than an output's, as padding is beside them; what is computed there nobody uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.scheduling.tile import guards, index_vars_of, is_product, keeps_order
from compiler.symbolic import Index, IntLike, Var
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.expr import BinOp, Cast, Load, subst
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Store
from compiler.types.dtypes import INT32, DType

SIDE = 2
"""Tiles of sums along rows, and along columns: what is loaded is multiplied so many times."""
UNUSED = 2.5
"""Rows that are computed for one that is used, at most."""

CALL, SUMS, FILLED = 300, 50, 20
"""Cycles that tiles take beside products, as measured: to be configured in a call, to begin, store
and read again the sums of one, and to copy a row of a step that is filled up with zeros."""


@dataclass(frozen=True)
class Instructions:
    """Those that a product of matrices takes, of one target; `load` of the data, of the weights."""

    product: Intrinsic
    load: tuple[Intrinsic, Intrinsic]
    zero: Intrinsic
    store: Intrinsic

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows and columns of a tile of sums, and neighbours in a group of weights."""
        loops = self.product.loops
        return loops["m"], loops["n"], loops["i"]

    @property
    def steps(self) -> int:
        """Steps of a reduction that an instruction takes."""
        return self.product.loops["k"] * self.product.loops["i"]


def instructions_for(target: Target, data: DType, weight: DType) -> Instructions | None:
    """The target's instructions for matrices of such bytes, if it has any."""
    kind = "llvm" if target.design is not None else target.kind
    every = [i for i in for_target(target) if i.rows is not None and i.emitter(kind) is not None]

    def load(dtype: DType) -> Intrinsic | None:
        loads = (i for i in every if i.operand_dtypes == [dtype] and set(i.rows or ()) & {*i.lanes})
        return next(loads, None)

    product = next((i for i in every if i.operand_dtypes == [data, weight]), None)
    zero = next((i for i in every if not i.operand_dtypes), None)
    store = next((i for i in every if i.pattern.buffer.name in (i.rows or ())), None)
    both = load(data), load(weight)
    if product is None or zero is None or store is None or both[0] is None or both[1] is None:
        return None
    return Instructions(product, (both[0], both[1]), zero, store)


@dataclass(frozen=True)
class Product:
    """A sum of products as one of matrices.

    Attributes:
        own: variables of the output's axes; the last is that of the columns.
        axes: the one or two axes, one after another, that are walked as rows.
        pitch: rows from an element of the first of two axes to the next.
        rows, columns: how many there are, those included that are not used.
        term: the loop of the reduction whose steps instructions take, and `taps` its others.
        data, weight: the operands.
        by: what computes it.
    """

    own: tuple[Var, ...]
    axes: tuple[int, ...]
    pitch: int
    rows: int
    columns: int
    term: Var
    taps: tuple[Var, ...]
    data: Load
    weight: Load
    by: Instructions

    @property
    def depth(self) -> int:
        """Steps of the reduction along `term`."""
        return extent_of(self.term)

    @property
    def terms(self) -> int:
        """All steps of the reduction."""
        return self.depth * math.prod(map(extent_of, self.taps))

    @property
    def pairs(self) -> bool:
        """Whether there are rows for several tiles, which share what is loaded of the weights."""
        return self.rows >= SIDE * self.by.size[0]

    @property
    def tiles(self) -> int:
        """Tiles of sums that are computed."""
        rows, columns, _ = self.by.size
        rest = (v for k, v in enumerate(self.own[:-1]) if k not in self.axes)
        rounds = math.prod(extent_of(v) or 1 for v in rest)
        return rounds * -(-self.rows // rows) * -(-self.columns // columns)

    def pays(self, target: Target) -> bool:
        """Whether dot products, two vectors of them a cycle, would take longer than tiles do: for
        a row a cycle in every product, for their sums, and for copies of rows that are filled
        up."""
        rows, _, _ = self.by.size
        every = math.prod(extent_of(v) or 1 for v in self.own)
        dots = every * self.terms // (2 * target.vector_bytes)
        steps = -(-self.depth // self.by.steps) * math.prod(map(extent_of, self.taps))
        filled = self.rows * steps if self.depth % self.by.steps else 0
        return dots > CALL + self.tiles * (SUMS + steps * rows) + FILLED * filled

    @property
    def dense(self) -> bool:
        """Whether not too many rows are computed that nobody uses."""
        return self.rows <= UNUSED * math.prod(extent_of(self.own[k]) for k in self.axes)

    @property
    def used(self) -> int | None:
        """Of a row of pixels, how many are used; None: all rows are."""
        n = extent_of(self.own[self.axes[-1]])
        return n if len(self.axes) > 1 and n < self.pitch else None

    def place(self, row: Index) -> dict[int, Index]:
        """The position along each of `axes` of a row."""
        if len(self.axes) == 1:
            return {self.axes[0]: row}
        return dict(zip(self.axes, (row // self.pitch, row % self.pitch), strict=True))

    def read(self, row: Index, others: Mapping[Var, IntLike]) -> Load:
        """The data of a row, at other loops' positions."""
        m: dict[Var, IntLike] = {**others}
        m |= {self.own[k]: i for k, i in self.place(row).items()}
        e = subst(self.data, m)
        assert isinstance(e, Load)
        if len(self.axes) == 1:
            return e
        # Beside an image's rows, the elements that follow in memory.
        j, wide = _plane(self.data, [self.own[k] for k in self.axes])
        at = (e.idx[j] * wide + e.idx[j + 1]).joined()
        return Load(e.buffer, (*e.idx[:j], at // wide, at % wide, *e.idx[j + 2 :]))

    @property
    def fits(self) -> bool:
        """Whether a tile of data lies in memory as the instructions take it."""
        _, _, group = self.by.size
        if self.depth % self.by.steps:
            return False
        row, step = Var("row", self.rows), Var("step", self.depth // self.by.steps)
        k, i = Var("k", self.by.steps // group), Var("i", group)
        e = self.read(Index.of(row), {self.term: step * self.by.steps + k * group + i})
        flat = e.buffer.flat(e.idx).joined()
        hidden = {v for a in flat.terms if not isinstance(a, Var) for v in a.leaves()}
        even = flat.terms.get(k) == group and flat.terms.get(i) == 1 and flat.terms.get(row, 0) > 0
        return even and not hidden & {row, k, i}


def extent_of(v: Var) -> int:
    """Iterations of a loop; 0: they are not known."""
    return (v.extent.constant() if v.extent is not None else None) or 0


def _plane(x: Load, axes: Sequence[Var]) -> tuple[int, int]:
    """Where the first of two axes is among the indices of the data, and how long the next one's
    rows are; (-1, 0) where they are not one after the other."""
    j = next((j for j, i in enumerate(x.idx) if axes[0] in i.vars()), -1)
    if j < 0 or j + 1 >= len(x.idx) or axes[1] not in x.idx[j + 1].vars():
        return -1, 0
    return j, x.buffer.shape[j + 1].constant() or 0


def product_of(
    store: Store, path: Sequence[For], x: Load, w: Load, target: Target
) -> Product | None:
    """A sum of products of such bytes as one of matrices, by its loops, if the target has
    instructions for it, and there are enough rows and columns."""
    rank, by = len(store.idx), instructions_for(target, x.dtype, w.dtype)
    own, skipping = tuple(f.var for f in path[:rank]), guards(path)
    reduction = [f.var for f in path[rank:] if f not in skipping]
    if by is None or rank < 2 or list(store.idx) != [*own] or not reduction:
        return None
    followed, moved = index_vars_of(w), index_vars_of(x)
    if own[-1] in moved or own[-1] not in followed or not all(map(extent_of, reduction)):
        return None
    if not all(extent_of(v) for v in own if v in followed):
        return None
    rows = [k for k in range(rank - 1) if own[k] in moved and own[k] not in followed]
    found = []
    term, *taps = reduction
    for k in rows:
        for axes, pitch in (((k,), 1), ((k, k + 1), _pitch(x, own[k : k + 2]))):
            if axes[-1] not in rows or not pitch:
                continue
            n, *more = (extent_of(own[a]) for a in axes)
            if not all((n, *more)):
                continue
            count = (n - 1) * pitch + more[0] if more else n
            if count >= by.size[0]:
                found.append(Product(own, axes, pitch, count, extent_of(own[-1]), term, (*taps,), x,
                                     w, by))  # fmt: skip
    best = min(found, key=lambda p: p.tiles, default=None)
    return best if best is not None and best.columns >= by.size[1] else None


def _pitch(x: Load, axes: Sequence[Var]) -> int:
    """Rows of the second of two axes from an element of the first to the next; 0: they are not as
    even as that."""
    flat = x.buffer.flat(x.idx)
    a, b = (flat.terms.get(v, 0) for v in axes) if len(axes) == 2 else (0, 0)
    hidden = {v for t in flat.terms if not isinstance(t, Var) for v in t.leaves()}
    if hidden & {*axes} or b <= 0 or a % b or a // b < extent_of(axes[1]) or _plane(x, axes)[0] < 0:
        return 0
    return a // b


def factors_of(store: Store) -> tuple[Load, Load] | None:
    """The operands of a sum of products of bytes as they are."""
    if store.update != "Add" or store.init is None or keeps_order(store) or not is_product(store):
        return None
    assert isinstance(store.value, BinOp)
    factors = [e.value for e in (store.value.a, store.value.b) if isinstance(e, Cast)]
    loads = [e for e in factors if isinstance(e, Load)]
    return (loads[0], loads[1]) if len(loads) == 2 and store.buffer.dtype == INT32 else None


def worth_copies(found: Product) -> bool:
    """Whether weights that are not known at build time are worth the copies that a product takes
    of them."""
    return found.data.buffer is not found.weight.buffer and found.pairs and not found.taps
