"""Register tiles for reductions with an elementwise consumer: what describes one, and what is asked
of a reduction to choose it (see `select`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compiler.symbolic import Var
from compiler.target.cpus import LINE
from compiler.target.registry import Target
from compiler.tensor.expr import BinOp, Buffer, Load, Select, index_condition, walk
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import For, Stmt, Store, accesses, range_of
from compiler.types.dtypes import FLOAT32, FLOAT64, DType

RUN_TIME = 8
"""Neighbouring outputs along an axis of any extent."""
CONTIGUOUS_STEP = 16
"""How a reduction along the data's innermost axis is split first."""
ENOUGH = 10
"""Neighbouring outputs that pay a walk over the weights: equal tiles of 8 are slower than 12 to 14
with a short last one (by 3 to 7 % of transformers and of nets of convolutions)."""
UNROLLED_STEPS = 4
"""Reduction steps in the body of the innermost loop."""


@dataclass(frozen=True)
class Axis:
    """An output axis: its position, extent (None: symbolic) and which operands follow it."""

    index: int
    extent: int | None
    constant: bool
    other: bool


@dataclass(frozen=True)
class Tile:
    """A register tile of stage `mac`; axes are positions in the output.

    Attributes:
        lane_axis, lanes: the vectorized axis, and elements a vector.
        block_axis, blocks: vectors along another axis of the constant operand (or along the lane
            axis itself).
        spatial: (axis, width) of neighbouring outputs, outermost first.
        pack: the constant operand, if there is one.
        copy: the operand that is copied in blocks of lanes first, if none is constant.
        reduce_block: the reduction's first axis is split by this first (blocked data); 0: not.
        dot: the dot product instruction, if the operands are bytes.
        skew: for a dot product over the taps of a window: (neighbouring outputs that share the
            data they read, stride of the window, taps filled up to whole dot products).
        run_time: (axis, width) of neighbouring outputs along an axis whose extent is known at run
            time only, the lanes' axis among them; the last tile overlaps the one before, and
            extents below the width have a nest of their own (see `versions`).
        unrolled: reduction steps in the body of the innermost loop; a dot product is one step.
        narrow: instructions that store several neighbouring vectors as bytes.
        walk: where among the loops over tiles that over the lanes' blocks goes; None: by rule.
        ahead: bytes by which the packed operand is fetched ahead; None: by rule.
        group: tiles along the first axis that has more, that walk a part of the constant operand
            before the next; None: all, or one, as `walk` says.
        turned: rows that lie apart are the lanes, and squares of them are turned in registers.
        in_parts: whether all tiles may take some channels of a window before any takes the next
            (see `long_sums`).
    """

    lane_axis: int
    lanes: int
    block_axis: int
    blocks: int
    spatial: tuple[tuple[int, int], ...]
    pack: Buffer | None
    reduce_block: int
    dot: Intrinsic | None
    skew: tuple[int, int, int] = (0, 0, 0)
    unrolled: int = UNROLLED_STEPS
    narrow: tuple[Intrinsic, ...] = ()
    copy: Buffer | None = None
    run_time: tuple[tuple[int, int], ...] = ()
    walk: int | None = None
    ahead: int | None = None
    group: int | None = None
    turned: bool = False
    in_parts: bool = False

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        """(axis, width) of neighbouring outputs that are no lanes, outermost first."""
        moved = (w for w in self.run_time if w[0] != self.lane_axis)
        return tuple(sorted((*self.spatial, *moved)))


def is_product(store: Store) -> bool:
    """Whether a reduction adds up products of two elements."""
    v = store.value
    two = len([n for n in walk(v) if isinstance(n, Load)]) == 2
    adds = store.update in ("Add", "Fma") or range_of(store.update) is not None
    return adds and isinstance(v, BinOp) and v.op == "Mul" and two


def keeps_order(store: Store) -> bool:
    """Whether a reduction rounds or saturates at every step, so that the order of its steps is
    part of its meaning."""
    limited = store.update == "Fma" or range_of(store.update) is not None
    return store.buffer.dtype.is_custom or limited


def guards(path: Sequence[For]) -> list[For]:
    """Loops of one or no iteration that skip what the loops around them must not reach."""
    return [f for k, f in enumerate(path) if f.extent.vars() & {g.var for g in path[:k]}]


def tileable_axis(path: Sequence[For], axis: int) -> bool:
    """Whether a tile may be wider than one along an output axis: tiles along x unroll the guards of
    x, but a row's guard is decided at run time for all of its tile."""
    mine = [f for f in guards(path) if path[axis].var in f.extent.vars()]
    return not mine or (mine[-1] is path[-1] and path[axis].extent.constant() is not None)


def has_select(store: Store) -> bool:
    """Whether selects by an index decide what a product reads."""
    found = (n for n in walk(store.value) if isinstance(n, Select))
    return is_product(store) and any(index_condition(n) is not None for n in found)


def column_guard(path: Sequence[For], t: Tile) -> str:
    """Name of the guard that is decided for each of the neighbouring outputs of a tile, if any."""
    x = path[t.spatial[-1][0]].var if t.spatial else None
    return next((f.var.name for f in guards(path) if x in f.extent.vars()), "")


def registers(target: Target) -> int:
    """Accumulating vectors of a tile."""
    return target.vector_registers - 4


def axes_of(store: Store, weight: Load, data: Load) -> list[Axis]:
    """The output axes, told by which of the operands follow them."""
    out = []
    for k, i in enumerate(store.idx):
        (v,) = i.vars()
        extent = v.extent.constant() if v.extent is not None else None
        out.append(Axis(k, extent, v in index_vars_of(weight), v in index_vars_of(data)))
    return out


def is_wide(a: Axis) -> bool:
    """Whether an axis can be vectorized."""
    return a.extent is not None and a.extent >= 4


def spatial_tile(axes: list[Axis], most: int) -> tuple[tuple[int, int], ...]:
    """Widths along the last one or two axes, together at most `most`."""
    known = [a for a in axes if a.extent is not None and a.extent > 1]
    if not known:
        return ()
    x = known[-1]
    width = best_width(x.extent or 1, most)
    if len(known) > 1 and width == x.extent and 2 * width <= most:
        y = known[-2]
        return ((y.index, best_width(y.extent or 1, most // width)), (x.index, width))
    return ((x.index, width),)


def few_registers(dtype: DType, target: Target) -> bool:
    """Whether a tile of floats has the 16 registers of AVX2, where a fused multiply-add needs no
    other for its product."""
    return target.short_vectors and target.fma and dtype in (FLOAT32, FLOAT64)


def many_registers(dtype: DType, target: Target) -> bool:
    """Whether a tile of floats has the 32 registers of AVX-512, of which each is a line of the
    cache."""
    return target.vector_bytes >= LINE and target.vector_registers >= 32 and dtype == FLOAT32


def threes(vectors: int, taps: bool) -> bool:
    """Whether a tile of few registers has three vectors by four outputs rather than two by six:
    seven loads for twelve products, and not eight, and an odd number of vectors leaves none over.
    Windows of several taps, whose body is longer, gain by the latter only."""
    return vectors in (3, 5) or (vectors > 5 and not taps)


def four_pixels(axes: list[Axis]) -> tuple[tuple[int, int], ...]:
    """Widths along the last one or two axes, four outputs together, that need the fewest tiles;
    () where there are none."""
    last = axes[-2:]
    if any(a.extent is None for a in last):
        return ()
    rows, width = [1, 1, *(a.extent or 1 for a in last)][-2:]
    shapes = [(h, w) for h, w in ((1, 4), (2, 2), (4, 1)) if h <= rows and w <= width]
    if not shapes:
        return ()
    shape = min(shapes, key=lambda s: -(-rows // s[0]) * -(-width // s[1]))
    widths = zip(last, shape[2 - len(last) :], strict=True)
    return tuple((a.index, n) for a, n in widths if n > 1)


def pixel_tile(
    axes: list[Axis], most: int, unit: int = 1
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Widths along known axes (see `spatial_tile`), or one, a multiple of `unit`, along the last
    axis, where the extent of that is known at run time only."""
    several = [a for a in axes if a.extent is None or a.extent > 1]
    if several and several[-1].extent is None:
        return (), ((several[-1].index, max(1, min(RUN_TIME, most) // unit) * unit),)
    return spatial_tile(axes, most), ()


def best_width(extent: int, most: int) -> int:
    """The widest tile that cuts `extent` into equal ones, if it is wider than half of `most` and
    earns its walk over the weights (`ENOUGH` outputs, or four fifths of `most`: of few registers a
    tile that leaves a third unused waits for its sums); else that of the fewest tiles, as equal as
    they can be."""
    equal = max(w for w in range(1, min(extent, most) + 1) if extent % w == 0)
    tiles = -(-extent // most)
    enough = 2 * equal > most and equal >= min(ENOUGH, -(-4 * most // 5))
    return equal if enough or equal == extent else -(-extent // tiles)


def reads_of(s: Store) -> list[Load]:
    """Every element that a statement reads."""
    exprs = [s.value] + ([s.init] if s.init is not None else [])
    return [n for e in exprs for n in walk(e) if isinstance(n, Load)]


def index_vars_of(x: Load) -> set[Var]:
    """The loops that an element depends on."""
    return set().union(*(i.vars() for i in x.idx))


def read_once(body: list[Stmt], constants: Collection[Buffer]) -> list[Buffer]:
    """The constants that a tile may pack: those that one operand of one statement reads. The packed
    array takes the constant's place, so whoever else reads it would find it no more."""
    reads = Counter(b for b, _, written, _ in accesses(body) if not written)
    return [b for b in constants if reads[b] == 1]


def stride_of(x: Load, v: Var) -> int | None:
    """Elements by which a read moves with a loop; None: not by the same number each time."""
    flat = x.buffer.flat(x.idx)
    if any(v in a.leaves() for a in flat.terms if not isinstance(a, Var)):
        return None
    return flat.terms.get(v, 0)


def step_of_channels(data: Load, reduction: Sequence[Var]) -> int:
    """How the first reduction axis is split first; 0: not, since it is not the data's last axis."""
    x = channel_block(data, reduction)
    n = reduction[0].extent.constant() if reduction and reduction[0].extent is not None else None
    if not x:
        return CONTIGUOUS_STEP if reduction and data.idx[-1] == reduction[0] else 0
    return x if n is not None and n <= x else max(x, CONTIGUOUS_STEP)


def channel_block(data: Load, reduction: Sequence[Var]) -> int:
    """x where the first reduction axis reads the data as [c // x, ..., c % x]; else 0."""
    for a in data.idx[-1].terms if reduction and data.idx else ():
        if not isinstance(a, Var) and a.op == "%" and a.a == reduction[0]:
            return a.b.const
    return 0
